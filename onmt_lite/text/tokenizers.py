"""Tokenizers: text to tokens, tokens to text, and tokens to words."""

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Protocol

import sentencepiece as spm

from onmt_lite.errors import CheckpointError
from onmt_lite.text.bpe import detokenize_bpe
from onmt_lite.text.lines import LINE_BREAKS
from onmt_lite.text.vocab import AddedToken

LANGUAGE = re.compile(r">>[^<>\s]+<<")
WORD_CHAR = re.compile(r"\w")
# Substitutions of transformers for `clean_up_tokenization_spaces`, in this order
CLEAN_UP_RULES = [
    *((f" {end}", end) for end in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
]


class Tokenizer(Protocol):
    """Tokenizes and detokenizes lines of a language pair."""

    def encode(self, text: str) -> list[str]:
        """Tokenize a source line."""

    def encode_target(self, text: str) -> list[str]:
        """Tokenize a target line."""

    def decode(self, tokens: list[str]) -> str:
        """Detokenize a translation."""


class SpaceTokenizer:
    """Splits a line of tokens at white space."""

    def __init__(self, only_spaces: bool = False):
        """
        Args:
            only_spaces: split at U+0020 only, like OpenNMT-py 3. Other white space, such as a
                no-break space, is part of a token, except at the ends of a line.
        """
        self.only_spaces = only_spaces

    def encode(self, text: str) -> list[str]:
        """Split a line into tokens."""
        if self.only_spaces:
            return [token for token in text.strip().split(" ") if token]
        return text.split()

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        """Join tokens with spaces."""
        return " ".join(tokens)


def encode_subwords(processor: spm.SentencePieceProcessor, text: str) -> list[str]:
    """Tokenize text with a sentencepiece model.

    Raises:
        CheckpointError: if the model is damaged in a way that only shows when a line is encoded.
    """
    try:
        return processor.encode(text, out_type=str)
    except UnicodeDecodeError:
        raise CheckpointError(
            "the sentencepiece model is damaged: its subwords are not valid text"
        ) from None


class SentencePieceTokenizer:
    """One sentencepiece model for both languages."""

    def __init__(self, processor: spm.SentencePieceProcessor):
        self.processor = processor

    def encode(self, text: str) -> list[str]:
        """Tokenize a line."""
        return encode_subwords(self.processor, text)

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        """Detokenize a translation into one line."""
        return LINE_BREAKS.sub(" ", self.processor.decode(tokens))


class AddedTokens:
    """Extracts added tokens from lines like Hugging Face transformers.

    The leftmost and longest token wins. Tokens that are searched for in normalized text come last.
    """

    def __init__(self, tokens: Sequence[AddedToken], normalize: Callable[[str], str] = str):
        groups = [[t for t in tokens if t.normalized == is_late] for is_late in (False, True)]
        self.exact_tokens, self.normalized_tokens = (
            {str(token): token for token in group} for group in groups
        )
        self.normalize = normalize

    def split(self, line: str) -> list[str]:
        """Return the text between the added tokens, and the tokens, in order."""
        parts = _split_at(line, self.exact_tokens)
        if not self.normalized_tokens:
            return parts
        return [
            text
            for part in parts
            for text in ([part] if isinstance(part, AddedToken) else self._split_normalized(part))
        ]

    def _split_normalized(self, text: str) -> list[str]:
        """Split normalized text at the tokens that are searched for in it."""
        parts = _split_at(self.normalize(text), self.normalized_tokens)
        return parts if len(parts) > 1 or isinstance(parts[0], AddedToken) else [text]


def _split_at(text: str, tokens: dict[str, AddedToken]) -> list[str]:
    """Split text at the given tokens."""
    present = sorted((token for token in tokens if token in text), key=len, reverse=True)
    if not present:
        return [text]
    parts, end = [], 0
    for match in re.finditer("|".join(map(re.escape, present)), text):
        token, before, after = tokens[match[0]], text[: match.start()], text[match.end() :]
        if token.single_word and (WORD_CHAR.match(before[-1:]) or WORD_CHAR.match(after)):
            continue
        start = len(before.rstrip()) if token.takes_left else len(before)
        parts += [text[end:start]] if start > end else []
        parts.append(token)
        end = len(text) - len(after.lstrip() if token.takes_right else after)
    return [*parts, text[end:]] if end < len(text) else parts


class AddedTokenTokenizer(SentencePieceTokenizer):
    """Sentencepiece tokenization of the text between added tokens."""

    def __init__(
        self,
        processor: spm.SentencePieceProcessor,
        added: Sequence[AddedToken] = (),
        added_to_target: Sequence[AddedToken] = (),
        silent: Sequence[str] = (),
        keeps_spaces: bool = False,
    ):
        """
        Args:
            processor: the sentencepiece model.
            added: tokens to extract from source lines. Text between them is tokenized separately.
            added_to_target: the same for target lines.
            silent: tokens that are not text in an output. Unknown special tokens are not text
                either.
            keeps_spaces: encode a space before an added token as a token, unless the added token
                strips it.
        """
        super().__init__(processor)
        self.words = frozenset(token for token in added if not token.special)
        self.silent, self.keeps_spaces = frozenset(silent), keeps_spaces
        self.added = AddedTokens(added, self._normalize)
        self.added_to_target = AddedTokens(added_to_target, self._normalize)

    def encode(self, text: str) -> list[str]:
        """Tokenize a source line."""
        return self._encode(self.added.split(text))

    def encode_target(self, text: str) -> list[str]:
        """Tokenize a target line."""
        return self._encode(self.added_to_target.split(text))

    def _encode(self, parts: list[str]) -> list[str]:
        tokens: list[str] = []
        for part in parts:
            tokens += [part] if isinstance(part, AddedToken) else super().encode(part)
            if self.keeps_spaces and len(parts) > 1 and part[-1:].isspace():
                tokens.append(SPACER)
        return tokens

    def _normalize(self, text: str) -> str:
        """Return normalized text, keeping one space at each end that has white space."""
        inner = self.processor.normalize(text).replace(SPACER, " ").strip()
        return " " * text[:1].isspace() + inner + " " * text[-1:].isspace()

    def decode(self, tokens: list[str]) -> str:
        """Detokenize a translation into one line, without silent tokens."""
        processor = self.processor
        unk_id, texts, run = processor.unk_id(), [], []
        for token in tokens:
            if token in self.silent:
                continue
            if processor.piece_to_id(token) != unk_id:
                run.append(token)
            elif token in self.words:
                texts += [super().decode(run), token]
                run = []
        return " ".join(filter(None, [*texts, super().decode(run)]))


class MarianTokenizer:
    """Two sentencepiece models, one per language.

    `>>xxx<<` at the start of a source line is a token that selects the target language.
    """

    def __init__(
        self,
        source: spm.SentencePieceProcessor,
        target: spm.SentencePieceProcessor,
        added: Sequence[AddedToken] = (),
        joiner: spm.SentencePieceProcessor | None = None,
        cleans_up: bool = False,
    ):
        """
        Args:
            source: sentencepiece model of the source language.
            target: sentencepiece model of the target language.
            added: tokens to extract from source lines. Special tokens are not text in an output.
            joiner: model that detokenizes output (default: `target`).
            cleans_up: remove spaces before punctuation and English clitics in the output.
        """
        self.source, self.target, self.joiner = source, target, joiner or target
        self.added, self.cleans_up = AddedTokens(added), cleans_up
        self.silent = frozenset(["</s>", "<unk>", "<pad>", *(t for t in added if t.special)])

    def encode(self, text: str) -> list[str]:
        """Tokenize a source line."""
        tokens: list[str] = []
        for part in self.added.split(text):
            language = None if isinstance(part, AddedToken) else LANGUAGE.match(part)
            rest = part[language.end() :] if language else part
            tokens += [language[0]] if language else []
            tokens += [part] if isinstance(part, AddedToken) else encode_subwords(self.source, rest)
        return tokens

    def encode_target(self, text: str) -> list[str]:
        """Tokenize a target line."""
        return encode_subwords(self.target, text)

    def decode(self, tokens: list[str]) -> str:
        """Detokenize a translation. Tokens missing from the model keep their space marker."""
        text = self.joiner.decode([token for token in tokens if token not in self.silent])
        text = text.replace(SPACER, " ").strip()
        for spaced, joined in CLEAN_UP_RULES if self.cleans_up else ():
            text = text.replace(spaced, joined)
        return LINE_BREAKS.sub(" ", text)


# -- tokens to text --------------------------------------------------------------------------------


JOINER, SPACER = "￭", "▁"
CAPITALIZED = "｟mrk_case_modifier_C｠"  # before a token whose first letter is uppercase
ESCAPED = re.compile("％(?!d[89a-f])([0-9a-f]{4})")  # an escaped character
PROTECTED = "｟"  # starts a protected token
UPPERCASE_BEGIN, UPPERCASE_END = "｟mrk_begin_case_region_U｠", "｟mrk_end_case_region_U｠"


def detokenize_sentencepiece(tokens: list[str]) -> str:
    """Detokenize sentencepiece tokens without a model."""
    return "".join(tokens).replace(SPACER, " ").strip()


def detokenize_joiner(tokens: list[str]) -> str:
    """Join tokens with spaces, except on a side where a token has a joiner."""
    text, glued = "", True
    for token in restore_case(tokens, JOINER):
        space = "" if glued or token.startswith(JOINER) else " "
        text += space + token.removeprefix(JOINER).removesuffix(JOINER)
        glued = token.endswith(JOINER)
    return text


def detokenize_spacer(tokens: list[str]) -> str:
    """Join tokens with a space before each token that starts with a spacer, except the first."""
    cased = restore_case(tokens, SPACER)
    text = "".join(" " + t[1:] if t.startswith(SPACER) else t for t in cased)
    return text[1:] if cased and cased[0].startswith(SPACER) else text


def restore_case(tokens: list[str], mark: str) -> list[str]:
    """Apply the case markers among the tokens and remove them.

    Args:
        tokens: tokens and case markers.
        mark: joiner or spacer, skipped to find the first letter of a token.
    """
    restored = []
    is_capitalized = is_upper = False
    for token in tokens:
        if token == CAPITALIZED:
            is_capitalized = True
        elif token in (UPPERCASE_BEGIN, UPPERCASE_END):
            is_upper = token == UPPERCASE_BEGIN
        else:
            text = token
            if PROTECTED not in token:  # `％0020` is U+0020
                text = ESCAPED.sub(lambda match: chr(int(match[1], 16)), token)
            if is_capitalized:
                first = len(mark) if text.startswith(mark) else 0  # index of the first letter
                text = text[:first] + text[first : first + 1].upper() + text[first + 1 :]
            elif is_upper:
                text = text.upper()
            restored.append(text)
            # Only a mark: the next token has the first letter
            is_capitalized = is_capitalized and token == mark
    return restored


# `bpe` and `sentencepiece` follow fairseq's `--post-process` (0.12.2); `joiner` and `spacer` follow
# the OpenNMT Tokenizer (pyonmttok 1.38.1), including its case markers
DETOKENIZERS: dict[str, Callable[[list[str]], str]] = {
    "space": " ".join,
    "bpe": detokenize_bpe,  # Mor@@ gen ! -> Morgen !
    "sentencepiece": detokenize_sentencepiece,  # ▁Mor gen ! -> Morgen!
    "joiner": detokenize_joiner,  # Mor￭ gen ￭! -> Morgen!
    "spacer": detokenize_spacer,  # Mor gen ! ▁Ja -> Morgen! Ja
}


# -- tokens to words -------------------------------------------------------------------------------


Decode = Callable[[list[str]], str]


def compute_token_word_ids(tokens: Sequence[str], decode: Decode, text: str) -> list[int]:
    """Return for each token the index of its word in `text`: `▁Gu ten ▁Tag !` has 0 0 1 1.

    Words are separated by white space. A token without text, such as a case marker, belongs to the
    word of the next token. A token of several words belongs to the last of them.

    Args:
        tokens: tokens of the text.
        decode: detokenizes tokens.
        text: the final text, at least one word. Words may have been changed, added or removed after
            detokenization.
    """
    prefixes = [decode([*tokens[:n]]).split() for n in range(len(tokens) + 1)]
    text_ids = _align_words(prefixes[-1], text.split())
    word, word_ids = len(text_ids) - 1, []
    for before, after in zip(reversed(prefixes[:-1]), reversed(prefixes)):
        if after != before:  # this token adds text
            word = min(word, len(after) - 1)
        word_ids.append(text_ids[word] if text_ids else 0)
    return word_ids[::-1]


def word_log_probs(
    tokens: Sequence[str], log_probs: Sequence[float], decode: Decode, text: str
) -> list[float]:
    """Return the log-probability of each word of `text`, summed over its tokens.

    Args:
        tokens: tokens of the text.
        log_probs: one per token, in nats. The end token, if any, belongs to no word.
        decode: detokenizes tokens.
        text: see `compute_token_word_ids`.
    """
    sums = [0.0] * len(text.split())
    if sums:
        for word, log_prob in zip(compute_token_word_ids(tokens, decode, text), log_probs):
            sums[word] += log_prob
    return sums


def _align_words(detokenized: list[str], words: list[str]) -> list[int]:
    """Return for each detokenized word its index among the `words` of the final text.

    Case is ignored. In a run of words that were replaced, words are paired in order; the remaining
    ones go with the last.
    """
    if detokenized == words:
        return [*range(len(words))]
    lowered, lowered_words = ([word.casefold() for word in side] for side in (detokenized, words))
    matched = SequenceMatcher(None, lowered, lowered_words, autojunk=False)
    indices: list[int] = []
    for _, start, end, first, beyond in matched.get_opcodes():
        last = max(first, beyond - 1)  # removed words belong to the next word
        indices += [min(first + i, last, len(words) - 1) for i in range(end - start)]
    return indices
