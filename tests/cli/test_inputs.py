"""Inputs that are no plain UTF-8 text: refused with what to do, unpacked, or noted."""

import gzip
import io
import json
import os
import re
import shutil
import zipfile

import pytest

import onmt_lite.jobs.job
from onmt_lite import TranslateOptions
from onmt_lite.checkpoints.shipped import DATA as MODELS
from onmt_lite.errors import FileError
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.jobs.engine import InProcess
from onmt_lite.jobs.job import run_job
from tests.support.files import DATA

LINES = b"one\ntwo\n\nodd\n"  # of the fixture src
OUT = "ein\nü\n\nx y z\n".encode()


def docx():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", "<w:document/>")
    return data.getvalue()


WORD = (
    "{} is a Word document (docx); save it as plain text (UTF-8), or convert it: "
    "pandoc -t plain --wrap=none {}"
)


def test_what_is_no_text_is_told_before_the_model_is_loaded(main, src, tmp_path):
    (tmp_path / "my letter.docx").write_bytes(docx())
    expected = WORD.format("my letter.docx", "'my letter.docx'")
    argv = ["-model", "no/such", "-output", "out"]
    main("-src", "my letter.docx", *argv).failed(3, expected)
    main("-src", src, "-tgt", "my letter.docx", *argv).failed(3, expected)
    assert not (tmp_path / "out").exists()


def test_what_is_no_text_on_standard_input(main, tmp_path):
    done = main("-output", "out", stdin=docx())
    done.failed(3, WORD.format("standard input", "FILE"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "in gzip"])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(4096), "binary data, with NUL bytes; give lines of text"),
        (b"\xff\xff\0\0" * 1024, "binary data, with NUL bytes; give lines of text"),
        (
            "ein Haus\n".encode("utf-16be") * 99,
            "UTF-16 without a byte order mark; convert it: iconv -f utf-16be -t utf-8 x",
        ),
        (
            "\ufeffein\nzwei\n".encode("utf-16le"),
            "UTF-16; convert it: iconv -f utf-16 -t utf-8 x",
        ),
    ],
)
def test_kinds_are_told_by_their_first_bytes(main, tmp_path, data, said, pack):
    (tmp_path / "x").write_bytes(pack(data))
    if pack is gzip.compress:
        said = re.sub(r": (iconv .*) x$", r": zcat x | \1", said)
    done = main("-src", "x", "-output", "out", "-model", "no/such")
    assert done.code == 3 and done.err.startswith(f"onmt_lite: error: x is {said}")
    assert os.listdir(tmp_path) == ["x"]


def test_utf_16_without_a_mark(main, tmp_path):
    (tmp_path / "wide").write_bytes("ein\nzwei\n".encode("utf-16-le"))
    main("-src", "wide").failed(
        3,
        "wide is UTF-16 without a byte order mark; convert it: iconv -f utf-16le -t utf-8 wide",
    )


def packed(data):
    """As pigz and `cat a.gz b.gz` make them: several members, zeros behind the last."""
    return gzip.compress(data[:5]) + gzip.compress(b"") + gzip.compress(data[5:]) + bytes(64)


def test_gzip_is_unpacked_whatever_its_name(main, tmp_path):
    for name in ("src.gz", "src"):
        (tmp_path / name).write_bytes(packed(LINES))
        done = main("-src", name, "-output", "out")
        assert (done.code, (tmp_path / "out").read_bytes()) == (0, OUT)
    done = main(stdin=packed(LINES))
    assert (done.code, done.out) == (0, OUT)
    (tmp_path / "plain.gz").write_bytes(LINES)
    assert main("-src", "plain.gz").out == OUT
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    assert main("-src", "empty.gz").out == b""


