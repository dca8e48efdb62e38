"""Model runner: searches, scores and aligns examples in batches that fit in memory."""

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
from onmt_lite.inference.postprocess import Postprocessor, compute_reference_log_prob
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

Group = tuple[list[Example], int]  # examples, and the number to run at once
Targets = tuple[Tensor, Tensor, list[list[int]], list[tuple[int, ...]], int]


class Observer(Protocol):
    """Records the searches of a batch with traced lines; implemented by `onmt_lite.trace`."""

    def on_step(self, batch: BeamBatch, chosen: ChosenRows) -> None:
        """Called after each step of the decoding loop."""

    def add_trace(self, number: int, beam: Beam, result: SearchResult) -> SearchResult:
        """Called when the search of an example ends.

        Args:
            number: index of the example in the batch.
            beam: its beam.
            result: its result.

        Returns:
            The result with the trace.
        """


class Runner:
    """Runs a model on examples.

    Attributes:
        observe: if set, called with the Postprocessor and the examples of each batch that has
            traced lines.
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
        """
        Args:
            checkpoint: the model.
            options: default options.
            device: device of the model.
            budget: batch sizes that fit in memory.
            postprocessor: converts hypotheses to text.
        """
        self.options = options
        self.checkpoint, self.device, self.budget = checkpoint, device, budget
        self.postprocessor = postprocessor
        self.model: EncoderDecoder = checkpoint.model
        self.search_model: AnyModel = self.model  # the model for search: CUDA graphs on GPU
        if device.type == "cuda":
            self.search_model = use_cuda_graphs(self.model, CudaGraphCapture(device))
        # Refill finished slots with waiting sentences. A GPU would be underused with few sentences;
        # a CPU is faster with shrinking batches (docs/design.md)
        self.refills = device.type == "cuda"
        self.needs_log_softmax = needs_log_softmax(options, checkpoint)
        self.retry = OomRetry("lower beam_size or max_length")
        self.score_retry = OomRetry("shorten the target")
        self.align_retry = OomRetry("remove report_align")
        timed_gpu = options.information.report_time and device.type == "cuda"
        self.clock = Clock(torch.cuda.synchronize) if timed_gpu else Clock()

    @functools.cached_property
    def fp32_model(self) -> EncoderDecoder:
        """The model in fp32, read again if its weights were dropped.

        Raises:
            MemoryExhausted: if both models do not fit in memory.
        """
        return move_to(self.model, self.device, "fp32")

    # ---- search ----

    def groups(self, examples: list[Example], config: SearchConfig) -> list[Group]:
        """Split examples into groups, each for one call of `search`."""
        speed, limit = config.options.speed, self.budget.limit(config.spec.beam_size)
        batch_size, max_sentences, batch_type = speed.batch_size, math.inf, speed.batch_type
        if speed.deterministic:
            batch_size, batch_type = 1, "sents"
        elif batch_size is None:
            batch_size = limit.tokens if batch_type == "tokens" else limit.sentences
            max_sentences = limit.sentences
        batches = make_batches(examples, batch_size, batch_type, max_sentences=max_sentences)
        return merge_batches(batches, self._can_refill(config))

    def search(
        self, group: list[Example], n_slots: int, config: SearchConfig
    ) -> list[SearchResult]:
        """Search for the best hypotheses of each example.

        An example for which the model returns NaN is searched once more in fp32.

        Args:
            group: the examples.
            n_slots: number of sentences to run at once, if memory allows.
            config: the search configuration.
        """
        results = self._search(self.search_model, group, n_slots, config)
        valid = [i for i, result in enumerate(results) if result.hyps]
        # If results depend on the batch, they depend on the failed examples, too
        if config.spec.policy.depends_on_batch and len(valid) < len(group):
            retried = self.search([group[i] for i in valid], n_slots, config)
            for i, result in zip(valid, retried):
                results[i] = result
        return [
            result if result.hyps else self._retry(example, config)
            for example, result in zip(group, results)
        ]

    def _retry(self, example: Example, config: SearchConfig) -> SearchResult:
        """Search for one example in fp32; return an empty translation if that fails, too."""
        empty = SearchResult([EMPTY_HYPOTHESIS], NOT_A_NUMBER)
        try:
            (result,) = self._search(self.fp32_model, [example], 1, config)
        except MemoryExhausted:
            return empty
        return result if result.hyps else empty

    def _search(
        self, model: AnyModel, group: list[Example], n_slots: int, config: SearchConfig
    ) -> list[SearchResult]:
        """Search with retries after out-of-memory errors.

        Args:
            model: the model.
            group: the examples.
            n_slots: number of sentences to run at once.
            config: the search configuration.
        """

        def estimate_memory_size(example: Example) -> int:
            return get_source_length(example) * config.spec.beam_size

        return self.retry.run(
            group, n_slots, estimate_memory_size, partial(self._decode, model, config)
        )

    def _can_refill(self, config: SearchConfig) -> bool:
        """Return True if waiting sentences may join a batch.

        The results of `opennmt-2018` depend on the batch, so its batches stay fixed.
        """
        needs_fixed_batches = (
            config.spec.policy.depends_on_batch or config.options.speed.deterministic
        )
        return self.refills and not needs_fixed_batches

    def _decode(
        self, model: AnyModel, config: SearchConfig, group: list[Example], n_slots: int
    ) -> Iterator[tuple[int, SearchResult]]:
        """Yield the index and the result of each example when its search ends.

        Args:
            model: the model.
            config: the search configuration.
            group: the examples.
            n_slots: number of sentences to run at once.
        """
        tracks_attention = config.spec.track_attention or any(e.needs_alignment for e in group)
        spec = replace(config.spec, track_attention=tracks_attention)
        # GPU with refilling: one batch computes a step while the host processes the other
        chunk_size, n_batches = (len(group), 2) if self._can_refill(config) else (n_slots, 1)
        with release_graphs_on_oom(model):
            for start, chunk in iter_chunks(group, chunk_size):
                observer = on_step = None
                if self.observe is not None and any(example.line.traced for example in chunk):
                    observer = self.observe(self.postprocessor, chunk)
                    # The observer identifies sentences by their index in one batch
                    on_step, n_batches = observer.on_step, 1
                sentences = [to_sentence(config, example) for example in chunk]
                for i, beam in decode(
                    model, sentences, spec, n_slots, on_step, n_batches, self.clock
                ):
                    with self.clock.phase("tokenize"):
                        result = self.postprocessor.make_result(
                            beam, chunk[i], config.n_returned, config.replaces_unk_later
                        )
                        if observer is not None:
                            result = observer.add_trace(i, beam, result)
                    yield start + i, result

    # ---- teacher forcing ----

    def score(self, examples: Sequence[Example], unbatched: bool) -> list[list[float] | None]:
        """Return the token log-probabilities of the target of each example.

        A NaN score is computed once more in fp32, unbatched; it is NaN if that fails, too.

        Args:
            examples: the examples.
            unbatched: run examples one by one.

        Returns:
            Log-probabilities in nats for each example; None if it lacks a source or a target.
        """
        retry, score_batch = self.score_retry, partial(self._score, self.model)
        all_scores = self._run_on_targets(examples, unbatched, retry, score_batch)
        return [
            self._rescore(example)
            if scores is not None and compute_reference_log_prob(scores) is None
            else scores
            for example, scores in zip(examples, all_scores)
        ]

    def _rescore(self, example: Example) -> list[float] | None:
        """Return the scores of one example in fp32; NaN if memory does not suffice."""
        try:
            score_batch = partial(self._score, self.fp32_model)
            return self._run_on_targets([example], True, self.score_retry, score_batch)[0]
        except MemoryExhausted:
            return [math.nan]

    def _score(self, model: EncoderDecoder, batch: list[Example]) -> list[list[float]]:
        """Return the token log-probabilities of a batch."""
        args, copy_ids = self._score_inputs(batch)
        return score_targets(
            model, *args, self.needs_log_softmax, copy_ids, self.budget.scored_logits
        )

    def attend(
        self, examples: Sequence[Example], heads: HeadSelection, unbatched: bool
    ) -> list[Tensor | None]:
        """Return the attention weights of each example.

        Args:
            examples: the examples.
            heads: layer and heads to average.
            unbatched: run examples one by one.

        Returns:
            Weights (T + 1, S) of T target tokens and the end token for S source tokens; None if an
            example lacks a source or a target.
        """

        def attend_batch(batch: list[Example]) -> list[Tensor]:
            args, copy_ids = self._score_inputs(batch)
            return compute_target_attention(self.model, *args, heads, copy_ids)

        return self._run_on_targets(examples, unbatched, self.align_retry, attend_batch)

    def _score_inputs(self, batch: list[Example]) -> tuple[Targets, Tensor | None]:
        """Return the arguments of `score_targets` for a batch, and the ids to copy."""
        pad_id = self.checkpoint.src_vocab.pad_id or 0
        src, src_lengths, copy_ids = pad_batch(batch, pad_id, self.device)
        targets, starts = [e.tgt_ids or [] for e in batch], [e.start for e in batch]
        return (src, src_lengths, targets, starts, self.checkpoint.eos_id), copy_ids

    def _run_on_targets(
        self,
        examples: Sequence[Example],
        unbatched: bool,
        retry: OomRetry,
        work: Callable[[list[Example]], list[R]],
    ) -> list[R | None]:
        """Run a function on batches of the examples that have a source and a target.

        Args:
            examples: the examples.
            unbatched: run examples one by one.
            retry: retries after out-of-memory errors.
            work: the function.

        Returns:
            The result for each example; None if it lacks a source or a target.
        """

        def run_chunks(group: list[Example], n_at_once: int) -> Iterator[tuple[int, R]]:
            for start, chunk in iter_chunks(group, n_at_once):
                yield from enumerate(work(chunk), start)

        complete = [e for e in examples if e.src_ids and e.tgt_ids is not None]
        max_tokens = 1 if unbatched else self.budget.scored_tokens
        groups = [
            (group, len(group))
            for group in make_batches(complete, max_tokens, "tokens", get_longer_side)
        ]
        return run_groups(
            examples, groups, lambda group, n: retry.run(group, n, get_longer_side, run_chunks)
        )


def run_groups(
    examples: Sequence[Example],
    groups: Sequence[Group],
    work: Callable[[list[Example], int], list[R]],
) -> list[R | None]:
    """Run a function on groups of examples.

    Args:
        examples: all examples.
        groups: groups of examples, and the number to run at once.
        work: the function.

    Returns:
        The results in the order of `examples`; None for an example in no group.
    """
    by_id: dict[int, R] = {}
    for group, n_at_once in groups:
        by_id.update(zip(map(id, group), work(group, n_at_once), strict=True))
    return [by_id.get(id(example)) for example in examples]


def iter_chunks(group: list[Example], size: int) -> Iterator[tuple[int, list[Example]]]:
    """Yield chunks of a group with the index of their first example."""
    for start in range(0, len(group), size):
        yield start, group[start : start + size]


# -- batches ---------------------------------------------------------------------------------------


def get_source_length(example: Example) -> int:
    """Return the number of source tokens, including special tokens."""
    return len(example.src_ids)


def get_longer_side(example: Example) -> int:
    """Return the number of tokens of the longer side, including EOS."""
    return max(len(example.src_ids), len(example.tgt_ids or []) + 1)


def make_batches(
    examples: list[Example],
    batch_size: int,
    batch_type: str,
    length: Callable[[Example], int] = get_source_length,
    max_sentences: float = math.inf,
) -> list[list[Example]]:
    """Group examples of similar length into batches, longest first.

    Similar lengths need little padding, and a batch that does not fit in memory fails early.
    Examples with a prefix are batched separately and first: mixing them with other sentences would
    change the last bits of a score, which can decide how int8 rounds.

    Args:
        examples: the examples.
        batch_size: maximum number of sentences (`sents`) or of padded tokens.
        batch_type: sents or tokens.
        length: returns the length of an example.
        max_sentences: maximum number of sentences. A batch has at least one.
    """
    batches: list[list[Example]] = []
    width = 0
    for example in sorted(examples, key=lambda e: (not e.prefix_ids, -length(e))):
        n = len(batches[-1]) + 1 if batches else 1
        size = n if batch_type == "sents" else n * width
        is_other_type = batches and bool(batches[-1][0].prefix_ids) != bool(example.prefix_ids)
        if not batches or is_other_type or size > batch_size or n > max_sentences:
            batches.append([])
            width = length(example)
        batches[-1].append(example)
    return batches


def merge_batches(
    batches: list[list[Example]], refills: bool = True
) -> list[tuple[list[Example], int]]:
    """Merge batches into buckets for a search that refills.

    The longest sentence of a bucket is at most twice as long as the longest of each of its batches,
    because all slots are as wide as the longest sentence.

    Args:
        batches: batches, longest first.
        refills: if False, each batch is a bucket.

    Returns:
        The sentences of each bucket, and the number to run at once: the size of its first batch.
    """
    buckets: list[tuple[list[Example], int]] = []
    longest = 0
    for batch in batches:
        width = get_source_length(batch[0])
        # The first batch without prefixes may be wider than the last one with prefixes
        if not refills or not buckets or 2 * width < longest or width > longest:
            buckets.append(([], len(batch)))
            longest = width
        buckets[-1][0].extend(batch)
    return buckets


def pad_batch(
    examples: list[Example], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Pad a batch and move it to the device.

    Args:
        examples: B examples.
        pad_id: id for padding.
        device: the device.

    Returns:
        Padded source ids (B, S), lengths (B,), and ids to copy (B, S) if the model copies.
    """
    lengths = [len(e.src_ids) for e in examples]
    src = pad_lists([e.src_ids for e in examples], max(lengths), pad_id)
    copy_ids = [e.copy_ids for e in examples if e.copy_ids]
    ids = pad_lists(copy_ids, max(lengths)).to(device) if copy_ids else None
    return src.to(device), torch.tensor(lengths, device=device), ids
