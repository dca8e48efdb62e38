"""Slots: running sentences on host and device, and the scheduler of waiting sentences."""

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

# Pad sources to this multiple.  GPU: fewer shapes to capture.  CPU: the same summation order in
# every batch
SRC_MULTIPLES = {"cpu": 16, "cuda": 32}
REFILL_SHARE = 8  # admit waiting sentences when 1/8 of the slots are free


@dataclass(frozen=True)
class Sentence:
    """A source sentence, its limits and its phrase constraints."""

    src: list[int]  # token IDs
    limits: SentenceLimits
    # Copy models: target ID of each source token; IDs from V on are source words outside the
    # vocabulary
    copy_ids: list[int] | None = None
    phrases: PhraseAutomaton | None = None  # forced and banned phrases


@dataclass
class Slot:
    """A running sentence on the host."""

    index: int  # among the sentences of its `BeamBatch`
    beam: Beam
    # Step numbers of the batch
    start_step: int = 0  # last step before the sentence's first
    last_forced_step: int = 0  # last step with a forced token
    first_eos_step: int = 0  # first step that may take EOS
    limit_step: int = 0  # step at which the sentence reaches its limit
    synced_steps: int = 0  # the Beam has the rows of all steps up to this one
    is_finished: bool = False

    def start(self, n_steps: int) -> None:
        """Set the step numbers of a sentence that starts after n_steps steps of the batch."""
        limits = self.beam.limits
        self.start_step = self.synced_steps = n_steps
        self.last_forced_step = n_steps + len(limits.prefix)
        self.first_eos_step = n_steps + limits.min_eos_step
        self.limit_step = n_steps + limits.max_steps


@dataclass
class SlotTable:
    """Running sentences on the device, one entry per slot."""

    tokens: Tensor  # (B, K) int64, newest token of each row
    scores: Tensor  # (B, K) float32, scores of the rows; -inf: the row is not expanded
    parents: Tensor  # (B, K) int64, back-pointers as rows of the batch
    start_step: Tensor  # (B, 1) int64, see `Slot`
    max_steps: Tensor  # (B, 1) int64, see `SentenceLimits`
    min_eos_step: Tensor  # (B, 1) int64
    seed: Tensor  # (B, 1) int64
    src_length: Tensor  # (B, 1) int64, in tokens
    n_prefix: Tensor  # (B, 1) int64, number of prefix tokens
    forced: Tensor  # (B, G) int64, start tokens and prefix, padded with NO_TOKEN
    # (B, S) int64, padded with NO_TOKEN; None if no processor needs it
    source: Tensor | None = None

    def select(self, selection: Selection, fresh: "SlotTable | None" = None) -> "SlotTable":
        """Keep, move and add sentences.

        Args:
            selection: the sentence for each slot.
            fresh: table of newly encoded sentences, if any are added.
        """
        columns = {name: column for name, column in vars(self).items() if column is not None}
        for name, column in columns.items():
            new = getattr(fresh, name, None)
            columns[name] = selection.gather_sentences(column, new, fill=NO_TOKEN)
        return SlotTable(**columns)


@dataclass
class EncodedSentences:
    """Encoded sentences, one row each; the first `n_admitted` of them have a slot."""

    slots: list[Slot]
    state: Any
    table: SlotTable
    n_admitted: int = 0

    def start(self, joining: Sequence[Slot], n_steps: int) -> None:
        """Set the step numbers of sentences that join the batch.

        Args:
            joining: the sentences.
            n_steps: steps of the batch before the first step of the sentences, their steps for
                start tokens included.
        """
        self.table.start_step = torch.full_like(self.table.start_step, n_steps)  # (B, 1)
        for slot in joining:
            slot.start(n_steps)


