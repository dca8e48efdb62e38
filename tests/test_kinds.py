"""What is text and what is not, on files that other programs and packages make."""

import bz2
import codecs
import gzip
import io
import lzma
import marshal
import sqlite3
import struct
import sys
import tarfile
import wave
import zipfile
import zlib
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite.text.file_types import LOOKED_AT, guess_encoding, kind_of, remedy

TEXT = "Grüße aus München.\nDas Haus ist groß, der Garten schön.\n"


def zipped(*names, first=b"x"):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), first)
    return data.getvalue()


def tarred():
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(__file__)
    return data.getvalue()


def database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x text)")
    connection.close()
    return path.read_bytes()


def sound():
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\1\2" * 99)
    return data.getvalue()


def saved(**options):
    data = io.BytesIO()
    torch.save({"x": torch.ones(3)}, data, **options)
    return data.getvalue()


def picture():
    rows = zlib.compress(b"\0\1\2\3" * 9)
    header = struct.pack(">IIBBBBB", 1, 9, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + rows


CONTENTS = "[Content_Types].xml"
KINDS = {
    "docx": (zipped(CONTENTS, "_rels/.rels", "word/document.xml"), "a Word document"),
    "xlsx": (zipped(CONTENTS, "_rels/.rels", "xl/workbook.xml"), "an Excel workbook"),
    "pptx": (zipped(CONTENTS, "_rels/.rels", "ppt/presentation.xml"), "a PowerPoint"),
    "office": (zipped(CONTENTS, "_rels/.rels"), "an Office document"),
    "zip": (zipped("a.txt", "b.txt"), "a zip archive"),
    "empty zip": (zipped(), "an empty zip"),
    "jar": (zipped("META-INF/MANIFEST.MF", "A.class"), "a Java archive"),
    "npz": (zipped("weights.npy"), "NumPy arrays"),
    "torch": (saved(), "a PyTorch file"),
    "old torch": (saved(_use_new_zipfile_serialization=False), "binary data"),
    "gzip": (gzip.compress(TEXT.encode()), "gzip data"),
    "bzip2": (bz2.compress(TEXT.encode()), "a bzip2 file"),
    "empty bzip2": (bz2.compress(b""), "a bzip2 file"),
    "xz": (lzma.compress(TEXT.encode()), "an xz file"),
    "zstd": (codecs.decode("28b52ffd0458010000", "hex"), "a zstd file"),
    "zstd of several parts": (codecs.decode("502a4d1804000000", "hex") + bytes(4), "a zstd file"),
    "parquet": (b"PAR1\x15\0\x15\x1a\x15\x1e", "a Parquet file"),
    "tar": (tarred(), "a tar archive"),
    "wav": (sound(), "a WAV recording"),
    "mp4": (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2", "a film or a recording"),
    "ogg": (b"OggS\0\2" + bytes(8), "an Ogg recording"),
    "flac": (b"fLaC\0\0\0\x22\x10\0\x10\0", "a FLAC recording"),
    "lzip": (b"LZIP\1\x0c\0\x24", "an lzip file"),
    "gif": (b"GIF89a\1\0\1\0\x80\0\0", "a GIF picture"),
    "png": (picture(), "a PNG picture"),
    "program": (Path(sys.executable).read_bytes()[:9999], "a program"),
    "code": (b"\xa7\r\r\n" + bytes(12) + marshal.dumps(zipped.__code__), "binary data"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "a PDF file"),
    "rtf": (rb"{\rtf1\ansi Guten Tag}", "an RTF document"),
    "doc": (codecs.decode("d0cf11e0a1b11ae1", "hex") + bytes(16), "a document of an older Office"),
    "noise": (Random(1).randbytes(4096), "binary data"),
    "noise, a little of it": (Random(2).randbytes(999), "binary data"),
    "nothing but NULs": (bytes(100), "binary data"),
    "floats": (struct.pack("<99f", *range(99)), "binary data"),
}
for media_type, kind in [
    ("vnd.oasis.opendocument.text", "an OpenDocument text"),
    ("vnd.oasis.opendocument.spreadsheet", "an OpenDocument table"),
    ("vnd.oasis.opendocument.presentation", "an OpenDocument file"),
    ("epub+zip", "an EPUB book"),
]:
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("mimetype", f"application/{media_type}")
        archive.writestr("content.xml", "<x/>")
    KINDS[media_type] = (stored.getvalue(), kind)


@pytest.mark.parametrize("name", KINDS)
def test_files_that_are_no_text(name):
    data, what = KINDS[name]
    found = kind_of(data[:LOOKED_AT])
    assert found is not None and found.what.startswith(what)
    assert "\n" not in found.what + found.remedy


@pytest.mark.parametrize(
    ("data", "plain", "packed"),
    [
        ("gut".encode("utf-16"), "iconv -f utf-16 -t utf-8 F", "zcat F | iconv -f utf-16 -t utf-8"),
        ("gut".encode("utf-32"), "iconv -f utf-32 -t utf-8 F", "zcat F | iconv -f utf-32 -t utf-8"),
        (bz2.compress(b"gut"), "bzcat F", "zcat F | bzcat"),
        (gzip.compress(b"gut"), "zcat F | zcat", "zcat F | zcat"),
        (tarred(), "tar -xf F", "tar -xf F"),
        (KINDS["pdf"][0], "pdftotext F -", "pdftotext F -"),
    ],
)
def test_the_command_that_makes_text_of_it(data, plain, packed):
    kind = kind_of(data[:LOOKED_AT])
    assert remedy(kind, "F").endswith(f": {plain}")
    assert remedy(kind, "F", packed=True).endswith(f": {packed}")


def test_a_database(tmp_path):
    assert kind_of(database(tmp_path / "x.db")[:LOOKED_AT]).what == "an SQLite database"


SAMPLES = {
    "two lines": "Ja\nNo\n",
    "one line": "Guten Morgen, wie geht es?",
    "German": TEXT * 50,
    "French": "L’été à Paris — où l’on mange des crêpes à 3 €.\n" * 60,
    "Russian": "Привет, мир!\nКак дела?\n",
    "Greek": "Καλημέρα κόσμε\nτι κάνεις;\n" * 70,
    "Chinese": "你好，世界。\n今天天气很好。\n",
    "Japanese": "こんにちは\r\n世界。\r\n" * 99,
    "Arabic": "مرحبا بالعالم\n",
    "emoji": "gut 😀\n" * 300,
}


@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("end", [LOOKED_AT, 101])
def test_wide_characters(name, size, order, end):
    """With a byte order mark and without, and cut through a character."""
    name_of = f"utf-{size}{order}"
    data = SAMPLES[name].encode(name_of)
    found = kind_of(data[:end])
    assert found.what == f"UTF-{size} without a byte order mark"
    assert found.remedy == f"convert it: iconv -f {name_of} -t utf-8 {{}}"
    found = kind_of(("\ufeff" + SAMPLES[name]).encode(name_of)[:end])
    assert (found.what, found.remedy) == (
        f"UTF-{size}", f"convert it: iconv -f utf-{size} -t utf-8 {{}}"
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-16le", "utf-16be", "utf-32le", "utf-32be"])
@pytest.mark.parametrize(
    "odd",
    ["\xad", "\ufeff", "\u200b", "\ue000", "\x01", "\ud83d"],
    ids=lambda char: f"{ord(char):x}",
)
def test_wide_characters_some_of_which_are_odd(odd, encoding):
    """Soft hyphens, marks inside, private characters, half a character."""
    text = TEXT * 2 + odd + TEXT
    found = kind_of(text.encode(encoding, "surrogatepass"))
    assert found.remedy == f"convert it: iconv -f {encoding} -t utf-8 {{}}"


@given(st.integers(32, LOOKED_AT), st.randoms(use_true_random=False))
def test_a_quarter_of_nuls_is_no_text(size, random):
    nuls = set(random.sample(range(size), -(-size // 4)))
    data = bytes(0 if i in nuls else random.choice(b"aeiou \n\xfc") for i in range(size))
    assert kind_of(data) is not None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-7"])
@pytest.mark.parametrize("name", SAMPLES)
def test_text(name, encoding):
    assert kind_of(SAMPLES[name].encode(encoding)[:LOOKED_AT]) is None


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("German", "latin1"),
        ("German", "cp850"),
        ("French", "cp1252"),
        ("Russian", "koi8-r"),
        ("Russian", "cp1251"),
        ("Chinese", "gb18030"),
        ("Chinese", "big5"),
        ("Japanese", "shift_jis"),
        ("Japanese", "euc_jp"),
        ("Japanese", "iso2022_jp"),
    ],
)
def test_text_in_other_encodings_is_text(name, encoding):
    assert kind_of(SAMPLES[name].encode(encoding)[:LOOKED_AT]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"a\0b\n\0\n",
        b"a\0b\nc\0d\n",
        b"\0\0\n\0\n",
        b"\xff\xfe\x01\n\xfe\n",
        b"PK is short for pack\n",
        b"MZ\nBM\nID3 is a tag\n",
        b"PAR1 ist ein Rezeptor.\n",
        b"The ftyp box.\n",
        b"OggS\n",
        b"LZIP packt gut.\n",
        b"fLaC ist ein Format.\n",
        b"GIF89a und GIF87a\n",
        b"RIFF und WAVE\n",
        b"RIFF oderWAVE\n",
        b"BZh91AY&SY\n",
        b"." * 257 + b"ustar\n",
        b"\xc3\xa4" + b"." * 255 + b"ustar\n",
        b"%PDF- und {\\rtf stehen am Anfang.\n",
        b"\x1b[1mbold\x1b[0m x\bx\n" * 9,
        b"field\x01field\x01field\n" * 99,
        b"Guten Tag\xfc\n" * 50 + b"\0",
        b"one line of some length and a NUL\0\n" * 200,
        b"<?xml version='1.0'?><p>\xc3\xa4</p>",
    ],
)
def test_odd_text_is_text(data):
    assert kind_of(data[:LOOKED_AT]) is None


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))).map("\n".join))
def test_nothing_without_nul_is_taken_for_wide_characters(text):
    found = kind_of(text.encode("utf-8")[:LOOKED_AT])
    assert found is None or "UTF" not in found.what


