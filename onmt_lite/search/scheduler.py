"""Sentences on their way into a search: those that wait, and those that run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel
from onmt_lite.models.selection import Selection, sent
from onmt_lite.search.beam import Beam
from onmt_lite.search.beam2018 import Beam2018
from onmt_lite.search.masks import ANY
from onmt_lite.search.plan import Plan, Sentence
from onmt_lite.search.prefix import Past, read_prefixes

# Sources are as wide as a multiple of this.  On a GPU few shapes of steps are recorded; on a CPU a
# sum over a sentence's tokens adds them up in the same order, to the last bit, in every batch
WIDTHS = {"cpu": 16, "cuda": 32}
REFILL = 8  # waiting sentences join when one slot in so many is free


@dataclass
class Slot:
    """A running sentence on the host.

    number   index among the sentences of the search
    started  steps of the frontier before its first one
    last     step of the frontier that reaches its limit
    read     steps of the frontier that the Beam has read from the log
    past     steps that it has made when it joins: its prefix
    """

    number: int
    beam: Beam
    started: int = 0
    last: int = 0
    read: int = 0
    past: Past | None = None


@dataclass
class Table:
    """Running sentences on the device.

    tokens, scores (B, K)             of the newest rows; score -inf: the row is not expanded
    parents (B, K)                    the row of the batch before that each of them continues
    started (B, 1)                    steps of the frontier before the first one
    max_steps, min_end, seed (B, 1)   see `Limits`
    src_length (B, 1)                 in tokens
    lead (B, 1)                       own steps that a sentence has made when it joins, the tokens
                                      of its prefix; below 0: those that it spends on start tokens
    start (B, G)                      tokens that the decoder reads before the first step
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor
    started: Tensor
    max_steps: Tensor
    min_end: Tensor
    seed: Tensor
    src_length: Tensor
    lead: Tensor
    start: Tensor

    def select(self, selection: Selection, fresh: "Table | None" = None) -> "Table":
        """Follow sentences that leave, move and join."""
        others = [None] * len(vars(self)) if fresh is None else vars(fresh).values()
        parts = zip(vars(self).values(), others)
        return Table(*(selection.of_sentences(*part, fill=ANY) for part in parts))


@dataclass
class Encoded:
    """Sentences that are encoded; the first `joined` of them run already.

    history, coverage: see `onmt_lite.search.prefix.Given`.
    """

    slots: list[Slot]
    state: Any
    table: Table
    history: Tensor
    coverage: Tensor
    joined: int = 0

    @property
    def n_waiting(self) -> int:
        return len(self.slots) - self.joined


class Feed:
    """The sentences of a search in the order in which they join, encoded some at a time."""

    def __init__(self, model: AnyModel, plan: Plan, sentences: Sequence[Sentence], n_slots: int):
        self.model, self.plan, self.sentences, self.n_slots = model, plan, sentences, n_slots
        words = [max(s.copy_ids) + 1 for s in sentences if s.copy_ids]
        self.n_words = max([model.vocab_size, *words])  # V + X
        self.first_scores = sent(torch.tensor([plan.first_scores()]), model.device)
        self.encoded: Encoded | None = None
        self.n_encoded = 0
        self.open_2018: set[Beam2018] = set()

    def ready(self, n_free: int) -> int:
        """How many sentences join now, with so many free slots; encodes those that will soon."""
        n_waiting = len(self.sentences) - self.n_encoded
        if n_free < self.n_slots and n_free < self.n_slots / REFILL:
            return 0
        if n_waiting and (self.encoded is None or not self.encoded.n_waiting):
            n = min(n_waiting, max(n_free, self.n_slots // 4))
            self.encoded = self._encode(range(self.n_encoded, self.n_encoded + n))
            self.n_encoded += n
        return min(n_free, self.encoded.n_waiting) if self.encoded else 0

    def _encode(self, numbers: range) -> Encoded:
        chosen, k = [self.sentences[i] for i in numbers], self.plan.beam_size
        device, n_prefix = self.model.device, max(len(s.limits.prefix) for s in chosen)
        starts = [s.limits.start or (self.plan.bos_id,) for s in chosen]
        numbers_of = [facts_of(s, start, n_prefix) for s, start in zip(chosen, starts)]
        facts = sent(torch.tensor(numbers_of), device)
        longest = max(len(s.src) for s in chosen)
        multiple = WIDTHS["cpu" if device.type == "cpu" else "cuda"]
        longest = max(longest, min(-longest % multiple + longest, self.model.max_positions))
        src = sent(padded([s.src for s in chosen], longest, self.plan.src_pad_id), device)
        ids, width = None, None
        if chosen[0].copy_ids is not None:
            copied = padded([s.copy_ids or [] for s in chosen], longest)
            ids, width = sent(copied, device), self.n_words
        with self.plan.clock.phase("encode"):
            memory = self.model.encode(src, facts[:, 4], ids, width)
        sizes = [1] * 6 + [len(starts[0]), 1, n_prefix]
        *of_table, newest, prefix = torch.split(facts, sizes, 1)
        tokens, scores = newest.repeat(1, k), self.first_scores.repeat(len(chosen), 1)
        table = Table(tokens, scores, torch.zeros_like(tokens), *of_table)
        slots = [Slot(i, self._beam(s)) for i, s in zip(numbers, chosen)]
        state, nothing = self.model.init_state(memory), (tokens[:, :0], scores[:, :0])
        encoded = Encoded(slots, state, table, *nothing)
        if n_prefix:
            self._read(encoded, prefix)
        return encoded

    def _read(self, encoded: Encoded, prefix: Tensor) -> None:
        """Let sentences that are encoded read their prefixes (B, P)."""
        table, of_model = encoded.table, (self.model, self.plan, encoded.state)
        of_table = table.start, prefix, table.src_length, table.scores
        given = read_prefixes(*of_model, *of_table, self.n_words)
        table.scores = given.scores
        encoded.history, encoded.coverage = given.history, given.coverage
        for b, slot in enumerate(encoded.slots):
            if n := len(slot.beam.limits.prefix):
                slot.past = given.past(b, n)

    def _beam(self, sentence: Sentence) -> Beam:
        if self.plan.policy.as_2018:
            return Beam2018(self.plan, sentence.limits, self.open_2018)
        return Beam(self.plan, sentence.limits)


def facts_of(sentence: Sentence, start: Sequence[int], n_prefix: int) -> list[int]:
    """The numbers of a `Table` that belong to a sentence, `started` and then the others; the first
    token that a step reads; and the prefix, filled up to n_prefix tokens."""
    own, n = sentence.limits, len(sentence.limits.prefix)
    facts = [0, own.max_steps, own.min_end, own.seed, len(sentence.src), n or 1 - len(start)]
    newest = own.prefix[-1] if n else start[0]
    missing = [ANY] * (n_prefix - n)
    return [*facts, *start, newest, *own.prefix, *missing]


def fill_holes(kept: list[int], joining: Sequence[int]) -> list[int]:
    """The sentence in each slot: as many as possible of `kept` stay where they are, and holes are
    filled with those that join and then with the last ones.

    kept [0, 2, 3], joining [] -> [0, 3, 2].
    """
    n = len(kept) + len(joining)
    stay, movers = {b for b in kept if b < n}, [*joining, *(b for b in kept if b >= n)]
    others = iter(movers)
    return [b if b in stay else next(others) for b in range(n)]


def padded(lists: Sequence[Sequence[int]], n: int, fill: int = 0) -> Tensor:
    """(B, n) from lists of up to n numbers."""
    return torch.tensor([[*numbers, *[fill] * (n - len(numbers))] for numbers in lists])