class Scheduler:
    """Queue of waiting sentences; encodes them in groups and admits them to free slots in order.

    n_words  V + X, where X is the maximum number of source words outside the vocabulary
    encoded  the last group of encoded sentences if some still wait for a slot, else None

    Args:
        model: the model, on its device.
        spec: settings shared by all sentences.
        sentences: all sentences of the batch.
        n_slots: number of sentences that run at once.
        clock: measures the time spent on encoding.
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
        first_scores = torch.tensor([spec.get_initial_scores()])
        self.first_scores = upload(first_scores, model.device)  # (1, K)
        self.encoded: EncodedSentences | None = None
        self.n_encoded = 0

    def admit(self, n_free: int) -> tuple[EncodedSentences | None, range]:
        """Admit waiting sentences to free slots.

        Args:
            n_free: number of free slots.

        Returns:
            A group of encoded sentences (None if no sentence is admitted), and the indices within
            the group of the sentences that are admitted.
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
        joining = range(encoded.n_admitted, min(encoded.n_admitted + n_free, len(encoded.slots)))
        encoded.n_admitted = joining.stop
        if encoded.n_admitted == len(encoded.slots):
            self.encoded = None
        return encoded, joining

    def _encode(self, indices: range) -> EncodedSentences:
        """Encode a group of sentences; each has one decoder row until it gets a slot."""
        chosen, device = [self.sentences[i] for i in indices], self.model.device
        longest = max(len(s.src) for s in chosen)
        multiple = SRC_MULTIPLES["cpu" if device.type == "cpu" else "cuda"]
        longest = max(longest, min(-longest % multiple + longest, self.model.max_positions))
        src = pad_lists([s.src for s in chosen], longest, self.spec.src_pad_id)
        src = upload(src, device)  # (B, S)
        table, ids, width = self._make_table(chosen), None, None
        if chosen[0].copy_ids is not None:
            copied = pad_lists([s.copy_ids or [] for s in chosen], longest)
            ids, width = upload(copied, device), self.n_words  # (B, S)
        with self.clock.phase("encode"):
            memory = self.model.encode(src, table.src_length[:, 0], ids, width)
        slots = [Slot(i, self.make_beam(s.limits)) for i, s in zip(indices, chosen)]
        return EncodedSentences(slots, self.model.init_state(memory), table)

    def _make_table(self, chosen: Sequence[Sentence]) -> SlotTable:
        """Build the `SlotTable` of sentences with a single transfer to the device."""
        forced = [[*(s.limits.start or (self.spec.bos_id,)), *s.limits.prefix] for s in chosen]
        widths = [1] * 6 + [max(map(len, forced))]
        numbers = [
            (0, limits.max_steps, limits.min_eos_step, limits.seed, len(s.src), len(limits.prefix))
            for s, limits in ((s, s.limits) for s in chosen)
        ]
        parts = [torch.tensor(numbers), pad_lists(forced, widths[-1], NO_TOKEN)]  # (B, 6), (B, G)
        if self.spec.token_rules.encoder_no_repeat_ngram_size:
            widths.append(max(len(s.src) for s in chosen))
            parts.append(pad_lists([s.src for s in chosen], widths[-1], NO_TOKEN))  # (B, S)
        # Columns of a `SlotTable` from `start_step` on
        columns = torch.split(upload(torch.cat(parts, 1), self.model.device), widths, 1)
        tokens = columns[6][:, :1].repeat(1, self.spec.beam_size)  # (B, K)
        scores = self.first_scores.repeat(len(chosen), 1)  # (B, K)
        return SlotTable(tokens, scores, torch.zeros_like(tokens), *columns)


