"""A line of input."""

from dataclasses import dataclass

CAPITALS = "capitals"  # the note of a line that was read in small letters


@dataclass(frozen=True)
class Line:
    """One line of input.

    notes   notes on how it was read, as in the JSONL output
    fields  of a line that is a JSON object: the object without the text, as JSON
    traced  its search is to be watched, see `onmt_lite.inference.postprocess`
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
