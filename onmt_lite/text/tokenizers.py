"""Text to tokens and back.  A tokenizer knows pieces of text; ids are the vocabulary's."""

import re
from collections.abc import Sequence
from typing import Protocol

import sentencepiece as spm

from onmt_lite.errors import CheckpointError
from onmt_lite.text.markup import LANGUAGE

# Characters that some programs take for the end of a line
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[str]: ...

    def encode_target(self, text: str) -> list[str]: ...  # of the target language

    def decode(self, tokens: list[str]) -> str: ...


class SpaceTokenizer:
    """Splits a line that holds tokens at white space.

    only_spaces  at spaces alone, as OpenNMT-py 3: others, such as a no-break space, are inside of
                 a token; not at the ends of a line
    """

    def __init__(self, only_spaces: bool = False):
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
    """Pieces of a sentencepiece model."""

    def __init__(self, processor: spm.SentencePieceProcessor):
        self.processor = processor

    def encode(self, text: str) -> list[str]:
        return pieces_of(self.processor, text)

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        return LINE_BREAKS.sub(" ", self.processor.decode(tokens))


class PieceTokenizer(SentencePieceTokenizer):
    """Pieces of a sentencepiece model, between tokens that are cut out of the line before.

    cut     tokens of their own, wherever they stand; the text between two is a line of its own
    silent  tokens that are no text in an output; other tokens that are no pieces are none either
    """

    def __init__(
        self,
        processor: spm.SentencePieceProcessor,
        cut: Sequence[str] = (),
        silent: Sequence[str] = (),
    ):
        super().__init__(processor)
        self.cut, self.silent = frozenset(cut), frozenset(silent)
        longest_first = sorted(self.cut, key=len, reverse=True)
        self.cuts = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def encode(self, text: str) -> list[str]:
        if not self.cut:
            return super().encode(text)
        tokens: list[str] = []
        for part in self.cuts.split(text):
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
    """Pieces of two sentencepiece models, one per language.

    `>>xxx<<` at the start of a source line is a token of its own: it names the language that a
    model with several is to translate into.
    """

    SPECIAL = ("</s>", "<unk>", "<pad>")

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
        pieces = [token for token in tokens if token not in self.SPECIAL]
        return LINE_BREAKS.sub(" ", self.target.decode(pieces))
