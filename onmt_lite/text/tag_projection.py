"""Restoration of masked spans in a translation; see `onmt_lite.text.placeholders`.

Positions count characters without spaces, because these are the same in a text and its tokens.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple
from unicodedata import category

from onmt_lite.text.masked_line import MaskedLine, MaskedSpan
from onmt_lite.text.placeholders import CLOSING
from onmt_lite.text.tokenizers import SPACER

Span = tuple[int, int]  # from one position or index to another
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a byte token of a character that is not in the vocabulary
COMBINING = "\u0300"  # in UNIT, stands for any separate vowel sign or accent: दिल्ली is one word
STOPS = (".", "!", "?")  # sentence-final punctuation
UNIT = re.compile(rf"\d+(?:[.,:]\d+)+|\w[\w{COMBINING}]*(?:['’]\w[\w{COMBINING}]*)*|[^\w\s]")


class TextUnits:
    """Words and punctuation marks of a tokenized text, with their positions."""

    def __init__(self, tokens: Sequence[str]):
        """
        Args:
            tokens: tokens with sentencepiece spacers.
        """
        texts = get_token_texts(tokens)
        text = "".join(texts)
        # Number of non-space characters before each character
        n_before = [0, *accumulate(not char.isspace() for char in text)]
        marked = "".join(COMBINING if category(c) in ("Mn", "Mc") else c for c in text)
        matches = [match.span() for match in UNIT.finditer(marked)]
        self.starts = [n_before[start] for start, _ in matches]
        self.ends = [n_before[end] for _, end in matches]
        self.words = words = [text[start:end] for start, end in matches]
        counts = Counter(words)
        # Words and numbers that occur exactly once
        self.unique = {w: i for i, w in enumerate(words) if w[0].isalnum() and counts[w] == 1}
        self.stops = [i for i, word in enumerate(words) if word in STOPS]
        self.marks = [words[i] for i in self.stops]
        self.n_nonspace = n_before[-1]
        self.unit_of_token, position = list[int](), 0
        for token_text in texts:
            # The other bytes of a character belong to the unit of its first byte
            self.unit_of_token.append(
                self.find_unit_at(position) if token_text else self.unit_of_token[-1]
            )
            position += count_nonspace(token_text)

    def find_unit_at(self, position: int) -> int:
        """Return the index of the unit at a position, or of the last unit before it; -1 if none."""
        return bisect_right(self.starts, position) - 1

    def sentence(self, unit: int) -> int:
        """Return the index of the sentence that contains a unit."""
        return bisect_left(self.stops, unit)


def get_token_texts(tokens: Sequence[str]) -> list[str]:
    """Return the text that each token adds.

    For a character encoded as byte tokens, the first byte adds all of it. Invalid bytes become one
    replacement character each, as in sentencepiece.
    """
    texts = list[str]()
    for are_bytes, run in groupby(tokens, lambda token: BYTE.fullmatch(token) is not None):
        if not are_bytes:
            texts += [token.replace(SPACER, " ") for token in run]
            continue
        data = bytes(int(token[3:5], 16) for token in run)
        # A lone surrogate stands for one invalid byte
        for char in data.decode("utf-8", "surrogateescape"):
            n_bytes = len(char.encode("utf-8", "surrogateescape"))
            texts += ["\ufffd" if category(char) == "Cs" else char, *[""] * (n_bytes - 1)]
    return texts


def count_nonspace(text: str) -> int:
    """Return the number of characters without spaces."""
    return sum(not char.isspace() for char in text)


class AlignedText:
    """Units of a source and of its translation, and their alignment.

    Sentences stay in order, but attention often confuses full stops. If both sides have the same
    sentence-final punctuation, only units of the same sentence are aligned.
    """

    def __init__(self, src_tokens: Sequence[str], tokens: Sequence[str], sources: Sequence[int]):
        """
        Args:
            src_tokens: tokens of the source, S.
            tokens: tokens of the translation, T.
            sources: index of the aligned source token for each target token (T,).
        """
        self.source, self.target = source, target = TextUnits(src_tokens), TextUnits(tokens)
        has_same_stops = source.marks == target.marks
        stops = dict(zip(target.stops, source.stops)) if has_same_stops else {}
        # For each target unit: counts of the source units that its tokens attend to
        self.votes = [Counter[int]() for _ in target.starts]
        for tgt_unit, index in zip(target.unit_of_token, sources):
            src_unit = source.unit_of_token[index]
            if tgt_unit >= 0 and not (
                has_same_stops and source.sentence(src_unit) != target.sentence(tgt_unit)
            ):
                self.votes[tgt_unit][src_unit] += 1
        # Source unit -> target units whose most frequent source unit it is, in order
        self.main_units: dict[int, list[int]] = {}
        # The same for target units of which any token attends to it
        self.partial_units: dict[int, list[int]] = {}
        for tgt_unit, vote in enumerate(self.votes):
            if tgt_unit in stops:
                continue
            for src_unit in vote:
                self.partial_units.setdefault(src_unit, []).append(tgt_unit)
            for src_unit, _ in vote.most_common(1):
                self.main_units.setdefault(src_unit, []).append(tgt_unit)
        # A word or number that occurs once on both sides is aligned to itself
        for word in source.unique.keys() & target.unique.keys():
            self.main_units[source.unique[word]] = [target.unique[word]]
        self.main_units |= {src_unit: [tgt_unit] for tgt_unit, src_unit in stops.items()}

    def after(self, position: int) -> int:
        """Return the target position after the translation of the source word before `position`.

        For an unaligned source word, the nearest aligned word before it is used.
        """
        before = range(self.source.find_unit_at(position - 1), -1, -1)
        return next(
            (
                self.target.ends[self.main_units[unit][-1]]
                for unit in before
                if unit in self.main_units
            ),
            0,
        )

    def before(self, position: int) -> int:
        """Return the target position before the translation of the next source word."""
        after = range(max(0, self.source.find_unit_at(position)), len(self.source.starts))
        units = (self.main_units[unit][0] for unit in after if unit in self.main_units)
        return next((self.target.starts[unit] for unit in units), self.target.n_nonspace)

    def spans(self, start: int, end: int) -> list[Span]:
        """Return the target spans of the source from position `start` to `end`.

        If only part of a word is in that range, an identical target word contributes the same part.
        """
        source, target, spans = self.source, self.target, set[Span]()
        covered = range(
            max(0, source.find_unit_at(start)),
            source.find_unit_at(end - 1) + 1 if start < end else 0,
        )
        units = (
            self.main_units
            if any(src_unit in self.main_units for src_unit in covered)
            else self.partial_units
        )
        for src_unit in covered:
            unit_start, unit_end = source.starts[src_unit], source.ends[src_unit]
            for tgt_unit in units.get(src_unit, ()):
                tgt_start, tgt_end = target.starts[tgt_unit], target.ends[tgt_unit]
                if source.words[src_unit] == target.words[tgt_unit]:
                    tgt_start, tgt_end = (
                        tgt_start + max(0, start - unit_start),
                        tgt_start + min(end, unit_end) - unit_start,
                    )
                spans.add((tgt_start, tgt_end))
        return sorted(spans)


def drop_overlaps(a: Sequence[Span], b: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """Drop as few spans as possible so that all spans of one sequence precede the other's.

    Among equally good solutions, prefer one where both keep spans, and where a precedes b.
    """
    boundaries = sorted({start for start, _ in (*a, *b)} | {a[-1][1], b[-1][1]})
    best: tuple[list[Span], list[Span]] = [], []
    for first, second in ((a, b), (b, a)):
        for boundary in boundaries:
            left = [span for span in first if span[1] <= boundary]
            right = [span for span in second if span[0] >= boundary]
            kept = (left, right) if first is a else (right, left)
            best = max(best, kept, key=lambda pair: (sum(map(len, pair)), min(map(len, pair))))
    return best


Edit = tuple[int, int, str]  # start and end index, and the text to insert instead


class Region(NamedTuple):
    """The part of a translation that a pair of tags encloses, as positions and as indices."""

    positions: Span
    indices: Span


# Index of a span, or a range of spans and the region for them
Task = int | tuple[int, int, Region]


def clamp(index: int, region: Span) -> int:
    """Move an index into a region."""
    return min(max(index, region[0]), region[1])


def hull(spans: Sequence[Span]) -> Span:
    """Return the smallest span that contains all spans."""
    return min(start for start, _ in spans), max(end for _, end in spans)


def keep_apart(spans: dict[int, list[Span]]) -> None:
    """Drop spans until the hulls of all pairs are disjoint."""
    while True:
        hulls = sorted((*hull(pair_spans), i) for i, pair_spans in spans.items() if pair_spans)
        clashes = ((a[2], b[2]) for a, b in pairwise(hulls) if b[0] < a[1])
        i, j = sorted(next(clashes, (0, 0)))
        if i == j:
            return
        spans[i], spans[j] = drop_overlaps(spans[i], spans[j])


class Editor:
    """Restores the masked spans of one source line in one translation of it."""

    def __init__(
        self, spans: Sequence[MaskedSpan], positions: Sequence[int], aligned: AlignedText, text: str
    ):
        """
        Args:
            spans: masked spans of the line.
            positions: their positions in the source.
            aligned: alignment of the source and the translation.
            text: the translation.
        """
        self.spans, self.positions, self.aligned, self.text = spans, positions, aligned, text
        self.nonspace = [i for i, char in enumerate(text) if not char.isspace()]
        # The remaining spans are in the truncated part of the line
        self.n_read = bisect_right(positions, aligned.source.n_nonspace)
        self.edits_of: dict[int, list[Edit]] = {}

    def edits(self) -> list[tuple[int, Edit]]:
        """Return (index of the span, edit) in the order of the edits."""
        whole = Region((0, self.aligned.target.n_nonspace), (0, len(self.text)))
        order, stack = list[int](), list[Task]()
        stack.append((0, self.n_read, whole))
        while stack:  # a stack, because tags may be nested deeper than the recursion limit
            task = stack.pop()
            if isinstance(task, int):
                order.append(task)
            else:
                stack += reversed(self._arrange(*task))
        edits = [(i, edit) for i in order for edit in self.edits_of[i]]
        return sorted(edits, key=lambda indexed_edit: indexed_edit[1][0])

    def _arrange(self, first: int, stop: int, region: Region) -> list[Task]:
        """Make the edits for a range of spans within a region, except inside pairs.

        Pairs are nested as in the source, and adjacent pairs do not overlap.

        Args:
            first: index of the first span.
            stop: index after the last span.
            region: the part of the translation to use.

        Returns:
            The indices of these spans in target order, with a task for the inside of each pair.
        """
        partners, singles, i = dict[int, int](), list[int](), first
        while i < stop:
            j = self.spans[i].partner
            if j is None or j >= stop:
                singles.append(i)
            else:
                partners[i] = j
            i = partners.get(i, i) + 1
        regions = self._find_regions(partners, region)
        starts = list[tuple[Span, int]]()
        for i in singles:
            edits = self.edits_of[i] = self._make_single_edits(
                self.spans[i], self.positions[i], region.indices
            )
            starts.append((edits[0][:2], i))
        starts += [(regions[i].indices, i) for i in partners]
        order = list[Task]()
        for _, i in sorted(starts):
            order.append(i)
            if i in partners:
                order += [(i + 1, partners[i], regions[i]), partners[i]]
        return order

    def _find_regions(self, partners: Mapping[int, int], region: Region) -> dict[int, Region]:
        """Find the region that each pair encloses, and make the edits of the pairs.

        Returns:
            The regions by the index of the opening span.
        """
        positions, target = self.positions, self.aligned.target
        tgt_spans = {i: self.aligned.spans(positions[i], positions[j]) for i, j in partners.items()}
        first, last = region.positions
        tgt_spans = {
            i: [
                tgt_span
                for tgt_span in region_spans
                if first <= tgt_span[0] and tgt_span[1] <= last
            ]
            for i, region_spans in tgt_spans.items()
        }
        keep_apart(tgt_spans)
        regions = dict[int, Region]()
        for i, j in partners.items():
            if (self.spans[i].side, self.spans[j].side) == ("start", "end"):
                regions[i] = region
            elif tgt_spans[i]:
                start, end = hull(tgt_spans[i])
                regions[i] = Region((start, end), (self._before(start), self._after(end)))
        filled = [region_spans.indices for region_spans in regions.values()]
        for i, j in partners.items():
            if i not in regions:
                index = self._index(replace(self.spans[i], side="left"), positions[i])
                index = clamp(index, region.indices)
                index = next((end for start, end in filled if start < index < end), index)
                regions[i] = Region((0, -1), (index, index))
            ends = zip(
                (i, j), regions[i].indices, regions[i].positions, (target.starts, target.ends)
            )
            for k, index, edge, unit_edges in ends:
                span = self.spans[k]
                _, stop, inserted = self._insertion(span, index)
                if tgt_spans[i] and edge not in unit_edges:  # inside a word: insert without spaces
                    inserted = span.text
                self.edits_of[k] = [(index, stop, inserted)]
        return regions

    def _make_single_edits(self, span: MaskedSpan, position: int, region: Span) -> list[Edit]:
        """Return the edits for a span without a partner, or whose partner was truncated.

        Args:
            span: the masked span.
            position: its position in the source.
            region: target indices within which it is inserted.
        """
        if not span.placeholder:
            return [self._insertion(span, clamp(self._index(span, position), region))]
        # Up to two more letters: an inflected form of the name, such as a genitive
        name = re.compile(rf"(?<!\w){re.escape(span.placeholder)}\w{{0,2}}(?!\w)", re.IGNORECASE)
        copies = [match.span() for match in name.finditer(self.text)]
        if not copies:
            index = clamp(self._after(self.aligned.after(position + 1)), region)
            return [self._insertion(replace(span, side="left", spaced=(True, True)), index)]
        edits = [(*copies[0], span.text)]
        for start, end in copies[1:]:  # delete further copies
            edits.append((start - self.text[start - 1 : start].isspace(), end, ""))
        return edits

    def _index(self, span: MaskedSpan, position: int) -> int:
        """Return the target index at which to insert a span."""
        if span.side == "left":
            return self._after(self.aligned.after(position))
        if span.side == "right":
            return self._before(self.aligned.before(position))
        if span.side == "closes":
            return len(self.text) - len(CLOSING.findall(self.text)[0])
        return 0 if span.side == "start" else len(self.text)

    def _after(self, position: int) -> int:
        """Return the index in the text after `position` characters without spaces."""
        return (
            self.nonspace[min(position, len(self.nonspace)) - 1] + 1
            if position and self.nonspace
            else 0
        )

    def _before(self, position: int) -> int:
        """Return the index in the text of the character at `position`."""
        return self.nonspace[position] if position < len(self.nonspace) else len(self.text)

    def _insertion(self, span: MaskedSpan, index: int) -> Edit:
        """Return the edit that inserts a span with the spaces it had in the source."""
        before, after = self.text[index - 1 : index] if index else "", self.text[index : index + 1]
        precedes = span.side in ("start", "right")
        needs_space = (
            before.isalnum() if precedes else span.spaced[0] and before and not before.isspace()
        )
        if span.joins:
            return (
                index - before.isspace(),
                index + after.isspace(),
                " " * bool(needs_space) + span.text,
            )
        trail = span.spaced[1] if precedes or not before else after.isalnum()
        spaces = " " * bool(needs_space), " " * bool(trail and after and not after.isspace())
        return index, index, spaces[0] + span.text + spaces[1]


def restore_spans(
    masked_line: MaskedLine,
    encode: Callable[[str], list[str]],
    aligned: AlignedText,
    text: str,
    case: Callable[[str], str] = str,
) -> tuple[str, bool]:
    """Restore the masked spans of a line in its translation.

    Args:
        masked_line: the line as the model read it.
        encode: tokenizes source text.
        aligned: alignment of the source and the translation.
        text: the translation.
        case: applied to the translation, but not to the restored spans.

    Returns:
        The translation, and whether a pair of tags around words encloses no words in it.
    """
    positions, position = [], 0
    for part, span in zip(masked_line.parts, masked_line.spans):
        position += count_nonspace("".join(get_token_texts(encode(part))))
        positions.append(position)
        position += count_nonspace(span.placeholder)
    parts, end = [masked_line.head], 0
    n_filled, filled_before = 0, dict[int, int]()  # parts with words before each span
    for i, (start, stop, inserted) in Editor(masked_line.spans, positions, aligned, text).edits():
        between = case(text[end:start])
        parts += [between, inserted]
        n_filled += any(map(str.isalnum, between))
        filled_before[i] = n_filled
        n_filled += bool(masked_line.spans[i].placeholder and inserted)
        end = max(end, start, stop)
    has_empty_markup = any(
        filled_before[i] == filled_before.get(span.partner) and masked_line.encloses_text(i)
        for i, span in enumerate(masked_line.spans)
        if span.partner is not None and i in filled_before
    )
    return "".join([*parts, case(text[end:])]), has_empty_markup
