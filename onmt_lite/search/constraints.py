"""Phrases that a search must say, or must not.

A `PhraseAutomaton` reads the tokens of each row, and says which may follow and which bring a forced
phrase further.  The host asks it between two steps; the device forbids tokens and chooses rows for
the whole batch.

Forced phrases are met by dynamic beam allocation (Post and Vilar 2018; vectorised by Hu et al.
2019): the rows of a sentence are dealt out in turn among its banks, a bank being the candidates
that hold equally many tokens of its phrases.  The end token comes when all are said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.base import sent
from onmt_lite.search.plan import Plan
from onmt_lite.search.ranking import Ranked
from onmt_lite.search.scheduler import Slot
from onmt_lite.text.phrase_automaton import GOES_ON, Effects, PhraseAutomaton, State

# A word that begins like a banned one may go on with a probability of 2 % at least.  Less likely
# tokens make no word, but a way around the ban
DOUBTFUL = math.log(0.02)


@dataclass(frozen=True)
class Held:
    """Constraints of one step, on the device: N of rows, C classes of tokens, Z sentences with
    forced phrases, P tokens that bring a phrase further, of the sentence with the most.

    forbidden (2, N)   rows of the batch, and tokens that may not follow
    closed (3, N)      rows of the batch, classes of tokens that may not follow, and 1 if unlikely
                       tokens may not follow either
    classes (C, W)     see `onmt_lite.text.surfaces`
    steered (Z,)       places of sentences in the batch
    banks (Z, K)       of their rows
    wanted (Z, P, 3)   rows of the sentence, or -1; tokens; and their banks
    """

    forbidden: Tensor
    closed: Tensor
    classes: Tensor
    steered: Tensor
    banks: Tensor
    wanted: Tensor

    def forbid(self, values: Tensor, norm: Tensor) -> None:
        """Write -inf into values (R, W), less norm (R,), of tokens that may not follow."""
        if self.closed.size(1):
            rows, kinds, firm = self.closed
            spare = values.size(1) - self.classes.size(1)
            closed = F.pad(self.classes, (0, spare))[kinds]  # (N, W)
            closed |= (values[rows] < norm[rows, None] + DOUBTFUL) & (firm[:, None] > 0)
            values[rows] = values[rows].masked_fill(closed, -math.inf)
        if self.forbidden.size(1):
            values[self.forbidden[0], self.forbidden[1]] = -math.inf

    def allocate(self, ranked: Ranked, values: Tensor, norm: Tensor, scores: Tensor) -> Ranked:
        """Deal out the candidates (B, N) of sentences with forced phrases among banks.

        values (B, K, W), norm (B, K), scores (B, K): as in `Ranker.rank`
        """
        z, k, n = len(self.steered), scores.size(1), ranked.score.size(1)
        if not z:
            return ranked
        first = self.steered[:, None] * k
        own = Ranked(*(part[self.steered] for part in vars(ranked).values()))
        best = values.max(2).indices[self.steered]  # (Z, K): no row is left without heir
        rows = torch.arange(k, device=best.device).expand(z, k)
        row, token, bank = self.wanted.unbind(2)
        # Candidates, the best of each row, and wanted tokens: each (Z, N + K + P)
        of_row = torch.cat([own.row - first, rows, row.clamp(min=0)], 1)
        tokens = torch.cat([own.token, best, token], 1)
        banks = torch.cat([self.banks.gather(1, of_row[:, : n + k]), bank], 1)
        log_prob = values[self.steered[:, None], of_row, tokens]
        log_prob = log_prob - norm[self.steered[:, None], of_row]
        total = log_prob + scores[self.steered[:, None], of_row]
        exists = torch.ones_like(total, dtype=torch.bool)
        exists[:, :n] = own.score > -math.inf
        exists[:, n + k :] = row >= 0
        # A candidate may be there several times: of equal ones, the last counts
        same = (of_row[:, :, None] == of_row[:, None]) & (tokens[:, :, None] == tokens[:, None])
        same &= exists[:, None]
        exists &= ~same.triu(1).any(2)
        total = total.masked_fill(~exists, -math.inf)
        order = dealt(total, banks, n)
        taken = Ranked(total, of_row + first, tokens, log_prob).take(order)
        pairs = zip(vars(ranked).values(), vars(taken).values())
        return Ranked(*(old.index_copy(0, self.steered, new) for old, new in pairs))


def dealt(total: Tensor, banks: Tensor, n: int) -> Tensor:
    """The places of n candidates among those with these totals and banks (Z, M): (Z, n).

    The best of each bank, then the second of each, and so on, as many as there is room for, a bank
    with more tokens before one with less; in this order of banks, each by its totals.
    """
    order = total.argsort(dim=1, descending=True, stable=True)
    total, banks = total.gather(1, order), banks.gather(1, order)
    same = banks[:, :, None] == banks[:, None]
    turn = same.tril(-1).sum(2)  # candidates of the bank that are better
    most = int(1e6)
    key = (turn * most - banks).masked_fill(total == -math.inf, most * most)
    taken = key.argsort(dim=1, stable=True)[:, :n].sort(1).values  # by totals again
    exists = total.gather(1, taken) > -math.inf
    banks = banks.gather(1, taken).masked_fill(~exists, -1)
    return order.gather(1, taken.gather(1, banks.argsort(dim=1, descending=True, stable=True)))


class Constraints:
    """The phrases of the sentences of a search, and the states of their rows, on the host."""

    def __init__(
        self,
        plan: Plan,
        phrases: Sequence[PhraseAutomaton | None],
        n_words: int,
        device: torch.device,
    ):
        """phrases: of each sentence of the search, None if it has none.
        n_words: V, and words of the sentences' own."""
        self.plan, self.phrases, self.device = plan, phrases, device
        self.states: dict[int, list[State | None]] = {}  # by the sentence's number; None: no row
        self.best: dict[int, int] = {}  # the row with the highest score
        some = next(each for each in phrases if each is not None)
        classes = torch.tensor(some.surfaces.classes)
        own = classes[:, -1:].expand(-1, max(0, n_words + 1 - classes.size(1)))
        self.classes = torch.cat([classes[:, :-1], own], 1).to(device)  # (C, V + own words)
        # If no row can be spared, or forbidden tokens make the others more likely, no word
        # begins like a banned one
        apart = plan.beam_size == 1 or plan.beam_groups > 1 or plan.sampling is not None
        self.strict = plan.policy.masks == "logits" or apart
        self.forbidden: list[tuple[int, int]] = []
        self.closed: list[tuple[int, int, int]] = []

    def tell(self, slots: Sequence[Slot], n_steps: int) -> Held | None:
        """The constraints on rows beyond their prefixes at step n_steps; None if there are none."""
        self.forbidden, self.closed = [], []
        steered: list[int] = []
        banks: list[list[int]] = []
        wanted: list[list[tuple[int, int, int]]] = []
        for b, slot in enumerate(slots):
            phrases, step = self.phrases[slot.number], n_steps - slot.started
            if phrases is None or step <= len(slot.beam.limits.prefix):
                continue
            effects = self._effects(b, slot, phrases, n_steps >= slot.last - 1)
            if phrases.steers:
                steered.append(b)
                banks.append([each.bank for each in effects])
                wanted.append(
                    [(k, *pair) for k, each in enumerate(effects) for pair in each.wanted]
                )
        if not (self.forbidden or self.closed or steered):
            return None
        return self._sent(steered, banks, wanted)

    def _effects(self, b: int, slot: Slot, phrases: PhraseAutomaton, at_end: bool) -> list[Effects]:
        """The effects on the rows of sentence b; notes the tokens that they forbid.

        at_end: the next token may be the last"""
        states, plan = self._states(slot, phrases), self.plan
        found = [Effects() if state is None else phrases.effects(state) for state in states]
        some_free = any(s is not None and e.closed is None for s, e in zip(states, found))
        for k, effects in enumerate(found):
            row, tokens = b * plan.beam_size + k, [*effects.forbidden]
            # A word of one row alone may begin like a banned one, so that the others are spared
            if self.strict or at_end or k != self.best[slot.number]:
                tokens += effects.completing
            if not effects.may_end:
                tokens.append(plan.eos_id)
            self.forbidden += [(row, token) for token in tokens]
            if effects.closed is not None:
                firm = some_free and effects.closed != GOES_ON
                self.closed.append((row, effects.closed, int(firm)))
        return found

    def _states(self, slot: Slot, phrases: PhraseAutomaton) -> list[State | None]:
        """Of the rows of a sentence; at first they have read its prefix."""
        if slot.number not in self.states:
            state = phrases.start
            for token in slot.beam.limits.prefix:
                state = phrases.after(state, token)
            self.states[slot.number] = [state] * self.plan.beam_size
            self.best[slot.number] = 0
        return self.states[slot.number]

    def _sent(
        self,
        steered: list[int],
        banks: list[list[int]],
        wanted: list[list[tuple[int, int, int]]],
    ) -> Held:
        """On the device, in one transfer."""
        most = max(map(len, wanted), default=0)
        filled = [[*each, *[(-1, 0, -1)] * (most - len(each))] for each in wanted]
        k, z = self.plan.beam_size, len(steered)
        parts = [
            torch.tensor(part, dtype=torch.long).flatten()
            for part in (self.forbidden, self.closed, steered, banks, filled)
        ]
        there = sent(torch.cat(parts), self.device)
        pairs, closed, places, of_rows, then = torch.split(there, [len(part) for part in parts])
        return Held(
            pairs.view(-1, 2).T,
            closed.view(-1, 3).T,
            self.classes,
            places,
            of_rows.view(z, k),
            then.view(z, most, 3),
        )

    def follow(self, slots: Sequence[Slot], n_steps: int, newest: Tensor) -> None:
        """Follow the rows of sentences in their slots; newest (B, M): see `Log`."""
        lines = newest[:, : 3 * self.plan.beam_size].tolist()
        for b, (slot, line) in enumerate(zip(slots, lines)):
            phrases = self.phrases[slot.number]
            if phrases is not None and n_steps > slot.started:  # others read start tokens
                self._read(b, slot, phrases, line)

    def _read(self, b: int, slot: Slot, phrases: PhraseAutomaton, line: list[float]) -> None:
        """Follow the rows of a sentence: `line` has their scores, parents and tokens."""
        k = self.plan.beam_size
        old = self._states(slot, phrases)
        scores, parents, tokens = line[:k], line[k : 2 * k], line[2 * k : 3 * k]
        states: list[State | None] = []
        for score, parent, token in zip(scores, parents, tokens):
            alive = score > -math.inf and token != self.plan.eos_id
            # A place that no candidate has taken may name a token that there is not
            before = old[int(parent) - b * k] if alive else None
            states.append(None if before is None else phrases.after(before, int(token)))
        self.states[slot.number] = states
        self.best[slot.number] = max(range(k), key=scores.__getitem__)
