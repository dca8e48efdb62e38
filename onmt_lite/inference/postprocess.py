"""Postprocessing: a beam's hypotheses as text, and the notes on a line.

The notes, in all; docs/jobs-reference.md says what each one means:
  of the input: empty, invalid-utf8, line-breaks, truncated, capitals
  of its tokens: unknown-tokens, unknown-script
  of a line of JSONL: invalid-json, no-text-field, tgt-invalid-json, tgt-no-text-field
  of a reference: tgt-invalid-utf8, tgt-too-long, tgt-not-a-number
  of a prefix: prefix-truncated, prefix-over-limit, prefix-unknown, prefix-banned
  of the options: min-length-over-limit
  of a translation's markup: empty-markup
  of the best hypothesis: unfinished, unsure, not-a-number, search-empty, repeats, numbers
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from onmt_lite.checkpoints.checkpoint import Checkpoint, Confidence, LanguagePair
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import Message
from onmt_lite.inference.preprocess import read_tag
from onmt_lite.inference.records import (
    EMPTY_HYPOTHESIS,
    Example,
    Hypothesis,
    SearchResult,
    Translation,
)
from onmt_lite.inference.runtime import precision_of
from onmt_lite.inference.search_setup import (
    SearchConfig,
    min_length_exceeds_limit,
    prefix_reaches_limit,
)
from onmt_lite.search.beam import SEARCH_EMPTY, Beam, FinishedHypothesis
from onmt_lite.text import markup
from onmt_lite.text.casing import restore_uppercase
from onmt_lite.text.numbers import find_number_mismatch
from onmt_lite.text.phrases import collapse_spaces, contains_phrase
from onmt_lite.text.tag_projection import AlignedText, restore_spans
from onmt_lite.text.tokenizers import word_log_probs


class Postprocessor:
    """Makes the text of hypotheses for one model, with its first tokenizer."""

    def __init__(self, checkpoint: Checkpoint, replaces_unk: bool, phrases: dict[str, str]):
        """`replaces_unk`: unknown tokens give way to the source tokens attended to, or to what
        `phrases` has for these."""
        self.checkpoint, self.replaces_unk, self.phrases = checkpoint, replaces_unk, phrases
        self.tokenizer = next(iter(checkpoint.tokenizers.values()))

    def found(self, beam: Beam, example: Example, n: int, later: bool = False) -> SearchResult:
        """The n best distinct hypotheses, as the search counts them.  `later`: unknown tokens stay,
        for `without_unk`."""
        hyps: dict[Any, Hypothesis] = {}
        forced = example.line.forced
        for finished in beam.rank_finished():
            if len(hyps) == n and not forced:
                break
            hyp = self._hypothesis(beam, finished, example, later)
            if hyp is None:
                continue
            # Two segmentations of one text are two sequences of tokens
            tokens = hyp.ids, hyp.ended, finished.token  # one of several end tokens
            key = {"text": hyp.text, "tokens": tokens, "copies": len(hyps)}
            hyps.setdefault(key[beam.spec.policy.distinct], hyp)
        found = sorted(hyps.values(), key=lambda hyp: len(find_unmet_phrases(hyp.text, forced)))
        n_complete = len(beam.finished)
        if n_complete and not found:  # none is without a banned phrase
            return SearchResult([EMPTY_HYPOTHESIS], SEARCH_EMPTY, n_complete=n_complete)
        return SearchResult(found[:n], beam.warning, n_complete=n_complete)

    def _hypothesis(
        self, beam: Beam, finished: FinishedHypothesis, example: Example, later: bool
    ) -> Hypothesis | None:
        """As text; None if a banned phrase is in it."""
        ids, log_probs = beam.backtrack(finished)
        words = ids[:-1] if finished.ended else ids
        tokens = self.checkpoint.tgt_vocab.decode(words, example.oov_words)
        unk_id = self.checkpoint.tgt_vocab.unk_id
        n_unk = words.count(unk_id) if self.replaces_unk and unk_id is not None else 0
        replaces, sources = n_unk > 0 and not later, list[int]()
        if replaces or example.needs_alignment:  # the token of the line that each token renders
            late, (n_before, _) = self.checkpoint.aligns_late, self.checkpoint.src_margins
            places = beam.get_alignment(finished)
            # One that is cut off has no token after its last
            own = [*places[late:], *places[-1:]][: len(tokens)]
            sources = [place - n_before for place in own]
        if replaces:
            tokens = self._without_unk(words, tokens, sources, example)
        text, is_empty = self._text(tokens, sources, example)
        if holds_banned(text, example):  # words put back from the source may be banned
            tokens, n_unk = self.checkpoint.tgt_vocab.decode(words, example.oov_words), 0
            text, is_empty = self._text(tokens, [], replace(example, masked_line=None))
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
            has_empty_markup=is_empty,
        )

    def with_word_log_probs(self, translation: Translation) -> Translation:
        """With the log-probability of each word too, for hypotheses that the model has made."""
        hyps = []
        for hyp in translation.hyps:
            given = hyp.tokens, hyp.token_log_probs, self.tokenizer.decode, hyp.text
            scores = word_log_probs(*given) if hyp.token_log_probs else []
            hyps.append(replace(hyp, word_log_probs=scores))
        return replace(translation, hyps=hyps)

    def without_unk(self, hyp: Hypothesis, example: Example, sources: list[int]) -> Hypothesis:
        """With tokens of the line in place of unknown ones; sources: the place of each among its
        own."""
        if not hyp.n_replaced:
            return hyp
        sources = [example.n_tag + source for source in sources]
        tokens = self._without_unk([*hyp.ids], hyp.tokens, sources, example)
        text, _ = self._text(tokens, sources, example)
        return hyp if holds_banned(text, example) else replace(hyp, tokens=tokens, text=text)

    def _text(self, tokens: list[str], sources: list[int], example: Example) -> tuple[str, bool]:
        """Tokens as text, and whether a pair of tags has lost its words.

        sources  the token of the line for each, if words are put back
        """
        text, masked_line = self.tokenizer.decode(tokens), example.masked_line
        aligned = (
            AlignedText(example.src_tokens, tokens, sources)
            if masked_line or example.uppercase_spans
            else None
        )
        if aligned and example.uppercase_spans and sources:
            text = restore_uppercase(text, aligned, example.uppercase_spans)
        case = str.upper if example.is_uppercase else str
        if not (masked_line and aligned):
            return case(text), False
        if not (example.prefix_ids or example.line.forced):
            text = masked_line.capitalize_first(text)
        return restore_spans(masked_line, self.tokenizer.encode, aligned, text, case)

    def _without_unk(
        self, ids: list[int], tokens: list[str], sources: list[int], example: Example
    ) -> list[str]:
        """With each unknown token replaced by the source token that it attended to most."""
        unk_id = self.checkpoint.tgt_vocab.unk_id
        found = (example.src_tokens[source] for source in sources)
        own = [self.phrases.get(source, source) for source in found]
        return [w if i == unk_id else token for i, token, w in zip(ids, tokens, own)]


def find_unmet_phrases(text: str, phrases: tuple[str, ...]) -> tuple[str, ...]:
    """The phrases that a text does not hold."""
    return tuple(phrase for phrase in phrases if not contains_phrase(text, phrase, standalone=True))


def holds_banned(text: str, example: Example) -> bool:
    """Whether a text holds a phrase that is banned for the line, however it is spaced."""
    banned = example.line.banned
    return bool(banned) and any(contains_phrase(collapse_spaces(text), phrase) for phrase in banned)


# -- notes ----------------------------------------------------------------------------------------

WORD = re.compile(r"\w+")
A_LETTER = re.compile(r"[^\W\d_]")
LOOP = 3  # times running from which words are a loop
CHAR_LOOP = re.compile(r"(.{1,20}?)\1{3,}")  # hahahaha
TAG = re.compile(markup.TAG)
LONG_LOOP = 10  # characters from which such a run counts
SAME_LENGTH = 1.1  # a run up to this much longer than one in the source is a translation of it
FLAWED = 0.49  # the most confidence in a translation that is cut off or repeats


def confidence_in(
    hyps: Sequence[Hypothesis], curve: Confidence | None, flawed: bool
) -> float | None:
    """Return the probability that the text that hypotheses make up is right, None if it is unknown.

    Each turn of a loop is surer than the last one, so that the curve does not hold for a `flawed`
    text, which is cut off or repeats.
    """
    confidence = curve.estimate(hyps) if curve is not None else None
    return confidence * FLAWED if confidence is not None and flawed else confidence


def assess(
    example: Example, result: SearchResult, config: SearchConfig
) -> tuple[tuple[str, ...], float | None]:
    """Return the notes of one line, beginning with the notes of preprocessing, and the confidence
    in its best hypothesis."""
    if not example.src_ids:
        return example.notes, None
    flags, confidence = {"unknown-tokens": example.n_unknown > 0}, None
    if result.hyps:
        best = result.hyps[0]
        is_cut = not best.ended and not result.note
        repeats = has_repetition(best.text, example.line.text)
        confidence = confidence_in([best], config.checkpoint.confidence, is_cut or repeats)
        flags |= {
            "prefix-over-limit": prefix_reaches_limit(config, example),
            "min-length-over-limit": min_length_exceeds_limit(config, example),
            "unfinished": is_cut,
            "unsure": confidence is not None and confidence < 0.5,
            "repeats": repeats,
            "empty-markup": best.has_empty_markup,
            result.note: bool(result.note),
        }
    return (*example.notes, *(name for name, holds in flags.items() if holds)), confidence


def has_repetition(text: str, source: str) -> bool:
    """Return True if words of `text` come three times running or more, and more often than in
    `source`, or if characters repeat for longer than in `source`."""
    text, source = TAG.sub(" ", text), TAG.sub(" ", source)
    runs = zip(char_runs(text), char_runs(source))
    if any(n >= LONG_LOOP and n > SAME_LENGTH * n_source for n, n_source in runs):
        return True
    n_times, n_source_times = max_consecutive_repeats(text), max_consecutive_repeats(source)
    in_a_word = n_source_times < LOOP and char_runs(source)[0] > 0  # hahahaha may be ha ha ha ha
    return n_times >= LOOP and n_times > n_source_times and not in_a_word


def char_runs(text: str) -> tuple[int, int]:
    """Return the lengths of the longest runs in which letters or other characters repeat, such as
    hahahaha or ......, without spaces and whatever their case; numbers do not count."""
    longest = [0, 0]
    for match in CHAR_LOOP.finditer("".join(text.casefold().split())):
        has_letter = any(map(str.isalpha, match[1]))
        if has_letter or not any(map(str.isdigit, match[1])):
            longest[not has_letter] = max(longest[not has_letter], len(match[0]))
    return longest[0], longest[1]


def max_consecutive_repeats(text: str) -> int:
    """How often the same words come in a row at most, whatever their case; numbers do not count."""
    words = WORD.findall(text.casefold())
    best = 1
    for size in range(1, len(words) // LOOP + 1):
        run = 0  # words in a row that equal the word `size` places before
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            if run // size + 1 > best and any(map(A_LETTER.match, words[i - size : i])):
                best = run // size + 1
    return best


def with_number_warning(
    translation: Translation, checkpoint: Checkpoint, direction: LanguagePair
) -> Translation:
    """With the note `numbers` if the best hypothesis says other ones than the line."""
    hyp = translation.hyps[0] if translation.hyps else EMPTY_HYPOTHESIS
    if not hyp.token_log_probs:  # the model did not make it
        return translation
    text, direction = read_tag(translation.src, checkpoint.languages, direction)
    codes = direction if any(direction) else checkpoint.language_pair
    differs = find_number_mismatch(text, hyp.text, *codes)
    return replace(translation, notes=(*translation.notes, "numbers")) if differs else translation


def with_reference(translation: Translation, gold: list[float] | None) -> Translation:
    """With the log-probabilities of the reference's tokens, if they are numbers."""
    log_prob = reference_log_prob(gold)
    known = gold if log_prob is not None else None
    return replace(
        translation,
        notes=translation.notes + ("tgt-not-a-number",) * (gold is not known),
        gold_log_prob=log_prob,
        has_gold=True,
        n_gold_tokens=len(known or ()),
        gold_token_log_probs=known,
    )


