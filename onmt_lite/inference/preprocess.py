"""Preprocessing: lines to ids of source, reference and prefix; their languages."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace

from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair, Languages
from onmt_lite.errors import DataError, Message, OptionError
from onmt_lite.inference.records import Example
from onmt_lite.text.casing import Spans, lower_masked_line, lower_uppercase_words
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

# Notes that a reference or prefix may have too
OF_READING = (INVALID_JSON, NO_TEXT_FIELD, "invalid-utf8")
NEITHER = LanguagePair()  # of a model that has no languages
# >>eng_Latn<< or >>deu_Latn:eng_Latn<<, and one blank that belongs to it
TAG = re.compile(r">>(?:([^<>:\s]+):)?([^<>:\s]+)<< ?")
N_NEAR = 3  # codes that are shown for one that is unknown


class Preprocessor:
    """Makes examples for one model, with its first tokenizer."""

    def __init__(
        self, checkpoint: Checkpoint, lowers_capitals: bool = False, rule: UnknownRule = "model"
    ):
        """rule: how characters that the model does not know are treated.  OptionError if the
        tokenizer or the model is not made for it."""
        self.checkpoint, self.lowers_capitals, self.rule = checkpoint, lowers_capitals, rule
        self.tokenizer = next(iter(checkpoint.tokenizers.values()))
        self.max_positions = checkpoint.model.max_positions
        self.masker = None
        if rule == "model":
            return
        if SPACER not in "".join(self.tokenizer.encode("a a")):
            problem = "{unknown}: needs lines that sentencepiece cuts; leave it out"
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
        direction: LanguagePair = NEITHER,
        max_source: int | None = None,
    ) -> Example:
        """Ids of a line, cut to what the model takes; a blank line has none.

        tgt         its reference
        prefix      what its translation begins with; `forced` has the ids of that by default
        direction   its languages, if it has no tag of its own
        max_source  the limit of the search system, special tokens counted

        DataError for a token that is unknown to a vocabulary without a token for such.
        """
        checkpoint, other = self.checkpoint, tgt or prefix
        max_source = min(self.max_positions, max_source or self.max_positions)
        own = other.notes if other else ()
        notes = (*line.notes, *(f"tgt-{note}" for note in own if note in OF_READING))
        if prefix is not None and any(
            contains_phrase(prefix.text, phrase) for phrase in line.banned
        ):
            prefix, notes = None, (*notes, "prefix-banned")
        text, direction = read_tag(LINE_BREAKS.sub(" ", line.text), checkpoint.languages, direction)
        frame = checkpoint.get_special_tokens(direction)
        masked_line, capitals, uppercase_spans = self._read(text)
        tokens = self.tokenizer.encode(masked_line.text)
        is_changed = masked_line.spans or masked_line.head
        plain = (
            self.tokenizer.encode(masked_line.head + masked_line.plain) if is_changed else tokens
        )
        # Of the line's start, if it is too long
        n_unknown = sum(map(checkpoint.src_vocab.lacks, plain[:max_source]))
        if masked_line.is_passed_through:
            whole, n = (
                MaskedLine(text, (text,), is_passed_through=True),
                len(self.tokenizer.encode(text)),
            )
            notes = (*line.notes, "unknown-script")
            return Example(line, [], n, n_unknown, notes=notes, masked_line=whole)
        before, after = [*frame.src_start], [*frame.src_end]
        room = max_source - len(before + after)
        tokens, n_tag, notes = self._fitted(tokens, frame.text, masked_line, room, notes)
        ids = encode(checkpoint.src_vocab, tokens, line)
        copy_ids, oov_words = self._copying(tokens, before, after)
        tgt_room = self.max_positions - len(frame.start)
        tgt_ids = self._target_ids(tgt, masked_line, capitals, bool(uppercase_spans), oov_words)
        if tgt_ids is not None:
            tgt_ids = [*checkpoint.tgt_start, *tgt_ids, *checkpoint.tgt_end]
            if len(tgt_ids) > tgt_room or is_cut(tgt):
                tgt_ids, notes = None, (*notes, "tgt-too-long")
        prefix_ids = (
            self._target_ids(prefix, masked_line, capitals, bool(uppercase_spans), oov_words) or []
        )
        notes += ("prefix-unknown",) * (checkpoint.tgt_vocab.unk_id in prefix_ids)
        prefix_ids = [*checkpoint.tgt_start, *prefix_ids] if prefix_ids else list(forced)
        if len(prefix_ids) > tgt_room or is_cut(prefix):
            notes = (*notes, "prefix-truncated")
        return Example(
            line,
            src_ids=before + ids + after if ids else [],
            n_src_tokens=len(ids),
            n_unknown=n_unknown,
            tgt_ids=tgt_ids,
            notes=(*notes, CAPITALS) if capitals or uppercase_spans else notes,
            copy_ids=copy_ids,
            oov_words=oov_words,
            start=frame.start,
            prefix_ids=tuple(prefix_ids[:tgt_room]),
            src_tokens=tuple(tokens),
            n_tag=n_tag,
            masked_line=self._kept(masked_line),
            is_uppercase=capitals,
            # Phrases are matched as the model writes them
            uppercase_spans=() if line.forced or line.banned else uppercase_spans,
        )

    def _read(self, text: str) -> tuple[MaskedLine, bool, Spans]:
        """Take the items out of a line, and lowercase what is in uppercase.

        Returns:
            The line, whether all of it was in uppercase, and otherwise the words that were.
        """
        masked_line = (self.masker.mask(text) if self.masker else None) or MaskedLine(text, (text,))
        if not self.lowers_capitals:
            return masked_line, False, ()
        if is_all_uppercase("".join(masked_line.parts)):
            return masked_line.lower(), True, ()
        masked_line, uppercase_spans = lower_masked_line(masked_line, self.tokenizer.encode)
        return masked_line, False, uppercase_spans

    def _kept(self, masked_line: MaskedLine) -> MaskedLine | None:
        """What is put back into the translation: everything, or by the rule `drop` the head."""
        if self.rule == "drop":
            masked_line = replace(masked_line, spans=())
        return masked_line if masked_line.spans or masked_line.head else None

    def _fitted(
        self,
        tokens: list[str],
        tag: str,
        masked_line: MaskedLine,
        room: int,
        notes: tuple[str, ...],
    ) -> tuple[list[str], int, tuple[str, ...]]:
        """The tokens that the model takes, with the tag of the line's language; the number that
        the tag takes; the notes, one of which says why a line is blank."""
        n_tag = 0
        if not tokens:
            return [], 0, notes if WITHOUT_TEXT & {*notes} else (*notes, "empty")
        if tag:
            tagged = self.tokenizer.encode(tag + masked_line.text)
            tokens, n_tag = tagged, len(tagged) - len(tokens)
        if len(tokens) > room and "truncated" not in notes:
            notes = (*notes, "truncated")
        return tokens[:room], n_tag, notes

    def _copying(
        self, tokens: list[str], before: list[int], after: list[int]
    ) -> tuple[list[int] | None, tuple[str, ...]]:
        """For a model that copies: see `Example`."""
        if not tokens or not self.checkpoint.model.has_copy_mechanism:
            return None, ()
        src, tgt = self.checkpoint.src_vocab, self.checkpoint.tgt_vocab
        around = [
            [tgt.ids.get(token, tgt.unk_id or 0) for token in src.decode(ids)]
            for ids in (before, after)
        ]
        ids, oov_words = tgt.encode_copied(tokens)
        return around[0] + ids + around[1], tuple(oov_words)

    def _target_ids(
        self,
        line: Line | None,
        masked_line: MaskedLine,
        capitals: bool,
        some_capitals: bool,
        oov_words: Sequence[str],
    ) -> list[int] | None:
        """Ids of a line in the target language; capitals: whether its source is in uppercase;
        some_capitals: whether words of it are."""
        if line is None or WITHOUT_TEXT & {*line.notes}:
            return None
        text = LINE_BREAKS.sub(" ", line.text)
        if not text.strip():
            return []
        text = text.lower() if capitals and is_all_uppercase(text) else text
        text = (
            lower_uppercase_words(text, self.tokenizer.encode_target)[0] if some_capitals else text
        )
        text = masked_line.mask_target(text)
        tokens = self.tokenizer.encode_target(text)
        return encode(self.checkpoint.tgt_vocab, tokens, line, "tgt ", oov_words)


def is_cut(line: Line | None) -> bool:
    """Whether a reference or prefix that is used has lost its end when it was read."""
    return line is not None and "truncated" in line.notes and not WITHOUT_TEXT & {*line.notes}


def encode(
    vocab: Vocab, tokens: list[str], line: Line, side: str = "", oov_words: Sequence[str] = ()
) -> list[int]:
    """Ids of a line's tokens; a DataError says which line it is."""
    try:
        return vocab.encode(tokens, oov_words)
    except DataError as error:
        raise DataError(f"{side}line {line.id + 1}: {error}") from None