def test_lines_of_gzip_files_are_counted(main, src, tmp_path):
    (tmp_path / "tgt.gz").write_bytes(gzip.compress(b"ein\n" * 4))
    assert main("-src", src, "-tgt", "tgt.gz").err.count("GOLD SCORE") == 3 + 1
    (tmp_path / "tgt.gz").write_bytes(gzip.compress(b"ein\n" * 5))
    done = main("-src", src, "-tgt", "tgt.gz", "-model", "no/such")
    done.failed(3, "src has 4 lines, tgt has 5; they must match line by line")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-9], "it is cut off"),
        (lambda data: data[:5], "it is cut off"),
        (lambda data: data[:-6] + b"\0\0" + data[-4:], "it is damaged"),
        (lambda data: data[:20] + b"\xff\xff\xff" + data[23:], "it is damaged"),
        (lambda data: data + b"more", "it is damaged"),
    ],
)
def test_damaged_gzip_data(main, tmp_path, damage, reason):
    data = damage(gzip.compress(LINES * 3000))
    (tmp_path / "src.gz").write_bytes(data)
    argv = ["-output", "out"]
    done = main("-src", "src.gz", *argv, "-model", "no/such")
    done.failed(5, f"cannot unpack src.gz: {reason}; check it with gzip -t")
    done = main(*argv, stdin=data)
    done.failed(5, f"cannot unpack standard input: {reason}; check it with gzip -t")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()


def test_what_is_in_gzip_data_must_be_text_too(main, tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(docx()))
    main("-src", "x.gz").failed(3, WORD.format("x.gz", "x.gz"))
    (tmp_path / "x.gz").write_bytes(gzip.compress(gzip.compress(LINES)))
    done = main("-src", "x.gz")
    done.failed(3, "x.gz is gzip data within gzip data; unpack it first: zcat x.gz | zcat")


def test_lines_of_gzip_data_are_answered_as_they_come(process):
    """What the other side has flushed is translated, though the file is not at its end."""
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
    "is written anew": lambda path: os.utime(path, ns=(1, 1)),
    "is replaced": lambda path: (
        path.with_name("x").write_bytes(b"x"),
        path.with_name("x").rename(path),
    ),
}


