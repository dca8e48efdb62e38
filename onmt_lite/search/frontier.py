"""The device's side of a search: the rows of all running sentences, and their next step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder, State, encode
from onmt_lite.models.selection import Selection
from onmt_lite.search.beam import Beam
from onmt_lite.search.beam2018 import Beam2018
from onmt_lite.search.log import Log
from onmt_lite.search.masks import ANY, Demands, Masks, Scored
from onmt_lite.search.plan import Plan, Sentence
from onmt_lite.search.ranking import Ranked, Ranker
from onmt_lite.search.records import Event
from onmt_lite.search.sampling import draw
from onmt_lite.search.scoring import coverage_penalty

REFILL = 8  # waiting sentences join when one slot in so many is free


class NotANumber(CheckpointError):
    """The model's output for a sentence is NaN, so nothing can be ranked."""

    def __init__(self, sentence: int, step: int, line: int | None = None):
        where = f"step {step}" if line is None else f"line {line}, step {step}"
        super().__init__(f"the model returned NaN ({where}); try -precision fp32")
        self.sentence, self.step = sentence, step


@dataclass
class Slot:
    """A running sentence, as the host knows it.

    number   its place among all sentences of the search
    started  steps of the frontier before its first one
    read     steps of the frontier that its Beam has read from the log
    """

    number: int
    beam: Beam
    started: int
    read: int

    @property
    def last(self) -> int:
        """The step of the frontier that is the sentence's last one."""
        return self.started + self.beam.limits.max_steps


@dataclass
class Table:
    """Running sentences, as the device knows them.

    tokens, scores, parents (B, K)   of the newest rows; score -inf: the row is not expanded
    started, max_steps, min_end      (B,) see `Slot` and `Limits`
    src_length, seed (B,)
    prefix (B, P)                    the tokens that must come first, then ANY
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor
    started: Tensor
    max_steps: Tensor
    min_end: Tensor
    src_length: Tensor
    seed: Tensor
    prefix: Tensor

    def select(self, order: Tensor, fresh: "Table | None" = None) -> "Table":
        """The slots `order` (B',), those of `fresh` counted after this table's own."""
        if fresh is None:
            return Table(*(part.index_select(0, order) for part in vars(self).values()))
        n = max(self.prefix.size(1), fresh.prefix.size(1))
        both = [
            replace(table, prefix=pad(table.prefix, (0, n - table.prefix.size(1)), value=ANY))
            for table in (self, fresh)
        ]
        pairs = zip(*(vars(table).values() for table in both))
        return Table(*(torch.cat(pair).index_select(0, order) for pair in pairs))


@dataclass
class Encoded:
    """Sentences that are encoded: `state` and `table` hold those from number `first` on, of which
    the first `joined` run already."""

    state: State
    table: Table
    first: int
    joined: int = 0

    @property
    def waiting(self) -> int:
        return len(self.table.seed) - self.joined


class Frontier:
    """All running sentences, one slot each: slot b owns the rows b*K ... b*K + K-1.

    `admit` lets sentences leave and join, `step` makes one batched step and chooses the next rows
    without the host, `events` reads what happened.
    """

    def __init__(
        self, model: EncoderDecoder, plan: Plan, sentences: Sequence[Sentence], n_slots: int
    ):
        self.model, self.plan, self.sentences, self.n_slots = model, plan, sentences, n_slots
        self.device = model.device
        words = [max(s.copy_ids) + 1 for s in sentences if s.copy_ids]
        self.n_words = max([model.vocab_size, *words])  # V + X
        self.masks = Masks(plan, self.n_words, self.device)
        self.ranker = Ranker(plan, self.n_words, self.masks.block, self.device)
        self.first_scores = torch.tensor([plan.first_scores()], device=self.device)
        self.slots: list[Slot] = []
        self.log = Log(plan, n_slots)
        self.encoded: Encoded | None = None
        self.n_encoded = self.n_steps = 0
        self.batch_2018: list[Beam2018] = []

    # Sentences come and go

    def admit(self) -> bool:
        """Let sentences that are done leave and waiting ones join, and move rows to where the last
        step chose them.  False: no sentence is left."""
        order = [None if slot.beam.done else i for i, slot in enumerate(self.slots)]
        n_joining = self._encode_waiting(order.count(None) + self.n_slots - len(order))
        order = fill_holes(order, n_joining)
        if not order:
            return False
        if n_joining or len(order) < len(self.slots):
            self._move_sentences(order, n_joining)
        elif self.plan.beam_size > 1:
            self._correct_scores()
            self._select(self.table.parents + self._bases(len(self.slots)))
        return True

    def _encode_waiting(self, n_free: int) -> int:
        """How many sentences join now; encodes them, and some more for the next time."""
        n_waiting = len(self.sentences) - self.n_encoded
        waits = self.encoded.waiting if self.encoded else 0
        if not waits + n_waiting or n_free < max(1, min(self.n_slots, 4 * REFILL) // REFILL):
            return 0
        if not waits:
            n = min(n_waiting, max(n_free, self.n_slots // 4))
            self.encoded = self._encode(self.n_encoded, n)
            self.n_encoded += n
        assert self.encoded
        return min(n_free, self.encoded.waiting)
