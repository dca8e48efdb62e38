"""A watched search in words: tokens, reasons, the winning path.  `-dump_beam` shows it."""

import math
from collections.abc import Sequence
from dataclasses import replace

from onmt_lite.inference.postprocess import Renderer
from onmt_lite.inference.records import Example, Found
from onmt_lite.inference.trace import Cell, Ending, Trace
from onmt_lite.search.beam import SEARCH_EMPTY, Beam
from onmt_lite.search.events import Finished
from onmt_lite.search.policy import Exhausted, Full, LengthRatio, TopEnded
from onmt_lite.search.recorder import IDLE, Made, Recorder, Step
from onmt_lite.search.scoring import length_norm


class Tracer:
    """Watches the examples of one search that are to be traced.

    watch  what the loop calls at each step; None where no example is traced
    """

    def __init__(self, renderer: Renderer, examples: Sequence[Example]):
        self.renderer, self.examples = renderer, examples
        numbers = {i for i, example in enumerate(examples) if example.line.traced}
        self.watch = Recorder(numbers) if numbers else None

    def traced(self, number: int, beam: Beam, found: Found) -> Found:
        """What was found, with its trace where the example is one of those."""
        if self.watch is None or number not in self.watch.steps:
            return found
        steps = self.watch.steps.pop(number)
        words = Words(self.renderer, self.examples[number], beam, found)
        return replace(found, trace=self._trace(words, beam, steps))

    def _trace(self, words: "Words", beam: Beam, steps: list[Step]) -> Trace:
        example = words.example
        hyps = [hyp for hyp in beam.best() if hyp.step]
        kept = {(hyp.step, hyp.row, hyp.token) for hyp in hyps}
        cells = [
            [words.cell(made, (t, made.parent, made.token) in kept) for made in step.rows]
            for t, step in enumerate(steps, 1)
        ]
        endings = distinct([words.ending(hyp, row_of(hyp, steps)) for hyp in hyps])
        path = walk(cells, endings[0]) if endings else []
        return Trace(
            example.line.id,
            example.line.text,
            example.src_tokens,
            beam.plan.beam_size,
            cells,
            [[words.cell(made) for made in step.others] for step in steps],
            path,
            endings,
            why_it_stopped(beam, len(steps)),
            self._attention(example, steps, path) if self.renderer.checkpoint.attends else [],
        )

    def _attention(self, example: Example, steps: list[Step], path: list[int]) -> list[list[float]]:
        """From each token of a path to the tokens of the line."""
        before, late = self.renderer.checkpoint.src_margins[0], self.renderer.checkpoint.aligns_late
        columns = slice(before, before + len(example.src_tokens))
        rows = [steps[t].rows[k].parent for t, k in enumerate(path)]
        made = [steps[t].attn[k, columns].tolist() for t, k in enumerate(rows)]
        return [*made[late:], *made[-1:]][: len(made)]  # as alignments count


class Words:
    """The tokens of one search as text."""

    def __init__(self, renderer: Renderer, example: Example, beam: Beam, found: Found):
        self.renderer, self.example, self.beam = renderer, example, beam
        # Those of the output are what became of the tokens in the end
        self.texts = {(hyp.score, hyp.log_prob): hyp.text for hyp in found.hyps}

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return self.renderer.checkpoint.tgt_vocab.decode(list(ids), self.example.own_words)

    def cell(self, made: Made, is_kept: bool = False) -> Cell:
        if not made.exists or made.score < IDLE:
            return Cell(made.parent, "", None, None, "none")
        state, why = "open", made.why
        if is_kept or made.why == "finished":
            state, why = "finished", "" if is_kept else "better ones took its place later"
        elif made.why:
            state = "ended" if made.why.startswith("ends") else "lost"
            state = "blocked" if made.why.startswith("blocked") else state
        (token,) = self.tokens([made.token])
        return Cell(made.parent, token, finite(made.score), finite(made.log_prob), state, why)

    def ending(self, hyp: Finished, row: int) -> Ending:
        ids, log_probs = self.beam.hypothesis(hyp)
        tokens = self.renderer.checkpoint.tgt_vocab.decode(ids, self.example.own_words)
        text = self.texts.get((hyp.score, sum(log_probs)))
        if text is None:
            text = self.renderer.tokenizer.decode(tokens[:-1] if hyp.ended else tokens)
        plan, beam = self.beam.plan, self.beam
        length = hyp.step + (beam.offset if hyp.ended else beam.open_offset)
        norm = length_norm(plan.length_penalty, plan.alpha, length)
        return Ending(text, tokens, log_probs, hyp.score, norm, hyp.ended, hyp.step, row)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def row_of(hyp: Finished, steps: list[Step]) -> int:
    """Where a hypothesis ends among the rows of its last step."""
    for k, made in enumerate(steps[hyp.step - 1].rows):
        if (made.parent, made.token) == (hyp.row, hyp.token) and made.exists:
            return k
    raise LookupError(f"no row of step {hyp.step} ends as the hypothesis {hyp}")


def distinct(endings: list[Ending]) -> list[Ending]:
    """Each row once: OpenNMT-py of 2018 fills its list up with rows that it has already."""
    return list({(ending.step, ending.row): ending for ending in reversed(endings)}.values())[::-1]


def walk(cells: list[list[Cell]], ending: Ending) -> list[int]:
    """The row of a hypothesis at each of its steps, by way of the parents."""
    rows, k = [], ending.row
    for t in range(ending.step - 1, -1, -1):
        rows.append(k)
        k = cells[t][k].parent
    return rows[::-1]


def why_it_stopped(beam: Beam, n_steps: int) -> str:
    """In words, after the last step."""
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
