"""Phrases that a search must say, or must not.

What a phrase is, only the sentence's `Wishes` know: they read the tokens of each row and say which
may follow, and which bring a phrase further.  The host asks them between two steps; the device
forbids tokens and chooses rows for the whole batch.

Forced phrases are met by dynamic beam allocation (Post and Vilar 2018; vectorised by Hu et al.
2019): the rows of a sentence are dealt out in turn among its banks, a bank being the candidates
that hold equally many tokens of its phrases.  The end token comes when all are said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.selection import sent
from onmt_lite.search.beam import Beam
from onmt_lite.search.plan import Plan, Sentence
from onmt_lite.search.ranking import Ranked
from onmt_lite.text.effects import Effects

ENDING = 2  # the first class of tokens before which no word ends
# How a word that begins like a banned one may go on: with a probability of 2 % at least.  What is
# less likely is no word, but a way around the ban
DOUBTFUL = math.log(0.02)

State = Any  # what `Wishes` know of a row


class Slot(Protocol):
    """See `onmt_lite.search.scheduler`."""

    number: int
    beam: Beam
    started: int
    last: int


class Wishes(Protocol):
    """What a sentence asks of the text of its hypotheses; see `onmt_lite.text.phrase_automaton`."""

    start: State
    says: list[int]  # tokens of its forced phrases
    classes: list[list[bool]]  # see `onmt_lite.text.surfaces`

    @property
    def steers(self) -> bool: ...

    def after(self, state: State, token: int) -> State: ...

    def effects(self, state: State) -> Effects: ...


@dataclass
class Told:
    """What the host tells a step: each list for the whole batch, rows by their place in it.

    forbidden   (row, token) that may not be
    completing  (sentence, row, token): of each sentence the best one alone may be
    closed      (row, class) of tokens that may not follow
    steered     sentences with forced phrases
    banks       of their rows
    wanted      of each such sentence, its (row, token, bank)
    """

    forbidden: list[tuple[int, int]] = field(default_factory=list)
    completing: list[tuple[int, int, int]] = field(default_factory=list)
    closed: list[tuple[int, int]] = field(default_factory=list)
    steered: list[int] = field(default_factory=list)
    banks: list[list[int]] = field(default_factory=list)
    wanted: list[list[tuple[int, int, int]]] = field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """The same on the device: pairs (2, N), triples (3, N) and classes (C, W) of tokens.

    steered (Z,), banks (Z, K), wanted (Z, P, 3): P is that of the sentence with the most; the rows
    of the others are -1
    """

    beam_size: int
    forbidden: Tensor
    completing: Tensor
    closed: Tensor
    steered: Tensor
    banks: Tensor
    wanted: Tensor
    classes: Tensor

    @property
    def steers(self) -> bool:
        """Whether any sentence has forced phrases."""
        return len(self.steered) > 0

    def forbid(self, values: Tensor, norm: Tensor, scores: Tensor) -> None:
        """Write -inf into values (R, W) where tokens may not follow.

        norm, scores (R,): what is taken off the values of a row, and what the row has already.
        """
        if self.closed.size(1):
            rows, kinds = self.closed
            these = F.pad(self.classes, (0, values.size(1) - self.classes.size(1)))[kinds]
            alive = (scores > -math.inf).view(-1, self.beam_size).sum(1)
            spared = (kinds < ENDING) & (alive[rows // self.beam_size] > 1)
            doubtful = values[rows] < (norm[rows] + DOUBTFUL)[:, None]
            these |= doubtful & spared[:, None]
            values[rows] = values[rows].masked_fill(these, -math.inf)
        if self.forbidden.size(1):
            values[self.forbidden[0], self.forbidden[1]] = -math.inf
        if self.completing.size(1):
            sentences, rows, tokens = self.completing
            totals = values[rows, tokens] - norm[rows] + scores[rows]
            best = totals.new_full((len(scores),), -math.inf)
            best = best.scatter_reduce(0, sentences, totals, "amax")
            lost = totals < best[sentences]
            values[rows, tokens] = values[rows, tokens].masked_fill(lost, -math.inf)

    def allocate(self, ranked: Ranked, values: Tensor, norm: Tensor, scores: Tensor) -> Ranked:
        """The candidates (B, N) with those of sentences with forced phrases dealt out among banks.

        values (B, K, W), norm (B, K), scores (B, K): what the candidates were ranked by.
        """
        z, k, n = len(self.steered), scores.size(1), ranked.score.size(1)
        first = self.steered[:, None] * k
        own = Ranked(*(part[self.steered] for part in vars(ranked).values()))
        best = values.max(2).indices[self.steered]  # of each row: no row is left without heir
        rows = torch.arange(k, device=best.device).expand(z, k)
        row, token, bank = self.wanted.unbind(2)
        of_row = torch.cat([own.row - first, rows, row.clamp(min=0)], 1)  # of what is none, any
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
        parts = (total, of_row + first, tokens, log_prob)
        taken = Ranked(*(part.gather(1, order) for part in parts))
        return Ranked(
            *(
                old.index_copy(0, self.steered, new)
                for old, new in zip(vars(ranked).values(), vars(taken).values())
            )
        )


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


class Keeper:
    """The wishes of the sentences of a search and the states of their rows, on the host."""

    def __init__(
        self, plan: Plan, wishes: Sequence[Wishes | None], n_words: int, device: torch.device
    ):
        """wishes: of each sentence of the search, None where it has none.
        n_words: V, and words of the sentences' own."""
        self.plan, self.wishes, self.device = plan, wishes, device
        self.states: dict[int, list[State]] = {}
        some = next(w for w in wishes if w is not None)
        both = torch.tensor(some.classes)
        classes, own = both[:, :-1], both[:, -1:]
        n_own = max(0, n_words - classes.size(1))
        self.classes = torch.cat([classes, own.expand(-1, n_own)], 1).to(device)
        # Where one row cannot be spared, or what is forbidden makes the rest more likely, no word
        # begins like a banned one
        logits = plan.policy.masks == "logits"
        apart = plan.beam_size == 1 or plan.beam_groups > 1 or plan.sampling is not None
        self.strict = logits or apart
        self.told = Told()

    def tell(self, slots: Sequence[Slot], n_steps: int) -> Held | None:
        """What step n_steps is told of rows beyond their prefixes: None where nothing is."""
        self.told = told = Told()
        for b, slot in enumerate(slots):
            wishes, step = self.wishes[slot.number], n_steps - slot.started
            if wishes is not None and step > len(slot.beam.limits.prefix):
                states = self._states(slot, wishes)
                self._tell(told, b, wishes, states, n_steps >= slot.last - 1)
        if not (told.forbidden or told.completing or told.closed or told.steered):
            return None
        return self._sent(told)

    def _states(self, slot: Slot, wishes: Wishes) -> list[State]:
        """Of the rows of a sentence; at first they have read its prefix."""
        if slot.number not in self.states:
            state = wishes.start
            for token in slot.beam.limits.prefix:
                state = wishes.after(state, token)
            self.states[slot.number] = [state] * self.plan.beam_size
        return self.states[slot.number]

    def _tell(
        self, told: Told, slot: int, wishes: Wishes, states: list[State], at_end: bool
    ) -> None:
        k, first = self.plan.beam_size, slot * self.plan.beam_size
        banks, wanted = [0] * k, list[tuple[int, int, int]]()
        for row, state in enumerate(states):
            if state is None:
                continue
            effects = wishes.effects(state)
            told.forbidden += [(first + row, t) for t in effects.forbidden]
            if self.strict or at_end:
                told.forbidden += [(first + row, t) for t in effects.completing]
            else:
                told.completing += [(slot, first + row, t) for t in effects.completing]
            told.closed += [(first + row, kind) for kind in effects.closed]
            if not effects.may_end:
                told.forbidden.append((first + row, self.plan.eos_id))
            banks[row] = effects.bank
            wanted += [(row, token, bank) for token, bank in effects.wanted]
        if wishes.steers:
            told.steered.append(slot)
            told.banks.append(banks)
            told.wanted.append(wanted)

    def _sent(self, told: Told) -> Held:
        """On the device, in one transfer."""
        most = max(map(len, told.wanted), default=0)
        wanted = [[*each, *[(-1, 0, -1)] * (most - len(each))] for each in told.wanted]
        k, z = self.plan.beam_size, len(told.steered)
        parts: list[tuple[Any, tuple[int, ...]]] = [
            (told.forbidden, (-1, 2)),
            (told.completing, (-1, 3)),
            (told.closed, (-1, 2)),
            (told.steered, (z,)),
            (told.banks, (z, k)),
            (wanted, (z, most, 3)),
        ]
        flat = [torch.tensor(part, dtype=torch.long).flatten() for part, _ in parts]
        sizes = [len(part) for part in flat]
        there = sent(torch.cat(flat), self.device)
        pairs, triples, closed, steered, banks, then = (
            part.view(*(len(part) // shape[1] if n == -1 else n for n in shape))
            for part, (_, shape) in zip(torch.split(there, sizes), parts)
        )
        return Held(k, pairs.T, triples.T, closed.T, steered, banks, then, self.classes)

    def forbade(self, row: int, token: int) -> bool:
        """Whether phrases kept a token from following a row of the batch in the newest step."""
        completing = [(r, t) for _, r, t in self.told.completing]
        closed = any(r == row for r, _ in self.told.closed)
        return closed or (row, token) in {*self.told.forbidden, *completing}

    def follow(self, slots: Sequence[Slot], n_steps: int, newest: Tensor) -> None:
        """Follow the rows of sentences in their slots; newest (B, M): see `Log`."""
        lines = newest[:, : 3 * self.plan.beam_size].tolist()
        for b, (slot, line) in enumerate(zip(slots, lines)):
            wishes = self.wishes[slot.number]
            if wishes is not None and n_steps > slot.started:  # others read start tokens
                self._read(b, slot, wishes, line)

    def _read(self, b: int, slot: Slot, wishes: Wishes, line: list[float]) -> None:
        """Follow the rows of a sentence: `line` has their scores, parents and tokens."""
        k = self.plan.beam_size
        old = self._states(slot, wishes)
        states: list[State] = []
        for score, parent, token in zip(line[:k], line[k : 2 * k], line[2 * k : 3 * k]):
            alive = score > -math.inf and token != self.plan.eos_id
            # A place that no candidate has taken may name a token that there is not
            before = old[int(parent) - b * k] if alive else None
            states.append(None if before is None else wishes.after(before, int(token)))
        self.states[slot.number] = states


def keeper_of(
    plan: Plan, sentences: Sequence[Sentence], n_words: int, device: torch.device
) -> Keeper | None:
    """What keeps the wishes of the sentences; None where they have none."""
    wishes = [sentence.wishes for sentence in sentences]
    return Keeper(plan, wishes, n_words, device) if any(w is not None for w in wishes) else None
