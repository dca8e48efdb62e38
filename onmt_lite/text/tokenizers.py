"""Text to tokens, and tokens to text and its words.  Ids of tokens are the vocabulary's."""

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Protocol

import sentencepiece as spm

from onmt_lite.errors import CheckpointError
from onmt_lite.text.bpe import join_bpe
from onmt_lite.text.lines import LINE_BREAKS

LANGUAGE = re.compile(r">>[^<>\s]+<<")


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


def pieces_of(processor: spm.SentencePieceProcessor, text: str) -> list[str]:
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
        return pieces_of(self.processor, text)

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        return LINE_BREAKS.sub(" ", self.processor.decode(tokens))


class PieceTokenizer(SentencePieceTokenizer):
    """Pieces of a sentencepiece model, between tokens that are cut out of the line before."""

    def __init__(
        self,
        processor: spm.SentencePieceProcessor,
        cut: Sequence[str] = (),
        silent: Sequence[str] = (),
    ):
        """cut: tokens of their own, wherever they stand; the text between two is a line of its own.
        silent: tokens that are no text in an output, as are others that are no pieces."""
        super().__init__(processor)
        self.cut, self.silent = frozenset(cut), frozenset(silent)
        longest_first = sorted(self.cut, key=len, reverse=True)
        self.cuts = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def encode(self, text: str) -> list[str]:
        tokens: list[str] = []
        for part in self.cuts.split(text) if self.cut else [text]:
            tokens += [part] if part in self.cut else super().encode(part)
        return tokens

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        pieces = self.processor
        unk_id, texts, run = pieces.unk_id(), [], []
        for token in tokens:
            if token in self.silent:
                continue
            if pieces.piece_to_id(token) != unk_id:
                run.append(token)
            elif token in self.cut:
                texts += [super().decode(run), token]
                run = []
        return " ".join(filter(None, [*texts, super().decode(run)]))


class MarianTokenizer:
    """Pieces of two sentencepiece models, one per language.  `>>xxx<<` at the start of a source
    line is a token of its own: it names the language to translate into."""

    def __init__(self, source: spm.SentencePieceProcessor, target: spm.SentencePieceProcessor):
        self.source, self.target = source, target

    def encode(self, text: str) -> list[str]:
        language = LANGUAGE.match(text)
        if language is None:
            return pieces_of(self.source, text)
        return [language[0], *pieces_of(self.source, text[language.end() :])]

    def encode_target(self, text: str) -> list[str]:
        return pieces_of(self.target, text)

    def decode(self, tokens: list[str]) -> str:
        pieces = [token for token in tokens if token not in ("</s>", "<unk>", "<pad>")]
        return LINE_BREAKS.sub(" ", self.target.decode(pieces))


# -- tokens to text --------------------------------------------------------------------------------


JOINER, SPACER = "￭", "▁"
CAPITAL = "｟mrk_case_modifier_C｠"  # before a token with a capital first letter
ESCAPED = re.compile("％(?!d[89a-f])([0-9a-f]{4})")  # a character that looks like a mark
PLACEHOLDER = "｟"  # begins a token that is kept as it is
CAPITALS_BEGIN, CAPITALS_END = "｟mrk_begin_case_region_U｠", "｟mrk_end_case_region_U｠"


def join_pieces(tokens: list[str]) -> str:
    """Join pieces of sentencepiece, without its model."""
    return "".join(tokens).replace(SPACER, " ").strip()


def join_joiner(tokens: list[str]) -> str:
    """Join tokens with spaces, except on a side where a token has a joiner."""
    text, glued = "", True
    for token in restore_case(tokens, JOINER):
        space = "" if glued or token.startswith(JOINER) else " "
        text += space + token.removeprefix(JOINER).removesuffix(JOINER)
        glued = token.endswith(JOINER)
    return text


def join_spacer(tokens: list[str]) -> str:
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
    "bpe": join_bpe,  # Mor@@ gen ! -> Morgen !
    "sentencepiece": join_pieces,  # ▁Mor gen ! -> Morgen!
    "joiner": join_joiner,  # Mor￭ gen ￭! -> Morgen!
    "spacer": join_spacer,  # Mor gen ! ▁Ja -> Morgen! Ja
}


# -- tokens to words -------------------------------------------------------------------------------


Decode = Callable[[list[str]], str]


def word_of_each(tokens: Sequence[str], decode: Decode, text: str) -> list[int]:
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
        for word, log_prob in zip(word_of_each(tokens, decode, text), log_probs):
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
