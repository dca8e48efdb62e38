"""The output name selects format and gzip; equal data gives equal bytes."""

import gzip
import json
import os
import signal
import subprocess
import zlib

import pytest
import yaml

from onmt_lite import OptionWarning, Translator
from onmt_lite.config.files import GZIP_CHUNK, GzipCompressor
from tests.support.stop_signals import stop_before_part

OBJECTS = b'{"text": "one", "id": 7}\n{"id": 8, "text": "two"}\n'
TEXTS = ["ein", "ü"]  # of OBJECTS
TIME_FIELD = slice(4, 8)  # of a gzip header


def written(path):
    data = path.read_bytes()
    return (gzip.decompress(data) if path.name.lower().endswith(".gz") else data).decode("utf-8")


def read_as(format, text):
    """Return the translations of an output; each format is parsed separately."""
    lines = text.split("\n")[:-1]
    if format == "jsonl":
        records = list(map(json.loads, lines))
        assert [record["fields"]["id"] for record in records] == [7, 8]
        return [record["hyps"][0]["text"] for record in records]
    return [line.split("\t")[-1] for line in lines if format != "tsv" or line.count("\t") == 4]


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "format"),
    [("o.jsonl", "jsonl"), ("O.JSONL", "jsonl"), ("o.tsv", "tsv"), ("o.en", "text"), ("o", "text")],
)
def test_output_format_follows_file_name(main, tmp_path, name, format, gz):
    (tmp_path / "in.jsonl").write_bytes(OBJECTS)
    done = main("-src", "in.jsonl", "-output", name + gz)
    assert (done.code, done.err) == (0, "")
    assert read_as(format, written(tmp_path / (name + gz))) == TEXTS
    assert sorted(os.listdir(tmp_path)) == sorted(["in.jsonl", name + gz])


def test_output_format_without_name_is_text(main):
    assert main("-input_format", "jsonl", stdin=OBJECTS).lines == TEXTS


@pytest.mark.parametrize(
    ("name", "format", "suggested"),
    [
        *(("o.jsonl", format, "jsonl") for format in ("text", "moses", "tsv")),
        *(("o.tsv.gz", format, "tsv") for format in ("text", "jsonl")),
        ("o.json", "auto", "jsonl"),
        *(("o.txt", format, None) for format in ("auto", "text", "jsonl", "moses", "tsv")),
        *(("o.jsonl", format, None) for format in ("auto", "jsonl")),
    ],
)
def test_output_format_contradicting_name_logs_notice(main, tmp_path, name, format, suggested):
    done = main("-output", name, "-output_format", format, stdin=b"one\n")
    written = "text" if format == "auto" else format
    note = (
        f"NOTE: output {name}: the format is {written}, but the extension suggests {suggested}; "
        "set output_format or rename the file\n"
    )
    assert (done.code, done.err) == (0, note if suggested else "")


@pytest.mark.parametrize("ending", [".zst", ".xz", ".bz2", ".lz4", ".zip", ".7z"])
def test_output_other_compression_is_rejected(main, tmp_path, ending):
    name = f"my out{ending}"
    problem = f"{name}: {ending} files are not supported; use a name"
    main("-output", name, stdin=b"one\n").failed(2, f"output {problem} that ends in .gz")
    main("-report", name, stdin=b"one\n").failed(2, f"report {problem} that ends in .gz")
    for option in ("log_file", "save_config"):
        main(f"-{option}", name, stdin=b"one\n").failed(2, f"{option} {problem} without {ending}")
        rejected = f"{option} x.gz: .gz files are not supported; use a name without .gz"
        main(f"-{option}", "x.gz", stdin=b"one\n").failed(2, rejected)
    main("-dump_beam", f"beam.html{ending}", stdin=b"one\n").failed(
        2,
        f"dump_beam: must be a file name that ends in .json or .html, got 'beam.html{ending}' "
        "(command line)",
    )
    assert os.listdir(tmp_path) == ["stdin"]


def test_output_gzip_bytes_do_not_depend_on_workers_or_resume(main, src, process, tmp_path):
    """Runs: uninterrupted, with workers, resumed, from a stream, and from Python."""
    argv = ["-bucket_lines", "1", "-report", "notes.gz"]
    assert main("-src", src, "-output", "a.gz", *argv).code == 0
    a, notes = ((tmp_path / name).read_bytes() for name in ("a.gz", "notes.gz"))
    assert gzip.decompress(a).decode("utf-8") == "ein\nü\n\nx y z\n"
    assert json.loads(gzip.decompress(notes).split(b"\n")[0])["id"] == 2
    assert a[TIME_FIELD] == notes[TIME_FIELD] == bytes(4) and a[3] == 0  # no name either
    assert process("-src", src, "-output", "w.gz", *argv[:2], "-workers", "2").wait() == 0
    with stop_before_part(1):
        assert main("-src", src, "-output", "r.gz", *argv).code == 143
    assert not (tmp_path / "r.gz").exists()
    done = main("-src", src, "-output", "r.gz", *argv, "-resume")
    assert done.code == 0 and "resuming: 1 of 4 lines" in done.err
    assert (tmp_path / "notes.gz").read_bytes() == notes
    assert main("-src", src, "-output", "r.gz", *argv, "-resume").code == 0
    assert main("-output", "s.gz", stdin=src.read_bytes()).code == 0
    for name in "wrs":
        assert (tmp_path / f"{name}.gz").read_bytes() == a, name


