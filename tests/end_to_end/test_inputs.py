"""Inputs that are not plain UTF-8 text are rejected with a remedy, unpacked, or flagged."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import shutil
import zipfile

import pytest

from onmt_lite import TranslateOptions
from onmt_lite.checkpoints.shipped import DATA as MODELS
from onmt_lite.errors import FileError
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.jobs import job as job_module
from onmt_lite.jobs import tasks
from onmt_lite.jobs.job import run_job
from onmt_lite.jobs.tasks import InProcessEngine
from tests.support.files import DATA

LINES = b"one\ntwo\n\nodd\n"  # of the fixture src
OUT = "ein\nü\n\nx y z\n".encode()


def docx():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", "<w:document/>")
    return data.getvalue()


def convert(encoding, mark=" without a byte order mark"):
    return f"UTF-16{mark}; convert it: iconv -f {encoding} -t utf-8 x"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "in gzip"])
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (bytes(4096), "binary data, with NUL bytes; use a text file with one sentence per line"),
        (
            b"\xff\xff\0\0" * 1024,
            "binary data, with NUL bytes; use a text file with one sentence per line",
        ),
        ("ein Haus\n".encode("utf-16be") * 99, convert("utf-16be")),
        ("ein\nzwei\n".encode("utf-16le"), convert("utf-16le")),
        ("\ufeffein\nzwei\n".encode("utf-16le"), convert("utf-16", "")),
        ("\ufeffein\nzwei\n".encode("utf-16be"), convert("utf-16", "")),
        (docx(), "a Word document (docx); save it as plain text (UTF-8), or convert it: pandoc"),
    ],
)
def test_src_file_type_is_detected_by_first_bytes(main, src, tmp_path, data, problem, pack):
    (tmp_path / "x").write_bytes(pack(data))
    if pack is gzip.compress:
        problem = re.sub(r": (iconv .*) x$", r": zcat x | \1", problem)
    argv = ["-output", "out", "-model", "no/such"]
    for words in (["-src", "x"], ["-src", src, "-tgt", "x"]):
        done = main(*words, *argv)
        assert done.code == 3 and done.err.startswith(f"onmt_lite: error: x is {problem}")
    done = main(*argv[:2], stdin=pack(data))
    problem = re.sub(r"(zcat|utf-8) x", r"\1 FILE", problem)
    assert done.code == 3 and done.err.startswith(f"onmt_lite: error: standard input is {problem}")
    assert sorted(os.listdir(tmp_path)) == ["src.txt", "stdin", "x"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (bz2.compress(b"one\n"), "bzip2 data; unpack it first: bzip2 -dc x"),
        (lzma.compress(b"one\n"), "xz data; unpack it first: xz -dc x"),
        (b"\x28\xb5\x2f\xfd\x24\x04\x21\1\1one\n\x9f", "zstd data; unpack it first: zstd -dc x"),
        (b"\x04\x22\x4d\x18\x64\x40\xa7one\n", "lz4 data; unpack it first: lz4 -dc x"),
    ],
)
def test_src_compressed_is_rejected_with_command(main, src, tmp_path, data, problem):
    """Covers every option that reads a file, and unusual file names."""
    (tmp_path / "x").write_bytes(data)
    by_line = ["-src", src, "-force_words", "x"], ["-src", src, "-ban_words", "x"]
    for words in (["-src", "x"], ["-src", src, "-tgt", "x"], *by_line):
        main(*words, "-output", "out").failed(3, f"x is {problem}")
    main("-output", "out", stdin=data).failed(3, f"standard input is {problem[:-1]}FILE")
    done = main("-src", src, "-output", "out", "-replace_unk", "-phrase_table", "x")
    done.failed(4, f"x is {problem}")
    assert sorted(os.listdir(tmp_path)) == ["src.txt", "stdin", "x"]


def test_src_gzip_is_unpacked_regardless_of_name(main, tmp_path):
    # As pigz and `cat a.gz b.gz` make them: several members, zeros behind the last
    packed = gzip.compress(LINES[:5]) + gzip.compress(b"") + gzip.compress(LINES[5:]) + bytes(64)
    for name in ("src.gz", "src"):
        (tmp_path / name).write_bytes(packed)
        done = main("-src", name, "-output", "out")
        assert (done.code, (tmp_path / "out").read_bytes()) == (0, OUT)
    done = main(stdin=packed)
    assert (done.code, done.out) == (0, OUT)
    (tmp_path / "plain.gz").write_bytes(LINES)
    assert main("-src", "plain.gz").out == OUT
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    assert main("-src", "empty.gz").out == b""
    (tmp_path / "my twice.gz").write_bytes(gzip.compress(gzip.compress(LINES)))
    within = "gzip data within gzip data; unpack it first: zcat 'my twice.gz' | zcat"
    main("-src", "my twice.gz").failed(3, f"my twice.gz is {within}")


def test_src_gzip_lines_are_counted(main, src, tmp_path):
    (tmp_path / "tgt.gz").write_bytes(gzip.compress(b"ein\n" * 4))
    assert main("-src", src, "-tgt", "tgt.gz").err.count("GOLD SCORE") == 3 + 1
    (tmp_path / "tgt.gz").write_bytes(gzip.compress(b"ein\n" * 5))
    done = main("-src", src, "-tgt", "tgt.gz", "-model", "no/such")
    done.failed(3, "src has 4 lines, tgt has 5; they must match line by line")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-9], "it is truncated"),
        (lambda data: data[:5], "it is truncated"),
        (lambda data: data[:-6] + b"\0\0" + data[-4:], "it is damaged"),
        (lambda data: data[:20] + b"\xff\xff\xff" + data[23:], "it is damaged"),
        (lambda data: data + b"more", "it is damaged"),
    ],
)
def test_src_damaged_gzip_is_rejected(main, tmp_path, damage, reason):
    data = damage(gzip.compress(LINES * 3000))
    (tmp_path / "src.gz").write_bytes(data)
    argv = ["-output", "out"]
    done = main("-src", "src.gz", *argv, "-model", "no/such")
    done.failed(5, f"cannot unpack src.gz: {reason}; check it with gzip -t")
    done = main(*argv, stdin=data)
    done.failed(5, f"cannot unpack standard input: {reason}; check it with gzip -t")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()


def test_src_gzip_stream_is_translated_line_by_line(process):
    """Flushed data is translated before the end of the stream."""
    job = process(stdin=-1)
    with gzip.GzipFile(fileobj=job.stdin, mode="wb") as packing:
        for line, answer in [(b"one\n", b"ein\n"), (b"two\n", "ü\n".encode())]:
            packing.write(line)
            packing.flush()
            job.stdin.flush()
            assert job.stdout.readline() == answer
    job.stdin.close()
    assert (job.wait(timeout=200), job.stdout.read()) == (0, b"")


CHANGES = {
    "grows": lambda path: path.write_bytes(path.read_bytes() + b"katze\n"),
    "shrinks": lambda path: path.write_bytes(b"katze\n"),
    "is overwritten": lambda path: os.utime(path, ns=(1, 1)),
    "is replaced": lambda path: (
        path.with_name("x").write_bytes(b"x"),
        path.with_name("x").rename(path),
    ),
}


@pytest.fixture
def job(tmp_path):
    """job(progress) -> the error of a job with 5 buckets of src and tgt."""
    for name, line in (("src", b"katze\n"), ("tgt", b"the\n")):
        (tmp_path / name).write_bytes(line * 10)
    src, tgt, out = (str(tmp_path / name) for name in ("src", "tgt", "out"))
    given = dict(src=src, tgt=tgt, tgt_file_prefix=True, output=out, bucket_lines=2)
    options = TranslateOptions.of(model=str(MODELS / "toy.json"), **given)
    pipeline = Pipeline.load(options)

    def run(progress):
        with pytest.raises(FileError) as caught:
            run_job(options, InProcessEngine(options, pipeline), progress)
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    return run


@pytest.fixture
def meanwhile(monkeypatch):
    """meanwhile(module, name, do): call `do` before a function of the module runs."""

    def before(module, name, do):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: (do(), original(*args))[1])

    return before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["src", "tgt"])
def test_src_changed_while_reading_is_an_error(job, tmp_path, name, change):
    """The job ends after the first bucket, not after the last bucket."""
    calls = []

    def progress(n_lines, n_tokens):
        calls.append(n_lines)
        CHANGES[change](tmp_path / name)

    assert f"{tmp_path / name} changed while it was being read" in job(progress)
    assert calls == [2]


def test_src_changed_before_reading_is_an_error(main, job, tmp_path, meanwhile):
    def both():
        CHANGES["grows"](tmp_path / "src")
        CHANGES["grows"](tmp_path / "tgt")

    meanwhile(tasks, "check_phrases", both)  # after the lines are counted
    assert "src changed while it was being read" in job(None)
    meanwhile(job_module, "scan_inputs", lambda: CHANGES["grows"](tmp_path / "stdin"))
    main("-output", "out", stdin=b"one\n" * 3).failed(
        5,
        "standard input changed while it was being read; restore it, or run the job again",
    )


def test_src_removed_while_open_is_translated(main, src, meanwhile):
    meanwhile(job_module.Output, "append", src.unlink)
    assert main("-src", src).out == OUT


OBJECTS = [  # a line; its text, translation, notes and other fields
    (
        rb'{"id": 7, "text": "one", "hyps": [1.10, 1e4], "notes": "\u2028", "src": null}',
        ("one", "ein", [], {"id": 7, "hyps": [1.1, 1e4], "notes": "\u2028", "src": None}),
    ),
    (
        '{"text": "odd", "\u2028": "\x85", "fields": {"text": "two"}}\r'.encode(),
        ("odd", "x\u2028y\nz", [], {"\u2028": "\x85", "fields": {"text": "two"}}),
    ),
    (rb'{"text": "\r\n one\u2028"}', ("\r\n one\u2028", "ein", [], {})),
    (b'{"text": "one", "x": "\xff"}', ("one", "ein", ["invalid-utf8"], {"x": "\ufffd"})),
    (b'{"text": "", "id": -0}', ("", "", ["empty"], {"id": 0})),
    (b'{"text": null, "id": 9007199254740993}', ("", "", ["invalid-json"], {"id": 2**53 + 1})),
    *[
        (line, ("", "", ["invalid-json"], {}))
        for line in [
            b"",
            b"nonsense",
            b'["one"]',
            b'{"text": "one"',
            b'{"text": "one", "id": NaN}',
            b'{"text": "one", "id": [-1e400]}',
            b'{"text": "one", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        ]
    ],
    (
        b'{"text": "one", "x": "' + b"x" * (1 << 20) + b'"}',
        ("", "", ["truncated", "invalid-json"], {}),
    ),
    (b'{"text": "two"}', ("two", "ü", [], {})),
]
JSONL = b"\n".join(line for line, _ in OBJECTS)


class TestJsonl:
    @pytest.mark.parametrize(
        ("name", "data"), [("a.jsonl", JSONL), ("a.JSONL.gz", gzip.compress(JSONL))]
    )
    def test_input_format_jsonl_passes_other_fields_through(self, main, tmp_path, name, data):
        (tmp_path / name).write_bytes(data)
        done = main("-src", name, "-output_format", "jsonl")
        records = [json.loads(line) for line in done.out.decode("utf-8").splitlines()]
        assert [record["id"] for record in records] == list(range(len(OBJECTS)))
        found = [(r["src"], r["hyps"][0]["text"], r["notes"], r["fields"]) for r in records]
        assert found == [expected for _, expected in OBJECTS]
        assert b"[1.1, 10000.0]" in done.out
        n_invalid = sum("invalid-json" in expected[2] for _, expected in OBJECTS)
        assert done.code == 7 and f"error: {n_invalid} lines could not be translated" in done.err
        assert "the input is not a JSON object with text; the output line is empty" in done.err
        assert "NOTE: line" not in done.err

    def test_input_format_jsonl_text_output_has_one_line_each(self, main, tmp_path):
        (tmp_path / "a").write_bytes(JSONL)
        main("-src", "a", "-input_format", "jsonl", "-output", "out")
        lines = (tmp_path / "out").read_bytes().decode("utf-8").splitlines()
        assert lines == [" ".join(text.split()) for _, (_, text, _, _) in OBJECTS]

    def test_input_format_of_stdin_is_text_by_default(self, main):
        data = b'{"text": "one", "de": "two"}\n'
        assert main("-input_format", "jsonl", stdin=data).out == b"ein\n"
        done = main("-input_format", "jsonl", "-text_field", "de", stdin=data)
        assert done.out == "ü\n".encode()
        assert main(stdin=data).code == 3  # a word that the table does not know

    def test_input_format_option_overrides_file_name(self, main, tmp_path):
        (tmp_path / "a.jsonl").write_bytes(LINES)
        assert main("-src", "a.jsonl", "-input_format", "text").out == OUT

    def test_text_field_missing_in_all_lines_is_rejected(self, main, src, tmp_path):
        """Standard input, and files where any line has the field, are translated."""
        data = b'{"id": 1, "sentence": "one"}\nx\n{"n": 2}\n'
        has = "has no field 'text' (fields: id, sentence); set -text_field"
        for name, pack in (("a.jsonl", bytes), ("b.jsonl.gz", gzip.compress)):
            (tmp_path / name).write_bytes(pack(data))
            done = main("-src", name, "-output", "out", "-model", "no/such")
            done.failed(3, f"src {name}: no line contains text; line 1 {has}")
        (tmp_path / "src").write_bytes(b"one\n" * 3)
        done = main("-src", "src", "-tgt", "a.jsonl")
        done.failed(3, f"tgt a.jsonl: no line contains text; line 1 {has}")
        done = main("-src", "a.jsonl", "-text_field", "body")
        assert done.code == 3 and "line 1 has no field 'body' (fields: id, sentence); " in done.err
        blank = "3 lines could not be translated (1, 2 and 3); they are empty in the output, which"
        done = main("-input_format", "jsonl", stdin=data)
        assert (done.code, done.out) == (7, b"\n\n\n")
        assert f"{blank} is complete; line 1 {has}" in done.err
        assert f"empty [no-text-field]\n    1: {has}\n" in done.err
        (tmp_path / "a.jsonl").write_bytes(data + b'{"text": "one"}\n')
        done = main("-src", "a.jsonl", "-output_format", "jsonl")
        records = [json.loads(line) for line in done.lines]
        notes = [["no-text-field"], ["invalid-json"], ["no-text-field"], []]
        assert done.code == 7 and [record["notes"] for record in records] == notes
        assert records[0]["fields"] == {"id": 1, "sentence": "one"}

    def test_input_format_jsonl_with_references(self, main, src, tmp_path):
        """References are objects if their file has a .jsonl name."""
        (tmp_path / "tgt").write_bytes(b"ein\n" * 3)
        (tmp_path / "tgt.jsonl").write_bytes(b'{"text": "ein"}\n' * 2 + b'{"text": 1}\n')
        (tmp_path / "src.jsonl").write_bytes(b'{"text": "one"}\n{"text": "two"}\n{"text": "one"}\n')
        (tmp_path / "src").write_bytes(b"one\ntwo\none\n")
        argv = ["-output_format", "jsonl", "-quiet"]

        def gold(src, tgt):
            lines = main("-src", src, "-tgt", tgt, *argv).lines
            return [(json.loads(x)["gold_log_prob"], json.loads(x)["notes"]) for x in lines]

        expected = gold("src", "tgt")
        assert all(score < 0 for score, _ in expected)
        assert gold("src.jsonl", "tgt") == expected
        expected[2] = (None, ["tgt-invalid-json"])
        assert gold("src", "tgt.jsonl") == gold("src.jsonl", "tgt.jsonl") == expected
        begun = main("-src", "src", "-tgt", "tgt.jsonl", "-tgt_file_prefix")
        assert begun.out == b"ein\nein\nein\n"

    def test_input_format_jsonl_lone_surrogates(self, main, tiny_checkpoint):
        argv = ["-input_format", "jsonl", "-model", tiny_checkpoint, "-max_length", 3]
        done = main(*argv, stdin=b'{"text": "der \\ud83d hund"}\n')
        assert "line 1: invalid UTF-8 bytes" in done.err and "NOTE" not in done.err

    def test_text_field_empty_name(self, main):
        main("-text_field", "").failed(2, "text_field is empty; set it to the name of a JSON field")


GERMAN = "Grüße aus München\nÄpfel und Öl\nDas Haus\nfür fünf\nschön\nsüß\nBär"
ENCODED = [  # lines, and how the summary begins to name those that are not UTF-8
    (GERMAN.encode("latin1"), "lines 1, 2, 4, 5, 6 and 1 more"),
    (f"{GERMAN} – 5 €".encode("windows-1252"), "lines 1, 2, 4, 5, 6 and 1 more"),
    ("Привет мир\nКак дела\nДобрый день".encode("koi8-r"), "lines 1, 2 and 3"),
    (GERMAN.encode("latin1") + b"\n" + "für\nÖl".encode(), "lines 1, 2, 4, 5, 6 and 1 more"),
    (b"ein Haus\n" * 2 + b"f\xfcr\n", "line 3"),
]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "in gzip"])
@pytest.mark.parametrize(("data", "lines"), ENCODED)
def test_src_lines_in_other_encodings_get_warning(main, tiny_checkpoint, data, lines, pack):
    done = main("-model", tiny_checkpoint, "-max_length", 3, stdin=pack(data))
    assert (done.code, len(done.lines)) == (0, len(data.rstrip(b"\n").split(b"\n")))
    notes = [line for line in done.err.split("\n") if "invalid-utf8" in line]
    assert len(notes) == 1 and notes[0].startswith(f"{lines}: invalid UTF-8 bytes")
    assert "convert the input with iconv" in notes[0]


@pytest.fixture
def marian(tmp_path):
    return shutil.copytree(DATA / "hf" / "marian", tmp_path / "marian")


def test_model_marian_without_sentencepiece_is_rejected(main, marian, tmp_path):
    (tmp_path / "raw").write_bytes(b"w37 w3 w90 w24\n")
    expected = main("-src", "raw", "-model", "marian").out
    (marian / "source.spm").unlink()
    rest = ", needed for tokenization; add them to the model directory, "
    rest += "or pass tokenized lines with -tokenizer space"
    done = main("-src", "raw", "-model", "marian", "-output", "out")
    done.failed(4, f"missing: marian/source.spm{rest}")
    (marian / "target.spm").unlink()
    done = main("-src", "raw", "-model", "marian", "-output", "out")
    done.failed(4, f"missing: marian/source.spm, marian/target.spm{rest}")
    assert not (tmp_path / "out").exists()
    # Tokenized lines can be translated
    (tmp_path / "cut").write_text("▁w37 ▁w3 ▁w90 ▁w24\n", encoding="utf-8")
    done = main("-src", "cut", "-model", "marian", "-tokenizer", "space")
    assert done.code == 0
    assert done.out.decode().replace(" ", "").replace("▁", " ").strip() == expected.decode().strip()


def test_raw_text_for_token_model_logs_notice(main, marian, tmp_path):
    note = (
        "NOTE: {} of the first {} words are not in the vocabulary, and this model expects tokens "
        "separated by spaces; to translate raw text, set -src_subword_model with -tokenizer bpe or "
        "sentencepiece, or use -transforms\n"
    )
    argv = ["-model", "marian", "-tokenizer", "space"]
    done = main(*argv, stdin=b"Guten Morgen, Welt!\n\nDas Haus\n")
    assert done.code == 0 and note.format(5, 5) in done.err
    tokens = "▁w37 ▁w3 Haus\n\n▁w90 ▁w24\n".encode()
    assert "NOTE" not in main(*argv, stdin=tokens).err
    # The tokenizer of the model cuts text as it is
    assert "NOTE" not in main("-model", "marian", stdin=b"Guten Morgen\n").err


def test_raw_text_notice_only_considers_first_lines(main, marian, tmp_path):
    """The notice is logged once, not for every window."""
    argv = ["-model", "marian", "-tokenizer", "space", "-max_length", 2, "-beam_size", 1]
    argv += ["-bucket_lines", 1024, "-workers", 1]
    done = main(*argv, stdin=b"Guten Tag\n" * 1500)
    assert done.err.count("NOTE") == 1 and "2048 of the first 2048 words" in done.err


def test_raw_text_notice_is_not_logged_for_table_model(main, src):
    records = main("-src", src, "-output_format", "jsonl")
    assert "NOTE" not in records.err
    assert [json.loads(line)["src"] for line in records.lines] == ["one", "two", "", "odd"]
