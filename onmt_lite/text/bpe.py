"""Byte pair encoding, compatible with subword-nmt and fastBPE.

A codes file lists merges in the order in which they were learned. A word starts as a sequence of
characters. The earliest learned merge of two adjacent symbols is applied first, until no merge
applies. Every subword except the last of a word is written with the suffix `@@`.

The first line of a subword-nmt codes file contains a version. fastBPE files have no version. Their
lines have a count as a third column, and their merges follow version 0.2.

Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units",
ACL 2016. The subwords are identical to those of subword-nmt 0.3.8.
"""

import heapq
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

SEPARATOR = "@@"
END = "</w>"  # end-of-word marker in a codes file
VERSIONS = {"0.1": False, "0.2": True}  # version: is END part of the last character?
FAST_MERGE = re.compile("[^ ]+ [^ ]+ [0-9]+")  # a line of a fastBPE codes file
CACHED_WORDS = 1 << 16

Pair = tuple[str, str]


class SubwordFile(NamedTuple):
    """Subword model of one language.

    Subwords with a count below `threshold` in the file `vocabulary` are split further. The defaults
    "" and 0 mean no vocabulary filter.
    """

    path: str
    vocabulary: str
    threshold: int


class Codes(NamedTuple):
    """The contents of a codes file."""

    pairs: list[Pair]  # merges, earliest learned first
    marks_last: bool  # END is part of the last character of a word


def parse_codes(text: str) -> Codes:
    """Parse a codes file of subword-nmt or fastBPE.

    Raises:
        ValueError: if a line is malformed; the message contains its number.
    """
    lines = text.rstrip("\n").split("\n")
    marks_last, first = False, 0  # version 0.1 has no version line
    if lines[0].startswith("#version:"):
        version = re.sub(r"(\.0+)+$", "", lines[0].split(":", 1)[1].strip())
        if version not in VERSIONS:
            raise ValueError(
                f"line 1: version {version[:20]!r} must be one of {', '.join(VERSIONS)}"
            )
        marks_last, first = VERSIONS[version], 1
    counted = first == 0 and FAST_MERGE.fullmatch(lines[0].strip("\r\n ")) is not None
    expected = "expected two subwords separated by a space" + " and a count" * counted
    pairs = []
    for number, line in enumerate(lines[first:] or [""], first + 1):
        line = line.strip("\r\n ")
        parts = line.split(" ")
        if not FAST_MERGE.fullmatch(line) if counted else len(parts) != 2:
            raise ValueError(f"line {number}: {expected}")
        pairs.append((parts[0], parts[1]))
    return Codes(pairs, marks_last or counted)


def parse_vocabulary(text: str, threshold: int) -> set[str]:
    """Return the subwords with a count of at least `threshold`.

    Raises:
        ValueError: if a line has no count.
    """
    subwords = set()
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        subword, _, count = line.strip("\r\n ").replace("\t", " ").partition(" ")
        if not re.fullmatch("[0-9]+", count):
            raise ValueError(f"line {number}: expected a subword and its count")
        if int(count) >= threshold:
            subwords.add(subword)
    return subwords


class BytePairEncoder:
    """Segments words with the merges of a codes file.

    With a `vocabulary`, a subword that is not in the vocabulary is split into the two parts of its
    merge. This is repeated until each part is in the vocabulary or is not the result of a merge.
    """

    def __init__(self, codes: Codes, vocabulary: set[str] | None = None):
        self.codes, self.vocabulary = codes, vocabulary
        # Reversed, so that the first of duplicate merges wins
        self.merge_ranks = {codes.pairs[i]: i for i in reversed(range(len(codes.pairs)))}
        self.merge_parts = {left + right: (left, right) for left, right in self.merge_ranks}
        self.encode_word = lru_cache(CACHED_WORDS)(self._encode_word)

    def encode(self, text: str) -> list[str]:
        """Segment a line into subwords. Words are separated by U+0020 only."""
        words = text.strip("\r\n ").split(" ") if text.strip() else []
        return [subword for word in words if word for subword in self.encode_word(word)]

    def _encode_word(self, word: str) -> list[str]:
        """Return the subwords of one word."""
        if len(word) == 1:
            return [word]
        ending = [word[-1] + END] if self.codes.marks_last else [word[-1], END]
        merged = self._merge([*word[:-1], *ending])
        if merged[-1] == END:  # not merged
            merged.pop()
        *inner, last = merged
        subwords = [(subword, False) for subword in inner] + [(last.removesuffix(END), True)]
        if self.vocabulary is not None:
            subwords = [part for subword in subwords for part in self._split_unknown(*subword)]
        return [add_separator(*subword) for subword in subwords if subword[0]]

    def _merge(self, symbols: list[str]) -> list[str]:
        """Apply all merges to the symbols of a word.

        This takes O(n log n) time, because a line may be one long word. A merge is applied
        everywhere, from left to right, before the next merge is chosen. The merged symbol keeps the
        index of its left part; the symbol at the index of the right part becomes empty.
        """
        n = len(symbols)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        queue: list[tuple[int, int]] = []  # heap of (rank, index of the left part)

        def push_merge(i: int) -> None:
            """Push the merge of symbol i with the next symbol, if there is one."""
            if i >= 0 and after[i] < n:
                rank = self.merge_ranks.get((symbols[i], symbols[after[i]]))
                if rank is not None:
                    heapq.heappush(queue, (rank, i))

        for i in range(n):
            push_merge(i)
        while queue:
            rank, positions = queue[0][0], list[int]()
            while queue and queue[0][0] == rank:
                positions.append(heapq.heappop(queue)[1])
            for i in positions:
                j = after[i]
                if j >= n or (symbols[i], symbols[j]) != self.codes.pairs[rank]:
                    continue  # one of the two was already merged
                symbols[i], symbols[j] = symbols[i] + symbols[j], ""
                after[i] = after[j]
                if after[i] < n:
                    before[after[i]] = i
                push_merge(before[i])
                push_merge(i)
        return [symbol for symbol in symbols if symbol]

    def _split_unknown(self, subword: str, is_last: bool) -> Iterator[tuple[str, bool]]:
        """Split a subword into parts that are in the vocabulary or cannot be split.

        Args:
            subword: without a separator.
            is_last: whether it ends the word.

        Yields:
            (part, whether it ends the word)
        """
        assert self.vocabulary is not None
        stack = [(subword, is_last)]
        while stack:
            subword, is_last = stack.pop()
            pair = self.merge_parts.get(subword + END if is_last else subword)
            if pair is None or add_separator(subword, is_last) in self.vocabulary:
                yield subword, is_last
            else:
                left, right = pair
                stack += [(right[: -len(END)] if is_last else right, is_last), (left, False)]


def add_separator(subword: str, is_last: bool) -> str:
    """Append `@@` to a subword unless it ends its word."""
    return subword if is_last else subword + SEPARATOR


def detokenize_bpe(tokens: list[str]) -> str:
    """Merge subwords into words separated by spaces."""
    return re.sub("@@( |$)", "", " ".join(tokens))
