"""Detection of text and other file types, on files made by other programs and packages."""

import bz2
import contextlib
import gzip
import io
import lzma
import marshal
import pickle
import shutil
import sqlite3
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite.system.file_types import HEAD_BYTES, detect_file_type

TEXT = "Grüße aus München.\nDas Haus ist groß, der Garten schön.\n"


def zipped(*names, first=b"x"):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), first)
    return data.getvalue()


def saved(**options):
    data = io.BytesIO()
    torch.save({"x": torch.ones(3)}, data, **options)
    return data.getvalue()


CONTENTS = "[Content_Types].xml"

# Short texts, as the programs pack them: most without a NUL byte
COMPRESSED = {
    "zstd": bytes.fromhex("28b52ffd2407390000486175730a310a1a1ba6ec"),
    "zstd in frames to skip": b"\x50\x2a\x4d\x18\1\1\1\1abcd\x28\xb5\x2f\xfd",
    "lz4": bytes.fromhex("04224d186440a7") + b"\x07\1\1\x80Haus 1\n",
    "old lz4": bytes.fromhex("02214c18") + b"\x07\1\1\x80Haus 1\n",
    "lzip": b"LZIP\x01\x0c\x24\x19\x48\x98",
    "lzop": b"\x89LZO\0\r\n\x1a\n\x10\x40\x20\xa0",
    "7z": b"7z\xbc\xaf\x27\x1c\x03\x04\x91\x52",
    "rar": b"Rar!\x1a\x07\x01\x01\x8d\xef",
    "compress": b"\x1f\x9d\x90\x48\xc2\xd4",
}


def tar(format):
    data, member = io.BytesIO(), tarfile.TarInfo("a.txt")
    member.size = 3
    with tarfile.open(fileobj=data, mode="w", format=format) as archive:
        archive.addfile(member, io.BytesIO(b"gut"))
    return data.getvalue()


def database(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (text)")
        connection.commit()
    return path.read_bytes()


KINDS = {
    **{f"{name} data": (data, name.split()[0]) for name, data in list(COMPRESSED.items())[:2]},
    **{
        name: (COMPRESSED[name], what)
        for name, what in [
            ("lz4", "lz4 data"),
            ("old lz4", "lz4 data"),
            ("lzip", "lzip data"),
            ("lzop", "lzop data"),
            ("7z", "a 7z archive"),
            ("rar", "a rar archive"),
            ("compress", "compress data"),
        ]
    },
    "bzip2": (bz2.compress(TEXT.encode()), "bzip2 data"),
    "empty bzip2": (bz2.compress(b""), "bzip2 data"),
    "xz": (lzma.compress(TEXT.encode()), "xz data"),
    "lzma": (lzma.compress(TEXT.encode(), format=lzma.FORMAT_ALONE), "lzma data"),
    "ar": (
        b"!<arch>\ndebian-binary   1342943816  0     0     100644  4  `\n2.0\n",
        "an ar archive",
    ),
    "tar": (tar(tarfile.USTAR_FORMAT), "a tar archive"),
    "GNU tar": (tar(tarfile.GNU_FORMAT), "a tar archive"),
    "pickle": (pickle.dumps(["gut"]), "a Python pickle"),
    "safetensors": (struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[1]}}', "a safetensors"),
    "doc": (bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16), "an old office document"),
    "rtf": (b"{\\rtf1\\ansi\\deff0 Gut.}", "an RTF document"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "an image"),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "an image"),
    "gif": (b"GIF89a\x01\0\x01\0", "an image"),
    "parquet": (b"PAR1\x15\x04\x15\x10", "a Parquet"),
    "noise without NULs": (
        Random(3).randbytes(400).replace(b"\0", b"x"),
        "binary data, with control",
    ),
    "docx": (zipped(CONTENTS, "_rels/.rels", "word/document.xml"), "a Word document"),
    "xlsx": (zipped(CONTENTS, "_rels/.rels", "xl/workbook.xml"), "a zip archive or an office"),
    "pptx": (zipped(CONTENTS, "_rels/.rels", "ppt/presentation.xml"), "a zip archive or an office"),
    "zip": (zipped("a.txt", "b.txt"), "a zip archive"),
    "empty zip": (zipped(), "a zip archive"),
    "torch": (saved(), "a zip archive"),
    "old torch": (saved(_use_new_zipfile_serialization=False), "a Python pickle"),
    "gzip": (gzip.compress(TEXT.encode()), "gzip data"),
    "mp4": (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2" + bytes(20), "binary data"),
    "program": (Path(sys.executable).read_bytes()[:9999], "a program"),
    "code": (b"\xa7\r\r\n" + bytes(12) + marshal.dumps(zipped.__code__), "binary data"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "a PDF file"),
    "noise": (Random(1).randbytes(4096), "binary data"),
    "noise, a little of it": (Random(2).randbytes(999), "binary data"),
    "nothing but NULs": (bytes(100), "binary data"),
    "floats": (struct.pack("<99f", *range(99)), "binary data"),
}


@pytest.mark.parametrize("name", KINDS)
def test_file_types_are_detected(name):
    data, what = KINDS[name]
    found = detect_file_type(data[:HEAD_BYTES])
    assert found is not None and found.name.startswith(what)
    assert "\n" not in found.name + found.remedy


