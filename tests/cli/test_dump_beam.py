"""Jobs with -dump_beam: which lines, which files, what is refused."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def many(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("one\ntwo\n\n" * 50, encoding="utf-8")
    return path


@pytest.mark.parametrize("more", [[], ["-workers", 2], ["-bucket_lines", 7, "-workers", 2]])
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


def test_a_file_in_the_way_stays(main, src, tmp_path):
    for name in ("beam.json", "link.json"):
        part = tmp_path / f"{name}.part"
        if name == "beam.json":
            part.write_text("mine")
        else:
            part.symlink_to("beam.json.part")
        done = main("-src", src, "-output", "out", "-dump_beam", name)
        assert done.code == 5 and f"{name}.part is in the way" in done.err
        assert (tmp_path / "beam.json.part").read_text() == "mine"


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
