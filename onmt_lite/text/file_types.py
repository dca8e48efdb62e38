"""Kinds of inputs that are not UTF-8 text, told by their first bytes, each with a remedy."""

import codecs
import re
import unicodedata
from typing import NamedTuple

LOOKED_AT = 4096  # bytes


class Kind(NamedTuple):
    """`remedy` has {} in the place of the file's name."""

    what: str
    remedy: str


SAVE_AS_TEXT = "save it as plain text (UTF-8)"
PANDOC = SAVE_AS_TEXT + ", or convert it: pandoc -t plain --wrap=none {}"
ONE_COLUMN = "export the column to translate as a text file, one cell per line"
SPEECH = "write down what is said first; only text is translated"
PICTURE = "read its text first, with an OCR program; only text is translated"
NO_INPUT = "give lines of text"

# First bytes, as regular expressions; where they are letters, as a text may begin with, other bytes
# of the data must be none of a text
MAGIC = [
    (rb"\x1f\x8b", Kind("gzip data within gzip data", "unpack it first: zcat {} | zcat")),
    (rb"\x1f\x9d", Kind("a compress file", "unpack it first: zcat {}")),
    (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", Kind("a bzip2 file", "unpack it first: bzcat {}")),
    (rb"\xfd7zXZ\0", Kind("an xz file", "unpack it first: xzcat {}")),
    (
        rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
        Kind("a zstd file", "unpack it first: zstdcat {}"),
    ),
    (rb"\x04\x22\x4d\x18", Kind("an lz4 file", "unpack it first: lz4 -dc {}")),
    (rb"LZIP", Kind("an lzip file", "unpack it first: lzip -dc {}")),
    (rb"7z\xbc\xaf\x27\x1c", Kind("a 7-Zip archive", "unpack it first: 7z x {}")),
    (rb"Rar!\x1a\x07", Kind("a rar archive", "unpack it first: unrar x {}")),
    (rb"(?=.{0,107}\0).{257}ustar", Kind("a tar archive", "unpack it first: tar -xf {}")),
    (rb"PK\x05\x06", Kind("an empty zip archive", NO_INPUT)),
    (
        rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        Kind("a document of an older Office (doc, xls, ppt)", SAVE_AS_TEXT),
    ),
    (rb"\x89PNG\r\n\x1a\n", Kind("a PNG picture", PICTURE)),
    (rb"\xff\xd8\xff", Kind("a JPEG picture", PICTURE)),
    (rb"GIF8[79]a", Kind("a GIF picture", PICTURE)),
    (rb"RIFF....WEBP", Kind("a WebP picture", PICTURE)),
    (rb"II\*\0|MM\0\*", Kind("a TIFF picture", PICTURE)),
    (rb"ID3[\x02-\x04]", Kind("an MP3 recording", SPEECH)),
    (rb"OggS", Kind("an Ogg recording", SPEECH)),
    (rb"fLaC", Kind("a FLAC recording", SPEECH)),
    (rb"RIFF....WAVE", Kind("a WAV recording", SPEECH)),
    (rb"RIFF....AVI |\x1a\x45\xdf\xa3|\0...ftyp", Kind("a film or a recording", SPEECH)),
    (rb"PAR1", Kind("a Parquet file", ONE_COLUMN)),
    (rb"SQLite format 3\0", Kind("an SQLite database", ONE_COLUMN)),
    (
        rb"\xde\x12\x04\x95|\x95\x04\x12\xde",
        Kind("a gettext catalogue (mo)", "make text of it first: msgunfmt {}"),
    ),
    (rb"\x7fELF", Kind("a program (ELF)", NO_INPUT)),
    (rb"\x89HDF\r\n\x1a\n", Kind("an HDF5 file", NO_INPUT)),
    (rb"\x93NUMPY", Kind("a NumPy array", NO_INPUT)),
]
# The same of formats that are text themselves
DOCUMENTS = [
    (rb"%PDF-\d\.\d", Kind("a PDF file", "take its text out first: pdftotext {} -")),
    (rb"\{\\rtf\d", Kind("an RTF document", PANDOC)),
]
# Members of zip archives, and the media type that some begin with
MEMBERS = [
    (rb"word/", Kind("a Word document (docx)", PANDOC)),
    (rb"xl/", Kind("an Excel workbook (xlsx)", ONE_COLUMN)),
    (rb"ppt/", Kind("a PowerPoint presentation (pptx)", SAVE_AS_TEXT)),
    (rb"mimetype.*opendocument\.text", Kind("an OpenDocument text (odt)", PANDOC)),
    (rb"mimetype.*opendocument\.spreadsheet", Kind("an OpenDocument table (ods)", ONE_COLUMN)),
    (rb"mimetype.*opendocument", Kind("an OpenDocument file", SAVE_AS_TEXT)),
    (rb"mimetype.*epub", Kind("an EPUB book", PANDOC)),
    (rb"\[Content_Types\]", Kind("an Office document (docx, xlsx or pptx)", SAVE_AS_TEXT)),
    (rb"META-INF/", Kind("a Java archive (jar)", NO_INPUT)),
    (rb"[^/]+/data\.pkl", Kind("a PyTorch file", "a model is given with -model")),
    (rb"[^/]+\.npy", Kind("NumPy arrays (npz)", NO_INPUT)),
]
ZIP = Kind("a zip archive", "unpack it first: unzip {}")
BINARY = Kind("binary data, with NUL bytes", NO_INPUT)

# Control characters that no text has
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))
# Remedies whose program reads standard input too
FILTER = re.compile(r"\b((?:\w+cat|iconv|lz4|lzip|msgunfmt)\b.*) \{\}$")


