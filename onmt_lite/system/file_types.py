"""Types of input data that is not UTF-8 text, by its first bytes, and how to make text of it."""

import codecs
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

DATA = Path(__file__).with_name("file_types.yaml")
HEAD_BYTES = 4096  # bytes
# Control characters that no text has
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))
NO_CONTROLS = bytes(set(range(256)) - set(CONTROLS))
MIN_CONTROL_KINDS = 6  # different control characters that binary data has at least
FILTER_COMMAND = r"((?:iconv|zstd|xz|bzip2|lz4|lzip|lzop) [^:]*|zcat) {}$"  # reads a pipe, too


class FileType(NamedTuple):
    """A type of data that is not text."""

    name: str
    remedy: str  # with {} in the place of the file's name

    def remedy_for(self, name: str, packed: bool = False) -> str:
        """Return how to make text of a file; `packed`: the file is gzip data that contains it."""
        text = re.sub(FILTER_COMMAND, r"zcat {} | \1", self.remedy) if packed else self.remedy
        return text.replace("{}", name)


@lru_cache
def load_file_types() -> list[tuple[re.Pattern[bytes], FileType]]:
    """Load the patterns of first bytes from file_types.yaml."""
    types = yaml.safe_load(DATA.read_bytes()).items()
    return [
        (re.compile(entry["starts"].encode(), re.DOTALL), FileType(name, entry["remedy"]))
        for name, entry in types
    ]


def detect_file_type(head: bytes) -> FileType | None:
    """Detect the type of an input by its first bytes; None for text in any 8-bit encoding.

    Text may contain single NUL bytes.  Binary data has four NULs in a row, or NULs and one control
    character, which a NUL is too, in 32 bytes; or that many of several different ones and is not
    UTF-8.
    """
    for pattern, file_type in load_file_types():
        if pattern.match(head):
            return file_type
    controls = head.translate(None, NO_CONTROLS)
    has_many = len(controls) >= max(8, len(head) / 32)
    if b"\0" not in head:
        # Fields of a text may be separated by a few control characters
        if has_many and len({*controls}) >= MIN_CONTROL_KINDS and not is_utf8(head):
            return FileType("binary data, with control characters", "give lines of text")
        return None
    encoding = detect_utf16(head)
    if encoding:
        name = "UTF-16" if encoding == "utf-16" else "UTF-16 without a byte order mark"
        return FileType(name, f"convert it: iconv -f {encoding} -t utf-8 {{}}")
    if b"\0\0\0\0" in head or has_many:
        return FileType("binary data, with NUL bytes", "give lines of text")
    return None


def detect_utf16(head: bytes) -> str:
    """Return the name of the encoding if data with NUL bytes is UTF-16, otherwise ""."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding, i in (("utf-16be", 0), ("utf-16le", 1)):
        high, low = head[i::2], head[1 - i :: 2]
        # In Western text the high bytes are 0, and the low bytes are not
        if high.count(0) > 0.75 * len(high) and low and 0 not in low:
            return encoding
    return ""


def is_utf8(head: bytes) -> bool:
    """Return True for the beginning of UTF-8 text, which may end within a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
