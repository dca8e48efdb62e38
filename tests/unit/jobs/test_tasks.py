"""Buckets: the lines of an input split by number, whole or in shards."""

import contextlib
import gzip
import hashlib
import json
import os
import subprocess
import sys
import zlib
from itertools import repeat

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onmt_lite.__main__ import main
from onmt_lite.api import Translator
from onmt_lite.checkpoints.shipped import DATA
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, FileError
from onmt_lite.jobs.inputs import scan_file, scan_inputs, split_spans
from onmt_lite.jobs.tasks import RangeReader
from onmt_lite.text import lines as of_lines
from onmt_lite.text.lines import LineReader

TOY = DATA / "toy.json"


def read(path, bucket_lines, shard=None, tgt=None):
    """Return the buckets of a file and the number of lines."""
    options = TranslateOptions.of(
        src=str(path), tgt=tgt, shard=shard, bucket_lines=bucket_lines, device="cpu"
    )
    inputs = scan_inputs(options, [str(path)])
    with contextlib.closing(RangeReader()) as reader:
        return [reader.read_bucket(each, options.data) for each in inputs.ranges], inputs.n_lines


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 9))
def test_shard_contains_consecutive_whole_buckets(tmp_path_factory, n_lines, bucket_lines, n_parts):
    """From bucket B(I-1)/N to before BI/N, both rounded down; lines keep their numbers."""
    path = tmp_path_factory.mktemp("shards") / "src"
    path.write_text("".join(f"line {i}\n" for i in range(n_lines)))
    whole, _ = read(path, bucket_lines)
    starts = range(0, n_lines, bucket_lines)
    assert [[line.id for line in b.lines] for b in whole] == [
        list(range(start, min(start + bucket_lines, n_lines))) for start in starts
    ]
    joined = []
    for part in range(1, n_parts + 1):
        buckets, n_found = read(path, bucket_lines, f"{part}/{n_parts}")
        n_buckets = len(starts)
        expected = range(n_buckets * (part - 1) // n_parts, n_buckets * part // n_parts)
        assert [bucket.number for bucket in buckets] == list(expected)
        assert n_found == sum(len(bucket.lines) for bucket in buckets)
        joined += buckets
    assert joined == whole


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 7))
def test_tgt_is_split_like_src(tmp_path_factory, n_lines, bucket_lines):
    folder = tmp_path_factory.mktemp("targets")
    for name in ("src", "tgt"):
        (folder / name).write_text("".join(f"{name} {i}\n" for i in range(n_lines)))
    whole, _ = read(folder / "src", bucket_lines, tgt=str(folder / "tgt"))
    for bucket in whole:
        ids = [line.id for line in bucket.lines]
        assert [line.text for line in bucket.tgt_lines] == [f"tgt {i}" for i in ids]
        assert [line.id for line in bucket.tgt_lines] == ids


@pytest.mark.parametrize("n_tgt", [0, 7, 9, 11])
@pytest.mark.parametrize("shard", [None, "1/3"])
def test_tgt_with_different_line_count_is_rejected(tmp_path, n_tgt, shard):
    (tmp_path / "src").write_text("a\n" * 10)
    (tmp_path / "tgt").write_text("b\n" * n_tgt)
    with pytest.raises(DataError, match=f"src has 10 lines, tgt has {n_tgt}"):
        read(tmp_path / "src", 4, shard, tgt=str(tmp_path / "tgt"))


def lines_by_hand(data):
    """Split a file into lines as docs/jobs.md describes."""
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


TEXT = st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\n", b"\xff", "\u2028".encode(), b"bc"]))


