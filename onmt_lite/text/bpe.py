"""Byte pair encoding as subword-nmt applies it: frequent words stay whole, rare ones fall apart.

A codes file lists merges in the order in which they were learned.  A word starts as its characters,
and the earliest learned merge of two neighbours is made first, wherever they stand in the word,
until none is left.  Every piece but a word's last is written with `@@` behind it.

Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units",
ACL 2016; the pieces are those of their package subword-nmt 0.3.8.
"""

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

SEPARATOR = "@@"
END = "</w>"  # marks the end of a word in a codes file
VERSIONS = {"0.1": False, "0.2": True}  # whether the mark belongs to the last character
CACHED_WORDS = 1 << 16

Pair = tuple[str, str]


@dataclass(frozen=True)
class Codes:
    """Merges, the earliest learned first, and whether a word's last character holds the mark."""

    pairs: list[Pair]
    marks_last: bool


def parse_codes(text: str) -> Codes:
    """What a codes file says; ValueError, with the line's number, where it is none."""
    lines = text.rstrip("\n").split("\n")
    marks_last, first = False, 0  # files of the first version do not tell it
    if lines[0].startswith("#version:"):
        version = re.sub(r"(\.0+)+$", "", lines[0].split(":", 1)[1].strip())
        if version not in VERSIONS:
            raise ValueError(f"line 1: version {version[:20]!r} is none of {', '.join(VERSIONS)}")
        marks_last, first = VERSIONS[version], 1
    pairs = []
    for number, line in enumerate(lines[first:] or [""], first + 1):
        parts = line.strip("\r\n ").split(" ")
        if len(parts) != 2:
            raise ValueError(f"line {number}: a merge is two pieces with a space between them")
        pairs.append((parts[0], parts[1]))
    return Codes(pairs, marks_last)


def parse_vocabulary(text: str, threshold: int) -> set[str]:
    """Pieces that a vocabulary file counts at least `threshold` times; ValueError for another."""
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

    With a `vocabulary` a piece that is not in it is taken apart again, into the two that were
    merged to it and so on, until each part is known or no merge made it.
    """

    def __init__(self, codes: Codes, vocabulary: set[str] | None = None):
        self.codes, self.vocabulary = codes, vocabulary
        # From the last to the first, so that of two that are equal the first one counts
        self.ranks = {codes.pairs[i]: i for i in reversed(range(len(codes.pairs)))}
        self.made_of = {left + right: (left, right) for left, right in self.ranks}
        self.encode_word = lru_cache(CACHED_WORDS)(self._encode_word)

    def encode(self, text: str) -> list[str]:
        """Pieces of a line whose words are separated by spaces; no other space separates."""
        words = text.strip("\r\n ").split(" ") if text.strip() else []
        return [piece for word in words if word for piece in self.encode_word(word)]

    def _encode_word(self, word: str) -> list[str]:
        if len(word) == 1:
            return [word]
        ending = [word[-1] + END] if self.codes.marks_last else [word[-1], END]
        *inner, last = self._merge([*word[:-1], *ending])
        if last == END:  # merged with nothing
            *inner, last = *inner, ""
        if not last:
            last = inner.pop()
        pieces = [(piece, False) for piece in inner] + [(last.removesuffix(END), True)]
        if self.vocabulary is not None:
            pieces = [part for piece in pieces for part in self._known_parts(*piece)]
        return [written(*piece) for piece in pieces if piece[0]]

    def _merge(self, symbols: list[str]) -> list[str]:
        """The symbols after all merges.  Time grows as n log n, for a line without any space.

        A merge is made in all its places, from left to right, before the next is chosen.  The
        merged symbol stands in the place of its left part; the right one's becomes empty.
        """
        n = len(symbols)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        places: dict[int, list[int]] = {}  # by rank, where a merge may be made
        queue: list[int] = []  # ranks, the earliest first

        def look_at(i: int) -> None:
            """Note the merge of symbol i with the one behind it, if there is such a merge."""
            if i >= 0 and after[i] < n:
                rank = self.ranks.get((symbols[i], symbols[after[i]]))
                if rank is not None:
                    if rank not in places:
                        heapq.heappush(queue, rank)
                    places.setdefault(rank, []).append(i)

        for i in range(n):
            look_at(i)
        while queue:
            rank = heapq.heappop(queue)
            for i in sorted(places.pop(rank)):
                j = after[i]
                if j >= n or (symbols[i], symbols[j]) != self.codes.pairs[rank]:
                    continue  # another merge took one of them
                symbols[i], symbols[j] = symbols[i] + symbols[j], ""
                after[i] = after[j]
                if after[i] < n:
                    before[after[i]] = i
                look_at(before[i])
                look_at(i)
        return [symbol for symbol in symbols if symbol]

    def _known_parts(self, piece: str, last: bool) -> Iterator[tuple[str, bool]]:
        """Parts of a piece, each with whether it ends the word."""
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
    """A piece as a token."""
    return piece if last else piece + SEPARATOR


def join_bpe(tokens: list[str]) -> str:
    """Words again, a space between each two."""
    return re.sub("@@( |$)", "", " ".join(tokens))
