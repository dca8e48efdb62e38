"""OpenNMT-py transforms: prefix, suffix, tokenizer, and the normalization of text before it.

A prefix or suffix before the tokenizer in the list of transforms is text and is tokenized with the
line. After the tokenizer, it consists of tokens, and the model reads them in full even if a long
line is truncated. They may be control tokens, unlike tokens of ordinary text.

Four differences from OpenNMT-py 3.5.1 are intended:
- OpenNMT-py detokenizes in the order of the list, so that a prefix before `sentencepiece` remains
  in the output. Here the order is reversed. For `[sentencepiece, prefix]` this is the same.
- OpenNMT-py leaves the suffix in the output.
- An empty prefix in OpenNMT-py is an empty token and unknown to every model.
- OpenNMT-py drops empty lines, or translates their prefix.

As in OpenNMT-py, `normalize` and `uppercase` are not reversed in the output.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import sentencepiece as spm
import yaml

from onmt_lite.text.lines import LINE_BREAKS

NEWLINE = "｟newline｠"  # a line break inside the text of a line

TokenizeFn = Callable[[str], list[str]]
DetokenizeFn = Callable[[list[str]], str]


@dataclass(frozen=True)
class Affixes:
    """Prefix and suffix of one side, as text and as tokens."""

    text_before: str = ""  # tokenized with the line
    text_after: str = ""
    before: tuple[str, ...] = ()  # tokens, not text
    after: tuple[str, ...] = ()

    def add_to(self, line: str) -> str:
        """Add the text affixes to a line."""
        return " ".join(filter(None, (self.text_before, line, self.text_after)))

    def remove_from(self, text: str) -> str:
        """Remove the text affixes if they are whole words of `text`."""
        head, tail = self.text_before, self.text_after
        if head and f"{text} ".startswith(f"{head} "):
            text = text[len(head) + 1 :]
        if tail and f" {text}".endswith(f" {tail}"):
            text = text[: max(0, len(text) - len(tail) - 1)]
        return text

    def remove_from_tokens(self, tokens: list[str]) -> list[str]:
        """Remove the token affixes."""
        if self.before and tuple(tokens[: len(self.before)]) == self.before:
            tokens = tokens[len(self.before) :]
        if self.after and tuple(tokens[-len(self.after) :]) == self.after:
            tokens = tokens[: -len(self.after)]
        return tokens


@dataclass(frozen=True)
class TransformTokenizer:
    """Tokenizes lines with their text affixes, and detokenizes without any affixes.

    `encode` does not add the token affixes; they are available as `src` and `tgt`.
    """

    tokenize: TokenizeFn
    tokenize_target: TokenizeFn
    detokenize: DetokenizeFn
    src: Affixes = Affixes()
    tgt: Affixes = Affixes()

    def encode(self, text: str) -> list[str]:
        """Tokenize a source line; an empty line has no tokens."""
        return self.tokenize(self.src.add_to(text.strip())) if text.strip() else []

    def encode_target(self, text: str) -> list[str]:
        """Tokenize a target line."""
        return self.tokenize_target(self.tgt.add_to(text.strip()))

    def decode(self, tokens: list[str]) -> str:
        """Detokenize a translation into one line."""
        text = self.tgt.remove_from(self.detokenize(self.tgt.remove_from_tokens(tokens)))
        return LINE_BREAKS.sub(" ", text)


def make_sentencepiece_encoder(processor: spm.SentencePieceProcessor) -> TokenizeFn:
    """Return the function that tokenizes with a sentencepiece model."""
    return lambda text: processor.encode(text.replace(NEWLINE, "\n"), out_type=str)


def make_sentencepiece_decoder(processor: spm.SentencePieceProcessor) -> DetokenizeFn:
    """Return the function that detokenizes with a sentencepiece model."""
    return lambda tokens: processor.decode(tokens).replace("\n", NEWLINE)


# -- normalization ---------------------------------------------------------------------------------


RULES_FILE = Path(__file__).with_name("punctuation.yaml")
DECIMAL_COMMA = ("de", "es", "cz", "cs", "fr")


@lru_cache
def load_punctuation_rules() -> dict[str, list[tuple[str, str]]]:
    """Return the substitutions (pattern, replacement) of each step of `Punctuation`, in order."""
    rules: dict[str, list[tuple[str, str]]] = yaml.safe_load(RULES_FILE.read_bytes())
    return rules


@dataclass(frozen=True)
class Punctuation:
    """Normalizes the punctuation of a line, as the transform `normalize` does."""

    lang: str = ""  # sets the quotation style and the decimal mark
    penn: bool = True  # replace Penn Treebank quotation marks
    quote_commas: bool = True  # order quotation marks and commas as usual in the language
    numbers: bool = True  # replace a no-break space in a number by the decimal mark
    wide: bool = False  # first, replace full-width forms
    controls: bool = False  # last, remove control characters

    def __call__(self, text: str) -> str:
        """Return the normalized text."""
        mark = "comma" if self.lang in DECIMAL_COMMA else "point"
        steps = {
            "wide": self.wide,
            "spaces": True,
            "penn": self.penn,
            "marks": True,
            f"quotes {self.lang}": self.quote_commas,
            f"decimal {mark}": self.numbers,
        }
        for step in filter(steps.get, steps):
            for pattern, replacement in load_punctuation_rules().get(step, ()):
                text = re.sub(pattern, replacement, text)
        if self.controls:
            text = "".join(c for c in text if not unicodedata.category(c).startswith("C"))
        return text.strip()


def uppercase(text: str) -> str:
    """Return the text in uppercase, without accents."""
    decomposed = unicodedata.normalize("NFD", text.upper())
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
