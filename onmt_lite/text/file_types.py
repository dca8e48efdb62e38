"""File types that are not UTF-8 text, told by their first bytes, each with a remedy."""

import codecs
import re
from typing import NamedTuple

LOOKED_AT = 4096  # bytes


class Kind(NamedTuple):
    """`remedy` has {} in the place of the file's name."""

    what: str
    remedy: str


# By patterns of first bytes
KINDS = {
    rb"\A\x1f\x8b": Kind("gzip data within gzip data", "unpack it first: zcat {} | zcat"),
    rb"PK\x03\x04.{26}word/": Kind(  # the name of a member of a zip archive
        "a Word document (docx)",
        "save it as plain text (UTF-8), or convert it: pandoc -t plain --wrap=none {}",
    ),
    rb"\APK(\x03\x04|\x05\x06)": Kind(
        "a zip archive or an office document", "unpack it, or save it as plain text (UTF-8)"
    ),
    rb"\A%PDF-\d\.\d": Kind("a PDF file", "take its text out first: pdftotext {} -"),
}
UTF_16 = "convert it: iconv -f {} -t utf-8 {{}}"
BINARY = Kind("binary data, with NUL bytes", "give lines of text")

# Control characters that no text has
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))


def remedy(kind: Kind, name: str, packed: bool = False) -> str:
    """Tell how to convert data of a kind; `packed`: its file `name` is gzip data that holds it."""
    text = kind.remedy
    if packed:
        text = re.sub(r"(iconv .*) {}", r"zcat {} | \1", text)
    return text.replace("{}", name)


def kind_of(head: bytes) -> Kind | None:
    """Tell the kind of an input by its first bytes; None for text in any 8-bit encoding.

    Text may have single NUL bytes.  Binary data has four NULs in a row, or NULs and one control
    character, which a NUL is too, in 32 bytes.
    """
    for pattern, kind in KINDS.items():
        if re.search(pattern, head, re.DOTALL):
            return kind
    if b"\0" not in head:
        return None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Kind("UTF-16", UTF_16.format("utf-16"))
    for name, i in (("utf-16be", 0), ("utf-16le", 1)):
        high, low = head[i::2], head[1 - i :: 2]
        # In Western text the high bytes are 0, and the low ones are not
        if high.count(0) > 0.75 * len(high) and low and 0 not in low:
            return Kind("UTF-16 without a byte order mark", UTF_16.format(name))
    n_controls = len(head) - len(head.translate(None, CONTROLS))
    binary = b"\0\0\0\0" in head or n_controls >= max(8, len(head) / 32)
    return BINARY if binary else None


# Encodings of Western Europe; the first one is chosen if several fit equally well
WESTERN = ("latin1", "windows-1252", "cp850")
LETTERS = "àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿœß"
SIGNS = "„“”‚‘’«»‹›–—…•¿¡ºª·°§€£©®\u00a0"
WESTERN_CHARS = frozenset(LETTERS + LETTERS.upper() + SIGNS)


def guess_encoding(data: bytes) -> str:
    """Guess the encoding of text that is not UTF-8; "" if none of WESTERN is likely.

    Most letters of Western European text are ASCII, and nearly all others are in WESTERN_CHARS.
    """
    n_ascii = sum(char.isalpha() for char in data.decode("ascii", "ignore"))
    shares = {}
    for name in WESTERN:
        others = [char for char in data.decode(name, "replace") if not char.isascii()]
        shares[name] = sum(char in WESTERN_CHARS for char in others) / max(1, len(others))
    best = max(WESTERN, key=lambda name: shares[name])
    return best if len(others) < n_ascii and shares[best] > 0.9 else ""
