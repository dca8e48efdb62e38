"""Postprocessing: a beam's hypotheses as text, the notes on a line, its search in words.

Notes.  Of the input:
  empty             blank; no output
  invalid-utf8      bytes that are not UTF-8 became U+FFFD
  truncated         longer than the model or the reader takes; the rest is not translated
  capitals          written in capitals; read in small letters
  unknown-tokens    the model does not know some of its tokens; `n_unknown` says how many
  unknown-script    hardly a letter that the model knows; passed through as it is
  invalid-json      of JSONL, no object with a text in its field; no output
Of a reference or prefix:
  tgt-invalid-json  of JSONL, no object with a text in its field; not used
  tgt-invalid-utf8  bytes that are not UTF-8 became U+FFFD
  tgt-too-long      longer than the model or the reader takes; not scored
  prefix-truncated  longer than the model or the reader takes; cut
  prefix-over-limit leaves no room for more
  prefix-unknown    the model does not know some of its tokens; the translation has other text there
  prefix-banned     holds a phrase of -ban_words; not used
  tgt-not-a-number  its score is NaN or infinite, also alone in fp32
Of the options:
  min-length-over-limit  the line's own limit of length is below min_length
Of the output, its best hypothesis:
  unfinished        cut by a limit of length before the end token
  unsure            more probably wrong than right, as the model's calibration says (-report_unsure)
  not-a-number      blank: the model's numbers are NaN or infinite, also alone in fp32
  search-empty      the model allowed no further token
  repeats           says the same word or words three times running or more, and more often than the
                    source does
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import (
    NOTHING,
    Ending,
    Example,
    Found,
    Hypothesis,
    Trace,
    Translation,
)
from onmt_lite.inference.runtime import precision_of
from onmt_lite.inference.search_setup import SearchConfig, cannot_end, is_outgrown
from onmt_lite.search.beam import SEARCH_EMPTY, Beam, Continuation, Finished, length_norm
from onmt_lite.search.policy import Exhausted, Full, LengthRatio, TopEnded
from onmt_lite.search.recorder import IDLE, Recorder, Step
from onmt_lite.text.phrases import occurs, single_spaced
from onmt_lite.text.tag_projection import Aligned, put_back
from onmt_lite.text.tokenizers import word_log_probs


class Renderer:
    """Makes the text of hypotheses for one model, with its first tokenizer."""

    def __init__(self, checkpoint: Checkpoint, replaces_unk: bool, phrases: dict[str, str]):
        """`replaces_unk`: unknown tokens give way to the source tokens attended to, or to what
        `phrases` has for these."""
        self.checkpoint, self.replaces_unk, self.phrases = checkpoint, replaces_unk, phrases
        self.tokenizer = next(iter(checkpoint.tokenizers.values()))

    def found(self, beam: Beam, example: Example, n: int, later: bool = False) -> Found:
        """The n best distinct hypotheses, as the search counts them.  `later`: unknown tokens stay,
        for `without_unk`."""
        hyps: dict[Any, Hypothesis] = {}
        forced = example.line.forced
        for finished in beam.best():
            if len(hyps) == n and not forced:
                break
            hyp = self._hypothesis(beam, finished, example, later)
            if hyp is None:
                continue
            # Two segmentations of one text are two sequences of tokens
            key = {"text": hyp.text, "tokens": (hyp.ids, hyp.ended), "copies": len(hyps)}
            hyps.setdefault(key[beam.plan.policy.distinct], hyp)
        found = sorted(hyps.values(), key=lambda hyp: len(unmet(hyp.text, forced)))
        n_complete = len(beam.finished)
        if n_complete and not found:  # none is without a banned phrase
            return Found([NOTHING], SEARCH_EMPTY, n_complete=n_complete)
        return Found(found[:n], beam.note, n_complete=n_complete)

    def _hypothesis(
        self, beam: Beam, finished: Finished, example: Example, later: bool
    ) -> Hypothesis | None:
        """As text; None if a banned phrase is in it."""
        ids, log_probs = beam.hypothesis(finished)
        words = ids[:-1] if finished.ended else ids
        tokens = self.checkpoint.tgt_vocab.decode(words, example.own_words)
        unk_id = self.checkpoint.tgt_vocab.unk_id
        n_unk = words.count(unk_id) if self.replaces_unk and unk_id is not None else 0
        replaces, sources = n_unk > 0 and not later, list[int]()
        if replaces or example.reading:  # the token of the line that each token renders
            late, (n_before, _) = self.checkpoint.aligns_late, self.checkpoint.src_margins
            places = beam.alignment(finished)
            # One that is cut off has no token after its last
            own = [*places[late:], *places[-1:]][: len(tokens)]
            sources = [place - n_before for place in own]
        if replaces:
            tokens = self._without_unk(words, tokens, sources, example)
        text = self._text(tokens, sources, example)
        if holds_banned(text, example):  # words put back from the source may be banned
            tokens, n_unk = self.checkpoint.tgt_vocab.decode(words, example.own_words), 0
            text = self._text(tokens, [], replace(example, reading=None))
            if holds_banned(text, example):
                return None
        return Hypothesis(
            text,
            tokens,
            finished.score,
            sum(log_probs),
            log_probs,
            finished.ended,
            ids=tuple(words),
            n_replaced=n_unk,
        )

    def by_words(self, translation: Translation) -> Translation:
        """With the log-probability of each word too, for hypotheses that the model has made."""
        decode = self.tokenizer.decode
        hyps = [
            replace(h, word_log_probs=word_log_probs(h.tokens, h.token_log_probs, decode, h.text))
            if h.token_log_probs
            else replace(h, word_log_probs=[])
            for h in translation.hyps
        ]
        return replace(translation, hyps=hyps)

    def without_unk(self, hyp: Hypothesis, example: Example, sources: list[int]) -> Hypothesis:
        """With the tokens of the line from which its unknown tokens come in the place of these.

        sources: for each token the place of one among the line's own."""
        if not hyp.n_replaced:
            return hyp
        sources = [example.n_tag + source for source in sources]
        tokens = self._without_unk([*hyp.ids], hyp.tokens, sources, example)
        text = self._text(tokens, sources, example)
        return hyp if holds_banned(text, example) else replace(hyp, tokens=tokens, text=text)

    def _text(self, tokens: list[str], sources: list[int], example: Example) -> str:
        """Tokens as text; sources: the token of the line for each, if words are put back."""
        text = self.tokenizer.decode(tokens)
        case = str.upper if example.in_capitals else str
        if not example.reading:
            return case(text)
        aligned = Aligned(example.src_tokens, tokens, sources)
        return put_back(example.reading, self.tokenizer.encode, aligned, text, case)

    def _without_unk(
        self, ids: list[int], tokens: list[str], sources: list[int], example: Example
    ) -> list[str]:
        """With each unknown token replaced by the source token that it attended to most."""
        unk_id = self.checkpoint.tgt_vocab.unk_id
        found = (example.src_tokens[source] for source in sources)
        own = [self.phrases.get(source, source) for source in found]
        return [w if i == unk_id else token for i, token, w in zip(ids, tokens, own)]