# -- languages -------------------------------------------------------------------------------------


def check_language_pair(checkpoint: Checkpoint, given: LanguagePair) -> None:
    """Raise OptionError for a language that a model without a choice of languages does not have, as
    far as its files say."""
    pair = checkpoint.language_pair
    triples = [*zip(("src_lang", "tgt_lang"), given, pair)]
    if checkpoint.toolkit == "transformers" and any(given):
        asked = ", ".join(name for name, code, _ in triples if code)
        raise OptionError(
            f"{asked}: the model has no languages to choose from; leave it out "
            "(words such as `translate English to German:` belong into each line)"
        )
    known = [each for each in triples if all(each)]
    wrong = [f"{name} {code[:50]}" for name, code, own in known if code.lower() != own.lower()]
    if wrong:
        only = f"the model translates from {pair.src} to {pair.tgt} only"
        raise OptionError(f"{', '.join(wrong)}: {only}; leave that out, or give another model")


def choose_languages(
    languages: Languages | None, given: LanguagePair, normalizes: bool = False
) -> LanguagePair:
    """Return the languages of lines without a tag.

    Args:
        languages: those of the model.
        given: the codes in the options, which replace the defaults of the model.
        normalizes: a transform needs the source language, whether or not the model does.

    Raises:
        OptionError: if a code is unknown, or is needed and missing.
    """
    if languages is None:
        return NEITHER
    if languages.source == "none" and given.src:
        if not normalizes:
            raise OptionError("src_lang: the model takes a target language only; leave it out")
        given = LanguagePair("", given.tgt)
    for name, code in zip(("src_lang", "tgt_lang"), given):
        if code and code not in languages.ids:
            raise OptionError(
                f"{name}: the model has no language {code[:50]!r}; {near(code, languages)}"
            )
    held = languages.optional_in_tokens
    if held and not any(given) and languages.target != "start":
        return NEITHER
    default = NEITHER if held else languages.default
    direction = LanguagePair(given.src or default.src, given.tgt or default.tgt)
    lacks = {"src_lang": languages.source != "none" and not (direction.src or held)}
    lacks["tgt_lang"] = languages.target != "text" and not direction.tgt
    problems = [
        f"{name} is missing: the model has {len(languages.ids)} languages, none as default; give "
        f"one such as {', '.join(list(languages.ids)[:N_NEAR])} (onmt_lite -print_model lists all)"
        for name, lacking in lacks.items()
        if lacking
    ]
    if problems:
        raise OptionError(*problems)
    return direction


def near(code: str, languages: Languages) -> str:
    """Known codes that are perhaps meant: first those that begin alike, then the most similar."""
    code = code[:50].lower()

    def distance(known: str) -> tuple[bool, float]:
        alike = difflib.SequenceMatcher(None, code, known.lower()).ratio()
        return known[:2].lower() != code[:2], -alike

    found = sorted(languages.ids, key=distance)[:N_NEAR]
    return f"nearest are {', '.join(found)} (onmt_lite -print_model lists all)"


def read_tag(
    text: str, languages: Languages | None, direction: LanguagePair
) -> tuple[str, LanguagePair]:
    """The line without its tag, and its languages; a tag with unknown codes stays text."""
    found = TAG.match(text) if languages else None
    if found is None or languages is None or (languages.optional_in_tokens and not direction.tgt):
        return text, direction
    src, tgt = found[1] or direction.src, found[2]
    if tgt not in languages.ids or (found[1] and src not in languages.ids):
        return text, direction
    if found[1] and languages.source == "none":
        return text, direction
    return text[found.end() :], LanguagePair(src, tgt)