class TestAnInputThatChanges:
    TOY = str(MODELS / "toy.json")

    @pytest.fixture
    def job(self, tmp_path):
        """job(progress) -> the error of a job with 5 buckets of src and tgt."""
        for name, line in (("src", b"katze\n"), ("tgt", b"the\n")):
            (tmp_path / name).write_bytes(line * 10)
        src, tgt, out = (str(tmp_path / name) for name in ("src", "tgt", "out"))
        given = dict(src=src, tgt=tgt, tgt_file_prefix=True, output=out, bucket_lines=2)
        pipeline = Pipeline.load(TranslateOptions.of(model=self.TOY))

        def run(progress):
            with pytest.raises(FileError) as caught:
                options = TranslateOptions.of(model=self.TOY, **given)
                run_job(options, InProcess(options, pipeline), progress)
            assert not (tmp_path / "out").exists()
            return str(caught.value)

        return run

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("name", ["src", "tgt"])
    def test_while_it_is_read(self, job, tmp_path, name, change):
        """The job ends with the first bucket, not the last."""
        calls = []

        def progress(n_lines, n_tokens):
            calls.append(n_lines)
            CHANGES[change](tmp_path / name)

        assert f"{tmp_path / name} was changed while it was read" in job(progress)
        assert calls == [2]

    def test_between_counting_and_reading(self, job, tmp_path, monkeypatch):
        def check(*args):
            CHANGES["grows"](tmp_path / "src")
            CHANGES["grows"](tmp_path / "tgt")
            return check_phrases(*args)

        check_phrases = onmt_lite.jobs.tasks.check_phrases
        monkeypatch.setattr(onmt_lite.jobs.tasks, "check_phrases", check)
        assert "src was changed while it was read" in job(None)

    def test_standard_input_that_is_a_file(self, main, tmp_path, monkeypatch):
        def count(*paths):
            CHANGES["grows"](tmp_path / "stdin")
            return look_at_inputs(*paths)

        look_at_inputs = onmt_lite.jobs.job.look_at_inputs
        monkeypatch.setattr(onmt_lite.jobs.job, "look_at_inputs", count)
        main("-output", "out", stdin=b"one\n" * 3).failed(
            5,
            "standard input was changed while it was read; put it back as it was, or translate it "
            "once more",
        )

    def test_one_that_is_removed_is_still_open(self, main, src, tmp_path, monkeypatch):
        removed = onmt_lite.jobs.tasks.note_encoding
        monkeypatch.setattr(
            onmt_lite.jobs.tasks, "note_encoding", lambda *args: (src.unlink(), removed(*args))
        )
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
    def test_a_record_has_the_other_fields(self, main, tmp_path, name, data):
        (tmp_path / name).write_bytes(data)
        done = main("-src", name, "-output_format", "jsonl")
        records = [json.loads(line) for line in done.out.decode("utf-8").splitlines()]
        assert [record["id"] for record in records] == list(range(len(OBJECTS)))
        found = [(r["src"], r["hyps"][0]["text"], r["notes"], r["fields"]) for r in records]
        assert found == [expected for _, expected in OBJECTS]
        assert b"[1.1, 10000.0]" in done.out
        n_invalid = sum("invalid-json" in expected[2] for _, expected in OBJECTS)
        assert done.code == 7 and f"error: {n_invalid} lines could not be translated" in done.err
        assert f"invalid-json: {n_invalid} of {len(OBJECTS)} lines" in done.err
        assert "not UTF-8" not in done.err

    def test_text_output_has_one_line_each(self, main, tmp_path):
        (tmp_path / "a").write_bytes(JSONL)
        main("-src", "a", "-input_format", "jsonl", "-output", "out")
        lines = (tmp_path / "out").read_bytes().decode("utf-8").splitlines()
        assert lines == [" ".join(text.split()) for _, (_, text, _, _) in OBJECTS]

    def test_standard_input_is_text_unless_told(self, main):
        data = b'{"text": "one", "de": "two"}\n'
        assert main("-input_format", "jsonl", stdin=data).out == b"ein\n"
        done = main("-input_format", "jsonl", "-text_field", "de", stdin=data)
        assert done.out == "ü\n".encode()
        assert main(stdin=data).code == 3  # a word that the table does not know

    def test_a_name_does_not_win_over_the_option(self, main, tmp_path):
        (tmp_path / "a.jsonl").write_bytes(LINES)
        assert main("-src", "a.jsonl", "-input_format", "text").out == OUT

    def test_references(self, main, src, tmp_path):
        """They are objects where their own file is named so."""
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

    def test_half_characters_are_no_matter_of_encoding(self, main, tiny_checkpoint):
        argv = ["-input_format", "jsonl", "-model", tiny_checkpoint, "-max_length", 3]
        done = main(*argv, stdin=b'{"text": "der \\ud83d hund"}\n')
        assert "invalid-utf8: 1 of 1 lines" in done.err and "NOTE" not in done.err

    def test_an_empty_name(self, main):
        main("-text_field", "").failed(2, "text_field is empty; give the name of a field")


class TestOtherEncodings:
    """Lines are translated, with U+FFFD; what to do is said at the end."""

    GERMAN = ["Grüße aus München", "Äpfel und Öl", "Das Haus", "für fünf", "schön", "süß", "Bär"]

    def note(self, main, model, data):
        done = main("-model", model, "-max_length", 3, stdin=data)
        assert (done.code, len(done.lines)) == (0, data.count(b"\n"))
        return [line for line in done.err.split("\n") if line.startswith("NOTE")]

    @pytest.mark.parametrize(("encoding", "more"), [("latin1", ""), ("windows-1252", " – 5 €")])
    def test_the_encoding_is_named(self, main, tiny_checkpoint, encoding, more):
        data = ("\n".join(self.GERMAN) + more + "\n").encode(encoding)
        assert self.note(main, tiny_checkpoint, data) == [
            "NOTE: lines 1, 2, 4, 5, 6, ... are not UTF-8 but look like "
            f"{encoding}; convert the input: iconv -f {encoding} -t utf-8"
        ]

    def test_of_a_packed_file(self, main, tiny_checkpoint, tmp_path):
        data = ("\n".join(self.GERMAN) + "\n").encode("latin1")
        (tmp_path / "it's.gz").write_bytes(gzip.compress(data))
        done = main("-model", tiny_checkpoint, "-max_length", 3, "-src", "it's.gz")
        assert done.code == 0 and "look like latin1; convert the input: iconv -f latin1" in done.err

    def test_an_unknown_encoding(self, main, tiny_checkpoint):
        data = "Привет мир\nКак дела\nДобрый день\n".encode("koi8-r")
        expected = ["NOTE: lines 1, 2, 3 are not UTF-8; convert the input"]
        assert self.note(main, tiny_checkpoint, data) == expected

    def test_a_file_in_two_encodings_is_not_converted_as_a_whole(self, main, tiny_checkpoint):
        data = "\n".join(self.GERMAN).encode("latin1") + b"\n" + "für\nÖl\n".encode()
        assert self.note(main, tiny_checkpoint, data) == [
            "NOTE: lines 1, 2, 4, 5, 6, ... are not UTF-8 but look like latin1; "
            "other lines are, so convert these alone"
        ]

    def test_a_few_damaged_lines_get_no_such_note(self, main, tiny_checkpoint):
        data = b"ein Haus\n" * 9 + b"f\xfcr\n" * 3
        assert self.note(main, tiny_checkpoint, data) == []