def remedy(kind: Kind, name: str, packed: bool = False) -> str:
    """What to do with data of a kind; `packed`: its file `name` is gzip data that holds it."""
    text = FILTER.sub(r"zcat {} | \1", kind.remedy) if packed else kind.remedy
    return text.replace("{}", name)


def kind_of(head: bytes) -> Kind | None:
    """Tell the kind of an input by its first bytes; None for text in any 8-bit encoding.

    Text may have single NUL bytes.  Binary data has four NULs in a row, or NULs and one control
    character, which a NUL is too, in 32 bytes.
    """
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(head)
    n_controls = len(head) - len(head.translate(None, CONTROLS))
    for magic, kind in MAGIC + DOCUMENTS:
        found = re.match(magic, head, re.DOTALL)
        if found and (n_controls or (magic, kind) in DOCUMENTS or not found[0].isascii()):
            return kind
    if b"\0" not in head:
        return None
    binary = b"\0\0\0\0" in head or n_controls >= max(8, len(head) / 32)
    return _unicode_kind(head, binary) or (BINARY if binary else None)


def _zip_kind(head: bytes) -> Kind:
    """Tell the kind of a zip archive by the names of its first members."""
    starts = [match.end() for match in re.finditer(rb"PK\x03\x04.{26}", head, re.DOTALL)]
    for member, kind in MEMBERS:
        if any(re.compile(member).match(head, start) for start in starts):
            return kind
    return ZIP


def _unicode_kind(head: bytes, binary: bool) -> Kind | None:
    """Recognise UTF-16 and UTF-32, with or without byte order mark; `head` holds NULs."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return Kind("UTF-32", "convert it: iconv -f utf-32 -t utf-8 {}")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Kind("UTF-16", "convert it: iconv -f utf-16 -t utf-8 {}")
    likely = []
    for name in ("utf-32le", "utf-32be", "utf-16le", "utf-16be"):
        text = _decoded(head, name, "replace")
        if not text.strip() or _n_odd(text) > (len(text) / 32 if binary else 0):
            continue
        # Other bytes may decode too, but to characters of rare scripts
        latin = sum(char < "\u0100" for char in text) / len(text)
        lines = "\n" in text and not _decoded(head, "utf-8")
        if "32" in name or latin >= 0.75 or lines or binary:
            likely.append((latin, name))
    if not likely:
        return None
    name = max(likely)[1]
    what = f"{name[:6].upper()} without a byte order mark"
    return Kind(what, f"convert it: iconv -f {name} -t utf-8 {{}}")


def _decoded(head: bytes, encoding: str, errors: str = "strict") -> str:
    """Decode; "" for bytes in another encoding.  A character cut at the end is dropped."""
    try:
        return codecs.getincrementaldecoder(encoding)(errors).decode(head)
    except UnicodeDecodeError:
        return ""


def _n_odd(text: str) -> int:
    """Count the characters that text in its right encoding hardly has."""
    odd = [char for char in text if not (char.isprintable() or char.isspace())]
    n_format = sum(unicodedata.category(char) == "Cf" for char in odd)  # such as soft hyphens
    return len(odd) - n_format + text.count("\ufffd")


# Encodings of Western Europe; the first one is chosen where several fit equally well
WESTERN = ("latin1", "windows-1252", "cp850")
LETTERS = "àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿœß"
SIGNS = "„“”‚‘’«»‹›–—…•¿¡ºª·°§€£©®\u00a0"
WESTERN_CHARS = frozenset(LETTERS + LETTERS.upper() + SIGNS)


def guess_encoding(data: bytes) -> str:
    """Guess the encoding of text that is not UTF-8; "" where none of WESTERN is likely.

    Most letters of Western European text are ASCII, and nearly all others are in WESTERN_CHARS.
    """
    n_ascii = sum(char.isalpha() for char in data.decode("ascii", "ignore"))
    shares = {}
    for name in WESTERN:
        others = [char for char in data.decode(name, "replace") if not char.isascii()]
        shares[name] = sum(char in WESTERN_CHARS for char in others) / max(1, len(others))
    best = max(WESTERN, key=lambda name: shares[name])
    return best if len(others) < n_ascii and shares[best] > 0.9 else ""
