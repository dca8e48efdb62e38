"""Puts items taken out of a source back into the translation; see `onmt_lite.text.placeholders`.

A place is a number of characters without spaces: these are the same in a text and its tokens.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple
from unicodedata import category

from onmt_lite.text.placeholders import CLOSING, MaskedLine, MaskedSpan
from onmt_lite.text.tokenizers import SPACER

Span = tuple[int, int]  # from one place or index to another
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that is a byte of a character without a piece
COMBINING = "\u0300"  # in UNIT, any vowel sign or accent of its own: दिल्ली is one word
STOPS = (".", "!", "?")  # ends of sentences
UNIT = re.compile(rf"\d+(?:[.,:]\d+)+|\w[\w{COMBINING}]*(?:['’]\w[\w{COMBINING}]*)*|[^\w\s]")


class TextUnits:
    """Words and punctuation marks in the text of some tokens, with their places."""

    def __init__(self, tokens: Sequence[str]):
        texts = token_texts(tokens)
        text = "".join(texts)
        # Characters without spaces, before each character
        n_before = [0, *accumulate(not char.isspace() for char in text)]
        marked = "".join(COMBINING if category(c) in ("Mn", "Mc") else c for c in text)
        found = [match.span() for match in UNIT.finditer(marked)]
        self.starts = [n_before[start] for start, _ in found]
        self.ends = [n_before[end] for _, end in found]
        self.words = words = [text[start:end] for start, end in found]
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
            at += count_nonspace(added)

    def at(self, place: int) -> int:
        """Index of the unit at a place, or of the last unit before; -1 if there is none."""
        return bisect_right(self.starts, place) - 1

    def sentence(self, unit: int) -> int:
        """Number of the sentence that a unit is in; its end is in it."""
        return bisect_left(self.stops, unit)


def token_texts(tokens: Sequence[str]) -> list[str]:
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


def count_nonspace(text: str) -> int:
    return sum(not char.isspace() for char in text)


class AlignedText:
    """Units of a source and of a translation, and which of them correspond.

    Sentences keep their order, though attention often takes one full stop for another: if both
    sides have the same full stops, only units of the same sentence correspond.
    """

    def __init__(self, src_tokens: Sequence[str], tokens: Sequence[str], sources: Sequence[int]):
        """sources  index of the source token for each token of the translation"""
        self.source, self.target = source, target = TextUnits(src_tokens), TextUnits(tokens)
        paired = source.marks == target.marks
        stops = dict(zip(target.stops, source.stops)) if paired else {}
        # For each unit of the translation: the source units that its tokens attend to
        self.votes = [Counter[int]() for _ in target.starts]
        for j, index in zip(target.of_token, sources):
            u = source.of_token[index]
            if j >= 0 and not (paired and source.sentence(u) != target.sentence(j)):
                self.votes[j][u] += 1
        # Units of the translation that mostly render a unit of the source, in order
        self.found: dict[int, list[int]] = {}
        # The same with units that render it with some of their tokens
        self.partly: dict[int, list[int]] = {}
        for j, vote in enumerate(self.votes):
            if j in stops:
                continue
            for u in vote:
                self.partly.setdefault(u, []).append(j)
            for u, _ in vote.most_common(1):
                self.found.setdefault(u, []).append(j)
        # A word or number that occurs once in both corresponds to itself
        for word in source.unique.keys() & target.unique.keys():
            self.found[source.unique[word]] = [target.unique[word]]
        self.found |= {u: [j] for j, u in stops.items()}

    def after(self, place: int) -> int:
        """Place in the translation after the unit for the source word before `place`.

        A source word without a unit gives way to the nearest word before.
        """
        before = range(self.source.at(place - 1), -1, -1)
        return next((self.target.ends[self.found[u][-1]] for u in before if u in self.found), 0)

    def before(self, place: int) -> int:
        """Place in the translation before the unit for the source word at `place`, or the next."""
        after = range(max(0, self.source.at(place)), len(self.source.starts))
        units = (self.found[u][0] for u in after if u in self.found)
        return next((self.target.starts[j] for j in units), self.target.n_places)

    def spans(self, start: int, end: int) -> list[Span]:
        """Return the places of each unit for the source from `start` to `end`.

        If only a part of a word is in that range, a translation that is the same word has the part.
        """
        source, target, spans = self.source, self.target, set[Span]()
        inside = range(max(0, source.at(start)), source.at(end - 1) + 1 if start < end else 0)
        found = self.found if any(u in self.found for u in inside) else self.partly
        for u in inside:
            first, last = source.starts[u], source.ends[u]
            for j in found.get(u, ()):
                begin, stop = target.starts[j], target.ends[j]
                if source.words[u] == target.words[j]:
                    begin, stop = begin + max(0, start - first), begin + min(end, last) - first
                spans.add((begin, stop))
        return sorted(spans)


def separate(a: Sequence[Span], b: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """Drop as few spans as possible, so that all of one sequence are before all of the other.

    Of equally many, both keep some if possible, and a stays before b.
    """
    cuts = sorted({start for start, _ in (*a, *b)} | {a[-1][1], b[-1][1]})
    best: tuple[list[Span], list[Span]] = [], []
    for first, second in ((a, b), (b, a)):
        for cut in cuts:
            left = [span for span in first if span[1] <= cut]
            right = [span for span in second if span[0] >= cut]
            kept = (left, right) if first is a else (right, left)
            best = max(best, kept, key=lambda each: (sum(map(len, each)), min(map(len, each))))
    return best


Edit = tuple[int, int, str]  # text from one index to another is replaced


class Room(NamedTuple):
    """A part of a translation that a pair of items encloses, in places and in indices."""

    places: Span
    indices: Span


# The number of an item, or a range of items and where they go
Task = int | tuple[int, int, Room]


def clamp(index: int, room: Span) -> int:
    """Move an index into a room."""
    return min(max(index, room[0]), room[1])


def hull(spans: Sequence[Span]) -> Span:
    """Return the smallest span that contains all spans."""
    return min(start for start, _ in spans), max(end for _, end in spans)


def keep_apart(spans: dict[int, list[Span]]) -> None:
    """Drop spans until the hulls of all pairs are disjoint."""
    while True:
        hulls = sorted((*hull(found), i) for i, found in spans.items() if found)
        clashes = ((a[2], b[2]) for a, b in pairwise(hulls) if b[0] < a[1])
        i, j = sorted(next(clashes, (0, 0)))
        if i == j:
            return
        spans[i], spans[j] = separate(spans[i], spans[j])


class Editor:
    """Puts the items of one source back into one translation of it."""

    def __init__(
        self, items: Sequence[MaskedSpan], places: Sequence[int], aligned: AlignedText, text: str
    ):
        """places  of the items in the source"""
        self.items, self.places, self.aligned, self.text = items, places, aligned, text
        self.full = [i for i, char in enumerate(text) if not char.isspace()]
        # The others are in a part of the line that was cut off
        self.n_read = bisect_right(places, aligned.source.n_places)
        self.edits_of: dict[int, list[Edit]] = {}

    def edits(self) -> list[tuple[int, Edit]]:
        """Edits with the numbers of their items, in the order in which they are made."""
        everything = Room((0, self.aligned.target.n_places), (0, len(self.text)))
        order, todo = list[int](), list[Task]()
        todo.append((0, self.n_read, everything))
        while todo:  # tags may be nested deeper than calls can be
            task = todo.pop()
            if isinstance(task, int):
                order.append(task)
            else:
                todo += reversed(self._arrange(*task))
        edits = [(i, edit) for i in order for edit in self.edits_of[i]]
        return sorted(edits, key=lambda each: each[1][0])

    def _arrange(self, first: int, stop: int, room: Room) -> list[Task]:
        """Make the edits for a range of items within `room`, except those inside of pairs.

        Return the order of these items, with a task for the inside of each pair.  Pairs are nested
        as in the source, and those next to each other do not overlap.
        """
        partners, alone, i = dict[int, int](), list[int](), first
        while i < stop:
            j = self.items[i].partner
            if j is None or j >= stop:
                alone.append(i)
            else:
                partners[i] = j
            i = partners.get(i, i) + 1
        rooms = self._rooms(partners, room)
        marks = list[tuple[Span, int]]()
        for i in alone:
            edits = self.edits_of[i] = self._alone(self.items[i], self.places[i], room.indices)
            marks.append((edits[0][:2], i))
        marks += [(rooms[i].indices, i) for i in partners]
        order = list[Task]()
        for _, i in sorted(marks):
            order.append(i)
            if i in partners:
                order += [(i + 1, partners[i], rooms[i]), partners[i]]
        return order

    def _rooms(self, partners: Mapping[int, int], room: Room) -> dict[int, Room]:
        """The part of the translation that each pair encloses, by the number of its first item."""
        places, target = self.places, self.aligned.target
        spans = {i: self.aligned.spans(places[i], places[j]) for i, j in partners.items()}
        first, last = room.places
        spans = {
            i: [s for s in found if first <= s[0] and s[1] <= last] for i, found in spans.items()
        }
        keep_apart(spans)
        rooms = dict[int, Room]()
        for i, j in partners.items():
            if (self.items[i].side, self.items[j].side) == ("start", "end"):
                rooms[i] = room
            elif spans[i]:
                start, end = hull(spans[i])
                rooms[i] = Room((start, end), (self._before(start), self._after(end)))
        filled = [found.indices for found in rooms.values()]
        for i, j in partners.items():
            if i not in rooms:
                index = self._index(replace(self.items[i], side="left"), places[i])
                index = clamp(index, room.indices)
                index = next((end for start, end in filled if start < index < end), index)
                rooms[i] = Room((0, -1), (index, index))
            sides = zip((i, j), rooms[i].indices, rooms[i].places, (target.starts, target.ends))
            for number, index, at, bounds in sides:
                item = self.items[number]
                _, stop, new = self._insertion(item, index)
                if spans[i] and at not in bounds:  # inside a word
                    new = item.text
                self.edits_of[number] = [(index, stop, new)]
        return rooms

    def _alone(self, item: MaskedSpan, place: int, room: Span) -> list[Edit]:
        """Edits for an item that has no partner, or whose partner was cut off."""
        if not item.placeholder:
            return [self._insertion(item, clamp(self._index(item, place), room))]
        # With a letter or two more it would be a form of the name, such as a genitive
        name = re.compile(rf"(?<!\w){re.escape(item.placeholder)}\w{{0,2}}(?!\w)", re.IGNORECASE)
        spans = [match.span() for match in name.finditer(self.text)]
        if not spans:
            index = clamp(self._after(self.aligned.after(place + 1)), room)
            return [self._insertion(replace(item, side="left", spaced=(True, True)), index)]
        edits = [(*spans[0], item.text)]
        for start, end in spans[1:]:  # further copies
            edits.append((start - self.text[start - 1 : start].isspace(), end, ""))
        return edits

    def _index(self, item: MaskedSpan, place: int) -> int:
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

    def _insertion(self, item: MaskedSpan, index: int) -> Edit:
        """Insert the item with the spaces it had in the source, if there are none yet."""
        before, after = self.text[index - 1 : index] if index else "", self.text[index : index + 1]
        ahead = item.side in ("start", "right")
        lead = before.isalnum() if ahead else item.spaced[0] and before and not before.isspace()
        if item.joins:
            return index - before.isspace(), index + after.isspace(), " " * bool(lead) + item.text
        trail = item.spaced[1] if ahead or not before else after.isalnum()
        spaces = " " * bool(lead), " " * bool(trail and after and not after.isspace())
        return index, index, spaces[0] + item.text + spaces[1]


def restore_spans(
    masked_line: MaskedLine,
    encode: Callable[[str], list[str]],
    aligned: AlignedText,
    text: str,
    case: Callable[[str], str] = str,
) -> tuple[str, bool]:
    """Put the items of a source into its translation `text`.

    Args:
        encode: cuts text into tokens of the source.
        case: applied to the translation, but not to the items.

    Returns:
        The translation, and whether a pair that encloses words in the source encloses none in it.
    """
    places, at = [], 0
    for part, item in zip(masked_line.parts, masked_line.items):
        at += count_nonspace("".join(token_texts(encode(part))))
        places.append(at)
        at += count_nonspace(item.placeholder)
    pieces, end = [masked_line.head], 0
    n_filled, filled_before = 0, dict[int, int]()  # pieces with words before each item
    for i, (start, stop, new) in Editor(masked_line.items, places, aligned, text).edits():
        between = case(text[end:start])
        pieces += [between, new]
        n_filled += any(map(str.isalnum, between))
        filled_before[i] = n_filled
        n_filled += bool(masked_line.items[i].placeholder and new)
        end = max(end, start, stop)
    empty = any(
        filled_before[i] == filled_before.get(item.partner) and masked_line.encloses_text(i)
        for i, item in enumerate(masked_line.items)
        if item.partner is not None and i in filled_before
    )
    return "".join([*pieces, case(text[end:])]), empty
