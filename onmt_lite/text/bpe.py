"""Byte pair encoding as subword-nmt applies it: frequent words stay whole, rare ones fall apart.

A codes file lists merges in the order in which they were learned.  A word starts as its characters;
of all merges of two neighbours the earliest learned is made first, until none is left.  Every piece
but the last of a word is written with `@@` after it.

subword-nmt names the version in the first line of a codes file.  fastBPE does not: its lines have a
count as a third column, and its merges are those of version 0.2.

Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units",
ACL 2016; the pieces equal the ones of their package subword-nmt 0.3.8.
"""

import heapq
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

SEPARATOR = "@@"
END = "</w>"  # marks the end of a word in a codes file
VERSIONS = {"0.1": False, "0.2": True}  # whether the mark belongs to the last character
FAST_MERGE = re.compile("[^ ]+ [^ ]+ [0-9]+")  # a line of fastBPE
CACHED_WORDS = 1 << 16

Pair = tuple[str, str]


class SubwordFile(NamedTuple):
    """A file that cuts one language: subwords that `vocabulary` counts less than `threshold` times
    are cut further; "" and 0 are no such limit."""

    path: str
    vocabulary: str
    threshold: int


class Codes(NamedTuple):
    pairs: list[Pair]  # merges, the earliest learned first
    marks_last: bool  # whether END is part of a word's last character


def parse_codes(text: str) -> Codes:
    """Parse a codes file of subword-nmt or fastBPE.  Raises ValueError with the line number for
    anything else."""
    lines = text.rstrip("\n").split("\n")
    marks_last, first = False, 0  # version 0.1, which has no line with a version
    if lines[0].startswith("#version:"):
        version = re.sub(r"(\.0+)+$", "", lines[0].split(":", 1)[1].strip())
        if version not in VERSIONS:
            raise ValueError(f"line 1: version {version[:20]!r} is none of {', '.join(VERSIONS)}")
        marks_last, first = VERSIONS[version], 1
    counted = first == 0 and FAST_MERGE.fullmatch(lines[0].strip("\r\n ")) is not None
    expected = "a merge is two pieces with a space between them" + " and a count" * counted
    pairs = []
    for number, line in enumerate(lines[first:] or [""], first + 1):
        line = line.strip("\r\n ")
        parts = line.split(" ")
        if not FAST_MERGE.fullmatch(line) if counted else len(parts) != 2:
            raise ValueError(f"line {number}: {expected}")
        pairs.append((parts[0], parts[1]))
    return Codes(pairs, marks_last or counted)


def parse_vocabulary(text: str, threshold: int) -> set[str]:
    """Pieces with a count of at least `threshold`.  Raises ValueError for a line without count."""
    known = set()
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        piece, _, count = line.strip("\r\n ").replace("\t", " ").partition(" ")
        if not re.fullmatch("[0-9]+", count):
            raise ValueError(f"line {number}: not a piece and its count")
        if int(count) >= threshold:
            known.add(piece)
    return known


class BytePairEncoder:
    """Cuts words into the pieces of a codes file.

    With a `vocabulary`, a piece that is missing there is split again into the two pieces of its
    merge, and so on, until each part is in the vocabulary or not a merge.
    """

    def __init__(self, codes: Codes, vocabulary: set[str] | None = None):
        self.codes, self.vocabulary = codes, vocabulary
        # From the last to the first, so that the first of equal merges counts
        self.ranks = {codes.pairs[i]: i for i in reversed(range(len(codes.pairs)))}
        self.made_of = {left + right: (left, right) for left, right in self.ranks}
        self.encode_word = lru_cache(CACHED_WORDS)(self._encode_word)

    def encode(self, text: str) -> list[str]:
        """Cut a line into pieces; words are separated by U+0020 alone."""
        words = text.strip("\r\n ").split(" ") if text.strip() else []
        return [piece for word in words if word for piece in self.encode_word(word)]

    def _encode_word(self, word: str) -> list[str]:
        if len(word) == 1:
            return [word]
        ending = [word[-1] + END] if self.codes.marks_last else [word[-1], END]
        merged = self._merge([*word[:-1], *ending])
        if merged[-1] == END:  # merged with nothing
            merged.pop()
        *inner, last = merged
        pieces = [(piece, False) for piece in inner] + [(last.removesuffix(END), True)]
        if self.vocabulary is not None:
            pieces = [part for piece in pieces for part in self._known_parts(*piece)]
        return [written(*piece) for piece in pieces if piece[0]]

    def _merge(self, symbols: list[str]) -> list[str]:
        """Make all merges of a word's symbols, in n log n time: a line may be one long word.

        A merge is made everywhere, from left to right, before the next is chosen.  The merged
        symbol takes the index of its left part; the symbol at the right index becomes empty.
        """
        n = len(symbols)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        queue: list[tuple[int, int]] = []  # ranks, the earliest first, and indices of left parts

        def look_at(i: int) -> None:
            """Queue the merge of symbol i with the next symbol, if there is such a merge."""
            if i >= 0 and after[i] < n:
                rank = self.ranks.get((symbols[i], symbols[after[i]]))
                if rank is not None:
                    heapq.heappush(queue, (rank, i))

        for i in range(n):
            look_at(i)
        while queue:
            rank, places = queue[0][0], list[int]()
            while queue and queue[0][0] == rank:
                places.append(heapq.heappop(queue)[1])
            for i in places:
                j = after[i]
                if j >= n or (symbols[i], symbols[j]) != self.codes.pairs[rank]:
                    continue  # an earlier merge used one of the two
                symbols[i], symbols[j] = symbols[i] + symbols[j], ""
                after[i] = after[j]
                if after[i] < n:
                    before[after[i]] = i
                look_at(before[i])
                look_at(i)
        return [symbol for symbol in symbols if symbol]

    def _known_parts(self, piece: str, last: bool) -> Iterator[tuple[str, bool]]:
        """Split a piece into known parts; yields (part, whether it ends the word)."""
        assert self.vocabulary is not None
        open_parts = [(piece, last)]
        while open_parts:
            piece, last = open_parts.pop()
            pair = self.made_of.get(piece + END if last else piece)
            if pair is None or written(piece, last) in self.vocabulary:
                yield piece, last
            else:
                left, right = pair
                open_parts += [(right[: -len(END)] if last else right, last), (left, False)]


def written(piece: str, last: bool) -> str:
    """Token of a piece: with `@@` unless it ends the word."""
    return piece if last else piece + SEPARATOR


def detokenize_bpe(tokens: list[str]) -> str:
    """Join pieces to words with spaces between them."""
    return re.sub("@@( |$)", "", " ".join(tokens))
