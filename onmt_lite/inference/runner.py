"""Runner: one model on its device; it searches, scores and aligns, in batches that have room."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference.loading import read_checkpoint
from onmt_lite.inference.postprocess import Postprocessor, reference_log_prob
from onmt_lite.inference.records import EMPTY_HYPOTHESIS, Example, SearchResult
from onmt_lite.inference.runtime import BatchBudget, OomRetry, move_to
from onmt_lite.inference.search_setup import SearchConfig, needs_log_softmax, to_sentence
from onmt_lite.models.base import AnyModel, EncoderDecoder, HeadSelection
from onmt_lite.models.cuda_graphs import CudaGraphCapture, release_graphs_on_oom, use_cuda_graphs
from onmt_lite.search.beam import NOT_A_NUMBER, Beam
from onmt_lite.search.beam_search import BeamBatch, decode
from onmt_lite.search.slots import pad_lists
from onmt_lite.search.step_log import ChosenRows
from onmt_lite.search.teacher_forcing import compute_target_attention, score_targets
from onmt_lite.system.clock import Clock

R = TypeVar("R")

Group = tuple[list[Example], int]  # and how many of them are in memory at once
Targets = tuple[Tensor, Tensor, list[list[int]], list[tuple[int, ...]], int]


class Observer(Protocol):
    """Follows the searches of a batch that has traced lines, as `onmt_lite.trace` does."""

    def on_step(self, batch: BeamBatch, chosen: ChosenRows) -> None:
        """Called after each step of the loop."""

    def add_trace(self, number: int, beam: Beam, found: SearchResult) -> SearchResult:
        """Called when the search of an example ends; return its result with the trace."""


class Runner:
    """Runs a model over examples.

    observe  called for each batch that has traced lines, with the Renderer and its examples
    """

    observe: Callable[[Postprocessor, Sequence[Example]], Observer] | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: TranslateOptions,
        device: torch.device,
        budget: BatchBudget,
        postprocessor: Postprocessor,
    ):
        self.options = options
        self.checkpoint, self.device, self.budget = checkpoint, device, budget
        self.postprocessor = postprocessor
        self.model: EncoderDecoder = checkpoint.model
        self.searched: AnyModel = self.model  # as searches run it: a GPU records its steps
        if device.type == "cuda":
            self.searched = use_cuda_graphs(self.model, CudaGraphCapture(device))
        # Waiting sentences join a batch.  A GPU would idle with few; a CPU is faster with batches
        # that shrink (docs/design.md)
        self.refills = device.type == "cuda"
        self.needs_log_softmax = needs_log_softmax(options, checkpoint)
        self.room = OomRetry("lower beam_size or max_length")
        self.score_room = OomRetry("shorten its target")
        self.align_room = OomRetry("leave report_align out")
        timed_gpu = options.information.report_time and device.type == "cuda"
        self.clock = Clock(torch.cuda.synchronize) if timed_gpu else Clock()

    @functools.cached_property
    def exact_model(self) -> EncoderDecoder:
        """The model in fp32, read once more if its weights have been released.  MemoryExhausted if
        there is no room beside the other."""
        released = getattr(self.model, "released", False)
        model = read_checkpoint(self.options).model if released else self.model
        return move_to(model, self.device, "fp32", in_place=released)

    # ---- search ----

    def groups(self, examples: list[Example], config: SearchConfig) -> list[Group]:
        """The examples in groups, each of which is one call of `search`."""
        speed, limit = config.options.speed, self.budget.limit(config.spec.beam_size)
        size, most, kind = speed.batch_size, math.inf, speed.batch_type
        if speed.deterministic:
            size, kind = 1, "sents"
        elif size is None:
            size = limit.tokens if kind == "tokens" else limit.sentences
            most = limit.sentences
        batches = make_batches(examples, size, kind, max_sentences=most)
        return merge_batches(batches, self._joins(config))

    def search(
        self, group: list[Example], n_slots: int, config: SearchConfig
    ) -> list[SearchResult]:
        """Search for the best hypotheses of each example; n_slots run at once, or as many as memory
        has room for.  An example for which the model returns NaN is tried once more."""
        found = self._search(self.searched, group, n_slots, config)
        fine = [i for i, each in enumerate(found) if each.hyps]
        if config.spec.policy.depends_on_batch and len(fine) < len(group):  # on the others, too
            again = self.search([group[i] for i in fine], n_slots, config)
            for i, each in zip(fine, again):
                found[i] = each
        return [f if f.hyps else self._retry(e, config) for e, f in zip(group, found)]

    def _retry(self, example: Example, config: SearchConfig) -> SearchResult:
        """Search in fp32 for an example alone; blank if that fails as well."""
        blank = SearchResult([EMPTY_HYPOTHESIS], NOT_A_NUMBER)
        try:
            (found,) = self._search(self.exact_model, [example], 1, config)
        except MemoryExhausted:
            return blank
        return found if found.hyps else blank

    def _search(
        self, model: AnyModel, group: list[Example], n_slots: int, config: SearchConfig
    ) -> list[SearchResult]:
        def width(example: Example) -> int:
            return source_length(example) * config.spec.beam_size

        return self.room.run(group, n_slots, width, partial(self._decode, model, config))

    def _joins(self, config: SearchConfig) -> bool:
        """Whether waiting sentences may join a batch; 2018's results depend on who is in it."""
        apart = config.spec.policy.depends_on_batch or config.options.speed.deterministic
        return self.refills and not apart

    def _decode(
        self, model: AnyModel, config: SearchConfig, group: list[Example], n_slots: int
    ) -> Iterator[tuple[int, SearchResult]]:
        """Yield the place of each example in the group and its result when its search ends."""
        aligns = config.spec.track_attention or any(e.needs_alignment for e in group)
        spec = replace(config.spec, track_attention=aligns)
        # A GPU that refills is at a step of one batch while the host reads that of another
        n_joint, n_batches = (len(group), 2) if self._joins(config) else (n_slots, 1)
        with release_graphs_on_oom(model):
            for start, part in parts_of(group, n_joint):
                observer = on_step = None
                if self.observe is not None and any(example.line.traced for example in part):
                    observer = self.observe(self.postprocessor, part)
                    # It knows sentences by their numbers in one batch
                    on_step, n_batches = observer.on_step, 1
                sentences = [to_sentence(config, example) for example in part]
                for i, beam in decode(
                    model, sentences, spec, n_slots, on_step, n_batches, self.clock
                ):
                    with self.clock.phase("tokenize"):
                        found = self.postprocessor.make_result(
                            beam, part[i], config.n_returned, config.replaces_unk_later
                        )
                        if observer is not None:
                            found = observer.add_trace(i, beam, found)
                    yield start + i, found

    # ---- given targets ----

    def score(self, examples: Sequence[Example], alone: bool) -> list[list[float] | None]:
        """Log-probabilities of each example's target; None if either side is missing.  NaN if the
        model returns NaN, once more in fp32 and alone.  `alone`: no batches."""
        room, work = self.score_room, partial(self._score, self.model)
        made = self._over_targets(examples, alone, room, work)
        return [
            self._rescore(example)
            if scores is not None and reference_log_prob(scores) is None
            else scores
            for example, scores in zip(examples, made)
        ]

    def _rescore(self, example: Example) -> list[float] | None:
        """The scores of an example alone in fp32; NaN if there is no room for that."""
        try:
            work = partial(self._score, self.exact_model)
            return self._over_targets([example], True, self.score_room, work)[0]
        except MemoryExhausted:
            return [math.nan]

    def _score(self, model: EncoderDecoder, part: list[Example]) -> list[list[float]]:
        given, copied = self._given(part)
        return score_targets(
            model, *given, self.needs_log_softmax, copied, self.budget.scored_logits
        )

    def attend(
        self, examples: Sequence[Example], heads: HeadSelection, alone: bool
    ) -> list[Tensor | None]:
        """For each example the weights (T + 1, S) of its source for the T tokens of its target and
        the end token; None if either side is missing.  `alone`: no batches."""

        def attend(part: list[Example]) -> list[Tensor]:
            given, copied = self._given(part)
            return compute_target_attention(self.model, *given, heads, copied)

        return self._over_targets(examples, alone, self.align_room, attend)

    def _given(self, part: list[Example]) -> tuple[Targets, Tensor | None]:
        """Return the arguments of `score_targets`, and the copied ids."""
        pad_id = self.checkpoint.src_vocab.pad_id or 0
        src, src_lengths, copied = pad_batch(part, pad_id, self.device)
        targets, starts = [e.tgt_ids or [] for e in part], [e.start for e in part]
        return (src, src_lengths, targets, starts, self.checkpoint.eos_id), copied

    def _over_targets(
        self,
        examples: Sequence[Example],
        alone: bool,
        room: OomRetry,
        work: Callable[[list[Example]], list[R]],
    ) -> list[R | None]:
        """The results of `work` on batches of the examples; None if an example lacks a side."""

        def in_room(group: list[Example], n_at_once: int) -> Iterator[tuple[int, R]]:
            for start, part in parts_of(group, n_at_once):
                yield from enumerate(work(part), start)

        full = [e for e in examples if e.src_ids and e.tgt_ids is not None]
        most = 1 if alone else self.budget.scored_tokens
        groups = [(group, len(group)) for group in make_batches(full, most, "tokens", longer_side)]
        return run_groups(
            examples, groups, lambda group, n: room.run(group, n, longer_side, in_room)
        )


