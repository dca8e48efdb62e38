"""Tracer: a recorded search in words, with its tokens, reasons and winning path (-dump_beam)."""

import math
from collections.abc import Sequence
from dataclasses import replace

from onmt_lite.inference.postprocess import Renderer
from onmt_lite.inference.records import Ending, Example, Found, Trace
from onmt_lite.search.beam import SEARCH_EMPTY, Beam
from onmt_lite.search.events import Continuation, Finished
from onmt_lite.search.policy import Exhausted, Full, LengthRatio, TopEnded
from onmt_lite.search.recorder import IDLE, Recorder, Step
from onmt_lite.search.scoring import length_norm


class Tracer:
    """Records the searches of some examples of a batch.

    recorder  what the loop calls at each step; None if no example is traced
    """

    def __init__(self, renderer: Renderer, examples: Sequence[Example]):
        self.renderer, self.examples = renderer, examples
        numbers = {i for i, example in enumerate(examples) if example.line.traced}
        self.recorder = Recorder(numbers) if numbers else None

    def traced(self, number: int, beam: Beam, found: Found) -> Found:
        """With the trace, if this example is traced."""
        if self.recorder is None or number not in self.recorder.steps:
            return found
        steps, example = self.recorder.steps.pop(number), self.examples[number]
        hyps = [hyp for hyp in beam.best() if hyp.step]
        kept = {(hyp.step, hyp.row, hyp.token) for hyp in hyps}
        rows = [
            [self._row(row, example, (t, row.parent, row.token) in kept) for row in step.rows]
            for t, step in enumerate(steps, 1)
        ]
        endings = distinct([self._ending(hyp, steps, example, beam, found) for hyp in hyps])
        path = walk(rows, endings[0]) if endings else []
        trace = Trace(
            example.line.id,
            example.line.text,
            example.src_tokens,
            beam.plan.beam_size,
            rows,
            [[self._row(other, example) for other in step.others] for step in steps],
            path,
            endings,
            why_it_stopped(beam, len(steps)),
            self._attention(example, steps, path) if self.renderer.checkpoint.attends else [],
        )
        return replace(found, trace=trace)

    def _row(self, row: Continuation, example: Example, is_kept: bool = False) -> Continuation:
        """With its token as text.  `is_kept`: a hypothesis that is among the best ends with it."""
        if row.score < IDLE:
            return replace(row, score=-math.inf, log_prob=-math.inf, state="none", why="")
        (text,) = self._tokens([row.token], example)
        if is_kept:
            return replace(row, text=text, state="finished", why="")
        why = "better ones took its place later" if row.state == "finished" else row.why
        return replace(row, text=text, why=why)

    def _tokens(self, ids: list[int], example: Example) -> list[str]:
        return self.renderer.checkpoint.tgt_vocab.decode(ids, example.own_words)

    def _ending(
        self, hyp: Finished, steps: list[Step], example: Example, beam: Beam, found: Found
    ) -> Ending:
        ids, log_probs = beam.hypothesis(hyp)
        tokens, key = self._tokens(ids, example), (hyp.score, sum(log_probs))
        # A hypothesis of the output has the text that its tokens became in the end
        text = next((h.text for h in found.hyps if (h.score, h.log_prob) == key), None)
        if text is None:
            text = self.renderer.tokenizer.decode(tokens[:-1] if hyp.ended else tokens)
        length = hyp.step + (beam.offset if hyp.ended else beam.open_offset)
        norm = length_norm(beam.plan.length_penalty, beam.plan.alpha, length)
        row = row_of(hyp, steps)
        return Ending(text, tokens, log_probs, hyp.score, norm, hyp.ended, hyp.step, row)

    def _attention(self, example: Example, steps: list[Step], path: list[int]) -> list[list[float]]:
        """From each token of a path to the tokens of the line."""
        before, late = self.renderer.checkpoint.src_margins[0], self.renderer.checkpoint.aligns_late
        columns = slice(before, before + len(example.src_tokens))
        rows = [steps[t].rows[k].parent for t, k in enumerate(path)]
        made = [steps[t].attn[k, columns].tolist() for t, k in enumerate(rows)]
        return [*made[late:], *made[-1:]][: len(made)]  # as alignments count


def row_of(hyp: Finished, steps: list[Step]) -> int:
    """The place of a hypothesis among the rows of its last step."""
    for k, row in enumerate(steps[hyp.step - 1].rows):
        if row.key == (hyp.row, hyp.token) and row.exists:
            return k
    raise LookupError(f"no row of step {hyp.step} ends as the hypothesis {hyp}")


def distinct(endings: list[Ending]) -> list[Ending]:
    """Each row once: OpenNMT-py of 2018 fills its list up with rows that it has already."""
    return list({(ending.step, ending.row): ending for ending in reversed(endings)}.values())[::-1]


def walk(rows: list[list[Continuation]], ending: Ending) -> list[int]:
    """The row of a hypothesis at each of its steps, found by the parents."""
    path, k = [], ending.row
    for t in range(ending.step - 1, -1, -1):
        path.append(k)
        k = rows[t][k].parent
    return path[::-1]


def why_it_stopped(beam: Beam, n_steps: int) -> str:
    """The reason, in words, after the last step."""
    stop, n = beam.plan.stop, len(beam.finished)
    have = "1 hypothesis had finished" if n == 1 else f"{n} hypotheses had finished"
    if beam.note == SEARCH_EMPTY:
        return "the model allowed no continuation of any row"
    if n_steps >= beam.limits.max_steps:
        return f"the limit of {n_steps} tokens was reached"
    if isinstance(stop, TopEnded):
        best = "the best candidate of a step was one that ended"
        return f"{have}, which is enough, and {best}"
    if isinstance(stop, Full):
        return f"{have}, which is enough"
    if isinstance(stop, LengthRatio):
        return f"{have}, and the best of them had the length and score that -ratio expects"
    if isinstance(stop, Exhausted):
        return f"{have}, and no row was left"
    return f"{have}, and no open row could be expected to beat them"
