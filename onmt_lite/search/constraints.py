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
from torch import Tensor

from onmt_lite.models.base import sent
from onmt_lite.search.plan import Plan
from onmt_lite.search.ranking import Ranked
from onmt_lite.search.scheduler import Slot
from onmt_lite.text.phrase_automaton import Effects, PhraseAutomaton, State

# A word that begins like a banned one may go on with a probability of 2 % at least.  Less likely
# tokens make no word, but a way around the ban
DOUBTFUL = math.log(0.02)


@dataclass(frozen=True)
class Held:
    """Constraints of one step, on the device: N of rows, Z sentences with forced phrases.

    forbidden (N, 2)  rows of the batch, and tokens that may not follow
    bound (N, 4)      rows of the batch; whether they join the next token; whether that must go on
                      with their last word, or must not; whether unlikely tokens may not follow
    goes_on (2, V)    see `Surfaces`; with words of the sentences' own
    steered (Z,)      places of sentences in the batch
    banks (Z, K)      of their rows
    wanted (N, 4)     index of a sentence in `steered`, its row, a token that brings a phrase
                      further, and the bank then
    """

    forbidden: Tensor
    bound: Tensor
    goes_on: Tensor
    steered: Tensor
    banks: Tensor
    wanted: Tensor

    def forbid(self, values: Tensor, norm: Tensor) -> None:
        """Write -inf into values (R, W), less norm (R,), of tokens that may not follow."""
        if len(self.bound):
            rows, joined, must, firm = self.bound.unbind(1)
            found = values[rows, : self.goes_on.size(1)]  # (N, V)
            closed = self.goes_on[joined] != must[:, None].bool()
            closed |= (found < norm[rows, None] + DOUBTFUL) & firm[:, None].bool()
            values[rows, : self.goes_on.size(1)] = found.masked_fill(closed, -math.inf)
        values[self.forbidden[:, 0], self.forbidden[:, 1]] = -math.inf

    def allocate(self, ranked: Ranked, values: Tensor, norm: Tensor, scores: Tensor) -> Ranked:
        """Deal out the candidates (B, N) of sentences with forced phrases among banks.

        values (B, K, W), norm (B, K), scores (B, K): as in `Ranker.rank`
        """
        here, n, v = self.steered[:, None], ranked.score.size(1), self.goes_on.size(1)
        if not len(here):
            return ranked
        log_probs = values[self.steered, :, :v] - norm[self.steered, :, None]  # (Z, K, V)
        totals = log_probs + scores[self.steered, :, None]
        bank_of = torch.zeros_like(totals, dtype=torch.int16)  # of wanted tokens, else 0
        bank_of[self.wanted[:, 0], self.wanted[:, 1], self.wanted[:, 2]] = self.wanted[:, 3].short()
        # The best of each row that are wanted, and the best of the others
        tops = [
            totals.masked_fill(hidden, -math.inf).topk(min(n, v))
            for hidden in (bank_of == 0, bank_of > 0)
        ]
        total = torch.cat([top.values for top in tops], 2).flatten(1)  # (Z, M)
        rows = torch.arange(scores.size(1), device=here.device)[:, None]
        places = torch.cat([top.indices + rows * v for top in tops], 2).flatten(1)
        banks = bank_of.flatten(1).gather(1, places).long()
        banks = torch.where(banks > 0, banks, self.banks.gather(1, places // v))
        order = dealt(total, banks, n)  # (Z, N)
        places = places.gather(1, order)
        rows = places // v + here * scores.size(1)
        log_prob = log_probs.flatten(1).gather(1, places)
        taken = Ranked(total.gather(1, order), rows, places % v, log_prob)
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
        goes_on = torch.zeros(2, n_words, dtype=torch.bool)
        goes_on[1] = True  # words of the sentences' own begin a word unless they are joined
        known = torch.tensor(some.surfaces.goes_on)[:, :n_words]
        goes_on[:, : known.size(1)] = known
        self.goes_on = goes_on.to(device)
        # If no row can be spared, or forbidden tokens make the others more likely, no word
        # begins like a banned one
        apart = plan.beam_size == 1 or plan.beam_groups > 1 or plan.sampling is not None
        self.strict = plan.policy.masks == "logits" or apart

    def tell(self, slots: Sequence[Slot], n_steps: int) -> Held | None:
        """The constraints on rows beyond their prefixes at step n_steps; None if there are none."""
        forbidden, bound, steered, banks, wanted = [], [], [], [], []
        k = self.plan.beam_size
        for b, slot in enumerate(slots):
            phrases, step = self.phrases[slot.number], n_steps - slot.started
            if phrases is None or step <= len(slot.beam.limits.prefix):
                continue
            states = self._states(slot, phrases)
            found = [Effects() if state is None else phrases.effects(state) for state in states]
            spare = any(s and not e.goes_on for s, e in zip(states, found))
            for row, (state, effects) in enumerate(zip(states, found)):
                tokens = [*effects.forbidden]
                # A word of one row alone may begin like a banned one, so that others are spared;
                # none does if the next token may be the last
                if self.strict or n_steps >= slot.last - 1 or row != self.best[slot.number]:
                    tokens += effects.completing
                if not effects.may_end:
                    tokens.append(self.plan.eos_id)
                forbidden += [(b * k + row, token) for token in tokens]
                if state is not None and effects.goes_on is not None:
                    must = effects.goes_on
                    bound.append((b * k + row, state.joined, must, must and spare))
                if any(phrases.paths):
                    wanted += [(len(steered), row, *pair) for pair in effects.wanted]
            if any(phrases.paths):
                steered.append(b)
                banks.append([effects.bank for effects in found])
        if not (forbidden or bound or steered):
            return None
        return Held(
            self._sent(forbidden, 2),
            self._sent(bound, 4),
            self.goes_on,
            self._sent(steered, 1)[:, 0],
            self._sent(banks, k),
            self._sent(wanted, 4),
        )

    def _sent(self, numbers: Sequence[object], width: int) -> Tensor:
        return sent(torch.tensor(numbers, dtype=torch.long).view(-1, width), self.device)

    def _states(self, slot: Slot, phrases: PhraseAutomaton) -> list[State | None]:
        """Of the rows of a sentence; at first they have read its prefix."""
        if slot.number not in self.states:
            state = phrases.start
            for token in slot.beam.limits.prefix:
                state = phrases.after(state, token)
            self.states[slot.number] = [state] * self.plan.beam_size
            self.best[slot.number] = 0
        return self.states[slot.number]

    def follow(self, slots: Sequence[Slot], n_steps: int, newest: Tensor) -> None:
        """Follow the rows of sentences in their slots; newest (B, M): see `Log`."""
        k = self.plan.beam_size
        for b, (slot, line) in enumerate(zip(slots, newest[:, : 3 * k].tolist())):
            phrases = self.phrases[slot.number]
            if phrases is None or n_steps <= slot.started:  # others read start tokens
                continue
            old, scores = self._states(slot, phrases), line[:k]
            states: list[State | None] = []
            for score, parent, token in zip(scores, line[k : 2 * k], line[2 * k :]):
                alive = score > -math.inf and token != self.plan.eos_id
                # A place that no candidate has taken may name a token that there is not
                before = old[int(parent) - b * k] if alive else None
                states.append(None if before is None else phrases.after(before, int(token)))
            self.states[slot.number] = states
            self.best[slot.number] = max(range(k), key=scores.__getitem__)