class TestSplitSpans:
    @given(st.lists(TEXT), st.integers(1, 4))
    @example([], 1)
    @example([[b"\n"], [b"\n"]], 2)
    def test_spans_contain_all_bytes_and_requested_lines(self, chunks, bucket_lines):
        chunks = [b"".join(chunk) for chunk in chunks]
        data = b"".join(chunks)
        spans = list(split_spans("a", chunks, repeat(bucket_lines)))
        pieces = [data[span.start : span.start + span.n_bytes] for span in spans]
        assert b"".join(pieces) == data
        assert [zlib.crc32(piece) for piece in pieces] == [span.crc for span in spans]
        lines = lines_by_hand(data)
        wanted = [lines[i : i + bucket_lines] for i in range(0, len(lines), bucket_lines)]
        assert [lines_by_hand(piece) for piece in pieces] == wanted
        assert [span.n_lines for span in spans] == [len(bucket) for bucket in wanted]

    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    @pytest.mark.parametrize("bucket_lines", [1, 3, 7, 1000])
    def test_buckets_of_file_equal_buckets_of_stream(
        self, tmp_path, bucket_lines, monkeypatch, pack
    ):
        """Also for long lines and gzip data."""
        monkeypatch.setattr(of_lines, "MAX_WINDOW_BYTES", 500)
        monkeypatch.setattr(of_lines, "MAX_MEAN_BYTES", 50)
        lines = [b"x" * (i * 37 % 300) + b"\xff\r" * (i % 3) for i in range(200)]
        path = tmp_path / "a.txt"
        path.write_bytes(pack(b"\xef\xbb\xbf" + b"\n".join(lines)))
        with open(path, "rb") as file:
            expected = list(LineReader(file.fileno(), str(path), bucket_lines).windows())
        found, _ = read(path, bucket_lines)
        assert [bucket.lines for bucket in found] == expected

    def test_line_ids_continue_across_files_and_buckets_do_not(self, tmp_path):
        files = [b"\xef\xbb\xbfa\nb\nc", b"", b"\xef\xbb\xbfd\n", b"\n\n\n"]
        for i, data in enumerate(files):
            (tmp_path / str(i)).write_bytes(data)
        options = TranslateOptions.of(bucket_lines=2)
        inputs = scan_inputs(options, [str(tmp_path / str(i)) for i in range(4)])
        spans = [(each.spans["src"].path[-1], each.first, each.n_lines) for each in inputs.ranges]
        assert spans == [("0", 0, 2), ("0", 2, 1), ("2", 3, 1), ("3", 4, 2), ("3", 6, 1)]
        assert list(inputs.files) == ["src 1", "src 2", "src 3", "src 4"]
        with contextlib.closing(RangeReader()) as reader:
            lines = [
                x for each in inputs.ranges for x in reader.read_bucket(each, options.data).lines
            ]
        assert [(line.id, line.text) for line in lines] == list(enumerate([*"abcd", "", "", ""]))

    def test_overlong_line_is_truncated(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"x" * (3 << 20) + b"\nshort\n")
        ((only,), _) = read(tmp_path / "a.txt", 9)
        long, short = only.lines
        assert (len(long.text), long.notes, short.text) == (1 << 20, ("truncated",), "short")

    @pytest.mark.parametrize("after", [b"a\nb\nX\nd\n", b"a\nb\n", b"a\nb\nc"])
    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_changed_file_is_detected(self, tmp_path, after, pack):
        path = tmp_path / "a.txt"
        path.write_bytes(pack(b"a\nb\nc\nd\n"))
        options = TranslateOptions.of(src=str(path), bucket_lines=2)
        _, second = scan_inputs(options, [str(path)]).ranges
        path.write_bytes(pack(after))
        with pytest.raises(FileError, match="changed while it was being read"):
            with contextlib.closing(RangeReader()) as reader:
                reader.read_bucket(second, options.data)

    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_scan_file_returns_size_and_sha256(self, tmp_path, pack):
        data = b"some text\n" * 600_000
        (tmp_path / "a").write_bytes(pack(data))
        found = scan_file(str(tmp_path / "a"), repeat(5))
        assert (found.n_bytes, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert (found.n_lines, len(found.spans)) == (600_000, 120_000)


def test_gzip_file_is_unpacked_once(tmp_path, monkeypatch):
    """Ranges are read in order, as a rule; one that was lost is read again."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"0123456\n" * 100_000))
    options = TranslateOptions.of(src=str(tmp_path / "a.gz"), bucket_lines=1000)
    found = scan_inputs(options, [options.data.src]).ranges
    n_bytes, read = 0, gzip.GzipFile.read

    def counted(self, size=-1):
        nonlocal n_bytes
        n_bytes += size
        return read(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    with contextlib.closing(RangeReader()) as reader:
        for each in [*found[::2], found[1]]:
            assert len(reader.read_bucket(each, options.data).lines) == 1000
    assert n_bytes <= 2 * 800_000


@pytest.fixture
def translated(tmp_path):
    def translate(*argv):
        out = tmp_path / "translated"
        assert main(["-model", str(TOY), "-quiet", "-output", str(out), *map(str, argv)]) == 0
        return out.read_bytes()

    return translate


@pytest.fixture
def src(tmp_path):
    path = tmp_path / "src"
    path.write_text("katze\n\nkatze\n\nkatze\n" * 5)
    return path


def test_shard_outputs_concatenate_to_full_output(src, tmp_path, translated):
    (tmp_path / "tgt").write_text("the cat\n" * 25)
    for more in (
        ["-output_format", "jsonl"],
        ["-do_sample", "-seed", "3", "-n_best", "2"],
        ["-tgt", tmp_path / "tgt", "-output_format", "jsonl"],
    ):
        argv = ["-src", src, "-bucket_lines", 3, *more]
        whole = translated(*argv)
        for n_parts in (1, 2, 4, 12):
            parts = [translated(*argv, "-shard", f"{i + 1}/{n_parts}") for i in range(n_parts)]
            assert b"".join(parts) == whole
        assert parts[0] == b""  # nine buckets, twelve parts


@pytest.mark.parametrize("shard", ["0/2", "3/2", "-1/2", "1/0", "1", "a/b", "1/2/3", "1.0/2", ""])
def test_shard_number_out_of_range_is_rejected(src, capsys, shard):
    assert main(["-model", str(TOY), "-src", str(src), f"-shard={shard}"]) == 2
    assert "shard" in capsys.readouterr().err


def test_shard_of_stream_is_rejected(tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    for words in ([], ["-src", str(tmp_path / "fifo")]):
        assert main(["-model", str(TOY), "-shard", "1/2", *words]) == 2
        assert "in advance; use a file" in capsys.readouterr().err


def test_bucket_lines_does_not_change_output(src, translated):
    argv = ["-src", src, "-output_format", "jsonl"]
    outputs = {translated(*argv, "-bucket_lines", n) for n in (1, 2, 7, 1000)}
    (output,) = outputs
    assert [json.loads(line)["id"] for line in output.splitlines()] == list(range(25))


def test_bucket_lines_limits_batches(src, tmp_path):
    """Progress is reported after each batch, and a batch never spans two buckets."""
    translator = Translator.from_pretrained(TOY, device="cpu", bucket_lines=4)
    seen = []
    translator.translate_file(src, tmp_path / "out", lambda n, _: seen.append(n))
    assert {*range(4, 25, 4), 25} <= set(seen)


def test_reading_and_writing_do_not_import_torch():
    """The parent of workers never loads torch."""
    code = "import sys, onmt_lite.jobs.job; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