@pytest.fixture
def marian(tmp_path):
    return shutil.copytree(DATA / "hf" / "marian", tmp_path / "marian")


def test_a_marian_directory_without_its_sentencepiece_models(main, marian, tmp_path):
    (tmp_path / "raw").write_bytes(b"w37 w3 w90 w24\n")
    expected = main("-src", "raw", "-model", "marian").out
    (marian / "source.spm").unlink()
    rest = ", by which the model cuts lines into tokens; "
    rest += "put them there, or give lines of tokens and -tokenizer space"
    done = main("-src", "raw", "-model", "marian", "-output", "out")
    done.failed(4, f"missing: marian/source.spm{rest}")
    (marian / "target.spm").unlink()
    done = main("-src", "raw", "-model", "marian", "-output", "out")
    done.failed(4, f"missing: marian/source.spm, marian/target.spm{rest}")
    assert not (tmp_path / "out").exists()
    # Who has cut the lines can go on
    (tmp_path / "cut").write_text("▁w37 ▁w3 ▁w90 ▁w24\n", encoding="utf-8")
    done = main("-src", "cut", "-model", "marian", "-tokenizer", "space")
    assert done.code == 0
    assert done.out.decode().replace(" ", "").replace("▁", " ").strip() == expected.decode().strip()


def test_raw_text_for_a_model_of_tokens(main, marian, tmp_path):
    note = (
        "NOTE: {} of the first {} words are unknown to the model, which takes tokens separated by "
        "spaces; for text as it is, give -src_subword_model with -tokenizer bpe or sentencepiece, "
        "or -transforms\n"
    )
    argv = ["-model", "marian", "-tokenizer", "space"]
    done = main(*argv, stdin=b"Guten Morgen, Welt!\n\nDas Haus\n")
    assert done.code == 0 and note.format(5, 5) in done.err
    tokens = "▁w37 ▁w3 Haus\n\n▁w90 ▁w24\n".encode()
    assert "NOTE" not in main(*argv, stdin=tokens).err
    # The tokenizer of the model cuts text as it is
    assert "NOTE" not in main("-model", "marian", stdin=b"Guten Morgen\n").err


def test_only_the_first_lines_are_looked_at(main, marian, tmp_path):
    """Once, not at every window."""
    argv = ["-model", "marian", "-tokenizer", "space", "-max_length", 2, "-beam_size", 1]
    argv += ["-bucket_lines", 1024, "-workers", 1]
    done = main(*argv, stdin=b"Guten Tag\n" * 1500)
    assert done.err.count("NOTE") == 1 and "2048 of the first 2048 words" in done.err


def test_the_shipped_table_takes_tokens_without_a_note(main, src):
    records = main("-src", src, "-output_format", "jsonl")
    assert "NOTE" not in records.err
    assert [json.loads(line)["src"] for line in records.lines] == ["one", "two", "", "odd"]
