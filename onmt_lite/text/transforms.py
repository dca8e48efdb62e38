"""Transforms of OpenNMT-py: prefix, suffix, and the tokenizer between them; text that is rewritten
before it is cut (`normalize`, `uppercase`).

A prefix or suffix before the tokenizer in the list of transforms is text, cut with the line.  One
after the tokenizer is tokens, given to the model whole even if a long line is cut; they may be
control tokens, which text never becomes.

Four differences to OpenNMT-py 3.5.1 are on purpose.  OpenNMT-py detokenizes in the order of the
list, so that a prefix before `sentencepiece` stays in the output; here the order is reversed, which
is the same for `[sentencepiece, prefix]`.  OpenNMT-py leaves the suffix in the output.  Its empty
prefix is an empty token, which no model knows.  It drops blank lines, or translates their prefix.

OpenNMT-py's `normalize` and `uppercase` never write the output back; neither is that done here.
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

NEWLINE = "｟newline｠"  # a line break of the text inside a line

TokenizeFn = Callable[[str], list[str]]
DetokenizeFn = Callable[[list[str]], str]


@dataclass(frozen=True)
class Affixes:
    """Prefix and suffix of the lines of one side, as text and as tokens."""

    text_before: str = ""  # cut with the line
    text_after: str = ""
    before: tuple[str, ...] = ()  # tokens already
    after: tuple[str, ...] = ()

    def add_to(self, line: str) -> str:
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
        if self.before and tuple(tokens[: len(self.before)]) == self.before:
            tokens = tokens[len(self.before) :]
        if self.after and tuple(tokens[-len(self.after) :]) == self.after:
            tokens = tokens[: -len(self.after)]
        return tokens


@dataclass(frozen=True)
class TransformTokenizer:
    """Cuts lines with their text affixes, and joins tokens without any affixes.

    `encode` returns the tokens of the line without token affixes, which `src` and `tgt` have.
    """

    cut: TokenizeFn
    cut_target: TokenizeFn
    join: DetokenizeFn
    src: Affixes = Affixes()
    tgt: Affixes = Affixes()

    def encode(self, text: str) -> list[str]:
        return self.cut(self.src.add_to(text.strip())) if text.strip() else []

    def encode_target(self, text: str) -> list[str]:
        return self.cut_target(self.tgt.add_to(text.strip()))

    def decode(self, tokens: list[str]) -> str:
        text = self.tgt.remove_from(self.join(self.tgt.remove_from_tokens(tokens)))
        return LINE_BREAKS.sub(" ", text)


def sentencepiece_encoder(pieces: spm.SentencePieceProcessor) -> TokenizeFn:
    return lambda text: pieces.encode(text.replace(NEWLINE, "\n"), out_type=str)


def sentencepiece_decoder(pieces: spm.SentencePieceProcessor) -> DetokenizeFn:
    return lambda tokens: pieces.decode(tokens).replace("\n", NEWLINE)


# -- rewriting -------------------------------------------------------------------------------------


RULES = Path(__file__).with_name("punctuation.yaml")
DECIMAL_COMMA = ("de", "es", "cz", "cs", "fr")


@lru_cache
def punctuation_rules() -> dict[str, list[tuple[str, str]]]:
    """Patterns and their replacements, one after the other, for each step of `Punctuation`."""
    rules: dict[str, list[tuple[str, str]]] = yaml.safe_load(RULES.read_bytes())
    return rules


@dataclass(frozen=True)
class Punctuation:
    """Normalises the punctuation of a line, as the transform `normalize`."""

    lang: str = ""  # decides on the ends of quotations and on the mark between digits of a number
    penn: bool = True  # quotation marks of the Penn Treebank become others
    quote_commas: bool = True  # quotations end as is usual in the language
    numbers: bool = True  # a space inside a number that does not break becomes a comma or a point
    wide: bool = False  # full-width forms become usual ones first
    controls: bool = False  # characters that are not to be seen are taken out last

    def __call__(self, text: str) -> str:
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
            for pattern, replacement in punctuation_rules().get(step, ()):
                text = re.sub(pattern, replacement, text)
        if self.controls:
            text = "".join(c for c in text if not unicodedata.category(c).startswith("C"))
        return text.strip()


def uppercase(text: str) -> str:
    """The text in capital letters, which have no accents."""
    decomposed = unicodedata.normalize("NFD", text.upper())
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