class Rows:
    """Rows of all running sentences; slot b has the rows b*K to b*K + K-1.

    slots     sentences on the host
    table     sentences on the device
    state     decoder state of the R rows
    history   (R, T) int64, tokens of the rows, newest last, padded with NO_TOKEN on the left; None
              if no processor needs them
    coverage  (R, S) float32, sum of attention that each source token has received from a row; None
              without a coverage penalty

    Args:
        spec: settings shared by all sentences.
        device: the model's device.
        needs_history: True if a processor reads the history.
    """

    table: SlotTable
    state: Any
    history: Tensor | None = None
    coverage: Tensor | None = None

    def __init__(self, spec: SearchSpec, device: torch.device, needs_history: bool):
        self.spec, self.device, self.needs_history = spec, device, needs_history
        self.slots: list[Slot] = []
        # By start token: True if the history includes it; the last entry is for all later tokens
        self.in_history = torch.tensor([*spec.start_in_history, True]).to(device)  # (F + 2,)

    @property
    def last_forced_step(self) -> int:
        """Last step of the batch with a forced token."""
        return max(slot.last_forced_step for slot in self.slots)

    @property
    def src_length(self) -> Tensor:
        """Number of source tokens of each row (R, 1)."""
        return self.expand_to_rows(self.table.src_length)[:, None]

    def expand_to_rows(self, per_sentence: Tensor) -> Tensor:
        """Repeat a value per sentence (B, 1) for each of its rows (R,)."""
        return per_sentence.expand(-1, self.spec.beam_size).flatten()

    def fill(self, fresh: EncodedSentences) -> None:
        """Fill the batch with its first sentences, and copy each row K times.

        Tried and left: one row per sentence at the first step, since the K rows are copies.  It
        saved only 2 % of the time with the shipped model in int8.
        """
        n = len(fresh.slots)
        fresh.start(fresh.slots, self.spec.n_forced_start)
        self.slots, self.table, self.state = fresh.slots, fresh.table, fresh.state
        if self.needs_history:
            self.history = torch.empty(n, 0, dtype=torch.long, device=self.device)
        if self.spec.has_coverage:
            self.coverage = torch.empty(n, 0, device=self.device)
        rows = torch.arange(n, device=self.device)[:, None]  # (B, 1)
        self.select(Selection(rows.expand(n, self.spec.beam_size)), 0)

    def correct_scores(self) -> None:
        """Upload scores that a Beam changed on the host."""
        corrections = [slot.beam.corrected_scores for slot in self.slots]
        if any(corrections):
            none = [math.nan] * self.spec.beam_size
            new = upload(torch.tensor([c or none for c in corrections]), self.device)  # (B, K)
            self.table.scores = torch.where(new.isnan(), self.table.scores, new)  # (B, K)
            for slot in self.slots:
                slot.beam.corrected_scores = None

    def refill(
        self, order: list[int], fresh: EncodedSentences | None, joining: range, n_steps: int
    ) -> None:
        """Reassign slots to running and new sentences.

        Args:
            order: for each slot, the old slot of its sentence, or B + i for sentence i of `fresh`.
            fresh: encoded sentences, if any are added.
            joining: indices of the encoded sentences that are added.
            n_steps: steps of the batch.
        """
        n_old, k = len(self.slots), self.spec.beam_size
        old_and_new = [*self.slots, *(fresh.slots if fresh else ())]
        self.slots = [old_and_new[b] for b in order]
        if not order:
            return
        rows, fresh_rows = self.table.parents, None  # (B, K)
        selection = Selection.build(rows, n_old, order)  # its rows are replaced below
        if fresh:
            starting = [fresh.slots[i] for i in joining]
            fresh.start(starting, n_steps + self.spec.n_forced_start)
            fresh_rows = torch.arange(len(fresh.slots), device=self.device)[:, None]  # (B', 1)
            fresh_rows = (fresh_rows + n_old * k).expand(-1, k)  # (B', K)
        self.table = self.table.select(selection, fresh.table if fresh else None)
        selection = replace(selection, rows=selection.gather_sentences(rows, fresh_rows))
        self.select(selection, n_steps, fresh)

    def select(
        self, selection: Selection, n_steps: int, fresh: EncodedSentences | None = None
    ) -> None:
        """Reorder rows and sentences of the decoder state, history and coverage.

        Args:
            selection: the old row for each new row, and the sentence for each slot.
            n_steps: steps of the batch.
            fresh: encoded sentences, if any are added.
        """
        self.state = self.state.select(selection, fresh.state if fresh else None)
        n_joining = len(fresh.slots) if fresh else 0
        if self.history is not None:
            history = _select_rows(self.history, selection, n_joining, NO_TOKEN)
            first = min(slot.start_step for slot in self.slots) - self.spec.n_forced_start
            self.history = history[:, max(0, history.size(1) - (n_steps - first)) :]
        if self.coverage is not None:
            self.coverage = _select_rows(self.coverage, selection, n_joining, 0)


def _select_rows(x: Tensor, selection: Selection, n_joining: int, fill: int) -> Tensor:
    """Select rows of x (R, N).

    Args:
        x: a tensor with one entry per row.
        selection: the old row for each new row.
        n_joining: number of encoded sentences; their rows are filled with `fill`.
        fill: initial value of new rows.
    """
    fresh = x.new_full((n_joining, x.size(1)), fill) if n_joining else None  # (B', N)
    return selection.gather_rows(x, fresh)


def fill_holes(kept: list[int], joining: Sequence[int]) -> list[int]:
    """Return the sentence for each slot, moving as few sentences as possible.

    Sentences are numbered by old slot; numbers from B on are new sentences.  New sentences and then
    the last running sentences fill the holes: kept [0, 2, 3], joining [] -> [0, 3, 2].

    Args:
        kept: numbers of the sentences that continue.
        joining: numbers of the new sentences.
    """
    n = len(kept) + len(joining)
    stay = {b for b in kept if b < n}
    movers = iter([*joining, *(b for b in kept if b >= n)])
    return [b if b in stay else next(movers) for b in range(n)]


def pad_lists(lists: Sequence[Sequence[int]], n: int, fill: int = 0) -> Tensor:
    """Return a tensor (B, n).

    Args:
        lists: B lists of at most n integers.
        n: width of the tensor.
        fill: padding value.
    """
    return torch.tensor([[*numbers, *[fill] * (n - len(numbers))] for numbers in lists])
