"""Lines through OpenNMT-py's transforms: what stands around a line, and what cuts it.

A prefix or suffix that comes before the transform that cuts is text and is cut with the line; one
that comes after it is tokens.  Those of the source are given to the model as they stand, whatever
a line's length; they may be control tokens, which a line itself never has.

Four things are as meant, not as OpenNMT-py 3.5.1 does them.  It goes through the transforms in the
same order on the way back, so that a prefix before `sentencepiece` stays in the output; here the
way back is the other way round, which for `[sentencepiece, prefix]` gives the same.  It leaves the
suffix in the output.  Its empty prefix is an empty token, unknown to every model.  And it drops
blank lines, or translates their prefix.
"""

from collections.abc import Callable
from dataclasses import dataclass

import sentencepiece as spm

from onmt_lite.text.tokenizers import LINE_BREAKS

NEWLINE = "｟newline｠"  # what a line has where the text that it stands for has a line break

Cut = Callable[[str], list[str]]
Join = Callable[[list[str]], str]


@dataclass(frozen=True)
class Affixes:
    """What stands around each line of one language: text before it is cut, tokens after."""

    text_before: str = ""
    text_after: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def around(self, line: str) -> str:
        return " ".join(filter(None, (self.text_before, line, self.text_after)))

    def taken_off(self, text: str) -> str:
        """The text without what stood around it; only whole words come off."""
        head, tail = self.text_before, self.text_after
        if head and f"{text} ".startswith(f"{head} "):
            text = text[len(head) + 1 :]
        if tail and f" {text}".endswith(f" {tail}"):
            text = text[: max(0, len(text) - len(tail) - 1)]
        return text

    def tokens_taken_off(self, tokens: list[str]) -> list[str]:
        if self.before and tuple(tokens[: len(self.before)]) == self.before:
            tokens = tokens[len(self.before) :]
        if self.after and tuple(tokens[-len(self.after) :]) == self.after:
            tokens = tokens[: -len(self.after)]
        return tokens


class TransformTokenizer:
    """Cuts with `cut`, or with `cut_target`, and joins; see `Affixes` for the rest.

    The tokens around a line are not among those that it returns: `src` and `tgt` tell them.
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
        return self.cut(self.src.around(text.strip())) if text.strip() else []

    def encode_target(self, text: str) -> list[str]:
        return self.cut_target(self.tgt.around(text.strip()))

    def decode(self, tokens: list[str]) -> str:
        text = self.tgt.taken_off(self.join(self.tgt.tokens_taken_off(tokens)))
        return LINE_BREAKS.sub(" ", text)


def pieces_cutter(pieces: spm.SentencePieceProcessor) -> Cut:
    return lambda text: pieces.encode(text.replace(NEWLINE, "\n"), out_type=str)


def pieces_joiner(pieces: spm.SentencePieceProcessor) -> Join:
    return lambda tokens: pieces.decode(tokens).replace("\n", NEWLINE)