@pytest.mark.parametrize(
    ("data", "plain", "packed"),
    [
        ("gut".encode("utf-16"), "iconv -f utf-16 -t utf-8 F", "zcat F | iconv -f utf-16 -t utf-8"),
        (gzip.compress(b"gut"), "zcat F", "zcat F | zcat"),
        (COMPRESSED["zstd"], "zstd -dc F", "zcat F | zstd -dc"),
        (bz2.compress(b"gut"), "bzip2 -dc F", "zcat F | bzip2 -dc"),
        (lzma.compress(b"gut"), "xz -dc F", "zcat F | xz -dc"),
        (KINDS["pdf"][0], "pdftotext F -", "pdftotext F -"),
    ],
)
def test_file_types_remedy_command_converts_file(data, plain, packed):
    kind = detect_file_type(data[:HEAD_BYTES])
    assert kind.get_remedy("F").endswith(f": {plain}")
    assert kind.get_remedy("F", packed=True).endswith(f": {packed}")


def test_file_types_sqlite_database_is_detected(tmp_path):
    assert detect_file_type(database(tmp_path / "db")[:HEAD_BYTES]).name == "an SQLite database"


@pytest.mark.parametrize("command", ["zstd", "xz", "bzip2", "lz4", "xz --format=lzma"])
def test_file_types_remedy_command_unpacks_file(tmp_path, command):
    if shutil.which(command.split()[0]) is None:
        pytest.skip("not installed")
    (tmp_path / "text").write_text(TEXT, "utf-8")
    packed = subprocess.run(
        [*command.split(), "-c", "text"], cwd=tmp_path, capture_output=True, check=True
    ).stdout
    (tmp_path / "p").write_bytes(packed)
    made = detect_file_type(packed).get_remedy("p").partition(": ")[2]
    unpacked = subprocess.run(made, shell=True, cwd=tmp_path, capture_output=True, check=True)
    assert unpacked.stdout.decode("utf-8") == TEXT


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
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("end", [HEAD_BYTES, 101])
def test_file_types_utf16_is_detected(name, order, end):
    """With a byte order mark; Western text also without one, or cut inside a character."""
    encoding = f"utf-16{order}"
    found = detect_file_type(("\ufeff" + SAMPLES[name]).encode(encoding)[:end])
    assert found == ("UTF-16", "convert it: iconv -f utf-16 -t utf-8 {}")
    if name in ("two lines", "one line", "German", "French"):
        found = detect_file_type(SAMPLES[name].encode(encoding)[:end])
        assert found.name == "UTF-16 without a byte order mark"
        assert found.remedy == f"convert it: iconv -f {encoding} -t utf-8 {{}}"


@given(st.integers(32, HEAD_BYTES), st.randoms(use_true_random=False))
def test_file_types_many_nul_bytes_are_binary(size, random):
    nuls = set(random.sample(range(size), -(-size // 4)))
    data = bytes(0 if i in nuls else random.choice(b"aeiou \n\xfc") for i in range(size))
    assert detect_file_type(data) is not None


ENCODED = "Russian koi8-r,Russian cp1251,Greek cp1253,Chinese gb18030,Chinese big5"
ENCODED += ",Japanese shift_jis,Japanese euc_jp,Japanese iso2022_jp,Arabic cp1256"
WESTERN = """Grüße aus München, schöne Äpfel!
L'été à Paris, où il neige à Noël. Ça va très bien.
¿Dónde está el niño? ¡Mañana, señor!
Får får får? Nej, får får lamm. Älg och öring.
SCHÖNE GRÜSSE ÜBER DIE BRÜCKE
Não há razão para ações.""".split("\n")


@pytest.mark.parametrize("sample", ENCODED.split(","))
def test_file_types_text_in_other_encodings_is_text(sample):
    name, encoding = sample.split()
    data = SAMPLES[name].encode(encoding)
    assert detect_file_type(data[:HEAD_BYTES]) is None


@pytest.mark.parametrize("text", WESTERN)
def test_file_types_western_encodings_are_text(text):
    for encoding in ("latin1", "windows-1252", "cp850"):
        assert detect_file_type(text.encode(encoding)) is None


ODD = [
    *(b"", b"\0", b"a\0b\n\0\n", b"a\0b\nc\0d\n", b"\0\0\n\0\n", b"\xff\xfe\x01\n\xfe\n"),
    *(b"PK is short for pack\n", b"MZ\nBM\nID3 is a tag\n", b"%PDF- steht am Anfang.\n"),
    *(b"\x1b[1mbold\x1b[0m x\bx\n" * 9, b"field\x01field\x01field\n" * 99),
    *(b"Guten Tag\xfc\n" * 50 + b"\0", b"one line of some length and a NUL\0\n" * 200),
    # Words with which other files begin
    *(
        b"BZh91 ist ein Wort.\n",
        b"BZh9\n",
        b"7z und Rar! sind Programme.\n",
        b"(\xc2\xb5/\n",
        b"LZIP ja\n",
    ),
    *(
        b"GIF89a ist alt.\n",
        b"PAR1 und ARROW1\n",
        b"SQLite format 3 ist alt.\n",
        b"{rtf1}\n",
        b"]\n",
    ),
    *(b"P*M steht da.\n", b"RIFF und WEBP\n", b"MZ.\n", b"a" * 257 + b"ustar 1\n", b"\x80 uro\n"),
    b"f\xfcr\x01Haus\x01gro\xdf\n" * 50,
    b"<?xml version='1.0'?><p>\xc3\xa4</p>",
    *(text.encode(e) for text in SAMPLES.values() for e in ("utf-8", "utf-8-sig", "utf-7")),
]


@pytest.mark.parametrize("data", ODD, ids=range(len(ODD)))
def test_file_types_unusual_text_is_text(data):
    assert detect_file_type(data[:HEAD_BYTES]) is None


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))).map("\n".join))
def test_file_types_data_without_nul_is_not_utf16(text):
    found = detect_file_type(text.encode("utf-8")[:HEAD_BYTES])
    assert found is None or "UTF" not in found.name
