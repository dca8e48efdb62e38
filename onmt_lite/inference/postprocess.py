"""Postprocessing: hypotheses to text, confidence and the warnings of a line.

All warnings; docs/jobs-reference.md explains each one:
  of the input: empty, invalid-utf8, line-breaks, truncated, capitals, other-language
  of its tokens: unknown-tokens, unknown-script
  of a JSONL line: invalid-json, no-text-field, tgt-invalid-json, tgt-no-text-field
  of a reference: tgt-invalid-utf8, tgt-too-long, tgt-not-a-number
  of a prefix: prefix-truncated, prefix-over-limit, prefix-unknown, prefix-banned
  of the options: min-length-over-limit
  of the markup of a translation: empty-markup
  of the best hypothesis: unfinished, unsure, not-a-number, search-empty, repeats, numbers
"""

import math
import re
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
from onmt_lite.inference.runtime import get_precision
from onmt_lite.inference.search_setup import (
    SearchConfig,
    has_forced_eos,
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

# A lower confidence gives the warning.  With the included model, 12 of 23 wrong everyday lines were
# below it, and 5 of 48 right ones; 0.8 would give it to 16 and 6, and to a third of easy lines
UNSURE = 0.75


class Postprocessor:
    """Converts the hypotheses of one model to text, with its first tokenizer."""

    def __init__(self, checkpoint: Checkpoint, replaces_unk: bool, phrases: dict[str, str]):
        """
        Args:
            checkpoint: the model.
            replaces_unk: replace unknown tokens by the source tokens with the most attention.
            phrases: replacements for these source tokens.
        """
        self.checkpoint, self.replaces_unk, self.phrases = checkpoint, replaces_unk, phrases
        self.tokenizer = next(iter(checkpoint.tokenizers.values()))

    def make_result(
        self, beam: Beam, example: Example, n: int, keeps_unk: bool = False
    ) -> SearchResult:
        """Return the n best distinct hypotheses of a finished beam.

        Args:
            beam: the finished beam.
            example: its line.
            n: number of hypotheses.
            keeps_unk: keep unknown tokens; `replace_unk` replaces them later.
        """
        hyps: dict[Any, Hypothesis] = {}
        forced = example.line.forced
        for finished in beam.rank_finished():
            if len(hyps) == n and not forced:
                break
            hyp = self._make_hypothesis(beam, finished, example, keeps_unk)
            if hyp is None:
                continue
            # Two tokenizations of one text are different token sequences
            tokens = hyp.ids, hyp.ended, finished.token  # which end token, if the model has several
            key = {"text": hyp.text, "tokens": tokens, "copies": len(hyps)}
            hyps.setdefault(key[beam.spec.policy.distinct], hyp)
        hyps_found = sorted(
            hyps.values(), key=lambda hyp: len(find_unmet_phrases(hyp.text, forced))
        )
        n_complete = len(beam.finished)
        if n_complete and not hyps_found:  # all contain a banned phrase
            return SearchResult([EMPTY_HYPOTHESIS], SEARCH_EMPTY, n_complete=n_complete)
        return SearchResult(hyps_found[:n], beam.warning, n_complete=n_complete)

    def _make_hypothesis(
        self, beam: Beam, finished: FinishedHypothesis, example: Example, keeps_unk: bool
    ) -> Hypothesis | None:
        """Return a finished hypothesis as text, or None if it contains a banned phrase.

        Args:
            beam: its beam.
            finished: the hypothesis.
            example: the line.
            keeps_unk: keep unknown tokens.
        """
        ids, log_probs = beam.backtrack(finished)
        token_ids = ids[:-1] if finished.ended else ids
        tokens = self.checkpoint.tgt_vocab.decode(token_ids, example.oov_words)
        unk_id = self.checkpoint.tgt_vocab.unk_id
        n_unk = token_ids.count(unk_id) if self.replaces_unk and unk_id is not None else 0
        replaces, sources = n_unk > 0 and not keeps_unk, list[int]()
        if replaces or example.needs_alignment:  # the aligned source token of each token
            aligns_late, (n_before, _) = self.checkpoint.aligns_late, self.checkpoint.src_margins
            positions = beam.get_alignment(finished)
            # A truncated hypothesis has no step after its last token
            token_positions = [*positions[aligns_late:], *positions[-1:]][: len(tokens)]
            sources = [position - n_before for position in token_positions]
        if replaces:
            tokens = self._replace_unk(token_ids, tokens, sources, example)
        text, has_empty_markup = self._detokenize(tokens, sources, example)
        if contains_banned(text, example):  # restored source words may be banned
            tokens, n_unk = self.checkpoint.tgt_vocab.decode(token_ids, example.oov_words), 0
            text, has_empty_markup = self._detokenize(
                tokens, [], replace(example, masked_line=None)
            )
            if contains_banned(text, example):
                return None
        return Hypothesis(
            text,
            tokens,
            finished.score,
            sum(log_probs),
            log_probs,
            finished.ended,
            ids=tuple(token_ids),
            n_replaced=n_unk,
            has_empty_markup=has_empty_markup,
        )

    def with_word_log_probs(self, translation: Translation) -> Translation:
        """Add the log-probability of each word to hypotheses that the model generated."""
        hyps = []
        for hyp in translation.hyps:
            args = hyp.tokens, hyp.token_log_probs, self.tokenizer.decode, hyp.text
            scores = word_log_probs(*args) if hyp.token_log_probs else []
            hyps.append(replace(hyp, word_log_probs=scores))
        return replace(translation, hyps=hyps)

    def replace_unk(self, hyp: Hypothesis, example: Example, sources: list[int]) -> Hypothesis:
        """Replace unknown tokens by tokens of the line.

        Args:
            hyp: the hypothesis.
            example: the line.
            sources: aligned token of the line for each target token.
        """
        if not hyp.n_replaced:
            return hyp
        sources = [example.n_tag + source for source in sources]
        tokens = self._replace_unk([*hyp.ids], hyp.tokens, sources, example)
        text, _ = self._detokenize(tokens, sources, example)
        return hyp if contains_banned(text, example) else replace(hyp, tokens=tokens, text=text)

    def _detokenize(
        self, tokens: list[str], sources: list[int], example: Example
    ) -> tuple[str, bool]:
        """Detokenize, restore uppercase words and masked spans.

        Args:
            tokens: target tokens.
            sources: aligned source token of each, needed only for restoration.
            example: the line.

        Returns:
            The text, and whether a pair of tags has lost its words.
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

    def _replace_unk(
        self, ids: list[int], tokens: list[str], sources: list[int], example: Example
    ) -> list[str]:
        """Replace each unknown token by the source token that it attended to most.

        Args:
            ids: ids of the tokens.
            tokens: target tokens.
            sources: aligned source token of each.
            example: the line.
        """
        unk_id = self.checkpoint.tgt_vocab.unk_id
        source_tokens = (example.src_tokens[source] for source in sources)
        replacements = [self.phrases.get(source, source) for source in source_tokens]
        return [
            replacement if i == unk_id else token
            for i, token, replacement in zip(ids, tokens, replacements)
        ]


def find_unmet_phrases(text: str, phrases: tuple[str, ...]) -> tuple[str, ...]:
    """Return the phrases that a text does not contain."""
    return tuple(phrase for phrase in phrases if not contains_phrase(text, phrase, standalone=True))


def contains_banned(text: str, example: Example) -> bool:
    """Return True if a text contains a banned phrase of the line, ignoring spacing."""
    banned = example.line.banned
    return bool(banned) and any(contains_phrase(collapse_spaces(text), phrase) for phrase in banned)


# -- warnings --------------------------------------------------------------------------------------

WORD = re.compile(r"\w+")
LETTER = re.compile(r"[^\W\d_]")
MIN_REPEATS = 3  # consecutive repeats of words that count as repetition
REPEATED_CHARS = re.compile(r"(.{1,20}?)\1{3,}")  # hahahaha
TAG = re.compile(markup.TAG)
MIN_REPEATED_CHARS = 10  # length from which repeated characters count
LENGTH_TOLERANCE = (
    1.1  # repeated characters up to this much longer than in the source are a translation
)
FLAWED_FACTOR = 0.49  # factor for the confidence of a truncated or repetitive translation


def get_confidence(hyp: Hypothesis, curve: Confidence | None, is_flawed: bool) -> float | None:
    """Return the probability that a hypothesis is correct, or None if unknown.

    The calibration does not apply to truncated or repetitive text, because the model grows more
    certain with each repetition. Its confidence is therefore reduced.

    Args:
        hyp: the hypothesis.
        curve: the calibration of the model.
        is_flawed: whether the hypothesis or its source is truncated, or it is repetitive.
    """
    confidence = curve.estimate(hyp) if curve is not None else None
    return confidence * FLAWED_FACTOR if confidence is not None and is_flawed else confidence


def assess(
    example: Example, result: SearchResult, config: SearchConfig
) -> tuple[tuple[str, ...], float | None]:
    """Return the warnings of a line, including the ones of preprocessing, and its confidence.

    Args:
        example: the line.
        result: its search result.
        config: the search configuration.
    """
    if not example.src_ids:
        return example.notes, None
    flags, confidence = {"unknown-tokens": example.n_unknown > 0}, None
    if result.hyps:
        best = result.hyps[0]
        is_truncated = not (best.ended or result.note) or has_forced_eos(config, example, best)
        repeats = has_repetition(best.text, example.line.text)
        is_flawed = is_truncated or repeats or not best.ended or "truncated" in example.notes
        confidence = get_confidence(best, config.checkpoint.confidence, is_flawed)
        flags |= {
            "prefix-over-limit": prefix_reaches_limit(config, example),
            "min-length-over-limit": min_length_exceeds_limit(config, example),
            "unfinished": is_truncated,
            "unsure": confidence is not None and confidence < UNSURE,
            "repeats": repeats,
            "empty-markup": best.has_empty_markup,
            result.note: bool(result.note),
        }
    return (*example.notes, *(name for name, is_set in flags.items() if is_set)), confidence


def has_repetition(text: str, source: str) -> bool:
    """Return True if words or characters of a text repeat.

    Words count from three consecutive repeats, and if they repeat more often than in `source`;
    characters count if they repeat for longer than in `source`.
    """
    text, source = TAG.sub(" ", text), TAG.sub(" ", source)
    char_runs = find_longest_char_runs(text)
    source_runs = find_longest_char_runs(source) if any(char_runs) else (0, 0)
    lengths = zip(char_runs, source_runs)
    if any(n >= MIN_REPEATED_CHARS and n > LENGTH_TOLERANCE * n_source for n, n_source in lengths):
        return True
    n_repeats = count_max_consecutive_repeats(text)
    if n_repeats < MIN_REPEATS:
        return False
    n_source_repeats = count_max_consecutive_repeats(source)
    # hahahaha may become ha ha ha ha
    is_long_word = n_source_repeats < MIN_REPEATS and find_longest_char_runs(source)[0] > 0
    return n_repeats > n_source_repeats and not is_long_word


def find_longest_char_runs(text: str) -> tuple[int, int]:
    """Return the lengths of the longest repetitions of letters and of other characters.

    Examples are hahahaha and ...... . Spaces and case are ignored, and digits do not count.
    """
    longest = [0, 0]
    for match in REPEATED_CHARS.finditer("".join(text.casefold().split())):
        has_letter = any(map(str.isalpha, match[1]))
        if has_letter or not any(map(str.isdigit, match[1])):
            longest[not has_letter] = max(longest[not has_letter], len(match[0]))
    return longest[0], longest[1]


def count_max_consecutive_repeats(text: str) -> int:
    """Return how often the same words are repeated at most, ignoring case and numbers."""
    words = WORD.findall(text.casefold())
    best = 1
    for size in range(1, len(words) // MIN_REPEATS + 1):
        run = 0  # consecutive words that equal the word `size` positions before
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            if run // size + 1 > best and any(map(LETTER.match, words[i - size : i])):
                best = run // size + 1
    return best


def with_number_warning(
    translation: Translation, checkpoint: Checkpoint, direction: LanguagePair
) -> Translation:
    """Add the warning `numbers` if the best hypothesis has other numbers than the line.

    Args:
        translation: the translation.
        checkpoint: the model.
        direction: languages of lines without a language tag.
    """
    hyp = translation.hyps[0] if translation.hyps else EMPTY_HYPOTHESIS
    if not hyp.token_log_probs:  # not generated by the model
        return translation
    text, direction = read_tag(translation.src, checkpoint.languages, direction)
    codes = direction if any(direction) else checkpoint.language_pair
    differs = find_number_mismatch(text, hyp.text, *codes)
    return replace(translation, notes=(*translation.notes, "numbers")) if differs else translation


def with_reference(translation: Translation, gold: list[float] | None) -> Translation:
    """Add the token log-probabilities of the reference, unless they are NaN."""
    log_prob = compute_reference_log_prob(gold)
    valid = gold if log_prob is not None else None
    return replace(
        translation,
        notes=translation.notes + ("tgt-not-a-number",) * (gold is not valid),
        gold_log_prob=log_prob,
        has_gold=True,
        n_gold_tokens=len(valid or ()),
        gold_token_log_probs=valid,
    )


def compute_reference_log_prob(gold: list[float] | None) -> float | None:
    """Return the log-probability of a reference, which may be -inf.

    None if there is no reference, or if the sum is NaN or infinity.
    """
    return sum(gold) if gold is not None and sum(gold) < math.inf else None


def list_model_notices(
    options: TranslateOptions, checkpoint: Checkpoint, device: torch.device
) -> list[str]:
    """Return notices about options that have no effect with this model on this device.

    Args:
        options: the options.
        checkpoint: the model.
        device: its device.
    """
    model, vocab, precision = checkpoint.model, checkpoint.tgt_vocab, options.speed.precision
    set_options = {name for name, value in options.given.items() if value}
    unknown = [token for token in options.search.ignore_when_blocking if token not in vocab.ids]
    missing_features, n = dict[str, str](), options.search.max_length
    has_languages = checkpoint.languages or any(checkpoint.language_pair)
    if not has_languages and "normalize" not in options.text.transforms:
        missing_features |= dict.fromkeys(("src_lang", "tgt_lang"), "languages to choose from")
    if vocab.unk_id is None:
        missing_features |= dict.fromkeys(("ban_unk_token", "replace_unk"), "unknown token")
    without_effect = [name for name in missing_features if name in set_options]
    position_limit = f"{{max_length}}: the model supports at most {model.max_positions} tokens"
    in_fp32 = "{precision} is only supported for Transformers; using fp32"
    conditions = {
        "ignore_when_blocking: not in the model's vocabulary and ignored: "
        f"{' '.join(map(repr, unknown))}": bool(unknown),
        **{
            f"{name}: has no effect; the model has no {missing_features[name]}": True
            for name in without_effect
        },
        Message.of(position_limit, max_length=n): (
            "max_length" in set_options and n > model.max_positions
        ),
        f"threads: has no effect; the model runs on {device}": (
            "threads" in set_options and device.type != "cpu"
        ),
        "precision: has no effect; a table model has no weights": (
            precision != "auto" and not isinstance(model, torch.nn.Module)
        ),
        Message.of(in_fp32, precision=precision): (
            precision == "int8" and get_precision(model) != "int8"
        ),
    }
    return [*checkpoint.notices, *(notice for notice, applies in conditions.items() if applies)]
