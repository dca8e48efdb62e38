"""Transforms of OpenNMT-py: prefix, suffix, and the tokenizer between them.

A prefix or suffix before the tokenizer in the list of transforms is text, cut with the line.  One
after the tokenizer is tokens, given to the model whole even if a long line is cut; they may be
control tokens, which text never becomes.

Four differences to OpenNMT-py 3.5.1 are on purpose.  OpenNMT-py detokenizes in the order of the
list, so that a prefix before `sentencepiece` stays in the output; here the order is reversed, which
is the same for `[sentencepiece, prefix]`.  OpenNMT-py leaves the suffix in the output.  Its empty
prefix is an empty token, which no model knows.  It drops blank lines, or translates their prefix.
"""

from collections.abc import Callable
from dataclasses import dataclass

import sentencepiece as spm

from onmt_lite.text.tokenizers import LINE_BREAKS

NEWLINE = "｟newline｠"  # a line break of the text inside a line

Cut = Callable[[str], list[str]]
Join = Callable[[list[str]], str]


@dataclass(frozen=True)
class Affixes:
    """Prefix and suffix of the lines of one side, as text and as tokens.

    text_before, text_after  are cut with the line
    before, after            are tokens already
    """

    text_before: str = ""
    text_after: str = ""
    before: tuple[str, ...] = ()
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


class TransformTokenizer:
    """Adds and removes text affixes, cuts with `cut` or `cut_target`, and joins with `join`.

    `encode` returns the tokens of the line without token affixes; the attributes `src` and `tgt`
    have these.
    """

    def __init__(
        self,
        cut: Cut,
        cut_target: Cut,
        join: Join,
        src: Affixes = Affixes(),
        tgt: Affixes = Affixes(),
    ):
        self.cut, self.cut_target, self.join = cut, cut_target, join
        self.src, self.tgt = src, tgt

    def encode(self, text: str) -> list[str]:
        return self.cut(self.src.add_to(text.strip())) if text.strip() else []

    def encode_target(self, text: str) -> list[str]:
        return self.cut_target(self.tgt.add_to(text.strip()))

    def decode(self, tokens: list[str]) -> str:
        text = self.tgt.remove_from(self.join(self.tgt.remove_from_tokens(tokens)))
        return LINE_BREAKS.sub(" ", text)


def pieces_cutter(pieces: spm.SentencePieceProcessor) -> Cut:
    return lambda text: pieces.encode(text.replace(NEWLINE, "\n"), out_type=str)


def pieces_joiner(pieces: spm.SentencePieceProcessor) -> Join:
    return lambda tokens: pieces.decode(tokens).replace("\n", NEWLINE)
