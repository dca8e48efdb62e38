"""Masked lines: lines without the spans that the model should not read."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MaskedSpan:
    """A span that was masked in a line."""

    text: str
    placeholder: str  # the word that the model reads instead; "" for an inline tag
    # "left": follows the translation of the previous word; "right": precedes the translation of the
    # next word; "start", "end": stays at that end of the line; "closes": before final punctuation
    side: str
    spaced: tuple[bool, bool]  # a space was before it, after it
    joins: bool = False  # it separated two words without a space
    partner: int | None = None  # index of the span that closes this pair


@dataclass(frozen=True)
class MaskedLine:
    """A line as the model reads it.

    `parts` are the texts between the masked spans.
    """

    plain: str  # the line before masking
    parts: tuple[str, ...]
    spans: tuple[MaskedSpan, ...] = ()
    is_passed_through: bool = False  # copy the line instead of translating it
    head: str = ""  # list marks at the start of the line, not in `plain` and `parts`

    @property
    def text(self) -> str:
        """The line with placeholders, without inline tags."""
        placeholders = [span.placeholder for span in self.spans]
        return "".join(
            part + placeholder for part, placeholder in zip(self.parts, [*placeholders, ""])
        )

    def mask_target(self, text: str) -> str:
        """Mask a reference, or its prefix, like the line."""
        text = text.removeprefix(self.head)
        for span in self.spans:
            text = text.replace(span.text, span.placeholder or " " * span.joins, 1)
        return text

    def lower(self) -> "MaskedLine":
        """Lowercase all parts, but not the placeholders."""
        return replace(self, parts=tuple(part.lower() for part in self.parts))

    def capitalize_first(self, text: str) -> str:
        """Capitalize a translation if the text after the head starts with a capital."""
        first = next(filter(str.isalnum, self.text), "")
        if not self.head or not first.isupper() or text[1:2].isupper():  # iPhone
            return text
        return text[:1].upper() + text[1:]

    def encloses_text(self, i: int) -> bool:
        """Return True if span i opens a pair around words."""
        stop = self.spans[i].partner or i
        has_stand_in = any(span.placeholder for span in self.spans[i:stop])
        return has_stand_in or any(map(str.isalnum, "".join(self.parts[i + 1 : stop + 1])))
