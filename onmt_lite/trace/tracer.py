"""Traces (-dump_beam): what each step of a search kept, finished, forbade, passed over, and why."""

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

NO_ROW_SCORE = -1e8  # scores below belong to rows that do not exist yet


class Step(NamedTuple):
    """One step of one sentence."""

    rows: list[Continuation]  # the K new rows, then hypotheses that finished beside them
    others: list[Continuation]  # the best continuations that did not become a row
    attn: Tensor  # (K, S): attention of each old row


class Tracer:
    """Records the searches of the traced lines of a batch: an Observer of `Runner`."""

    def __init__(self, postprocessor: Postprocessor, examples: Sequence[Example]):
        self.postprocessor, self.examples = postprocessor, examples
        self.steps = {i: list[Step]() for i, e in enumerate(examples) if e.line.traced}

    def on_step(self, batch: BeamBatch, chosen: ChosenRows) -> None:
        for b, slot in enumerate(batch.slots):
            step = batch.n_steps - slot.start_step
            if slot.index in self.steps and step > 0:  # others take start tokens
                assert chosen.trace is not None
                self.steps[slot.index].append(record_step(batch, chosen.trace, b, slot, step))

    def add_trace(self, number: int, beam: Beam, found: SearchResult) -> SearchResult:
        """With the trace, if this example is traced."""
        steps, example = self.steps.pop(number, None), self.examples[number]
        if steps is None:
            return found
        hyps = [hyp for hyp in beam.rank_finished() if hyp.step]
        kept = {(hyp.step, hyp.row, hyp.token) for hyp in hyps}
        rows = [
            [self._row(row, example, (t, row.parent, row.token) in kept) for row in step.rows]
            for t, step in enumerate(steps, 1)
        ]
        # Each row once: OpenNMT-py of 2018 fills its list up with rows that it has already
        endings = dict[tuple[int, int], TracedHypothesis]()
        for hyp in hyps:
            ending = self._ending(hyp, steps, example, beam, found)
            endings.setdefault((ending.step, ending.row), ending)
        path = list[int]()  # of the best, back from its end
        n_steps, k = next(iter(endings), (0, 0))
        for t in range(n_steps - 1, -1, -1):
            path.insert(0, k)
            k = rows[t][k].parent
        trace = Trace(
            example.line.id,
            example.line.text,
            example.src_tokens,
            beam.spec.beam_size,
            rows,
            [[self._row(other, example) for other in step.others] for step in steps],
            path,
            list(endings.values()),
            explain_stop(beam, len(steps)),
            self._attention(example, steps, path)
            if self.postprocessor.checkpoint.has_attention
            else [],
        )
        return replace(found, trace=trace)

    def _row(self, row: Continuation, example: Example, is_kept: bool = False) -> Continuation:
        """With its token as text.  `is_kept`: a hypothesis that is among the best ends with it."""
        if row.score < NO_ROW_SCORE:
            return replace(row, score=-math.inf, log_prob=-math.inf, state="none", why="")
        (text,) = self._tokens([row.token], example)
        if is_kept:
            return replace(row, text=text, state="finished", why="")
        why = "better ones took its place later" if row.state == "finished" else row.why
        return replace(row, text=text, why=why)

    def _tokens(self, ids: list[int], example: Example) -> list[str]:
        return self.postprocessor.checkpoint.tgt_vocab.decode(ids, example.oov_words)

    def _ending(
        self,
        hyp: FinishedHypothesis,
        steps: list[Step],
        example: Example,
        beam: Beam,
        found: SearchResult,
    ) -> TracedHypothesis:
        ids, log_probs = beam.backtrack(hyp)
        tokens, key = self._tokens(ids, example), (hyp.score, sum(log_probs))
        # A hypothesis of the output has the text that its tokens became in the end
        text = next((h.text for h in found.hyps if (h.score, h.log_prob) == key), None)
        if text is None:
            text = self.postprocessor.tokenizer.decode(tokens[:-1] if hyp.ended else tokens)
        length = hyp.step + (beam.offset if hyp.ended else beam.open_offset)
        norm = beam.spec.compute_length_norm(length)
        rows = [made.key if made.exists else None for made in steps[hyp.step - 1].rows]
        row = rows.index((hyp.row, hyp.token))
        return TracedHypothesis(text, tokens, log_probs, hyp.score, norm, hyp.ended, hyp.step, row)

    def _attention(self, example: Example, steps: list[Step], path: list[int]) -> list[list[float]]:
        """From each token of a path to the tokens of the line."""
        before, late = (
            self.postprocessor.checkpoint.src_margins[0],
            self.postprocessor.checkpoint.aligns_late,
        )
        columns = slice(before, before + len(example.src_tokens))
        rows = [steps[t].rows[k].parent for t, k in enumerate(path)]
        made = [steps[t].attn[k, columns].tolist() for t, k in enumerate(rows)]
        return [*made[late:], *made[-1:]][: len(made)]  # as alignments count