@pytest.mark.parametrize("encoding", ["latin1", "windows-1252", "cp850"])
@pytest.mark.parametrize(
    "text",
    [
        "Grüße aus München, schöne Äpfel!",
        "L'été à Paris, où il neige à Noël. Ça va très bien.",
        "¿Dónde está el niño? ¡Mañana, señor!",
        "Får får får? Nej, får får lamm. Älg och öring.",
        "SCHÖNE GRÜSSE ÜBER DIE BRÜCKE",
        "Não há razão para ações.",
    ],
)
def test_the_encoding_of_western_text(text, encoding):
    expected = "latin1" if encoding == "windows-1252" else encoding  # no byte tells them apart
    assert guess_encoding(text.encode(encoding)) == expected


def test_what_only_windows_1252_has():
    assert guess_encoding("für 5 € – „so schön“".encode("cp1252")) == "windows-1252"


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("Russian", "koi8-r"),
        ("Russian", "cp1251"),
        ("Greek", "cp1253"),
        ("Chinese", "gb18030"),
        ("Chinese", "big5"),
        ("Japanese", "shift_jis"),
        ("Arabic", "cp1256"),
    ],
)
def test_other_encodings_get_no_wrong_name(name, encoding):
    assert guess_encoding(SAMPLES[name].encode(encoding)) == ""


def test_an_encoding_of_nothing():
    assert guess_encoding(b"") == guess_encoding(b"plain") == ""
