"""Units of work: the lines of an input, cut by number alone, whole or in shards."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.__main__ import main
from onmt_lite.checkpoints.shipped import DATA
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError
from onmt_lite.inference.translator import Translator
from onmt_lite.jobs.buckets import choose_shard, open_buckets

TOY = DATA / "toy.json"


def read(path, bucket_lines, shard=None, tgt=None, n_done=0):
    options = TranslateOptions.of(src=str(path), tgt=tgt, shard=shard)
    n_lines = path.read_bytes().count(b"\n")
    found = choose_shard(str(path), options.jobs, bucket_lines, n_lines)
    with open_buckets(options.data, bucket_lines, found) as reader:
        buckets = list(reader.buckets(n_done))
    return buckets, found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 9))
def test_shards_are_runs_of_whole_buckets(tmp_path_factory, n_lines, bucket_lines, n_parts):
    """Bucket B(I-1)/N to before BI/N, both rounded down, and the lines keep their numbers."""
    path = tmp_path_factory.mktemp("shards") / "src"
    path.write_text("".join(f"line {i}\n" for i in range(n_lines)))
    whole, _ = read(path, bucket_lines)
    starts = range(0, n_lines, bucket_lines)
    assert [[line.id for line in b.lines] for b in whole] == [
        list(range(start, min(start + bucket_lines, n_lines))) for start in starts
    ]
    joined = []
    for part in range(1, n_parts + 1):
        buckets, shard = read(path, bucket_lines, f"{part}/{n_parts}")
        n_buckets = len(starts)
        expected = range(n_buckets * (part - 1) // n_parts, n_buckets * part // n_parts)
        assert [bucket.number for bucket in buckets] == list(expected)
        assert shard.n_lines == sum(len(bucket.lines) for bucket in buckets)
        joined += buckets
    assert joined == whole


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 7), st.integers(0, 9))
def test_buckets_that_are_done_are_passed_over(tmp_path_factory, n_lines, bucket_lines, n_done):
    folder = tmp_path_factory.mktemp("done")
    for name in ("src", "tgt"):
        (folder / name).write_text("".join(f"{name} {i}\n" for i in range(n_lines)))
    whole, _ = read(folder / "src", bucket_lines, tgt=str(folder / "tgt"))
    rest, _ = read(folder / "src", bucket_lines, tgt=str(folder / "tgt"), n_done=n_done)
    assert rest == whole[n_done:]
    for bucket in whole:
        ids = [line.id for line in bucket.lines]
        assert [line.text for line in bucket.tgt_lines] == [f"tgt {i}" for i in ids]
        assert [line.id for line in bucket.tgt_lines] == ids


@pytest.mark.parametrize(("n_tgt", "says"), [(7, "src has more"), (11, "tgt has more")])
@pytest.mark.parametrize("n_done", [0, 1, 3])
def test_targets_that_do_not_match(tmp_path, n_tgt, says, n_done):
    (tmp_path / "src").write_text("a\n" * 10)
    (tmp_path / "tgt").write_text("b\n" * n_tgt)
    with pytest.raises(DataError, match=says):
        read(tmp_path / "src", 4, tgt=str(tmp_path / "tgt"), n_done=n_done)


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


def test_joined_shards_are_the_output_of_the_whole(src, tmp_path, translated):
    (tmp_path / "tgt").write_text("the cat\n" * 25)
    for more in (
        ["-output_format", "jsonl"],
        ["-do_sample", "-seed", "3", "-n_best", "2"],
        ["-tgt", tmp_path / "tgt", "-output_format", "jsonl"],
    ):
        argv = ["-src", src, "-bucket_lines", 3, *more]
        whole = translated(*argv)
        for n_parts in (1, 2, 4, 12):
            parts = (translated(*argv, "-shard", f"{i + 1}/{n_parts}") for i in range(n_parts))
            assert b"".join(parts) == whole


def test_a_shard_without_lines_is_an_empty_file(src, tmp_path):
    assert main(f"-model {TOY} -src {src} -quiet -shard 1/9 -output {tmp_path}/out".split()) == 0
    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize("shard", ["0/2", "3/2", "-1/2", "1/0", "1", "a/b", "1/2/3", "1.0/2", ""])
def test_shards_that_do_not_exist(src, capsys, shard):
    assert main(["-model", str(TOY), "-src", str(src), f"-shard={shard}"]) == 2
    assert "shard" in capsys.readouterr().err


def test_streams_have_no_shards(tmp_path, capsys):
    assert main(["-model", str(TOY), "-shard", "1/2"]) == 2
    os.mkfifo(tmp_path / "fifo")
    assert main(["-model", str(TOY), "-src", str(tmp_path / "fifo"), "-shard", "1/2"]) == 2
    assert all("shard: lines of" in line for line in capsys.readouterr().err.splitlines())


def test_the_size_of_buckets_does_not_show_in_the_output(src, translated):
    argv = ["-src", src, "-output_format", "jsonl"]
    outputs = {translated(*argv, "-bucket_lines", n) for n in (1, 2, 7, 1000)}
    (output,) = outputs
    assert [json.loads(line)["id"] for line in output.splitlines()] == list(range(25))


def test_batches_come_from_one_bucket(src, tmp_path):
    """Progress is told after each batch, and no batch has lines of two buckets."""
    translator = Translator.from_pretrained(TOY, device="cpu", bucket_lines=4)
    seen = []
    translator.translate_file(src, tmp_path / "out", lambda n, _: seen.append(n))
    assert {*range(4, 25, 4), 25} <= set(seen)


def test_what_reads_and_writes_needs_no_torch():
    """A parent of workers never loads torch."""
    code = "import sys, onmt_lite.jobs.job; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
