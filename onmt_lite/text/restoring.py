"""What was taken out of a source, put back into its translation; see `onmt_lite.text.unknown`.

Places are counted in characters that are no space: these are the same in a text and its tokens.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from onmt_lite.records import Item, Reading
from onmt_lite.text.unknown import CLOSING, SPACER

UNIT = re.compile(r"\d+(?:[.,:]\d+)+|\w+(?:['’]\w+)*|[^\w\s]")


class Units:
    """The words and punctuation marks that some tokens make up."""

    def __init__(self, tokens: Sequence[str]):
        text = "".join(tokens).replace(SPACER, " ")
        n_before = [0]  # characters that are no space, before each character
        for char in text:
            n_before.append(n_before[-1] + (not char.isspace()))
        matches = list(UNIT.finditer(text))
        spans = [(n_before[m.start()], n_before[m.end()]) for m in matches]
        words = [match[0] for match in matches]
        n_times = Counter(words)
        # Words and numbers that stand here once
        self.unique = {w: i for i, w in enumerate(words) if w[0].isalnum() and n_times[w] == 1}
        self.starts, self.ends = [start for start, _ in spans], [end for _, end in spans]
        self.n_places = n_before[-1]
        self.of_token, at = [], 0
        for token in tokens:
            self.of_token.append(self.at(at))
            at += n_places(token)

    def at(self, place: int) -> int:
        """The unit at a place, or the last one before it; -1: there is none."""
        return bisect_right(self.starts, place) - 1


def n_places(token: str) -> int:
    return sum(not char.isspace() and char != SPACER for char in token)


class Aligned:
    """A translation's units, and the units of the source that they render."""

    def __init__(self, src_tokens: Sequence[str], tokens: Sequence[str], sources: Sequence[int]):
        """sources: the token of the source that each token renders."""
        self.source, self.target = Units(src_tokens), Units(tokens)
        votes: list[Counter[int]] = [Counter() for _ in self.target.starts]
        for j, source in zip(self.target.of_token, sources):
            if j >= 0:
                votes[j][self.source.of_token[source]] += 1
        self.first: dict[int, int] = {}  # unit of the translation that renders one of the source
        self.last: dict[int, int] = {}
        for j, vote in enumerate(votes):
            for u, _ in vote.most_common(1):
                self.first.setdefault(u, j)
                self.last[u] = j
        # A word or number that stands once in both is its own translation
        same = self.source.unique.keys() & self.target.unique.keys()
        for word in same:
            self.first[self.source.unique[word]] = self.target.unique[word]
            self.last[self.source.unique[word]] = self.target.unique[word]

    def behind(self, place: int) -> int:
        """The place in the translation behind what renders the word before a place of the source,
        or, where nothing does, the nearest word before that."""
        u = self.source.at(place - 1)
        while u >= 0 and u not in self.last:
            u -= 1
        return self.target.ends[self.last[u]] if u >= 0 else 0

    def before(self, place: int) -> int:
        """The place before what renders the word at a place, or the nearest word behind that."""
        u = max(0, self.source.at(place))
        while u < len(self.source.starts) and u not in self.first:
            u += 1
        return self.target.starts[self.first[u]] if u in self.first else self.target.n_places

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        """The places around all that renders what stands between two places; None: nothing does."""
        inside = range(max(0, self.source.at(start)), self.source.at(end - 1) + 1)
        units = [u for u in inside if u in self.first]
        if start >= end or not units:
            return None
        first, last = min(self.first[u] for u in units), max(self.last[u] for u in units)
        return self.target.starts[first], self.target.ends[last]


Edit = tuple[int, int, str]  # what comes into the place of the text from one index to another


class Editor:
    """Puts the items of one source back into one translation of it."""

    def __init__(self, items: Sequence[Item], places: Sequence[int], aligned: Aligned, text: str):
        """places: of the items in the source."""
        self.items, self.places, self.aligned, self.text = items, places, aligned, text
        self.full = [i for i, char in enumerate(text) if not char.isspace()]

    def edits(self) -> list[Edit]:
        """In the order of the items, which those at one index keep."""
        edits: list[Edit] = []
        indices: dict[int, int] = {}  # of items whose partner has settled it
        for i, (item, place) in enumerate(zip(self.items, self.places)):
            if place > self.aligned.source.n_places:
                break  # it stood in a part of the line that was cut off
            if item.stand_in:
                edits += self._in_place(item, place)
                continue
            if item.partner is not None and i not in indices:
                indices.update(self._pair(i, item.partner))
            edits.append(self._insertion(item, indices.get(i, self._index(item, place))))
        return edits

    def _in_place(self, item: Item, place: int) -> list[Edit]:
        """A word instead of its stand-in, which would come out once more if it came out twice."""
        # With a letter or two more it would be a form of the name, such as a genitive
        name = re.compile(rf"(?<!\w){re.escape(item.stand_in)}\w{{0,2}}(?!\w)", re.IGNORECASE)
        found = [match.span() for match in name.finditer(self.text)]
        if not found:
            index = self._behind(self.aligned.behind(place + 1))
            return [self._insertion(replace(item, side="left", spaced=(True, True)), index)]
        edits = [(*found[0], item.text)]
        for start, end in found[1:]:
            edits.append((start - self.text[start - 1 : start].isspace(), end, ""))
        return edits

    def _pair(self, i: int, j: int) -> dict[int, int]:
        """Where two items that are a pair belong; nothing where each settles it by itself."""
        if (self.items[i].side, self.items[j].side) == ("start", "end"):
            return {}
        around = self.aligned.around(self.places[i], self.places[j])
        if around is None:
            index = self._index(replace(self.items[i], side="left"), self.places[i])
            return {i: index, j: index}
        return {i: self._before(around[0]), j: self._behind(around[1])}

    def _index(self, item: Item, place: int) -> int:
        if item.side == "left":
            return self._behind(self.aligned.behind(place))
        if item.side == "right":
            return self._before(self.aligned.before(place))
        if item.side == "closes":
            return len(self.text) - len(CLOSING.findall(self.text)[0])
        return 0 if item.side == "start" else len(self.text)

    def _behind(self, place: int) -> int:
        """The index behind as many characters that are no space."""
        return self.full[min(place, len(self.full)) - 1] + 1 if place and self.full else 0

    def _before(self, place: int) -> int:
        return self.full[place] if place < len(self.full) else len(self.text)

    def _insertion(self, item: Item, index: int) -> Edit:
        """The item with the spaces that it had, where there are none yet."""
        before, after = self.text[index - 1 : index] if index else "", self.text[index : index + 1]
        ahead = item.side in ("start", "right")
        lead = before.isalnum() if ahead else item.spaced[0] and before and not before.isspace()
        if item.joins:
            return index, index + after.isspace(), item.text
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
    """The translation `text` with the items of its source.

    encode: text to tokens of the source; case: what is done to the translation, not to the items.
    """
    places, at = [], 0
    for part, item in zip(reading.parts, reading.items):
        at += sum(map(n_places, encode(part)))
        places.append(at)
        at += n_places(item.stand_in)
    edits = Editor(reading.items, places, aligned, text).edits()
    found, end = [], 0
    for start, stop, new in sorted(edits, key=lambda edit: edit[0]):
        found += [case(text[end:start]), new]
        end = max(end, start, stop)
    return "".join([*found, case(text[end:])])
