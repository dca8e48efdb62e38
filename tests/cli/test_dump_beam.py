"""Jobs with -dump_beam: which lines, which files, what is refused."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT
from tests.cli.test_resume import SLOW
from tests.support.sweeps import swept

WAYS = [[], ["-workers", 2], ["-bucket_lines", 7, "-workers", 2]]


@pytest.fixture
def many(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("one\ntwo\n\n" * 50, encoding="utf-8")
    return path


@pytest.mark.parametrize("more", swept(WAYS, WAYS[::2]))
def test_the_first_hundred_lines(main, many, tmp_path, more):
    done = main("-src", many, "-output", "out", "-dump_beam", "beam.json", *more)
    assert done.code == 0
    dumped = json.loads((tmp_path / "beam.json").read_text("utf-8"))
    assert {len(lines) for lines in dumped.values()} == {100}
    assert [not line for line in dumped["predicted_ids"]] == [i % 3 == 2 for i in range(100)]
    with_it = (tmp_path / "out").read_bytes()
    main("-src", many, "-output", "out")
    assert (tmp_path / "out").read_bytes() == with_it


def test_another_ending(main, src):
    done = main("-src", src, "-dump_beam", "beam.txt")
    assert done.code == 2 and "expected a file that ends in .json or .html" in done.err


@pytest.mark.parametrize("path", ["no/such.json", "folder.json"])
def test_a_file_that_cannot_be_written(main, src, tmp_path, path):
    (tmp_path / "folder.json").mkdir()
    done = main("-src", src, "-output", "out", "-dump_beam", path)
    assert done.code == 5 and f"cannot write {path}" in done.err
    assert not (tmp_path / "out").exists()


def test_it_is_no_input(main, tmp_path):
    Path(tmp_path / "in.json").write_text("one\n")
    done = main("-src", "in.json", "-input_format", "text", "-dump_beam", "in.json")
    assert done.code == 2 and "same file" in done.err


def test_nothing_is_left_after_an_error(main, src, tmp_path):
    main("-src", src, "-output", "out", "-dump_beam", "beam.json", "-tgt", "no/such")
    assert not [p for p in tmp_path.iterdir() if "beam" in p.name]


def test_a_job_that_was_killed_goes_on(main, many, table, tmp_path, env):
    (tmp_path / "slow.py").write_text(SLOW)
    argv = ["-src", str(many), "-output", "out", "-bucket_lines", "10", "-model", str(table)]
    argv += ["-dump_beam", "beam.json"]
    popen = {"cwd": tmp_path, "env": {**env, "PYTHONPATH": str(ROOT)}}
    popen |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "slow.py", *argv], **popen) as job:
        assert job.stdout.readline() == b"bucket\n"
        job.kill()
    done = main(*argv, "-resume")
    assert done.code == 0 and "beam.json is not written: dump_beam has seen no line" in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many.txt", "out", "slow.py"]


def test_a_replaced_file_keeps_its_mode(main, src, tmp_path):
    (tmp_path / "beam.json").write_text("older")
    os.chmod("beam.json", 0o600)
    assert main("-src", src, "-dump_beam", "beam.json").code == 0
    assert stat.S_IMODE(os.stat("beam.json").st_mode) == 0o600
    assert "scores" in json.loads((tmp_path / "beam.json").read_text("utf-8"))


def test_a_pipe_stays_one(shell, src, tmp_path):
    os.mkfifo(tmp_path / "beam.json")
    argv = ["-src", src, "-output", "out", "-dump_beam", "beam.json"]
    done = shell("", *argv, first="cat beam.json & exec")
    assert done.code == 0 and len(json.loads(done.out)["scores"]) == 4
    assert stat.S_ISFIFO(os.stat(tmp_path / "beam.json").st_mode)


def test_a_page_that_cannot_be_written_ends_the_job_before_its_work(main, src, tmp_path):
    (tmp_path / "page.html").mkdir()
    for page in ("missing/page.html", "page.html"):
        done = main("-src", src, "-output", "out", "-dump_beam", page)
        assert done.code == 5 and f"cannot write {page}" in done.err
        assert "stopped" not in done.err and not (tmp_path / "out").exists()
