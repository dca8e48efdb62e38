"""Puts items taken out of a source back into the translation; see `onmt_lite.text.placeholders`.

A place is a number of characters without spaces: these are the same in a text and its tokens.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from unicodedata import category

from onmt_lite.text.placeholders import CLOSING, Item, Reading
from onmt_lite.text.tokenizers import SPACER

BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that is a byte of a character without a piece
COMBINING = "\u0300"  # in UNIT, any vowel sign or accent of its own: दिल्ली is one word
STOPS = (".", "!", "?")  # ends of sentences
UNIT = re.compile(rf"\d+(?:[.,:]\d+)+|\w[\w{COMBINING}]*(?:['’]\w[\w{COMBINING}]*)*|[^\w\s]")


class Units:
    """Words and punctuation marks in the text of some tokens, with their places."""

    def __init__(self, tokens: Sequence[str]):
        texts = texts_of(tokens)
        text = "".join(texts)
        # Characters without spaces, before each character
        n_before = [0, *accumulate(not char.isspace() for char in text)]
        marked = "".join(COMBINING if category(c) in ("Mn", "Mc") else c for c in text)
        found = [match.span() for match in UNIT.finditer(marked)]
        self.starts = [n_before[start] for start, _ in found]
        self.ends = [n_before[end] for _, end in found]
        words = [text[start:end] for start, end in found]
        n_times = Counter(words)
        # Words and numbers that occur once
        self.unique = {w: i for i, w in enumerate(words) if w[0].isalnum() and n_times[w] == 1}
        self.stops = [i for i, word in enumerate(words) if word in STOPS]
        self.marks = [words[i] for i in self.stops]
        self.n_places = n_before[-1]
        self.of_token, at = list[int](), 0
        for added in texts:
            # Further bytes of a character go with its first
            self.of_token.append(self.at(at) if added else self.of_token[-1])
            at += n_places(added)

    def at(self, place: int) -> int:
        """Index of the unit at a place, or of the last unit before; -1 if there is none."""
        return bisect_right(self.starts, place) - 1

    def sentence(self, unit: int) -> int:
        """Number of the sentence that a unit is in; its end is in it."""
        return bisect_left(self.stops, unit)


def texts_of(tokens: Sequence[str]) -> list[str]:
    """The text that each token adds; of a character that bytes spell, the first byte adds all.

    Bytes that spell nothing are a mark each, as sentencepiece has them.
    """
    texts = list[str]()
    for are_bytes, run in groupby(tokens, lambda token: BYTE.fullmatch(token) is not None):
        if not are_bytes:
            texts += [token.replace(SPACER, " ") for token in run]
            continue
        data = bytes(int(token[3:5], 16) for token in run)
        for char in data.decode("utf-8", "surrogateescape"):  # which stands for one byte
            n_bytes = len(char.encode("utf-8", "surrogateescape"))
            texts += ["\ufffd" if category(char) == "Cs" else char, *[""] * (n_bytes - 1)]
    return texts


def n_places(text: str) -> int:
    return sum(not char.isspace() for char in text)


class Aligned:
    """Units of a source and of a translation, and which of them correspond."""

    def __init__(self, src_tokens: Sequence[str], tokens: Sequence[str], sources: Sequence[int]):
        """sources  index of the source token for each token of the translation"""
        self.source, self.target = Units(src_tokens), Units(tokens)
        # Sentences keep their order, though attention often takes one full stop for another
        paired = self.source.marks == self.target.marks
        stops = dict(zip(self.target.stops, self.source.stops)) if paired else {}
        votes: list[Counter[int]] = [Counter() for _ in self.target.starts]
        for j, source in zip(self.target.of_token, sources):
            u = self.source.of_token[source]
            apart = paired and self.source.sentence(u) != self.target.sentence(j)
            if j >= 0 and j not in stops and not apart:
                votes[j][u] += 1
        # First and last unit of the translation for a unit of the source
        self.found: dict[int, tuple[int, int]] = {}
        for j, vote in enumerate(votes):
            for u, _ in vote.most_common(1):
                first, _ = self.found.get(u, (j, j))
                self.found[u] = first, j
        # A word or number that occurs once in both corresponds to itself
        for word in self.source.unique.keys() & self.target.unique.keys():
            j = self.target.unique[word]
            self.found[self.source.unique[word]] = j, j
        self.found |= {u: (j, j) for j, u in stops.items()}

    def after(self, place: int) -> int:
        """Place in the translation after the unit for the source word before `place`.

        A source word without a unit gives way to the nearest word before.
        """
        before = range(self.source.at(place - 1), -1, -1)
        return next((self.target.ends[self.found[u][1]] for u in before if u in self.found), 0)

    def before(self, place: int) -> int:
        """Place in the translation before the unit for the source word at `place`, or the next."""
        after = range(max(0, self.source.at(place)), len(self.source.starts))
        units = (self.found[u][0] for u in after if u in self.found)
        return next((self.target.starts[j] for j in units), self.target.n_places)

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Places of the first and last unit for the source from `start` to `end`; None without."""
        inside = range(max(0, self.source.at(start)), self.source.at(end - 1) + 1)
        units = [self.found[u] for u in inside if u in self.found]
        if start >= end or not units:
            return None
        first, last = min(first for first, _ in units), max(last for _, last in units)
        return self.target.starts[first], self.target.ends[last]


