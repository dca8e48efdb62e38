"""Tracer for -dump_beam: what each step kept, finished, masked and pruned, and why."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from onmt_lite.inference.postprocess import Postprocessor
from onmt_lite.inference.records import Continuation, Example, SearchResult, Trace, TracedHypothesis
from onmt_lite.search.beam import SEARCH_EMPTY, Beam, CandidateList, FinishedHypothesis
from onmt_lite.search.beam_search import BeamBatch
from onmt_lite.search.slots import Slot
from onmt_lite.search.spec import SearchSpec
from onmt_lite.search.step_log import ChosenRows, TraceInputs

NO_ROW_SCORE = -1e8  # lower scores belong to rows that do not exist yet


class Step(NamedTuple):
    """One step of one sentence."""

    rows: list[Continuation]  # the K new rows, then finished hypotheses that took no row
    pruned: list[Continuation]  # the best continuations that did not become a row
    attn: Tensor  # (K, S) attention of the old rows


class Tracer:
    """Recorder of the searches of traced lines; `on_step` is the observer of a `BeamBatch`.

    Args:
        postprocessor: turns tokens into text.
        examples: the examples of the batch, in the order of the search's sentences.
    """

    def __init__(self, postprocessor: Postprocessor, examples: Sequence[Example]):
        self.postprocessor, self.examples = postprocessor, examples
        self.steps = {i: list[Step]() for i, e in enumerate(examples) if e.line.traced}

    def on_step(self, batch: BeamBatch, chosen: ChosenRows) -> None:
        """Record a step of all traced sentences."""
        for b, slot in enumerate(batch.slots):
            step = batch.n_steps - slot.start_step
            if slot.index in self.steps and step > 0:  # no step for start tokens
                assert chosen.trace is not None
                self.steps[slot.index].append(record_step(batch, chosen.trace, b, slot, step))

    def add_trace(self, index: int, beam: Beam, result: SearchResult) -> SearchResult:
        """Return the result with its trace if the example is traced.

        Args:
            index: index of the example.
            beam: the finished beam.
            result: the result of the search.
        """
        steps, example = self.steps.pop(index, None), self.examples[index]
        if steps is None:
            return result
        hyps = [hyp for hyp in beam.rank_finished() if hyp.step]
        kept = {(hyp.step, hyp.row, hyp.token) for hyp in hyps}
        rows = [
            [self._label_row(row, example, (t, row.parent, row.token) in kept) for row in step.rows]
            for t, step in enumerate(steps, 1)
        ]
        pruned = [[self._label_row(row, example) for row in step.pruned] for step in steps]
        # Each row once: OpenNMT-py of 2018 fills up its n-best list with duplicates
        hypotheses = dict[tuple[int, int], TracedHypothesis]()
        for hyp in hyps:
            traced = self._make_hypothesis(hyp, steps, example, beam, result)
            hypotheses.setdefault((traced.step, traced.row), traced)
        path = list[int]()  # rows of the best hypothesis, first step first
        n_steps, k = next(iter(hypotheses), (0, 0))
        for t in range(n_steps - 1, -1, -1):
            path.insert(0, k)
            k = rows[t][k].parent
        has_attention = self.postprocessor.checkpoint.has_attention
        trace = Trace(
            example.line.id,
            example.line.text,
            example.src_tokens,
            beam.spec.beam_size,
            rows,
            pruned,
            path,
            list(hypotheses.values()),
            explain_stop(beam, len(steps)),
            self._collect_attention(example, steps, path) if has_attention else [],
        )
        return replace(result, trace=trace)

    def _label_row(
        self, row: Continuation, example: Example, is_kept: bool = False
    ) -> Continuation:
        """Return a row or pruned continuation with the text of its token and its final state.

        Args:
            row: the row.
            example: the example of its sentence.
            is_kept: True if it is the end of a finished hypothesis that was kept.
        """
        if row.score < NO_ROW_SCORE:
            return replace(row, score=-math.inf, log_prob=-math.inf, state="none", why="")
        (text,) = self._decode([row.token], example)
        if is_kept:
            return replace(row, text=text, state="finished", why="")
        why = "replaced by better hypotheses later" if row.state == "finished" else row.why
        return replace(row, text=text, why=why)

    def _decode(self, ids: list[int], example: Example) -> list[str]:
        return self.postprocessor.checkpoint.tgt_vocab.decode(ids, example.oov_words)

    def _make_hypothesis(
        self,
        hyp: FinishedHypothesis,
        steps: list[Step],
        example: Example,
        beam: Beam,
        result: SearchResult,
    ) -> TracedHypothesis:
        """Return the record of a finished hypothesis for the trace.

        Args:
            hyp: the hypothesis.
            steps: all steps of its sentence.
            example: the example of its sentence.
            beam: the finished beam.
            result: the result of the search.
        """
        ids, log_probs = beam.backtrack(hyp)
        tokens, key = self._decode(ids, example), (hyp.score, sum(log_probs))
        # For hypotheses in the output, use the text after all postprocessing
        text = next((h.text for h in result.hyps if (h.score, h.log_prob) == key), None)
        if text is None:
            text = self.postprocessor.tokenizer.decode(tokens[:-1] if hyp.ended else tokens)
        length = hyp.step + (beam.offset if hyp.ended else beam.open_offset)
        norm = beam.spec.compute_length_norm(length)
        keys = [row.key if row.exists else None for row in steps[hyp.step - 1].rows]
        row = keys.index((hyp.row, hyp.token))
        return TracedHypothesis(text, tokens, log_probs, hyp.score, norm, hyp.ended, hyp.step, row)

    def _collect_attention(
        self, example: Example, steps: list[Step], path: list[int]
    ) -> list[list[float]]:
        """Return the attention from each token of a path to the source tokens of the line.

        Args:
            example: the example of the sentence.
            steps: all its steps.
            path: the row of the path at each step.
        """
        checkpoint = self.postprocessor.checkpoint
        before, late = checkpoint.src_margins[0], checkpoint.aligns_late
        columns = slice(before, before + len(example.src_tokens))
        parents = [steps[t].rows[k].parent for t, k in enumerate(path)]
        weights = [steps[t].attn[k, columns].tolist() for t, k in enumerate(parents)]
        return [*weights[late:], *weights[-1:]][: len(weights)]  # shifted as for alignments


def record_step(batch: BeamBatch, inputs: TraceInputs, b: int, slot: Slot, step: int) -> Step:
    """Record the newest step of the sentence in slot b.

    Args:
        batch: the running batch.
        inputs: inputs of the step's ranking.
        b: the slot.
        slot: its sentence.
        step: step number of the sentence, from 1.
    """
    spec, event, k = batch.spec, batch.log.read_event(b, step), batch.spec.beam_size
    finished = {(hyp.row, hyp.token) for hyp in slot.beam.finished if hyp.step == step}
    rows, ranked = make_continuations(event.rows), make_continuations(event.candidates)
    ranked = [candidate for candidate in ranked if candidate.exists]
    for i, row in enumerate(rows):
        if row.exists and row.key in finished:
            rows[i] = replace(row, state="finished")
        elif row.exists and row.state == "ended":
            rows[i] = explain_uncounted(spec, row, event.candidates)
    shown = {row.key for row in rows if row.exists}
    # Finished hypotheses that took no row
    rows += [replace(c, state="finished") for c in ranked if c.key in finished - shown]
    shown |= finished
    ended = [c for c in ranked if c.state == "ended" and c.key not in shown]
    pruned = [explain_uncounted(spec, c, event.candidates) for c in ended]
    shown.update(candidate.key for candidate in pruned)
    open_scores = [row.score for row in rows[:k] if row.score > NO_ROW_SCORE]
    pruned += find_pruned(batch, inputs, b, open_scores, shown)
    pruned.sort(key=lambda candidate: -candidate.score)
    return Step(rows, pruned, inputs.attn[b * k : (b + 1) * k].cpu())


def make_continuations(columns: CandidateList) -> list[Continuation]:
    """Convert candidates from columns to a list of records."""
    return [
        Continuation(int(row), int(token), score, log_prob, "ended" if ended else "open")
        for score, row, token, log_prob, ended in zip(*columns)
    ]


def explain_uncounted(
    spec: SearchSpec, candidate: Continuation, candidates: CandidateList
) -> Continuation:
    """Return a candidate with the reason why it took EOS without counting as finished.

    Args:
        spec: the search spec.
        candidate: a candidate that took EOS.
        candidates: all candidates of the step, best first.
    """
    keys = zip(candidates.parent, candidates.token)
    ranks = [i for i, key in enumerate(keys) if key == candidate.key]
    n_per_pool = max(1, len(candidates.token) // spec.n_pools)
    n_counted = spec.policy.eos_candidates_per_beam * spec.group_size
    if ranks and ranks[0] % n_per_pool >= n_counted:
        why = (
            f"EOS ranked outside the top {n_counted} candidates, so the hypothesis was not counted"
            " as finished"
        )
    elif spec.policy.pool == "first":
        why = "EOS, but enough hypotheses had finished before"
    else:
        why = "EOS, but all finished hypotheses that are kept have better scores"
    return replace(candidate, state="ended", why=why)


def find_pruned(
    batch: BeamBatch,
    inputs: TraceInputs,
    b: int,
    open_scores: list[float],
    shown: Collection[tuple[int, int]],
) -> list[Continuation]:
    """Return the best continuations that did not become rows.

    Args:
        batch: the running batch.
        inputs: inputs of the step's ranking.
        b: the slot of the sentence.
        open_scores: scores of the new rows.
        shown: (row, token) of continuations that are already in the step.

    Returns:
        The best K continuations with lower scores than the rows, then up to K masked ones that
        would have become rows.
    """
    spec, k = batch.spec, batch.spec.beam_size
    rows, scores = slice(b * k, (b + 1) * k), inputs.scores[b][:, None]  # (K, 1)
    log_probs = inputs.model_scores.logits[rows] - inputs.model_scores.log_z[rows, None]  # (K, V)
    unmasked_scores = log_probs + scores  # (K, V)
    final_scores = inputs.token_scores.logits[rows] - inputs.token_scores.log_z[rows, None] + scores

    def take_best(path_scores: Tensor, n: int, why: str = "") -> list[Continuation]:
        """Return the n best continuations, except in missing rows or `shown`.

        Args:
            path_scores: (K, V) scores of the continuations.
            n: how many to take.
            why: the reason to show.
        """
        best = torch.topk(path_scores.flatten(), min(n, path_scores.numel()))  # (n,)
        v = path_scores.size(1)
        continuations = [
            Continuation(i // v, i % v, score, float(log_probs[i // v, i % v]), "lost", why)
            for i, score in zip(best.indices.tolist(), best.values.tolist())
            if score > NO_ROW_SCORE
        ]
        return [c for c in continuations if c.key not in shown]

    lowest = min(open_scores, default=-math.inf)
    if spec.sampling:
        why = "other tokens were sampled"
    elif spec.beam_groups > 1:
        why = "not among the best of its group, where tokens of earlier groups are penalized"
    else:
        why = f"not among the best {len(open_scores)}; the last of these has score {lowest:.4f}"
    pruned = take_best(final_scores, k + len(shown), why)[:k]

    limits = batch.slots[b].beam.limits
    would_win = (final_scores == -math.inf) & (unmasked_scores > lowest)  # (K, V)
    for blocked in take_best(unmasked_scores.masked_fill(~would_win, -math.inf), k):
        reason = next(reason for reason, mask in inputs.forbidden if mask[rows][blocked.key])
        why = f"blocked: {reason.format(limits=limits)}"
        pruned.append(replace(blocked, state="blocked", why=why))
    return pruned


def explain_stop(beam: Beam, n_steps: int) -> str:
    """Return the reason why the search stopped after n_steps steps."""
    n = len(beam.finished)
    have = "1 hypothesis had finished" if n == 1 else f"{n} hypotheses had finished"
    if beam.warning == SEARCH_EMPTY:
        return "every continuation of every row has probability 0"
    if n_steps >= beam.limits.max_steps:
        return f"the limit of {n_steps} tokens was reached"
    return f"{have}, {beam.spec.stop_rule.reason}"
