"""Text to tokens and back.  A tokenizer knows pieces of text; ids are the vocabulary's."""

import re
from typing import Protocol

import sentencepiece as spm

# What some reader somewhere takes for the end of a line
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[str]: ...

    def encode_target(self, text: str) -> list[str]:
        """As `encode`, for text in the target language."""
        ...

    def decode(self, tokens: list[str]) -> str: ...


class SpaceTokenizer:
    """The line holds tokens already, separated by white space."""

    def encode(self, text: str) -> list[str]:
        return text.split()

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        return " ".join(tokens)


class SentencePieceTokenizer:
    """Pieces of a sentencepiece model."""

    def __init__(self, processor: spm.SentencePieceProcessor):
        self.processor = processor

    def encode(self, text: str) -> list[str]:
        return self.processor.encode(text, out_type=str)

    encode_target = encode

    def decode(self, tokens: list[str]) -> str:
        return LINE_BREAKS.sub(" ", self.processor.decode(tokens))


class MarianTokenizer:
    """Pieces of two sentencepiece models, one per language.

    `>>xxx<<` at the start of a source line is a token of its own: it names the language that a
    model with several is to translate into.
    """

    LANGUAGE = re.compile(r">>[^<>\s]+<<")
    SPECIAL = ("</s>", "<unk>", "<pad>")

    def __init__(self, source: spm.SentencePieceProcessor, target: spm.SentencePieceProcessor):
        self.source, self.target = source, target

    def encode(self, text: str) -> list[str]:
        language = self.LANGUAGE.match(text)
        if language is None:
            return self.source.encode(text, out_type=str)
        return [language[0], *self.source.encode(text[language.end() :], out_type=str)]

    def encode_target(self, text: str) -> list[str]:
        return self.target.encode(text, out_type=str)

    def decode(self, tokens: list[str]) -> str:
        pieces = [token for token in tokens if token not in self.SPECIAL]
        return LINE_BREAKS.sub(" ", self.target.decode(pieces))
