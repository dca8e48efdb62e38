"""Preprocessing: lines, references and prefixes to ids, and the languages of lines."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair, Languages
from onmt_lite.errors import DataError, Message, OptionError
from onmt_lite.inference.records import Example
from onmt_lite.text.casing import Spans, lower_masked_line, lower_uppercase_words
from onmt_lite.text.language import find_other_language
from onmt_lite.text.lines import (
    CAPITALS,
    INVALID_JSON,
    LINE_BREAKS,
    NO_TEXT_FIELD,
    WITHOUT_TEXT,
    Line,
    is_all_uppercase,
)
from onmt_lite.text.masked_line import MaskedLine
from onmt_lite.text.phrases import contains_phrase
from onmt_lite.text.placeholders import LineMasker, UnknownRule
from onmt_lite.text.tokenizers import SPACER
from onmt_lite.text.vocab import Vocab

# Warnings from reading that a reference or prefix may have, too
TARGET_WARNINGS = (INVALID_JSON, NO_TEXT_FIELD, "invalid-utf8")
NO_LANGUAGES = LanguagePair()
# >>eng_Latn<< or >>deu_Latn:eng_Latn<<, and one space after it
LANGUAGE_TAG = re.compile(r">>(?:([^<>:\s]+):)?([^<>:\s]+)<< ?")
N_SUGGESTIONS = 3  # language codes suggested for an unknown code


class SourceText(NamedTuple):
    """The text of a line as the model reads it."""

    masked_line: MaskedLine
    is_uppercase: bool = False  # the whole line was in uppercase and is lowercased
    uppercase_spans: Spans = ()  # otherwise, the words that were in uppercase


class TargetIds(NamedTuple):
    """Ids of the target side of an example."""

    reference: list[int] | None
    prefix: list[int]
    warnings: tuple[str, ...]


class Preprocessor:
    """Converts lines to examples for one model, with its first tokenizer."""

    def __init__(
        self, checkpoint: Checkpoint, lowers_capitals: bool = False, rule: UnknownRule = "model"
    ):
        """
        Args:
            checkpoint: the model.
            lowers_capitals: lowercase lines and words in uppercase.
            rule: how to handle unknown characters.

        Raises:
            OptionError: if the tokenizer or the model does not support the rule.
        """
        self.checkpoint, self.lowers_capitals, self.rule = checkpoint, lowers_capitals, rule
        self.tokenizer = next(iter(checkpoint.tokenizers.values()))
        self.max_positions = checkpoint.model.max_positions
        self.masker = None
        if rule == "model":
            return
        if SPACER not in "".join(self.tokenizer.encode("a a")):
            problem = "{unknown} is only supported with sentencepiece tokenization; remove it"
            raise OptionError(Message.of(problem, unknown=rule))
        if rule == "copy" and not checkpoint.has_attention:
            problem = "{unknown}: the model has no attention; set unknown to drop"
            raise OptionError(Message.of(problem, unknown=rule))
        unknown = checkpoint.unknown
        if rule == "drop":
            unknown = replace(unknown, names=(), numbers=())
        self.masker = LineMasker(self.tokenizer.encode, checkpoint.src_vocab.lacks, unknown)

    def make_example(
        self,
        line: Line,
        tgt: Line | None = None,
        prefix: Line | None = None,
        forced: Sequence[int] = (),
        direction: LanguagePair = NO_LANGUAGES,
        max_source: int | None = None,
    ) -> Example:
        """Tokenize a line, truncated to the maximum length; an empty line has no source ids.

        Args:
            line: the line.
            tgt: its reference.
            prefix: target prefix of its translation.
            forced: ids of the target prefix of a line without `prefix`.
            direction: its languages, unless it has a language tag.
            max_source: source limit of the search preset, including special tokens.

        Raises:
            DataError: if a token is unknown and the vocabulary has no unknown token.
        """
        checkpoint = self.checkpoint
        max_source = min(self.max_positions, max_source or self.max_positions)
        tgt_notes = tgt.notes if tgt else prefix.notes if prefix else ()
        notes = (*line.notes, *(f"tgt-{note}" for note in tgt_notes if note in TARGET_WARNINGS))
        if prefix is not None and any(
            contains_phrase(prefix.text, phrase) for phrase in line.banned
        ):
            prefix, notes = None, (*notes, "prefix-banned")
        text, direction = read_tag(LINE_BREAKS.sub(" ", line.text), checkpoint.languages, direction)
        special = checkpoint.get_special_tokens(direction)
        notes += self._find_language_warnings(text)
        source = self._read_source(text)
        masked_line = source.masked_line
        tokens = self.tokenizer.encode(masked_line.text)
        n_unknown = self._count_unknown(masked_line, tokens, max_source)
        if masked_line.is_passed_through:
            notes = (*line.notes, "unknown-script")
            n, copied = len(self.tokenizer.encode(text)), MaskedLine(text, (text,), (), True)
            return Example(line, [], n, n_unknown, notes=notes, masked_line=copied)
        before, after = [*special.src_start], [*special.src_end]
        limit = max_source - len(before + after)
        tokens, n_tag, notes = self._truncate(tokens, special.text, masked_line, limit, notes)
        ids = encode(checkpoint.src_vocab, tokens, line)
        copy_ids, oov_words = self._copy_ids(tokens, before, after)
        max_target = self.max_positions - len(special.start)
        target = self._get_target_side(tgt, prefix, source, oov_words, max_target)
        prefix_ids = target.prefix or list(forced)
        is_truncated = len(prefix_ids) > max_target or has_lost_end(prefix)
        notes += target.warnings + ("prefix-truncated",) * is_truncated
        changes_case = source.is_uppercase or bool(source.uppercase_spans)
        return Example(
            line,
            src_ids=before + ids + after if ids else [],
            n_src_tokens=len(ids),
            n_unknown=n_unknown,
            tgt_ids=target.reference,
            notes=(*notes, CAPITALS) if changes_case else notes,
            copy_ids=copy_ids,
            oov_words=oov_words,
            start=special.start,
            prefix_ids=tuple(prefix_ids[:max_target]),
            src_tokens=tuple(tokens),
            n_tag=n_tag,
            masked_line=self._find_spans_to_restore(masked_line),
            is_uppercase=source.is_uppercase,
            # Phrases must match the casing of the model output
            uppercase_spans=() if line.forced or line.banned else source.uppercase_spans,
        )

    def _find_language_warnings(self, text: str) -> tuple[str, ...]:
        """Return a warning if the line is in another language than the model reads."""
        other = find_other_language(text, self.checkpoint.language_pair.src)
        return ("other-language",) if other else ()

    def _read_source(self, text: str) -> SourceText:
        """Mask the line and lowercase uppercase words."""
        masked_line = (self.masker.mask(text) if self.masker else None) or MaskedLine(text, (text,))
        if not self.lowers_capitals:
            return SourceText(masked_line)
        if is_all_uppercase("".join(masked_line.parts)):
            return SourceText(masked_line.lower(), is_uppercase=True)
        masked_line, uppercase_spans = lower_masked_line(masked_line, self.tokenizer.encode)
        return SourceText(masked_line, uppercase_spans=uppercase_spans)

    def _count_unknown(
        self, masked_line: MaskedLine, tokens: Sequence[str], max_source: int
    ) -> int:
        """Count the unknown tokens of a line, within the maximum length.

        Args:
            masked_line: the line.
            tokens: its tokens as the model reads them.
            max_source: maximum number of tokens.
        """
        if masked_line.spans or masked_line.head:
            tokens = self.tokenizer.encode(masked_line.head + masked_line.plain)
        vocab = self.checkpoint.src_vocab
        rare = [token for token in tokens[:max_source] if token not in vocab.text_ids]
        return sum(map(vocab.lacks, rare))

    def _find_spans_to_restore(self, masked_line: MaskedLine) -> MaskedLine | None:
        """Return the spans to restore in the translation; with the rule `drop`, only the head."""
        if self.rule == "drop":
            masked_line = replace(masked_line, spans=())
        return masked_line if masked_line.spans or masked_line.head else None

    def _truncate(
        self,
        tokens: list[str],
        tag: str,
        masked_line: MaskedLine,
        limit: int,
        notes: tuple[str, ...],
    ) -> tuple[list[str], int, tuple[str, ...]]:
        """Add the language tag and truncate the tokens.

        Args:
            tokens: tokens of the line.
            tag: text of the language tag, or "".
            masked_line: the line.
            limit: maximum number of tokens.
            notes: warnings so far.

        Returns:
            The tokens, the number of tag tokens, and the warnings.
        """
        n_tag = 0
        if not tokens:
            return [], 0, notes if WITHOUT_TEXT & {*notes} else (*notes, "empty")
        if tag:
            tagged = self.tokenizer.encode(tag + masked_line.text)
            tokens, n_tag = tagged, len(tagged) - len(tokens)
        if len(tokens) > limit and "truncated" not in notes:
            notes = (*notes, "truncated")
        return tokens[:limit], n_tag, notes

    def _copy_ids(
        self, tokens: list[str], before: list[int], after: list[int]
    ) -> tuple[list[int] | None, tuple[str, ...]]:
        """Return the fields `copy_ids` and `oov_words` of an Example for a model that copies.

        Args:
            tokens: source tokens.
            before: source ids of special tokens before them.
            after: source ids of special tokens after them.
        """
        if not tokens or not self.checkpoint.model.has_copy_mechanism:
            return None, ()
        src, tgt = self.checkpoint.src_vocab, self.checkpoint.tgt_vocab
        special = [
            [tgt.ids.get(token, tgt.unk_id or 0) for token in src.decode(ids)]
            for ids in (before, after)
        ]
        ids, oov_words = tgt.encode_copied(tokens)
        return special[0] + ids + special[1], tuple(oov_words)

    def _get_target_side(
        self,
        tgt: Line | None,
        prefix: Line | None,
        source: SourceText,
        oov_words: Sequence[str],
        max_target: int,
    ) -> TargetIds:
        """Return the ids of the reference and of the prefix.

        Args:
            tgt: the reference.
            prefix: the target prefix.
            source: their source.
            oov_words: source words that the model may copy.
            max_target: maximum number of target tokens.
        """
        checkpoint, warnings = self.checkpoint, tuple[str, ...]()
        tgt_ids = self._encode_target(tgt, source, oov_words)
        if tgt_ids is not None:
            tgt_ids = [*checkpoint.tgt_start, *tgt_ids, *checkpoint.tgt_end]
            if len(tgt_ids) > max_target or has_lost_end(tgt):
                tgt_ids, warnings = None, ("tgt-too-long",)
        prefix_ids = self._encode_target(prefix, source, oov_words) or []
        warnings += ("prefix-unknown",) * (checkpoint.tgt_vocab.unk_id in prefix_ids)
        return TargetIds(
            tgt_ids, [*checkpoint.tgt_start, *prefix_ids] if prefix_ids else [], warnings
        )

    def _encode_target(
        self, line: Line | None, source: SourceText, oov_words: Sequence[str]
    ) -> list[int] | None:
        """Return the ids of a target line, masked and lowercased like its source.

        Args:
            line: the target line.
            source: its source.
            oov_words: source words that the model may copy.
        """
        if line is None or WITHOUT_TEXT & {*line.notes}:
            return None
        text = LINE_BREAKS.sub(" ", line.text)
        if not text.strip():
            return []
        if source.is_uppercase and is_all_uppercase(text):
            text = text.lower()
        if source.uppercase_spans:
            text, _ = lower_uppercase_words(text, self.tokenizer.encode_target)
        tokens = self.tokenizer.encode_target(source.masked_line.mask_target(text))
        return encode(self.checkpoint.tgt_vocab, tokens, line, "tgt ", oov_words)


def has_lost_end(line: Line | None) -> bool:
    """Return True if a reference or prefix was truncated while reading."""
    return line is not None and "truncated" in line.notes and not WITHOUT_TEXT & {*line.notes}


def encode(
    vocab: Vocab, tokens: list[str], line: Line, side: str = "", oov_words: Sequence[str] = ()
) -> list[int]:
    """Return the ids of the tokens of a line.

    Args:
        vocab: the vocabulary.
        tokens: the tokens.
        line: the line, named in errors.
        side: prefix of its name in errors.
        oov_words: see `Vocab.encode`.

    Raises:
        DataError: if a token is unknown and the vocabulary has no unknown token.
    """
    try:
        return vocab.encode(tokens, oov_words)
    except DataError as error:
        raise DataError(f"{side}line {line.id + 1}: {error}") from None


# -- languages -------------------------------------------------------------------------------------


def check_language_pair(checkpoint: Checkpoint, codes: LanguagePair) -> None:
    """Check the language options of a model that does not select languages.

    Raises:
        OptionError: if the model config names other languages.
    """
    pair = checkpoint.language_pair
    triples = [*zip(("src_lang", "tgt_lang"), codes, pair)]
    if checkpoint.toolkit == "transformers" and any(codes):
        names = ", ".join(name for name, code, _ in triples if code)
        raise OptionError(
            f"{names}: the model does not select languages; remove it "
            "(put a task prefix such as `translate English to German:` at the start of every line)"
        )
    comparable = [triple for triple in triples if all(triple)]
    mismatches = [
        f"{name} {code[:50]}"
        for name, code, model_code in comparable
        if code.lower() != model_code.lower()
    ]
    if mismatches:
        problem = f"the model translates from {pair.src} to {pair.tgt} only"
        raise OptionError(
            f"{', '.join(mismatches)}: {problem}; remove that option or use another model"
        )


def choose_languages(
    languages: Languages | None, codes: LanguagePair, normalizes: bool = False
) -> LanguagePair:
    """Return the languages of lines without a language tag.

    Args:
        languages: the languages of the model.
        codes: language codes of the options, which override the defaults of the model.
        normalizes: the transform `normalize` uses the source language even if the model does not.

    Raises:
        OptionError: if a code is unknown, or is needed and missing.
    """
    if languages is None:
        return NO_LANGUAGES
    if languages.source == "none" and codes.src:
        if not normalizes:
            raise OptionError("src_lang: the model takes a target language only; remove src_lang")
        codes = LanguagePair("", codes.tgt)
    for name, code in zip(("src_lang", "tgt_lang"), codes):
        if code and code not in languages.ids:
            raise OptionError(
                f"{name}: the model has no language {code[:50]!r}; {suggest_codes(code, languages)}"
            )
    tags_in_tokens = languages.optional_in_tokens
    if tags_in_tokens and not any(codes) and languages.target != "start":
        return NO_LANGUAGES
    default = NO_LANGUAGES if tags_in_tokens else languages.default
    direction = LanguagePair(codes.src or default.src, codes.tgt or default.tgt)
    is_missing = {"src_lang": languages.source != "none" and not (direction.src or tags_in_tokens)}
    is_missing["tgt_lang"] = languages.target != "text" and not direction.tgt
    problems = [
        f"{name} is missing: the model has {len(languages.ids)} languages and no default; "
        f"set one, such as {', '.join(list(languages.ids)[:N_SUGGESTIONS])} "
        "(onmt_lite -print_model lists all)"
        for name, missing in is_missing.items()
        if missing
    ]
    if problems:
        raise OptionError(*problems)
    return direction


def suggest_codes(code: str, languages: Languages) -> str:
    """Return a hint with the most similar known codes; a common prefix comes first."""
    code = code[:50].lower()

    def distance(known: str) -> tuple[bool, float]:
        """Return the sort key of a code, most similar first."""
        similarity = difflib.SequenceMatcher(None, code, known.lower()).ratio()
        return known[:2].lower() != code[:2], -similarity

    suggestions = sorted(languages.ids, key=distance)[:N_SUGGESTIONS]
    return f"nearest are {', '.join(suggestions)} (onmt_lite -print_model lists all)"


def read_tag(
    text: str, languages: Languages | None, direction: LanguagePair
) -> tuple[str, LanguagePair]:
    """Split a language tag off a line; a tag with unknown codes is text.

    Args:
        text: the line.
        languages: the languages of the model.
        direction: languages of lines without a tag.

    Returns:
        The line without its tag, and its languages.
    """
    match = LANGUAGE_TAG.match(text) if languages else None
    if match is None or languages is None or (languages.optional_in_tokens and not direction.tgt):
        return text, direction
    src, tgt = match[1] or direction.src, match[2]
    if tgt not in languages.ids or (match[1] and src not in languages.ids):
        return text, direction
    if match[1] and languages.source == "none":
        return text, direction
    return text[match.end() :], LanguagePair(src, tgt)
