"""A line of input, and what was taken out of it before the model reads it."""

from dataclasses import dataclass, replace

CAPITALS = "capitals"  # the note of a line that was read in small letters


@dataclass(frozen=True)
class Line:
    """One line of input.

    notes   what was done to it, as in the JSONL output
    fields  of a line that is a JSON object: the object without the text, as JSON
    traced  its search is to be watched, see `onmt_lite.inference.trace`
    forced  phrases that its translation is to hold
    banned  phrases that no translation of it may hold
    """

    id: int
    text: str
    notes: tuple[str, ...] = ()
    fields: str | None = None
    traced: bool = False
    forced: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """What was taken out of a line.

    stand_in  what the model reads in its place; "" for a mark
    side      "left": it follows the translation of the word before it; "right": it precedes that of
              the word behind it; or it stays at the "start" or the "end" of the line, or before the
              marks with which the line "closes"
    spaced    whether a space stood before it, and behind it
    joins     it stood between two words without a space
    partner   the number of the item that closes the pair which this one opens
    """

    text: str
    stand_in: str
    side: str
    spaced: tuple[bool, bool]
    joins: bool = False
    partner: int | None = None


@dataclass(frozen=True)
class Reading:
    """A line as the model reads it: `parts` of text and, between each two of them, an item.

    plain   the line before anything was taken out
    passes  it is not to be translated but passed through
    """

    plain: str
    parts: tuple[str, ...]
    items: tuple[Item, ...] = ()
    passes: bool = False

    @property
    def text(self) -> str:
        stand_ins = [item.stand_in for item in self.items]
        return "".join(part + name for part, name in zip(self.parts, [*stand_ins, ""]))

    def of_target(self, text: str) -> str:
        """A translation as it would be without the items: a reference, or what it begins with."""
        for item in self.items:
            text = text.replace(item.text, item.stand_in or " " * item.joins, 1)
        return text

    def lower(self) -> "Reading":
        """In small letters, but for the stand-ins."""
        return replace(self, parts=tuple(part.lower() for part in self.parts))
