"""File types that are not UTF-8 text, detected from the first bytes, and how to convert them."""

import codecs
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

DATA = Path(__file__).with_name("file_types.yaml")
HEAD_BYTES = 4096  # bytes
# Control characters that do not occur in text
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))
NO_CONTROLS = bytes(set(range(256)) - set(CONTROLS))
MIN_DISTINCT_CONTROLS = 6  # distinct control characters in binary data
FILTER_COMMAND = (
    r"((?:iconv|zstd|xz|bzip2|lz4|lzip|lzop) [^:]*|zcat) {}$"  # commands that also read from a pipe
)


class FileType(NamedTuple):
    """A file type that is not text; `{}` in `remedy` is the name of the file."""

    name: str
    remedy: str

    def get_remedy(self, name: str, packed: bool = False) -> str:
        """Return the command that converts a file to text.

        Args:
            name: the file.
            packed: whether the file is gzip data that contains this type.
        """
        text = re.sub(FILTER_COMMAND, r"zcat {} | \1", self.remedy) if packed else self.remedy
        return text.replace("{}", name)


@lru_cache
def load_file_types() -> list[tuple[re.Pattern[bytes], FileType]]:
    """Load patterns of first bytes from file_types.yaml."""
    types = yaml.safe_load(DATA.read_bytes()).items()
    return [
        (re.compile(entry["starts"].encode(), re.DOTALL), FileType(name, entry["remedy"]))
        for name, entry in types
    ]


def detect_file_type(head: bytes) -> FileType | None:
    """Detect the type of an input from its first bytes; None for text in any 8-bit encoding.

    Text may contain single NUL bytes.  Data is binary if it has four NULs in a row, or NULs and at
    least one control character (including NUL) per 32 bytes, or as many control characters of
    several kinds without being UTF-8.
    """
    for pattern, file_type in load_file_types():
        if pattern.match(head):
            return file_type
    controls = head.translate(None, NO_CONTROLS)
    has_many = len(controls) >= max(8, len(head) / 32)
    if b"\0" not in head:
        # Text may use a few control characters as separators
        if has_many and len({*controls}) >= MIN_DISTINCT_CONTROLS and not is_utf8(head):
            return FileType(
                "binary data, with control characters", "use a text file with one sentence per line"
            )
        return None
    encoding = detect_utf16(head)
    if encoding:
        name = "UTF-16" if encoding == "utf-16" else "UTF-16 without a byte order mark"
        return FileType(name, f"convert it: iconv -f {encoding} -t utf-8 {{}}")
    if b"\0\0\0\0" in head or has_many:
        return FileType("binary data, with NUL bytes", "use a text file with one sentence per line")
    return None


def detect_utf16(head: bytes) -> str:
    """Return the encoding of data with NUL bytes if it is UTF-16, otherwise ""."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding, i in (("utf-16be", 0), ("utf-16le", 1)):
        high, low = head[i::2], head[1 - i :: 2]
        # In Western text, high bytes are 0 and low bytes are not
        if high.count(0) > 0.75 * len(high) and low and 0 not in low:
            return encoding
    return ""


def is_utf8(head: bytes) -> bool:
    """Return True if bytes are the beginning of UTF-8 text, possibly cut inside a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
