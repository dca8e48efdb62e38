"""The decode loop: model step, logits processors, top-k, finished hypotheses, reordering."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel, LazyLogits, Selection
from onmt_lite.models.output import KernelLogits
from onmt_lite.search.beam import Beam
from onmt_lite.search.constraints import Constraints
from onmt_lite.search.context import StepContext, find_most_attended, make_step_context
from onmt_lite.search.logits import build_logits_processors, log_sum_exp
from onmt_lite.search.processor import collect_token_masks
from onmt_lite.search.sampling import sample_candidates
from onmt_lite.search.slots import Rows, Scheduler, Sentence, Slot, fill_holes
from onmt_lite.search.spec import SearchSpec
from onmt_lite.search.step_log import ChosenRows, StepLog, TraceInputs
from onmt_lite.search.topk import Candidates, TokenScores, TopK, choose_continuing_ranks
from onmt_lite.system.clock import Clock

# Called after each step, for -dump_beam
Observer: TypeAlias = "Callable[[BeamBatch, ChosenRows], object] | None"


@torch.inference_mode()
def decode(
    model: AnyModel,
    sentences: Sequence[Sentence],
    spec: SearchSpec,
    n_slots: int | None = None,
    on_step: Observer = None,
    n_batches: int = 1,
    clock: Clock | None = None,
) -> Iterator[tuple[int, Beam]]:
    """Search all sentences; yield the index and `Beam` of each sentence when it finishes.

    If the model returns NaN for a sentence, its search ends at that step without a hypothesis.

    Args:
        model: the model, on its device.
        sentences: sentences to search.
        spec: settings shared by all sentences.
        n_slots: number of sentences that run at once; waiting sentences take the slots of finished
            sentences.  None: all sentences, so that the batch only shrinks.
        on_step: called after each step.
        n_batches: number of batches that share the slots and take turns, so that the GPU computes a
            step of one batch while the host processes the result of another.
        clock: measures the time spent on encoding.
    """
    n_slots = n_slots or len(sentences)
    n = min(n_batches, n_slots, len(sentences))
    clock = clock or Clock()
    batches = [
        BeamBatch(model, spec, sentences[i::n], n_slots // n, on_step, clock) for i in range(n)
    ]
    for i, index, beam in interleave([batch.run() for batch in batches]):
        yield i + n * index, beam


def interleave(
    runs: Sequence[Iterator[tuple[int, Beam] | None]],
) -> Iterator[tuple[int, int, Beam]]:
    """Advance several searches in turn, each up to its next None.

    Args:
        runs: `BeamBatch.run` of each batch.

    Yields:
        Index of the batch, index of the sentence in the batch, and its finished `Beam`.
    """
    running = list(range(len(runs)))
    while running:
        for i in list(running):
            for finished in runs[i]:
                if finished is None:
                    break
                yield i, *finished
            else:
                running.remove(i)


class BeamBatch:
    """A batch of running sentences, one slot each, and the sentences that wait for a slot.

    scheduler    encodes waiting sentences and admits them to free slots
    rows         running sentences, on the host and on the device
    processors   logits processors in order
    constraints  phrase constraints; None if no sentence has any
    log          all steps, on the host

    Args:
        model: the model, on its device.
        spec: settings shared by all sentences.
        sentences: all sentences that this batch will search.
        n_slots: number of sentences that run at once.
        on_step: called after each step.
        clock: measures the time spent on encoding.
    """

    def __init__(
        self,
        model: AnyModel,
        spec: SearchSpec,
        sentences: Sequence[Sentence],
        n_slots: int,
        on_step: Observer = None,
        clock: Clock | None = None,
    ):
        self.model, self.spec, self.n_slots, self.device = model, spec, n_slots, model.device
        self.on_step = on_step
        self.scheduler = Scheduler(model, spec, sentences, n_slots, clock or Clock())
        n_words = self.scheduler.n_words
        self.processors = build_logits_processors(spec, n_words, self.device)
        self.top_k = TopK(spec, n_words, n_slots, self.device)
        self.log = StepLog(spec, n_slots, self.device)
        phrases = [sentence.phrases for sentence in sentences]
        self.constraints = None
        if any(phrases):
            self.constraints = Constraints(spec, phrases, n_words, self.device)
        # The kernel ranks all rows of a sentence together, by their logits and the masks of tokens
        is_plain = spec.needs_log_softmax and not spec.sampling and spec.beam_groups == 1
        self.allows_kernel = is_plain and self.constraints is None and on_step is None
        needs_history = any(processor.needs_history for processor in self.processors)
        self.rows = Rows(spec, self.device, needs_history)

    @property
    def slots(self) -> list[Slot]:
        """Running sentences."""
        return self.rows.slots

    @property
    def n_steps(self) -> int:
        """Number of steps so far."""
        return self.log.n_steps

    def run(self) -> Iterator[tuple[int, Beam] | None]:
        """Run the search; yield (index, Beam) of finished sentences, and None after each step.

        At None the device is still busy with the step, so another batch may take its turn.
        """
        first, _ = self.scheduler.admit(self.n_slots)
        assert first is not None
        self.rows.fill(first)
        while self.slots:
            tokens = self.rows.table.tokens.flatten()  # (R,)
            logits, attn = self.model.step(tokens, self.rows.state)  # (R, V), (R, S)
            chosen = self.step(logits, attn)  # K new rows per sentence, chosen from N candidates
            self.log.send(chosen)  # starts the only transfer to the host
            yield None  # lets another batch run while the device works
            yield from self.finish_sentences(chosen)
            self.reorder_and_refill(chosen)

    # ---- On the device, for all rows at once ----

    def step(self, logits: Tensor | LazyLogits, attn: Tensor) -> ChosenRows:
        """Rank all continuations and choose K new rows per sentence.

        Args:
            logits: (R, V) of any float dtype, for the next token; overwritten if float32.
            attn: (R, S) attention of the step that computed the logits.

        Returns:
            The new rows (B, K) and all candidates (B, N), still on the device.
        """
        context = make_step_context(self.rows, self.n_steps + 1, attn, self.constraints)
        candidates, trace = self.rank_in_kernel(logits, context), None
        if candidates is None:
            candidates, trace = self.rank_logits(logits, attn, context)
        chosen = self.choose_rows(candidates, context)
        if self.spec.track_attention:
            attended = find_most_attended(attn, self.rows.src_length, self.spec.src_margins)  # (R,)
            chosen = replace(chosen, attended=attended.view_as(context.scores))
        return replace(chosen, trace=trace) if trace is not None else chosen

    def rank_in_kernel(
        self, logits: Tensor | LazyLogits, context: StepContext
    ) -> Candidates | None:
        """Rank all continuations in the output layer's kernel, which then stores no logits.

        Returns:
            The candidates (B, N) that `rank_logits` would return; None if the kernel cannot rank
            them, because a rule at this step needs the logits.
        """
        if not self.allows_kernel or not isinstance(logits, KernelLogits):
            return None
        masked = collect_token_masks(self.processors, context)
        if masked is None:
            return None
        is_first = self.find_first_steps(context)
        return self.top_k.select_in_kernel(logits, masked, context.scores, is_first)

    def rank_logits(
        self, logits: Tensor | LazyLogits, attn: Tensor, context: StepContext
    ) -> tuple[Candidates, TraceInputs | None]:
        """Process the logits and rank all continuations.

        Args:
            logits: see `step`.
            attn: (R, S) attention of this step.
            context: inputs of the processors.

        Returns:
            The candidates (B, N), and what the observer needs.
        """
        logits, log_z = (logits, None) if isinstance(logits, Tensor) else logits.compute()
        logits = logits.float()  # (R, V)
        if not self.spec.needs_log_softmax:  # the logits are log-probabilities
            log_z = torch.zeros_like(logits[:, 0])
        model_scores = TokenScores(logits, log_sum_exp(logits) if log_z is None else log_z)
        trace = None
        if self.on_step is not None:
            unmasked = replace(model_scores, logits=logits.clone())  # masks work in place
            trace = TraceInputs(unmasked, model_scores, context.scores, attn.float().clone(), [])
        token_scores = self.process_logits(model_scores, context, trace)
        candidates = self.rank_candidates(token_scores, context)
        if token_scores is not model_scores or self.spec.beam_groups > 1:
            # Processors and diversity change the ranking, not the reported log-probabilities
            candidates = candidates.with_model_log_probs(model_scores)
        if trace is not None:
            trace = replace(trace, token_scores=token_scores)
        return candidates, trace

    def process_logits(
        self, model_scores: TokenScores, context: StepContext, trace: TraceInputs | None
    ) -> TokenScores:
        """Apply the logits processors in order.

        Args:
            model_scores: scores from the model; masks write into them in place.
            context: inputs of the processors.
            trace: its `forbidden` is filled in; None if no observer follows the search.

        Returns:
            The processed scores; `model_scores` itself if tokens were only masked.
        """
        token_scores = model_scores
        if trace is not None:
            trace.forbidden.append(
                ("the model gives it probability 0", model_scores.logits == -math.inf)
            )
        for processor in self.processors:
            if not processor.applies(context):
                continue
            token_scores = processor(token_scores, context)
            if trace is not None and processor.reason:
                trace.forbidden.append((processor.reason, token_scores.logits == -math.inf))
        return token_scores

    def rank_candidates(self, token_scores: TokenScores, context: StepContext) -> Candidates:
        """Rank the continuations of each sentence's rows, or sample them.

        Args:
            token_scores: processed scores of the next tokens.
            context: inputs of the processors.
        """
        spec, scores = self.spec, context.scores  # (B, K)
        if spec.sampling:
            seeds, steps = self.rows.table.seed[:, 0], context.sentence_steps[:, 0]  # (B,)
            return sample_candidates(
                token_scores, scores, seeds, steps, self.model.vocab_size, spec
            )
        candidates = self.top_k.select(token_scores, scores, self.find_first_steps(context))
        if context.phrases is not None:
            context.phrases.allocate(candidates, token_scores, scores, spec)
        return candidates

    def find_first_steps(self, context: StepContext) -> Tensor | None:
        """Return a mask (B,) of sentences at their first step; None if that makes no difference."""
        if not self.spec.policy.drop_last_candidate:
            return None
        return context.sentence_steps[:, 0] == 1

    def choose_rows(self, candidates: Candidates, context: StepContext) -> ChosenRows:
        """Choose K candidates (B, K) as new rows; see `Policy.ended` for candidates with EOS."""
        policy, penalties = self.spec.policy, context.penalties
        just_forced = context.n_steps <= 1 + self.rows.last_forced_step
        if policy.eos_after_forced == "best" and just_forced:
            candidates = drop_eos_after_forced(candidates, context)
        if policy.ended == "shrink":
            candidates = candidates.drop(find_surplus_candidates(context, just_forced))
        rows, replaces_ended = candidates, policy.ended in ("refill", "in_place")
        if replaces_ended:  # EOS takes a row only if there are fewer than K other candidates
            rows = candidates.take(choose_continuing_ranks(self.spec, candidates))  # (B, K)
            rows = replace(rows, score=rows.score.masked_fill(rows.ended, -math.inf))  # (B, K)
        if penalties is not None and self.spec.stepwise_penalty:
            # Undo `make_step_context`: the penalty affects only the ranking of this step
            rows = replace(rows, score=rows.score + penalties.take(rows.parent))  # (B, K)
        open_scores = (
            rows.score if replaces_ended else rows.score.masked_fill(rows.ended, -math.inf)
        )
        return ChosenRows(rows, candidates, open_scores, penalties)

    # ---- On the host: finished hypotheses and sentences ----

    def finish_sentences(self, chosen: ChosenRows) -> Iterator[tuple[int, Beam]]:
        """Wait for the newest step, pass events to the beams and yield finished sentences."""
        has_event = self.log.wait_for_events()  # by slot
        if self.constraints is not None:
            self.constraints.update(self.slots, self.n_steps, self.log.read_newest_rows())
        n_events = 0
        for b, slot in enumerate(self.slots):
            at_limit = slot.limit_step <= self.n_steps
            if not (has_event[b] or at_limit or slot.beam.checks_every_step):
                continue
            if self.n_steps > slot.start_step:  # not at start tokens
                self._advance(b, slot, at_limit)
                n_events += 1
        if self.on_step is not None:
            self.on_step(self, chosen)
        if not n_events:
            return
        for b, slot in enumerate(self.slots):
            if slot.beam.is_finished:
                self._sync(b, slot)
                slot.beam.finalize()
                slot.is_finished = True
                yield slot.index, slot.beam

    def _advance(self, b: int, slot: Slot, at_limit: bool) -> None:
        """Pass the newest step to the Beam in slot b.

        Args:
            b: the slot.
            slot: its sentence.
            at_limit: True if the sentence has reached its limit.
        """
        event = self.log.read_event(b, self.n_steps - slot.start_step)
        if not sum(event.candidates.score) + sum(event.penalties) < math.inf:  # NaN or infinity
            slot.beam.fail()
            return
        none_left = max(event.rows.score) == -math.inf
        if none_left or at_limit or slot.beam.needs_rows_at_events:
            self._sync(b, slot)  # `advance` may follow back-pointers
        slot.beam.advance(event)

    def _sync(self, b: int, slot: Slot) -> None:
        """Copy the steps since the last call from the log to the Beam in slot b."""
        if slot.synced_steps < self.n_steps:
            slot.beam.append_rows(self.log.read_history(b, slot.synced_steps))
            slot.synced_steps = self.n_steps

    # ---- Reorder rows; replace finished sentences ----

    def reorder_and_refill(self, chosen: ChosenRows) -> None:
        """Reorder the decoder state by back-pointers and refill the slots of finished sentences.

        Waiting sentences take these slots; if none are waiting, the last running ones move there.
        """
        rows, table = self.rows, self.rows.table
        table.tokens, table.parents = chosen.rows.token, chosen.rows.parent
        table.scores = chosen.open_scores
        rows.correct_scores()
        running = [b for b, slot in enumerate(rows.slots) if not slot.is_finished]
        n_old = len(rows.slots)
        fresh, joining = self.scheduler.admit(self.n_slots - len(running))
        if joining or len(running) < n_old:
            order = fill_holes(running, [n_old + i for i in joining])
            for new_slot, b in enumerate(order):
                is_moved = b < n_old and b != new_slot
                if is_moved:
                    self._sync(b, rows.slots[b])  # the log is by slot, so read it before the move
            rows.refill(order, fresh, joining, self.n_steps)
        elif self.spec.beam_size > 1:
            rows.select(Selection(self.select_indices()), self.n_steps)

    def select_indices(self) -> Tensor:
        """Return the old row of the batch that each new row continues (B, K).

        Three sentences, K = 2; the second sentence swaps its rows: [[0, 1], [3, 2], [4, 5]].
        """
        return self.rows.table.parents


def drop_eos_after_forced(candidates: Candidates, context: StepContext) -> Candidates:
    """Drop EOS candidates right after forced tokens, except if EOS is the best candidate."""
    n_prefix = context.rows.table.n_prefix  # (B, 1)
    n_forced = n_prefix + context.rows.spec.n_forced_start
    follows_forced = (context.sentence_steps == n_prefix + 1) & (n_forced > 0)  # (B, 1)
    rank = torch.arange(candidates.token.size(1), device=n_prefix.device)  # (N,)
    return candidates.drop(follows_forced & (rank > 0) & candidates.ended)


def find_surplus_candidates(context: StepContext, just_forced: bool) -> Tensor:
    """Return a mask (B, K) of the candidates that a beam has no room for after shrinking (Marian).

    Args:
        context: inputs of the step.
        just_forced: True if any sentence takes a forced token or has just taken the last one.
    """
    table, beam_size = context.rows.table, context.rows.spec.beam_size
    n_open = (table.scores > -math.inf).sum(1, keepdim=True)  # (B, 1)
    if just_forced:  # only one of the K identical rows is open, but the beam has not shrunk
        n_open.masked_fill_(context.sentence_steps <= table.n_prefix + 1, beam_size)
    return torch.arange(beam_size, device=n_open.device) >= n_open