def unmet(text: str, phrases: tuple[str, ...]) -> tuple[str, ...]:
    """The phrases that a text does not hold."""
    return tuple(phrase for phrase in phrases if not occurs(text, phrase, alone=True))


def holds_banned(text: str, example: Example) -> bool:
    """Whether a text holds a phrase that is banned for the line, however it is spaced."""
    banned = example.line.banned
    return bool(banned) and any(occurs(single_spaced(text), phrase) for phrase in banned)


# -- notes ----------------------------------------------------------------------------------------

WORD = re.compile(r"\w+")
A_LETTER = re.compile(r"[^\W\d_]")
LOOP = 3  # times running from which words are a loop


def notes_of(
    example: Example, found: Found, config: SearchConfig, unsure: bool = False
) -> tuple[str, ...]:
    """The notes of one line, beginning with the notes of preprocessing."""
    flags, gold = dict[str, bool](), found.gold
    if example.src_ids:
        flags["unknown-tokens"] = example.n_unknown > 0
    if example.src_ids and found.hyps:
        best = found.hyps[0]
        flags |= {
            "prefix-over-limit": is_outgrown(config, example),
            "min-length-over-limit": cannot_end(config, example),
            "unfinished": not best.ended and not found.note,
            "unsure": unsure,
            "repeats": loops(best.text, example.line.text),
            found.note: bool(found.note),
        }
    flags["tgt-not-a-number"] = gold is not None and total(gold) is None
    return (*example.notes, *(name for name, holds in flags.items() if holds))


def loops(text: str, source: str) -> bool:
    """Whether words of `text` come three times running or more, and more often than in `source`."""
    n_times = times_running(text)
    return n_times >= LOOP and n_times > times_running(source)