def record_step(batch: BeamBatch, inputs: TraceInputs, b: int, slot: Slot, step: int) -> Step:
    """Record what the newest step of the batch has done in slot b."""
    spec, event, k = batch.spec, batch.log.read_event(b, step), batch.spec.beam_size
    finished = {(hyp.row, hyp.token) for hyp in slot.beam.finished if hyp.step == step}
    rows, ranked = make_continuations(event.rows), make_continuations(event.candidates)
    ranked = [made for made in ranked if made.exists]
    for i, made in enumerate(rows):
        if made.exists and made.key in finished:
            rows[i] = replace(made, state="finished")
        elif made.exists and made.state == "ended":
            rows[i] = explain_uncounted(spec, made, event.candidates)
    here = {made.key for made in rows if made.exists}
    # Hypotheses that made room for a row, or are no row at the limit
    rows += [replace(m, state="finished") for m in ranked if m.key in finished - here]
    here |= finished
    ended = [made for made in ranked if made.state == "ended" and made.key not in here]
    others = [explain_uncounted(spec, made, event.candidates) for made in ended]
    here.update(made.key for made in others)
    alive = [made.score for made in rows[:k] if made.score > NO_ROW_SCORE]
    others += find_dropped(batch, inputs, b, alive, here)
    others.sort(key=lambda made: -made.score)
    return Step(rows, others, inputs.attn[b * k : (b + 1) * k].cpu())


def make_continuations(columns: CandidateList) -> list[Continuation]:
    return [
        Continuation(int(row), int(token), score, log_prob, "ended" if ended else "open")
        for score, row, token, log_prob, ended in zip(*columns)
    ]


def explain_uncounted(
    spec: SearchSpec, made: Continuation, candidates: CandidateList
) -> Continuation:
    """A candidate that ends, with the reason why it is no finished hypothesis."""
    keys = zip(candidates.parent, candidates.token)
    ranks = [i for i, key in enumerate(keys) if key == made.key]
    per_pool = max(1, len(candidates.token) // spec.n_pools)
    first = spec.policy.eos_candidates_per_beam * spec.group_size
    if ranks and ranks[0] % per_pool >= first:
        why = f"EOS ranked outside the top {first} candidates, so the hypothesis was not counted"
    elif spec.policy.pool == "first":
        why = "ends, but enough hypotheses have finished before it"
    else:
        why = "ends, but the finished hypotheses that are kept have better scores"
    return replace(made, state="ended", why=why)


def find_dropped(
    batch: BeamBatch,
    inputs: TraceInputs,
    b: int,
    alive: list[float],
    here: Collection[tuple[int, int]],
) -> list[Continuation]:
    """The best K continuations that lost to the rows, and up to K that would have won but for a
    rule; alive: the scores of the rows."""
    spec, k = batch.spec, batch.spec.beam_size
    of_slot, scores = slice(b * k, (b + 1) * k), inputs.scores[b][:, None]  # (K, 1)
    log_probs = (
        inputs.model_scores.logits[of_slot] - inputs.model_scores.log_z[of_slot, None]
    )  # (K, V)
    plain = log_probs + scores
    totals = (
        inputs.token_scores.logits[of_slot] - inputs.token_scores.log_z[of_slot, None] + scores
    )  # (K, V)

    def best_of(totals: Tensor, n: int, why: str = "") -> list[Continuation]:
        """Of the n largest, those whose row exists and that are not `here`."""
        best, v = torch.topk(totals.flatten(), min(n, totals.numel())), totals.size(1)
        made = [
            Continuation(i // v, i % v, total, float(log_probs[i // v, i % v]), "lost", why)
            for i, total in zip(best.indices.tolist(), best.values.tolist())
            if total > NO_ROW_SCORE
        ]
        return [each for each in made if each.key not in here]

    lowest = min(alive, default=-math.inf)
    if spec.sampling:
        why = "others were drawn"
    elif spec.beam_groups > 1:
        why = "not among the best of its group, where tokens of earlier groups cost more"
    else:
        why = f"not among the best {len(alive)}, the last of which has {lowest:.4f}"
    lost = best_of(totals, k + len(here), why)[:k]

    limits = batch.slots[b].beam.limits
    would_win = (totals == -math.inf) & (plain > lowest)  # (K, V)
    for made in best_of(plain.masked_fill(~would_win, -math.inf), k):
        rule = next(why for why, mask in inputs.forbidden if mask[of_slot][made.key])  # the first
        why = f"blocked: {rule.format(limits=limits)}"
        lost.append(replace(made, state="blocked", why=why))
    return lost


def explain_stop(beam: Beam, n_steps: int) -> str:
    """The reason, in words, after the last step."""
    n = len(beam.finished)
    have = "1 hypothesis had finished" if n == 1 else f"{n} hypotheses had finished"
    if beam.warning == SEARCH_EMPTY:
        return "the model allowed no continuation of any row"
    if n_steps >= beam.limits.max_steps:
        return f"the limit of {n_steps} tokens was reached"
    return f"{have}, {beam.spec.stop_rule.reason}"
