"""Text to tokens, and tokens to text and its words.  Ids of tokens are the vocabulary's."""

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
A_WORD = re.compile(r"\w")
# What transformers takes out of output with `clean_up_tokenization_spaces`, in this order
CLEANED = [
    *((f" {end}", end) for end in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
]


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[str]: ...

    def encode_target(self, text: str) -> list[str]: ...  # of the target language

    def decode(self, tokens: list[str]) -> str: ...


class SpaceTokenizer:
    """Splits a line that holds tokens at white space."""

    def __init__(self, only_spaces: bool = False):
        """only_spaces: at spaces alone, as OpenNMT-py 3: others, such as a no-break space, are
        inside of a token; not at the ends of a line."""
        self.only_spaces = only_spaces

    def encode(self, text: str) -> list[str]:
        if self.only_spaces:
            return [token for token in text.strip().split(" ") if token]
        return text.split()

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        return " ".join(tokens)


def encode_subwords(processor: spm.SentencePieceProcessor, text: str) -> list[str]:
    """Cut text.  Raises CheckpointError if the model is damaged as only a line brings to light."""
    try:
        return processor.encode(text, out_type=str)
    except UnicodeDecodeError:
        raise CheckpointError(
            "the sentencepiece model is damaged: its pieces are no text"
        ) from None


class SentencePieceTokenizer:
    def __init__(self, processor: spm.SentencePieceProcessor):
        self.processor = processor

    def encode(self, text: str) -> list[str]:
        return encode_subwords(self.processor, text)

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        return LINE_BREAKS.sub(" ", self.processor.decode(tokens))


class AddedTokens:
    """Cuts added tokens out of lines like Hugging Face transformers: the first and longest ones,
    those that are searched in normalized text last."""

    def __init__(self, tokens: Sequence[AddedToken], normalize: Callable[[str], str] = str):
        by_time = [[t for t in tokens if t.normalized == late] for late in (False, True)]
        self.early, self.late = ({str(token): token for token in each} for each in by_time)
        self.normalize = normalize

    def split(self, line: str) -> list[str]:
        """Return the text between the added tokens, and these."""
        parts = _cut_out(line, self.early)
        if not self.late:
            return parts
        return [
            piece
            for part in parts
            for piece in ([part] if isinstance(part, AddedToken) else self._cut_late(part))
        ]

    def _cut_late(self, part: str) -> list[str]:
        pieces = _cut_out(self.normalize(part), self.late)
        return pieces if len(pieces) > 1 or isinstance(pieces[0], AddedToken) else [part]


def _cut_out(text: str, tokens: dict[str, AddedToken]) -> list[str]:
    there = sorted((token for token in tokens if token in text), key=len, reverse=True)
    if not there:
        return [text]
    parts, end = [], 0
    for match in re.finditer("|".join(map(re.escape, there)), text):
        token, before, after = tokens[match[0]], text[: match.start()], text[match.end() :]
        if token.single_word and (A_WORD.match(before[-1:]) or A_WORD.match(after)):
            continue
        start = len(before.rstrip()) if token.takes_left else len(before)
        parts += [text[end:start]] if start > end else []
        parts.append(token)
        end = len(text) - len(after.lstrip() if token.takes_right else after)
    return [*parts, text[end:]] if end < len(text) else parts


class AddedTokenTokenizer(SentencePieceTokenizer):
    """Pieces of a sentencepiece model, between added tokens."""

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
            added: tokens to cut out of source lines. Text between them is tokenized separately.
            added_to_target: the same for target lines.
            silent: tokens that are not text in an output. Unknown special tokens are not either.
            keeps_spaces: make a space before an added token a piece unless the token strips it.
        """
        super().__init__(processor)
        self.words = frozenset(token for token in added if not token.special)
        self.silent, self.keeps_spaces = frozenset(silent), keeps_spaces
        self.added = AddedTokens(added, self._normalize)
        self.added_to_target = AddedTokens(added_to_target, self._normalize)

    def encode(self, text: str) -> list[str]:
        return self._encode(self.added.split(text))

    def encode_target(self, text: str) -> list[str]:
        return self._encode(self.added_to_target.split(text))

    def _encode(self, parts: list[str]) -> list[str]:
        tokens: list[str] = []
        for part in parts:
            tokens += [part] if isinstance(part, AddedToken) else super().encode(part)
            if self.keeps_spaces and len(parts) > 1 and part[-1:].isspace():
                tokens.append(SPACER)
        return tokens

    def _normalize(self, text: str) -> str:
        """Normalized text, with a space at each end that has some."""
        inner = self.processor.normalize(text).replace(SPACER, " ").strip()
        return " " * text[:1].isspace() + inner + " " * text[-1:].isspace()

    def decode(self, tokens: list[str]) -> str:
        pieces = self.processor
        unk_id, texts, run = pieces.unk_id(), [], []
        for token in tokens:
            if token in self.silent:
                continue
            if pieces.piece_to_id(token) != unk_id:
                run.append(token)
            elif token in self.words:
                texts += [super().decode(run), token]
                run = []
        return " ".join(filter(None, [*texts, super().decode(run)]))


class MarianTokenizer:
    """Pieces of two sentencepiece models, one per language.  `>>xxx<<` at the start of a source
    line is a token of its own: it names the language to translate into."""

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
            source: the sentencepiece model of the source.
            target: the model of the target.
            added: tokens to cut out of source lines. Special ones are not text in an output.
            joiner: the model that joins output (default: `target`).
            cleans_up: remove spaces before punctuation and English endings from output.
        """
        self.source, self.target, self.joiner = source, target, joiner or target
        self.added, self.cleans_up = AddedTokens(added), cleans_up
        self.silent = frozenset(["</s>", "<unk>", "<pad>", *(t for t in added if t.special)])

    def encode(self, text: str) -> list[str]:
        tokens: list[str] = []
        for part in self.added.split(text):
            language = None if isinstance(part, AddedToken) else LANGUAGE.match(part)
            rest = part[language.end() :] if language else part
            tokens += [language[0]] if language else []
            tokens += [part] if isinstance(part, AddedToken) else encode_subwords(self.source, rest)
        return tokens

    def encode_target(self, text: str) -> list[str]:
        return encode_subwords(self.target, text)

    def decode(self, tokens: list[str]) -> str:
        """Join pieces.  Those that the model lacks keep their mark of a space."""
        text = self.joiner.decode([token for token in tokens if token not in self.silent])
        text = text.replace(SPACER, " ").strip()
        for spaced, joined in CLEANED if self.cleans_up else ():
            text = text.replace(spaced, joined)
        return LINE_BREAKS.sub(" ", text)


# -- tokens to text --------------------------------------------------------------------------------


JOINER, SPACER = "￭", "▁"
CAPITAL = "｟mrk_case_modifier_C｠"  # before a token with a capital first letter
ESCAPED = re.compile("％(?!d[89a-f])([0-9a-f]{4})")  # a character that looks like a mark
PLACEHOLDER = "｟"  # begins a token that is kept as it is
CAPITALS_BEGIN, CAPITALS_END = "｟mrk_begin_case_region_U｠", "｟mrk_end_case_region_U｠"


def detokenize_sentencepiece(tokens: list[str]) -> str:
    """Join pieces of sentencepiece, without its model."""
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
    """Join tokens, with a space before each that begins with a spacer, except the first."""
    cased = restore_case(tokens, SPACER)
    text = "".join(" " + t[1:] if t.startswith(SPACER) else t for t in cased)
    return text[1:] if cased and cased[0].startswith(SPACER) else text


def restore_case(tokens: list[str], mark: str) -> list[str]:
    """Apply the marks of case among the tokens, and remove them."""
    restored = []
    capital = capitals = False
    for token in tokens:
        if token == CAPITAL:
            capital = True
        elif token in (CAPITALS_BEGIN, CAPITALS_END):
            capitals = token == CAPITALS_BEGIN
        else:
            text = token
            if PLACEHOLDER not in token:  # `％0020` is U+0020
                text = ESCAPED.sub(lambda match: chr(int(match[1], 16)), token)
            if capital:
                first = len(mark) if text.startswith(mark) else 0  # index of the first letter
                text = text[:first] + text[first : first + 1].upper() + text[first + 1 :]
            elif capitals:
                text = text.upper()
            restored.append(text)
            capital = capital and token == mark  # a mark alone has no letter to turn
    return restored


# The second and third are fairseq's `--post-process` (0.12.2), the last two come from the OpenNMT
# Tokenizer (pyonmttok 1.38.1), with its marks for capitals
DETOKENIZERS: dict[str, Callable[[list[str]], str]] = {
    "space": " ".join,
    "bpe": detokenize_bpe,  # Mor@@ gen ! -> Morgen !
    "sentencepiece": detokenize_sentencepiece,  # ▁Mor gen ! -> Morgen!
    "joiner": detokenize_joiner,  # Mor￭ gen ￭! -> Morgen!
    "spacer": detokenize_spacer,  # Mor gen ! ▁Ja -> Morgen! Ja
}


# -- tokens to words -------------------------------------------------------------------------------


Decode = Callable[[list[str]], str]


def token_word_ids(tokens: Sequence[str], decode: Decode, text: str) -> list[int]:
    """For each token the number of its word in `text`, from 0: `▁Gu ten ▁Tag !` has 0 0 1 1.

    A word stands between white space.  A token that says nothing by itself, such as a mark for a
    capital letter, goes with the token that follows; one of several words with the last of them.

    decode  joins tokens.  `text` is made of all of them, but words may have been changed, added or
            removed afterwards; it has one word at least
    """
    made = [decode([*tokens[:n]]).split() for n in range(len(tokens) + 1)]
    places = _places(made[-1], text.split())
    word, found = len(places) - 1, []
    for before, after in zip(reversed(made[:-1]), reversed(made)):
        if after != before:  # this token says something
            word = min(word, len(after) - 1)
        found.append(places[word] if places else 0)
    return found[::-1]


def word_log_probs(
    tokens: Sequence[str], log_probs: Sequence[float], decode: Decode, text: str
) -> list[float]:
    """For each word of `text` the sum over its tokens; see `word_of_each`.

    log_probs  one per token; that of an end token after them belongs to no word
    """
    sums = [0.0] * len(text.split())
    if sums:
        for word, log_prob in zip(token_word_ids(tokens, decode, text), log_probs):
            sums[word] += log_prob
    return sums


def _places(made: list[str], words: list[str]) -> list[int]:
    """For each word that the tokens have made, its number among the `words` of the final text.

    Upper and lower case are equal; in a run of words that have become others, they go one by one,
    and the rest with the last."""
    if made == words:
        return [*range(len(words))]
    small, others = ([word.casefold() for word in side] for side in (made, words))
    matched = SequenceMatcher(None, small, others, autojunk=False)
    places: list[int] = []
    for _, start, end, first, beyond in matched.get_opcodes():
        last = max(first, beyond - 1)  # words that were removed go with the next one
        places += [min(first + i, last, len(words) - 1) for i in range(end - start)]
    return places