def run_groups(
    examples: Sequence[Example],
    groups: Sequence[Group],
    work: Callable[[list[Example], int], list[R]],
) -> list[R | None]:
    """The results of `work` on groups, in the order of the examples; None for one in no group."""
    made: dict[int, R] = {}
    for group, n_at_once in groups:
        made.update(zip(map(id, group), work(group, n_at_once), strict=True))
    return [made.get(id(example)) for example in examples]


def parts_of(group: list[Example], size: int) -> Iterator[tuple[int, list[Example]]]:
    """Parts of a group, each with its place in it."""
    for start in range(0, len(group), size):
        yield start, group[start : start + size]


# -- batches ---------------------------------------------------------------------------------------


def source_length(example: Example) -> int:
    return len(example.src_ids)


def longer_side(example: Example) -> int:
    """Tokens of the longer side of an example with a reference, counting EOS."""
    return max(len(example.src_ids), len(example.tgt_ids or []) + 1)


def make_batches(
    examples: list[Example],
    batch_size: int,
    batch_type: str,
    length: Callable[[Example], int] = source_length,
    max_sentences: float = math.inf,
) -> list[list[Example]]:
    """Group examples of like length into batches, the longest first, and those with a prefix, in
    batches of their own, before the others.

    Like lengths need little padding; a batch too large for the memory fails at once.  A batch holds
    at most `batch_size` sentences (`sents`) or padded tokens, at most `max_sentences`, and at least
    one sentence.  Beside sentences with a prefix the last bits of one without would not be what
    they are alone, and a last bit may decide what int8 rounds to.
    """
    batches: list[list[Example]] = []
    width = 0
    for example in sorted(examples, key=lambda e: (not e.prefix_ids, -length(e))):
        n = len(batches[-1]) + 1 if batches else 1
        size = n if batch_type == "sents" else n * width
        other = batches and bool(batches[-1][0].prefix_ids) != bool(example.prefix_ids)
        if not batches or other or size > batch_size or n > max_sentences:
            batches.append([])
            width = length(example)
        batches[-1].append(example)
    return batches


def merge_batches(
    batches: list[list[Example]], refills: bool = True
) -> list[tuple[list[Example], int]]:
    """Join batches to buckets for a search that refills: the sentences of each bucket, and the
    number that runs at once.  Without refilling, each batch is a bucket.

    As many run as the bucket's first batch has.  The longest sentence of a bucket is at most twice
    as long as the longest of each of its batches, since all slots are as wide as the longest.
    """
    buckets: list[tuple[list[Example], int]] = []
    longest = 0
    for batch in batches:
        width = source_length(batch[0])
        # Batches without prefixes begin with a wider one
        if not refills or not buckets or 2 * width < longest or width > longest:
            buckets.append(([], len(batch)))
            longest = width
        buckets[-1][0].extend(batch)
    return buckets


def pad_batch(
    examples: list[Example], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Padded source ids (B, S), lengths (B,), and ids to copy (B, S) if the model copies, all on
    the device."""
    lengths = [len(e.src_ids) for e in examples]
    src = pad_lists([e.src_ids for e in examples], max(lengths), pad_id)
    copied = [e.copy_ids for e in examples if e.copy_ids]
    ids = pad_lists(copied, max(lengths)).to(device) if copied else None
    return src.to(device), torch.tensor(lengths, device=device), ids
