"""What an input is that is not UTF-8 text, found by its first bytes, and how to make text of it."""

import codecs
import re
from typing import NamedTuple

LOOKED_AT = 4096  # bytes


class Kind(NamedTuple):
    what: str
    remedy: str  # with {} in the place of the file's name


UTF_16 = "convert it: iconv -f {} -t utf-8 {{}}"
UNPACK = "unpack it first: {} {{}}"
SAVE = "save it as plain text (UTF-8)"
GIVE = "give lines of text"
# Patterns of first bytes, long enough that no text has them by chance; what they are, the remedy
KINDS = [
    # Compressed data
    (rb"\A\x1f\x8b", "gzip data", UNPACK.format("zcat")),
    (rb"\A(\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)", "zstd data", UNPACK.format("zstd -dc")),
    (rb"\A\xfd7zXZ\0", "xz data", UNPACK.format("xz -dc")),
    (rb"\ABZh[1-9](1AY&SY|\x17rE8P\x90)", "bzip2 data", UNPACK.format("bzip2 -dc")),
    (rb"\A(\x04\x22\x4d|\x02\x21\x4c)\x18", "lz4 data", UNPACK.format("lz4 -dc")),
    (rb"\ALZIP[\x00\x01]", "lzip data", UNPACK.format("lzip -dc")),
    (rb"\A\x5d\0\0..(\xff{8}|.{5}\0{3})", "lzma data", UNPACK.format("xz -dc --format=lzma")),
    (rb"\A\x89LZO\0\r\n\x1a\n", "lzop data", UNPACK.format("lzop -dc")),
    (rb"\A\x1f\x9d", "data of compress (.Z)", UNPACK.format("zcat")),
    (rb"\A7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK.format("7z x -so")),
    (rb"\ARar!\x1a\x07", "a rar archive", UNPACK.format("unrar p -inul")),
    (rb"\A!<arch>\n", "an ar archive", UNPACK.format("ar p")),
    (rb"\A.{257}ustar(\0|  \0)", "a tar archive", UNPACK.format("tar -xOf")),
    (  # the name of a member of a zip archive
        rb"PK\x03\x04.{26}word/",
        "a Word document (docx)",
        f"{SAVE}, or convert it: pandoc -t plain --wrap=none {{}}",
    ),
    (
        rb"\APK(\x03\x04|\x05\x06|\x07\x08)",
        "a zip archive or an office document",
        f"{SAVE}, or unpack it first: unzip -p {{}}",
    ),
    # Documents
    (rb"\A%PDF-\d\.\d", "a PDF file", "take its text out first: pdftotext {} -"),
    (
        rb"\A\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an office document of the old kind (doc, xls, ppt)",
        f"{SAVE}, or convert it: soffice --headless --convert-to txt:Text {{}}",
    ),
    (
        rb"\A\{\\rtf1",
        "an RTF document",
        f"{SAVE}, or convert it: soffice --headless --convert-to txt:Text {{}}",
    ),
    # Pictures, programs, tables and models
    (rb"\A(\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a.[\0-\x08]|RIFF.{4}WEBPVP8)", "a picture", GIVE),
    (rb"\A(\x7fELF|MZ.\0)", "a program", GIVE),
    (rb"\ASQLite format 3\0", "an SQLite database", "write a column of it as lines of text"),
    (rb"\A(PAR1\x15|ARROW1\0)", "a Parquet or Arrow table", "write a column as lines of text"),
    (rb"\A.{1,5}\0{3,7}\{\"", "a safetensors file (weights of a model)", GIVE),
    (rb"\A\x80[\x02-\x05]", "a pickled object of Python", GIVE),
]
# Control characters that no text has
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))
NO_CONTROLS = bytes(set(range(256)) - set(CONTROLS))
VARIED = 6  # kinds of control characters that binary data has at least


FILTER = r"((?:iconv|zstd|xz|bzip2|lz4|lzip|lzop) [^:]*|zcat) {}$"  # reads a pipe, too


def remedy(kind: Kind, name: str, packed: bool = False) -> str:
    """Tell how to convert data of a kind; `packed`: its file `name` is gzip data that holds it."""
    text = re.sub(FILTER, r"zcat {} | \1", kind.remedy) if packed else kind.remedy
    return text.replace("{}", name)


def kind_of(head: bytes) -> Kind | None:
    """Tell the kind of an input by its first bytes; None for text in any 8-bit encoding.

    Text may have single NUL bytes.  Binary data has four NULs in a row, or NULs and one control
    character, which a NUL is too, in 32 bytes; or so many of several kinds and is not UTF-8.
    """
    for pattern, what, remedy in KINDS:
        if re.search(pattern, head, re.DOTALL):
            return Kind(what, remedy)
    controls = head.translate(None, NO_CONTROLS)
    has_many = len(controls) >= max(8, len(head) / 32)
    if b"\0" not in head:
        # Fields of a text may be separated by a few control characters
        if has_many and len({*controls}) >= VARIED and not is_utf8(head):
            return Kind("binary data, with control characters", GIVE)
        return None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Kind("UTF-16", UTF_16.format("utf-16"))
    for name, i in (("utf-16be", 0), ("utf-16le", 1)):
        high, low = head[i::2], head[1 - i :: 2]
        # In Western text the high bytes are 0, and the low ones are not
        if high.count(0) > 0.75 * len(high) and low and 0 not in low:
            return Kind("UTF-16 without a byte order mark", UTF_16.format(name))
    if b"\0\0\0\0" in head or has_many:
        return Kind("binary data, with NUL bytes", GIVE)
    return None


def is_utf8(head: bytes) -> bool:
    """Return True for the beginning of UTF-8 text, which may end within a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