def reference_log_prob(gold: list[float] | None) -> float | None:
    """The log-probability of a reference, which may be -inf; None if there is none, or it is NaN or
    infinity."""
    return sum(gold) if gold is not None and sum(gold) < math.inf else None


def model_notices(
    options: TranslateOptions, checkpoint: Checkpoint, device: torch.device
) -> list[str]:
    """Notes on options that change nothing with this model, on this device."""
    model, vocab, precision = checkpoint.model, checkpoint.tgt_vocab, options.speed.precision
    given = {name for name, value in options.given.items() if value}
    unknown = [token for token in options.search.ignore_when_blocking if token not in vocab.ids]
    lacking, n = dict[str, str](), options.search.max_length
    chosen = checkpoint.languages or any(checkpoint.language_pair)
    if not chosen and "normalize" not in options.text.transforms:
        lacking |= dict.fromkeys(("src_lang", "tgt_lang"), "languages to choose from")
    if vocab.unk_id is None:
        lacking |= dict.fromkeys(("ban_unk_token", "replace_unk"), "unknown token")
    idle = [name for name in lacking if name in given]
    stops = f"{{max_length}}: the model stops at {model.max_positions} tokens"
    in_fp32 = "{precision}: only for Transformers; the model runs in fp32"
    rules = {
        "ignore_when_blocking: the model's vocabulary has no "
        f"{' '.join(map(repr, unknown))}; passed over": bool(unknown),
        **{f"{name}: without effect; the model has no {lacking[name]}": True for name in idle},
        Message.of(stops, max_length=n): ("max_length" in given and n > model.max_positions),
        f"threads: without effect; the model runs on {device}": (
            "threads" in given and device.type != "cpu"
        ),
        "precision: without effect; a table model has no weights": (
            precision != "auto" and not isinstance(model, torch.nn.Module)
        ),
        Message.of(in_fp32, precision=precision): (
            precision == "int8" and precision_of(model) != "int8"
        ),
    }
    return [*checkpoint.notices, *(note for note, holds in rules.items() if holds)]
