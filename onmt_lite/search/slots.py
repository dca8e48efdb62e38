"""Slots: running sentences, on the host and on the device, and those that wait to join."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel, Selection, upload
from onmt_lite.search.beam import Beam
from onmt_lite.search.beam_2018 import make_beam_factory
from onmt_lite.search.spec import NO_TOKEN, SearchSpec, SentenceLimits
from onmt_lite.system.clock import Clock
from onmt_lite.text.phrases import PhraseAutomaton

# Pad sources to this multiple.  GPU: fewer shapes to capture.  CPU: the same summation order over a
# sentence's tokens in every batch
SRC_MULTIPLES = {"cpu": 16, "cuda": 32}
REFILL_SHARE = 8  # waiting sentences join when one slot in this many is free


@dataclass(frozen=True)
class Sentence:
    """A sentence that waits for a slot."""

    src: list[int]
    limits: SentenceLimits
    # For a model that copies: the target id of each source token, from V on words of its own
    copy_ids: list[int] | None = None
    phrases: PhraseAutomaton | None = None  # that it must contain or must not


@dataclass
class Slot:
    """A running sentence on the host."""

    number: int  # index among the sentences of the search
    beam: Beam
    # Steps of the batch
    started: int = 0  # before the sentence's first own step
    forced_until: int = 0  # last step that takes a forced token
    eos_from: int = 0  # first step that may end a hypothesis
    limit_step: int = 0  # step that reaches the sentence's limit
    synced_steps: int = 0  # steps that its Beam has read
    is_finished: bool = False

    def start(self, n_steps: int) -> None:
        """Begin after n_steps steps of the batch, start tokens included."""
        limits = self.beam.limits
        self.started = self.synced_steps = n_steps
        self.forced_until = n_steps + len(limits.prefix)
        self.eos_from = n_steps + limits.min_eos_step
        self.limit_step = n_steps + limits.max_steps


@dataclass
class SlotTable:
    """The running sentences on the device, one row of each table per slot."""

    tokens: Tensor  # (B, K): of the newest rows
    scores: Tensor  # (B, K): of the newest rows; -inf: the row is not expanded
    parents: Tensor  # (B, K): the row of the batch before that each of them continues
    started: Tensor  # (B, 1): see `Slot`
    max_steps: Tensor  # (B, 1): see `SentenceLimits`
    min_eos_step: Tensor  # (B, 1)
    seed: Tensor  # (B, 1)
    src_length: Tensor  # (B, 1): in tokens
    n_prefix: Tensor  # (B, 1)
    forced: Tensor  # (B, G): start tokens and prefix, filled up with NO_TOKEN
    source: Tensor | None = None  # (B, S): filled up with NO_TOKEN; None if no rule looks at it

    def select(self, selection: Selection, fresh: "SlotTable | None" = None) -> "SlotTable":
        """Follow sentences that leave, move and join."""
        columns = {name: column for name, column in vars(self).items() if column is not None}
        for name, column in columns.items():
            new = getattr(fresh, name, None)
            columns[name] = selection.gather_sentences(column, new, fill=NO_TOKEN)
        return SlotTable(**columns)


@dataclass
class EncodedSentences:
    """Sentences that are encoded, with one row each; the first `joined` of them have joined."""

    slots: list[Slot]
    state: Any
    table: SlotTable
    joined: int = 0

    def start(self, joining: Sequence[Slot], n_steps: int) -> None:
        """Let sentences begin after n_steps steps of the batch, start tokens included."""
        self.table.started = torch.full_like(self.table.started, n_steps)  # (B, 1)
        for slot in joining:
            slot.start(n_steps)


class Scheduler:
    """The sentences that wait: encodes them in groups, in the order given.

    n_words  V + X; X: the most words of its own that a sentence has
    encoded  sentences of which some join next; None if all have

    Args:
        model: the model.
        spec: SearchSpec.
        sentences: all sentences of the search.
        n_slots: int, how many run at once.
        clock: Clock, for the time that encoding takes.
    """

    def __init__(
        self,
        model: AnyModel,
        spec: SearchSpec,
        sentences: Sequence[Sentence],
        n_slots: int,
        clock: Clock,
    ):
        self.model, self.spec, self.sentences, self.n_slots = model, spec, sentences, n_slots
        self.clock, self.make_beam = clock, make_beam_factory(spec)
        words = [max(s.copy_ids) + 1 for s in sentences if s.copy_ids]
        self.n_words = max([model.vocab_size, *words])  # V + X
        self.first_scores = upload(
            torch.tensor([spec.get_initial_scores()]), model.device
        )  # (1, K)
        self.encoded: EncodedSentences | None = None
        self.n_encoded = 0

    def join(self, n_free: int) -> tuple[EncodedSentences | None, range]:
        """Return encoded sentences, and which of them join now; None if none joins.

        Args:
            n_free: int, how many slots are free.
        """
        if n_free < self.n_slots and n_free < self.n_slots / REFILL_SHARE:
            return None, range(0)
        n_waiting = len(self.sentences) - self.n_encoded
        if n_waiting and self.encoded is None:
            n = min(n_waiting, max(n_free, self.n_slots // 4))
            self.encoded = self._encode(range(self.n_encoded, self.n_encoded + n))
            self.n_encoded += n
        encoded = self.encoded
        if encoded is None:
            return None, range(0)
        joining = range(encoded.joined, min(encoded.joined + n_free, len(encoded.slots)))
        encoded.joined = joining.stop
        if encoded.joined == len(encoded.slots):
            self.encoded = None
        return encoded, joining

    def _encode(self, numbers: range) -> EncodedSentences:
        chosen, device = [self.sentences[i] for i in numbers], self.model.device
        longest = max(len(s.src) for s in chosen)
        multiple = SRC_MULTIPLES["cpu" if device.type == "cpu" else "cuda"]
        longest = max(longest, min(-longest % multiple + longest, self.model.max_positions))
        src = upload(
            pad_lists([s.src for s in chosen], longest, self.spec.src_pad_id), device
        )  # (B, S)
        table, ids, width = self._table(chosen), None, None
        if chosen[0].copy_ids is not None:
            copied = pad_lists([s.copy_ids or [] for s in chosen], longest)
            ids, width = upload(copied, device), self.n_words  # (B, S)
        with self.clock.phase("encode"):
            memory = self.model.encode(src, table.src_length[:, 0], ids, width)
        slots = [Slot(i, self.make_beam(s.limits)) for i, s in zip(numbers, chosen)]
        return EncodedSentences(slots, self.model.init_state(memory), table)

    def _table(self, chosen: Sequence[Sentence]) -> SlotTable:
        """The table of sentences that join, in one transfer."""
        forced = [[*(s.limits.start or (self.spec.bos_id,)), *s.limits.prefix] for s in chosen]
        widths = [1] * 6 + [max(map(len, forced))]
        facts = [
            (0, own.max_steps, own.min_eos_step, own.seed, len(s.src), len(own.prefix))
            for s, own in ((s, s.limits) for s in chosen)
        ]
        parts = [torch.tensor(facts), pad_lists(forced, widths[-1], NO_TOKEN)]  # (B, 6), (B, G)
        if self.spec.token_rules.encoder_no_repeat_ngram_size:
            widths.append(max(len(s.src) for s in chosen))
            parts.append(pad_lists([s.src for s in chosen], widths[-1], NO_TOKEN))  # (B, S)
        # The columns of a `SlotTable` from `started` on
        columns = torch.split(upload(torch.cat(parts, 1), self.model.device), widths, 1)
        tokens = columns[6][:, :1].repeat(1, self.spec.beam_size)  # (B, K)
        scores = self.first_scores.repeat(len(chosen), 1)  # (B, K)
        return SlotTable(tokens, scores, torch.zeros_like(tokens), *columns)


class Rows:
    """The rows of all running sentences: slot b owns rows b*K ... b*K + K-1.

    slots     the sentences on the host, in the order of their rows
    table     SlotTable: their newest rows and their limits, on the device
    state     the decoder's State
    history   tokens of the rows (R, T), newest last, NO_TOKEN before the first; None if no rule
              needs them
    coverage  attention that each source token has received (R, S), summed over the steps of a row;
              None without a coverage penalty
    """

    table: SlotTable
    state: Any
    history: Tensor | None = None
    coverage: Tensor | None = None

    def __init__(self, spec: SearchSpec, device: torch.device, needs_history: bool):
        self.spec, self.device, self.needs_history = spec, device, needs_history
        self.slots: list[Slot] = []
        # Whether the history has each start token; it has all other tokens
        self.in_history = torch.tensor([*spec.start_in_history, True]).to(device)  # (F + 2,)

    @property
    def forced_until(self) -> int:
        """Last step of the batch that takes a forced token."""
        return max(slot.forced_until for slot in self.slots)

    @property
    def src_length(self) -> Tensor:  # (R, 1)
        return self.expand_to_rows(self.table.src_length)[:, None]

    def expand_to_rows(self, per_sentence: Tensor) -> Tensor:  # (B, 1) -> (R,)
        return per_sentence.expand(-1, self.spec.beam_size).flatten()

    def fill(self, fresh: EncodedSentences) -> None:
        """Let the first sentences join, each with its row K times.

        Tried and left: one row for each sentence until the first step has been chosen, since the K
        are alike.  It took 2 % off the time of the shipped model in int8.
        """
        n = len(fresh.slots)
        fresh.start(fresh.slots, self.spec.n_forced_start)
        self.slots, self.table, self.state = fresh.slots, fresh.table, fresh.state
        if self.needs_history:
            self.history = torch.empty(n, 0, dtype=torch.long, device=self.device)
        if self.spec.has_coverage:
            self.coverage = torch.empty(n, 0, device=self.device)
        rows = torch.arange(n, device=self.device)[:, None]
        self.select(Selection(rows.expand(n, self.spec.beam_size)), 0)

    def correct_scores(self) -> None:
        """Upload scores that a Beam changed on the host."""
        corrections = [slot.beam.corrected_scores for slot in self.slots]
        if any(corrections):
            none = [math.nan] * self.spec.beam_size
            new = upload(torch.tensor([c or none for c in corrections]), self.device)
            self.table.scores = torch.where(new.isnan(), self.table.scores, new)
            for slot in self.slots:
                slot.beam.corrected_scores = None

    def refill(
        self, order: list[int], fresh: EncodedSentences | None, joining: range, n_steps: int
    ) -> None:
        """Give slots to other sentences.

        Args:
            order: the sentence for each slot, by its old slot; from B on, encoded ones.
            fresh: EncodedSentences, if any join.
            joining: which of them.
            n_steps: int, steps of the batch.
        """
        n_old, k = len(self.slots), self.spec.beam_size
        everyone = [*self.slots, *(fresh.slots if fresh else ())]
        self.slots = [everyone[b] for b in order]
        if not order:
            return
        selection = Selection.build(self.table.parents, n_old, order)
        rows, fresh_rows = self.table.parents, None  # (B, K)
        if fresh:
            starting = [fresh.slots[i] for i in joining]
            fresh.start(starting, n_steps + self.spec.n_forced_start)
            fresh_rows = torch.arange(len(fresh.slots), device=self.device)[:, None]
            fresh_rows = (fresh_rows + n_old * k).expand(-1, k)  # (B', K)
        self.table = self.table.select(selection, fresh.table if fresh else None)
        selection = replace(selection, rows=selection.gather_sentences(rows, fresh_rows))
        self.select(selection, n_steps, fresh)

    def select(
        self, selection: Selection, n_steps: int, fresh: EncodedSentences | None = None
    ) -> None:
        """Move the rows and sentences of the decoder's state and of what rules look at."""
        self.state = self.state.select(selection, fresh.state if fresh else None)
        n_joining = len(fresh.slots) if fresh else 0
        if self.history is not None:
            history = _moved(self.history, selection, n_joining, NO_TOKEN)
            first = min(slot.started for slot in self.slots) - self.spec.n_forced_start
            self.history = history[:, max(0, history.size(1) - (n_steps - first)) :]
        if self.coverage is not None:
            self.coverage = _moved(self.coverage, selection, n_joining, 0)


def _moved(x: Tensor, selection: Selection, n_joining: int, fill: int) -> Tensor:
    """Select rows of x (R, N); those that join are full of `fill`."""
    fresh = x.new_full((n_joining, x.size(1)), fill) if n_joining else None
    return selection.gather_rows(x, fresh)


def fill_holes(kept: list[int], joining: Sequence[int]) -> list[int]:
    """Return the sentence in each slot: as many as possible of `kept` stay where they are, and
    those that join and then the last ones fill the holes.

    kept [0, 2, 3], joining [] -> [0, 3, 2].
    """
    n = len(kept) + len(joining)
    stay, movers = {b for b in kept if b < n}, [*joining, *(b for b in kept if b >= n)]
    others = iter(movers)
    return [b if b in stay else next(others) for b in range(n)]


def pad_lists(lists: Sequence[Sequence[int]], n: int, fill: int = 0) -> Tensor:
    """(B, n) from lists of up to n numbers."""
    return torch.tensor([[*numbers, *[fill] * (n - len(numbers))] for numbers in lists])