def times_running(text: str) -> int:
    """How often the same group of words comes in a row at most, upper and lower case being equal.

    A group has a letter: "1 1 1" and "..." say nothing twice.
    """
    words = WORD.findall(text.casefold())
    best = 1
    for size in range(1, len(words) // LOOP + 1):
        run = 0  # words in a row that equal the word `size` places before
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            if run // size + 1 > best and any(map(A_LETTER.match, words[i - size : i])):
                best = run // size + 1
    return best


def total(gold: list[float] | None) -> float | None:
    """The log-probability of a reference, which may be -inf; None if there is none, or it is NaN or
    infinity."""
    return sum(gold) if gold is not None and sum(gold) < math.inf else None


def model_notes(
    options: TranslateOptions, checkpoint: Checkpoint, device: torch.device
) -> list[str]:
    """Notes on options that change nothing with this model, on this device."""
    model, vocab, precision = checkpoint.model, checkpoint.tgt_vocab, options.speed.precision
    given = {name for name, value in options.given.items() if value}
    unknown = [token for token in options.search.ignore_when_blocking if token not in vocab.ids]
    tongues, replaced, n = set[str](), set[str](), options.search.max_length
    if checkpoint.languages is None and "normalize" not in options.text.transforms:
        tongues = given
    if vocab.unk_id is None:
        replaced = given
    nothing = "without effect; the model has no"
    rules = {
        "ignore_when_blocking: the model's vocabulary has no "
        f"{' '.join(map(repr, unknown))}; passed over": bool(unknown),
        f"src_lang: {nothing} languages to choose from": "src_lang" in tongues,
        f"tgt_lang: {nothing} languages to choose from": "tgt_lang" in tongues,
        f"ban_unk_token: {nothing} unknown token": "ban_unk_token" in replaced,
        f"replace_unk: {nothing} unknown token": "replace_unk" in replaced,
        f"max_length {n}: the model stops at {model.max_positions} tokens": (
            "max_length" in given and n > model.max_positions
        ),
        f"threads: without effect; the model runs on {device}": (
            "threads" in given and device.type != "cpu"
        ),
        "precision: without effect; a table model has no weights": (
            precision != "auto" and not isinstance(model, torch.nn.Module)
        ),
        "precision int8: no exact kernel for this processor; the model runs in fp32": (
            precision == "int8" and precision_of(model) != "int8"
        ),
    }
    return [*checkpoint.notes, *(note for note, holds in rules.items() if holds)]


# -- traces (-dump_beam) ---------------------------------------------------------------------------


class Tracer:
    """Records searches of examples of a batch; the loop calls its `recorder` at each step, which is
    None if no example is traced."""

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
        # Each row once: OpenNMT-py of 2018 fills its list up with rows that it has already
        endings = dict[tuple[int, int], Ending]()
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
            beam.plan.beam_size,
            rows,
            [[self._row(other, example) for other in step.others] for step in steps],
            path,
            list(endings.values()),
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
        row = next(
            k
            for k, row in enumerate(steps[hyp.step - 1].rows)
            if row.exists and row.key == (hyp.row, hyp.token)
        )
        return Ending(text, tokens, log_probs, hyp.score, norm, hyp.ended, hyp.step, row)

    def _attention(self, example: Example, steps: list[Step], path: list[int]) -> list[list[float]]:
        """From each token of a path to the tokens of the line."""
        before, late = self.renderer.checkpoint.src_margins[0], self.renderer.checkpoint.aligns_late
        columns = slice(before, before + len(example.src_tokens))
        rows = [steps[t].rows[k].parent for t, k in enumerate(path)]
        made = [steps[t].attn[k, columns].tolist() for t, k in enumerate(rows)]
        return [*made[late:], *made[-1:]][: len(made)]  # as alignments count


def why_it_stopped(beam: Beam, n_steps: int) -> str:
    """The reason, in words, after the last step."""
    stop, n = beam.plan.stop, len(beam.finished)
    have = "1 hypothesis had finished" if n == 1 else f"{n} hypotheses had finished"
    if beam.note == SEARCH_EMPTY:
        return "the model allowed no continuation of any row"
    if n_steps >= beam.limits.max_steps:
        return f"the limit of {n_steps} tokens was reached"
    reasons = {
        TopEnded: "which is enough, and the best candidate of a step was one that ended",
        Full: "which is enough",
        LengthRatio: "and the best of them had the length and score that -ratio expects",
        Exhausted: "and no row was left",
    }
    why = reasons.get(type(stop), "and no open row could be expected to beat them")
    return f"{have}, {why}"