def test_output_gzip_of_shards_concatenates(main, src, tmp_path):
    for i in (1, 2, 3):
        argv = ["-shard", f"{i}/3", "-bucket_lines", "2", "-output", f"{i}.jsonl.gz"]
        assert main("-src", src, *argv).code == 0
    joined = b"".join((tmp_path / f"{i}.jsonl.gz").read_bytes() for i in (1, 2, 3))
    records = map(json.loads, gzip.decompress(joined).splitlines())
    assert [record["id"] for record in records] == [0, 1, 2, 3]


def test_output_gzip_pipe_receives_each_line_at_once(process, tmp_path):
    os.mkfifo(tmp_path / "pipe.gz")
    job = process("-output", "pipe.gz", stdin=subprocess.PIPE)
    unpacked = zlib.decompressobj(wbits=31)
    with open(tmp_path / "pipe.gz", "rb", buffering=0) as pipe:
        for line, answer in [(b"one\n", b"ein\n"), (b"two\n", "ü\n".encode())]:
            job.stdin.write(line)
            job.stdin.flush()
            assert unpacked.decompress(pipe.read(1 << 16)) == answer
        job.stdin.close()
        assert job.wait() == 0
        assert unpacked.decompress(pipe.read()) == b"" and unpacked.eof


@pytest.mark.parametrize("sizes", [[], [1], [GZIP_CHUNK], [3] * 50_000, [400_000, 5]])
def test_gzip_compressor_bytes_do_not_depend_on_chunks(sizes):
    data = os.urandom(300) * 400 + b"a" * sum(sizes)
    whole, cut = GzipCompressor(), GzipCompressor()
    expected = whole.compress(data) + whole.finish()
    parts, at = [], 0
    for size in [*sizes, len(data)]:
        parts.append(cut.compress(data[at : at + size]))
        at += size
    assert b"".join([*parts, cut.finish()]) == expected and gzip.decompress(expected) == data


def test_resume_compares_resolved_output_format(main, src, tmp_path):
    argv = ["-src", src, "-output", "o.jsonl", "-bucket_lines", "1"]
    with stop_before_part(1):
        assert main(*argv).code == 128 + signal.SIGTERM
    refused = main(*argv, "-resume", "-output_format", "text")
    assert refused.code == 2 and "output_format was jsonl, now text" in refused.err
    done = main(*argv, "-resume", "-output_format", "jsonl")
    assert done.code == 0 and "resuming: 1 of 4 lines" in done.err


def test_save_config_contains_output_format(main, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(OBJECTS)
    assert main("-src", "in.jsonl", "-output", "o.jsonl", "-save_config", "job.yaml").code == 0
    saved = (tmp_path / "job.yaml").read_text("utf-8")
    assert "output_format: auto  # default; here jsonl\n" in saved
    assert yaml.safe_load(saved)["output"] == "o.jsonl"
    assert main("-config", "job.yaml").code == 0
    assert read_as("jsonl", written(tmp_path / "o.jsonl")) == TEXTS


def test_score_only_output_format_follows_name(main, src, tmp_path):
    (tmp_path / "tgt").write_text("ein\nü\n\nb\n", "utf-8")
    argv = ["-src", src, "-tgt", "tgt", "-score_only"]
    for name in ("plain", "scores.tsv"):  # both with tabs
        done = main(*argv, "-output", name)
        assert done.code == 0 and "NOTE" not in done.err
    assert written(tmp_path / "scores.tsv") == written(tmp_path / "plain")
    assert main(*argv, "-output", "scores.jsonl").code == 0
    records = list(map(json.loads, written(tmp_path / "scores.jsonl").splitlines()))
    columns = [line.split("\t")[0] for line in written(tmp_path / "plain").splitlines()]
    found = [f"{r['gold_log_prob']:.4f}" if r["gold_log_prob"] is not None else "" for r in records]
    assert found == columns


def test_translate_file_output_format_follows_name(table, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(OBJECTS)
    translator = Translator.from_pretrained(table)
    for name, format in [("o.jsonl.gz", "jsonl"), ("o.tsv", "tsv"), ("o.en", "text")]:
        translator.translate_file(tmp_path / "in.jsonl", tmp_path / name)
        assert read_as(format, written(tmp_path / name)) == TEXTS
    with pytest.warns(OptionWarning, match="the format is text, but the extension suggests jsonl"):
        translator.translate_file(tmp_path / "in.jsonl", tmp_path / "o.jsonl", output_format="text")
    with pytest.warns(OptionWarning, match="with_score: has no effect"):
        translator.translate_file(tmp_path / "in.jsonl", tmp_path / "p.jsonl", with_score=True)
