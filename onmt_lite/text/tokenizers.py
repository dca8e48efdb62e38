"""Text to tokens and back.  A tokenizer knows pieces of text; ids are the vocabulary's."""

import re
from typing import Protocol

import sentencepiece as spm

# What some reader somewhere takes for the end of a line
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[str]: ...

    def decode(self, tokens: list[str]) -> str: ...


class SpaceTokenizer:
    """The line holds tokens already, separated by white space."""

    def encode(self, text: str) -> list[str]:
        return text.split()

    def decode(self, tokens: list[str]) -> str:
        return " ".join(tokens)


class SentencePieceTokenizer:
    """Pieces of a sentencepiece model."""

    def __init__(self, processor: spm.SentencePieceProcessor):
        self.processor = processor

    def encode(self, text: str) -> list[str]:
        return self.processor.encode(text, out_type=str)

    def decode(self, tokens: list[str]) -> str:
        return LINE_BREAKS.sub(" ", self.processor.decode(tokens))
