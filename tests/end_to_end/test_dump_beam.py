"""-dump_beam: recorded lines, output files, rejected paths."""

import json
import os
import stat

import pytest

from tests.support.sweeps import mark_sweeps

WAYS = [[], ["-workers", 2], ["-bucket_lines", 7, "-workers", 2]]


@pytest.fixture
def many(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("one\ntwo\n\n" * 50, encoding="utf-8")
    return path


@pytest.mark.parametrize("more", mark_sweeps(WAYS, WAYS[::2]))
def test_dump_beam_contains_first_hundred_lines(main, many, tmp_path, more):
    done = main("-src", many, "-output", "out", "-dump_beam", "beam.json", *more)
    assert done.code == 0
    dumped = json.loads((tmp_path / "beam.json").read_text("utf-8"))
    assert {len(lines) for lines in dumped.values()} == {100}
    assert [not line for line in dumped["predicted_ids"]] == [i % 3 == 2 for i in range(100)]
    with_it = (tmp_path / "out").read_bytes()
    main("-src", many, "-output", "out")
    assert (tmp_path / "out").read_bytes() == with_it


def test_dump_beam_with_unknown_extension_is_rejected(main, src, tmp_path):
    done = main("-src", src, "-dump_beam", "beam.txt")
    assert done.code == 2 and "must be a file name that ends in .json or .html" in done.err
    main("-src", src, "-output", "out", "-dump_beam", "beam.json", "-tgt", "no/such")
    assert not [p for p in tmp_path.iterdir() if "beam" in p.name]


def test_dump_beam_pipe_is_not_replaced(shell, src, tmp_path):
    os.mkfifo(tmp_path / "beam.json")
    argv = ["-src", src, "-output", "out", "-dump_beam", "beam.json"]
    done = shell("", *argv, first="cat beam.json & exec")
    assert done.code == 0 and len(json.loads(done.out)["scores"]) == 4
    assert stat.S_ISFIFO(os.stat(tmp_path / "beam.json").st_mode)


@pytest.mark.parametrize("path", ["no/such.json", "folder.json", "no/such.html"])
def test_dump_beam_unwritable_file_is_reported_before_translation(main, src, tmp_path, path):
    (tmp_path / "folder.json").mkdir()
    done = main("-src", src, "-output", "out", "-dump_beam", path)
    assert done.code == 5 and f"cannot write {path}" in done.err
    assert done.err.count("\n") == 1 and not (tmp_path / "out").exists()