Edit = tuple[int, int, str]  # text from one index to another is replaced


class Editor:
    """Puts the items of one source back into one translation of it."""

    def __init__(self, items: Sequence[Item], places: Sequence[int], aligned: Aligned, text: str):
        """places  of the items in the source"""
        self.items, self.places, self.aligned, self.text = items, places, aligned, text
        self.full = [i for i, char in enumerate(text) if not char.isspace()]

    def edits(self) -> list[Edit]:
        """Edits in the order of the items; edits at the same index keep this order."""
        edits: list[Edit] = []
        indices: dict[int, int] = {}  # of items that an earlier partner has placed
        for i, (item, place) in enumerate(zip(self.items, self.places)):
            if place > self.aligned.source.n_places:
                break  # in a part of the line that was cut off
            if item.stand_in:
                edits += self._in_place(item, place)
                continue
            if item.partner is not None and i not in indices:
                indices.update(self._pair(i, item.partner))
            edits.append(self._insertion(item, indices.get(i, self._index(item, place))))
        return edits

    def _in_place(self, item: Item, place: int) -> list[Edit]:
        """Replace the stand-in of a word by the word, and remove further copies of the stand-in."""
        # With a letter or two more it would be a form of the name, such as a genitive
        name = re.compile(rf"(?<!\w){re.escape(item.stand_in)}\w{{0,2}}(?!\w)", re.IGNORECASE)
        spans = [match.span() for match in name.finditer(self.text)]
        if not spans:
            index = self._after(self.aligned.after(place + 1))
            return [self._insertion(replace(item, side="left", spaced=(True, True)), index)]
        edits = [(*spans[0], item.text)]
        for start, end in spans[1:]:
            edits.append((start - self.text[start - 1 : start].isspace(), end, ""))
        return edits

    def _pair(self, i: int, j: int) -> dict[int, int]:
        """Indices for a pair of items; empty if each item is placed alone."""
        if (self.items[i].side, self.items[j].side) == ("start", "end"):
            return {}
        span = self.aligned.span(self.places[i], self.places[j])
        if span is None:
            index = self._index(replace(self.items[i], side="left"), self.places[i])
            return {i: index, j: index}
        return {i: self._before(span[0]), j: self._after(span[1])}

    def _index(self, item: Item, place: int) -> int:
        if item.side == "left":
            return self._after(self.aligned.after(place))
        if item.side == "right":
            return self._before(self.aligned.before(place))
        if item.side == "closes":
            return len(self.text) - len(CLOSING.findall(self.text)[0])
        return 0 if item.side == "start" else len(self.text)

    def _after(self, place: int) -> int:
        """Index in the text after `place` characters without spaces."""
        return self.full[min(place, len(self.full)) - 1] + 1 if place and self.full else 0

    def _before(self, place: int) -> int:
        return self.full[place] if place < len(self.full) else len(self.text)

    def _insertion(self, item: Item, index: int) -> Edit:
        """Insert the item with the spaces it had in the source, if there are none yet."""
        before, after = self.text[index - 1 : index] if index else "", self.text[index : index + 1]
        ahead = item.side in ("start", "right")
        lead = before.isalnum() if ahead else item.spaced[0] and before and not before.isspace()
        if item.joins:
            return index - before.isspace(), index + after.isspace(), " " * bool(lead) + item.text
        trail = item.spaced[1] if ahead or not before else after.isalnum()
        spaces = " " * bool(lead), " " * bool(trail and after and not after.isspace())
        return index, index, spaces[0] + item.text + spaces[1]


def put_back(
    reading: Reading,
    encode: Callable[[str], list[str]],
    aligned: Aligned,
    text: str,
    case: Callable[[str], str] = str,
) -> str:
    """Put the items of a source into its translation `text`.

    encode  cuts text into tokens of the source
    case    is applied to the translation, but not to the items
    """
    places, at = [], 0
    for part, item in zip(reading.parts, reading.items):
        at += sum(map(n_places, texts_of(encode(part))))
        places.append(at)
        at += n_places(item.stand_in)
    edits = Editor(reading.items, places, aligned, text).edits()
    pieces, end = [], 0
    for start, stop, new in sorted(edits, key=lambda edit: edit[0]):
        pieces += [case(text[end:start]), new]
        end = max(end, start, stop)
    return "".join([*pieces, case(text[end:])])
