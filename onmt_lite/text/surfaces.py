"""Tokens as the characters that they add to a text, whatever the tokenizer."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property

from onmt_lite.text.phrases import UNREADABLE, is_word
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.text.vocab import Vocab

ANCHOR = "a"  # a word beside which tokens are looked at
LAST = chr(0x10FFFF)


class Surfaces:
    """What each token of a vocabulary adds to a text.

    A space stands between two tokens unless one of them is glued to the other: to its left as `s`
    in `▁cat s` is, or to its right as `cat@@` in `cat@@ s`.  Where no token is glued to its left,
    the space is counted to the token before it, so that the text shows at once that a word has
    ended: `cat` is "cat " and `cat@@` is "cat".

    Pieces are asked for with `joined`: whether the token before glues them to itself, or they begin
    the text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: Vocab, case: Callable[[str], str] = str):
        """`case`: what is done to the text that the tokens make."""
        self.tokenizer, self.vocab, self.case = tokenizer, vocab, case
        self.anchor = tokenizer.encode_target(ANCHOR)
        self.parts = [self._look_at(token) for token in vocab.tokens]
        self.spaced_behind = not any(glued for _, glued, _ in self._told())

    def _told(self) -> Iterator[tuple[str, bool, bool]]:
        """The parts of tokens that are text."""
        told = (i for i in range(len(self.parts)) if not self.vocab.is_special(i))
        return (self.parts[i] for i in told if self.parts[i][0] not in ("", UNREADABLE))

    def _look_at(self, token: str) -> tuple[str, bool, bool]:
        """The text of a token between two words, and whether it is glued to its left and glues what
        is to its right; an unreadable mark where that cannot be told."""
        text = self.tokenizer.decode([*self.anchor, token, *self.anchor])
        n = len(ANCHOR)
        inner = text[n:-n]
        if not (text.startswith(ANCHOR) and text.endswith(ANCHOR)) or len(text) < 2 * n:
            return UNREADABLE, True, False
        if UNREADABLE in inner:
            return UNREADABLE, True, False
        if inner == " ":  # it says nothing
            return "", True, False
        glued, glues = not inner.startswith(" "), not inner.endswith(" ")
        core = inner[0 if glued else 1 : None if glues else -1]
        return self.case(core), glued, glues

    def piece(self, token: str | int, joined: bool) -> tuple[str, bool]:
        """What a token adds, by its id or, for a word of the line's own, by itself; and whether it
        joins the next one."""
        core, glued, glues = self.parts[token] if isinstance(token, int) else self._look_at(token)
        if self.spaced_behind:
            return (core if glues or not core else f"{core} "), True
        return (core if glued or joined else f" {core}"), glues

    @cached_property
    def pieces(self) -> list[tuple[str, int]]:
        """All that tokens can add, in alphabetical order, and the tokens."""
        found = set()
        for i in range(len(self.parts)):
            if not self.vocab.is_special(i):
                found |= {(self.piece(i, joined)[0], i) for joined in (False, True)}
        return sorted(each for each in found if each[0])

    def beginning(self, text: str) -> Iterator[int]:
        """Tokens that may add this text and perhaps more behind it."""
        start = bisect_left(self.pieces, (text, -1))
        end = bisect_left(self.pieces, (text + LAST, -1))
        return (token for _, token in self.pieces[start:end])

    def longest(self, text: str) -> int | None:
        """The token that adds most of the beginning of a text, and nothing else."""
        for n in range(len(text), 0, -1):
            at = bisect_left(self.pieces, (text[:n], -1))
            if at < len(self.pieces) and self.pieces[at][0] == text[:n]:
                return self.pieces[at][1]
        return None

    @cached_property
    def several(self) -> list[int]:
        """Tokens inside of which a word may end: those with a space or a mark between letters."""
        return [
            i
            for i, (core, _, _) in enumerate(self.parts)
            if any(not is_word(char) for char in core[1:]) or len(core) > 1 and core[0] == " "
        ]

    @cached_property
    def classes(self) -> list[list[bool]]:
        """Classes of tokens, which belong to one or not: 0 and 1, those that begin with no letter,
        so that the word before them has ended, behind a token that joins the next one in class 1;
        2, those that begin with a letter of the word before them.  The last column is of words that
        are the line's own."""
        pieces = [[self.piece(i, j)[0] for i in range(len(self.parts))] for j in (False, True)]
        ends = [[p != "" and not is_word(p[0]) for p in each] for each in pieces]
        apart = [not self.spaced_behind, False]
        ends = [[*each, own] for each, own in zip(ends, apart)]
        return [*ends, [*(p != "" and is_word(p[0]) for p in pieces[0]), False]]

    def spelt(self, phrase: str) -> list[tuple[int, int]]:
        """The tokens of a phrase and, for each, how many characters of it are spelt then; none
        where the model cannot say it."""
        lower = self.case is not str  # the model writes small letters, which become capitals
        tokens = self.tokenizer.encode_target(phrase.lower() if lower else phrase)
        ids = [self.vocab.ids[token] for token in tokens if token in self.vocab.ids]
        if len(ids) < len(tokens) or any(map(self.vocab.is_special, ids)):
            return []
        if len(ids) > 1 and not is_word(phrase[0]) and not self.parts[ids[0]][0]:
            del ids[0]  # the mark of a word, which marks and such scripts do without
        text, joined, path = "", False, list[tuple[int, int]]()
        for token in ids:
            piece, joined = self.piece(token, joined)
            text += piece
            path.append((token, min(len(text.lstrip()), len(phrase))))
        return path if text.strip() == phrase else []
