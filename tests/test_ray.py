"""`python -m onmt_lite.ray`, as far as it needs no Ray: options, cutting, the folder, refusals.

What needs Ray is in test_ray_cluster.py.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.jobs.reports import Noted
from onmt_lite.ray import folder as folders
from onmt_lite.ray.__main__ import main
from onmt_lite.ray.folder import Folder
from onmt_lite.ray.inputs import cut, cut_lines, find_files, kind_of_files, number, read_lines
from onmt_lite.ray.options import load_ray_options
from onmt_lite.text import lines as of_lines
from onmt_lite.text.lines import LineReader

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


class TestOptions:
    def load(self, line):
        return load_ray_options(["-src", "a", "-output", "b", *line.split()])[0]

    @pytest.mark.parametrize(
        ("line", "device", "threads"),
        [
            ("", "cpu", 1),
            ("-cpus_per_actor 4", "cpu", 4),
            ("-cpus_per_actor 4 -threads 2", "cpu", 2),
            ("-gpus_per_actor 0.5", "cuda", 1),
            ("-gpus_per_actor 1 -device cuda", "cuda", 1),
        ],
    )
    def test_an_actor_computes_with_what_it_reserves(self, line, device, threads):
        speed = self.load(line).translation.speed
        assert (speed.device, speed.threads) == (device, threads)

    def test_options_of_a_translation_reach_it(self):
        found = self.load("-beam_size 7 -do_sample -seed 3 -batch_size 9 -tokenizer space -quiet")
        options = found.translation
        assert (options.search.beam_size, options.sampling.seed) == (7, 3)
        assert (options.speed.batch_size, options.text.tokenizer) == (9, "space")
        assert options.jobs.quiet

    def test_files_are_named_so_that_every_actor_finds_them(self, here):
        write(here / "codes.bpe", b"")
        found = self.load("-src_subword_model codes.bpe -tokenizer bpe -model de-en").translation
        assert found.text.src_subword_model == str(here / "codes.bpe")
        assert found.model.model == ("de-en",)  # the shipped one, wherever that is installed

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("-src", "src: needs at least one value"),
            ("-src -", "actors cannot read standard input"),
            ("-gpu 0", "give gpus_per_actor"),
            ("-device cuda", "gpus_per_actor 0"),
            ("-device cpu -gpus_per_actor 1", "gpus_per_actor 1"),
            ("-device cuda:1", "expected auto, cpu or cuda"),
            ("-gpus_per_actor 2", "at most 1"),
            ("-actors 0", "at least 1"),
            ("-workers 2", "here it is actors"),
            ("-tgt c", "only translate.py has it"),
            ("-output_format moses", "one of text, jsonl, got"),
            ("-beam_size 2 -n_best 3", "n_best 3 is more than beam_size 2"),
            ("-beta 1 -search marian", "-search marian has no such option"),
        ],
    )
    def test_refusals(self, line, said):
        with pytest.raises(OptionError, match=said):
            self.load(line)

    def test_help_errors_and_configurations_need_neither_ray_nor_torch(self, here):
        """Each in a Python to which importing them is an error."""
        for name in ("torch", "ray", "pyarrow", "tqdm", "sentencepiece"):
            write(here / f"{name}.py", b"raise RuntimeError('imported')")
        for line, code in (("-help", 0), ("-print_config -src a -output b", 0), ("-src a", 2)):
            done = subprocess.run(
                [sys.executable, "-m", "onmt_lite.ray", *line.split()],
                env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{ROOT}"},
                capture_output=True,
                text=True,
            )
            assert (done.returncode, done.stderr.count("\n")) == (code, code // 2), done.stderr

    def test_without_ray_one_line_says_what_to_install(self, here, capfd, monkeypatch):
        write(here / "a.txt", b"katze\n")
        monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
        assert main(["-src", "a.txt", "-output", "out"]) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1 and "pip install 'ray[data]'" in err
        assert not (here / "out").exists()


class TestWhichFiles:
    def names(self, here, *words):
        return [os.path.relpath(path, here) for path in find_files(words)]

    def test_order(self, here):
        for name in ("b/2.txt", "b/10.txt", "b/1.txt", "c.txt", "a.txt"):
            write(here / name, b"x")
        assert self.names(here, "c.txt", "b", "a.txt") == [
            *("c.txt", "b/1.txt", "b/10.txt", "b/2.txt", "a.txt")
        ]
        assert self.names(here, "*.txt") == ["a.txt", "c.txt"]
        assert self.names(here, "**/*.txt") == [
            *("a.txt", "b/1.txt", "b/10.txt", "b/2.txt", "c.txt")
        ]
        assert self.names(here, "a.txt", "a.txt") == ["a.txt", "a.txt"]

    def test_a_folder_of_parts_is_an_input(self, here):
        for name in ("manifest.json", "_SUCCESS", ".lock", "part-000000.txt", "part-000001.txt"):
            write(here / "out" / name, b"x")
        assert self.names(here, "out") == ["out/part-000000.txt", "out/part-000001.txt"]

    def test_a_name_with_marks_of_a_pattern(self, here):
        write(here / "a[1].txt", b"x")
        assert self.names(here, "a[1].txt") == ["a[1].txt"]

    @pytest.mark.parametrize("word", ["none.txt", "*.none", "empty", "gone"])
    def test_nothing_there(self, here, word):
        (here / "empty").mkdir()
        (here / "gone").symlink_to(here / "nowhere")
        with pytest.raises(FileError, match="cannot read"):
            find_files([word])

    def test_nothing_is_left_out_without_a_word(self, here):
        write(here / "a" / "b" / "c.txt", b"x")
        with pytest.raises(OptionError, match="folder within a folder"):
            find_files(["a"])
        assert self.names(here, "a/**/*") == ["a/b/c.txt"]
        os.mkfifo(here / "pipe")
        with pytest.raises(OptionError, match="no regular file"):
            find_files(["pipe"])

    @pytest.mark.parametrize(
        ("names", "asked", "kind"),
        [
            (["a.txt", "b.de", "c"], "auto", "text"),
            (["a.jsonl", "b.JSONL"], "auto", "jsonl"),
            (["a.jsonl", "b.txt"], "text", "text"),
        ],
    )
    def test_kinds(self, names, asked, kind):
        assert kind_of_files(names, asked) == kind

    def test_kinds_do_not_mix(self):
        with pytest.raises(OptionError, match=r"a.txt is text, b.jsonl is jsonl"):
            kind_of_files(["a.txt", "b.jsonl", "c.txt"], "auto")


def lines_by_hand(data):
    """Lines of a file, by the words of docs/jobs.md."""
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


TEXT = st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\n", b"\xff", "\u2028".encode(), b"bc"]))


class TestCutting:
    @given(st.lists(TEXT), st.integers(1, 4))
    @example([], 1)
    @example([[b"\n"], [b"\n"]], 2)
    def test_ranges_hold_all_bytes_and_so_many_lines(self, chunks, bucket_lines):
        chunks = [b"".join(chunk) for chunk in chunks]
        data = b"".join(chunks)
        parts = list(cut(chunks, bucket_lines))
        pieces = [data[part.start : part.start + part.n_bytes] for part in parts]
        assert b"".join(pieces) == data
        assert [zlib.crc32(piece) for piece in pieces] == [part.crc for part in parts]
        lines = lines_by_hand(data)
        wanted = [lines[i : i + bucket_lines] for i in range(0, len(lines), bucket_lines)]
        assert [lines_by_hand(piece) for piece in pieces] == wanted
        assert [part.n_lines for part in parts] == [len(bucket) for bucket in wanted]

    @pytest.mark.parametrize("bucket_lines", [1, 3, 7, 1000])
    def test_buckets_are_those_of_translate_py(self, here, bucket_lines, monkeypatch):
        """Also where lines are long; and every line is what translate.py reads."""
        monkeypatch.setattr(of_lines, "MAX_WINDOW_BYTES", 500)
        monkeypatch.setattr(of_lines, "MAX_MEAN_BYTES", 50)
        monkeypatch.setattr("onmt_lite.ray.inputs.MAX_WINDOW_BYTES", 500)
        monkeypatch.setattr("onmt_lite.ray.inputs.MAX_MEAN_BYTES", 50)
        lines = [b"x" * (i * 37 % 300) + b"\xff\r" * (i % 3) for i in range(200)]
        path = write(here / "a.txt", b"\xef\xbb\xbf" + b"\n".join(lines))
        with open(path, "rb") as file:
            expected = list(LineReader(file.fileno(), path, bucket_lines).windows())
        ranges = number([cut_lines(path, bucket_lines)])
        assert [read_lines(each, "text", "") for each in ranges] == expected

    def test_ids_count_over_all_inputs_and_no_bucket_spans_two(self, here):
        files = [b"\xef\xbb\xbfa\nb\nc", b"", b"\xef\xbb\xbfd\n", b"\n\n\n"]
        paths = [write(here / str(i), data) for i, data in enumerate(files)]
        ranges = number([cut_lines(path, 2) for path in paths])
        assert [(r.file, r.first, r.n_lines) for r in ranges] == [
            *((0, 0, 2), (0, 2, 1), (2, 3, 1), (3, 4, 2), (3, 6, 1))
        ]
        found = [line for r in ranges for line in read_lines(r, "text", "")]
        assert [line.id for line in found] == list(range(7))
        assert [line.text for line in found] == ["a", "b", "c", "d", "", "", ""]

    def test_objects(self, here):
        path = write(here / "a.jsonl", b'{"body": "x", "n": 1.0}\n[]\n')
        (only,) = number([cut_lines(path, 9)])
        first, second = read_lines(only, "jsonl", "body")
        assert (first.text, json.loads(first.fields)) == ("x", {"n": 1.0})
        assert (second.id, second.text, second.notes) == (1, "", ("invalid-json",))

    def test_inputs_without_lines_are_one_empty_part(self, here):
        paths = [write(here / name, b"") for name in "ab"]
        (only,) = number([cut_lines(path, 2) for path in paths])
        assert (only.number, only.n_lines) == (0, 0)
        assert read_lines(only, "text", "") == []

    def test_a_line_longer_than_memory_should_hold(self, here):
        path = write(here / "a.txt", b"x" * (3 << 20) + b"\nshort\n")
        (only,) = number([cut_lines(path, 9)])
        long, short = read_lines(only, "text", "")
        assert (len(long.text), long.notes, short.text) == (1 << 20, ("truncated",), "short")

    @pytest.mark.parametrize(
        "after", [b"a\nb\nc\nd", b"a\nb\nX\nd\n", b"a\nb\n", b"a\nb\nc\nd\ne\n"]
    )
    def test_a_file_that_is_changed_is_found_out(self, here, after):
        path = write(here / "a.txt", b"a\nb\nc\nd\n")
        _, second = number([cut_lines(path, 2)])
        write(here / "a.txt", after)
        with pytest.raises(FileError, match="was changed while it was read"):
            read_lines(second, "text", "")

    def test_size_and_sha256(self, here):
        data = os.urandom(3_000_000)
        found = cut_lines(write(here / "a.bin", data), 5)
        assert (found.n_bytes, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert found.n_lines == len(lines_by_hand(data))


def entry(path, sha256="0", lines=3):
    return {"path": path, "bytes": 9, "sha256": sha256, "lines": lines}


def manifest(**changed):
    made = {
        "versions": {"onmt_lite": "1"},
        "options": {"beam_size": 5},
        "files": {"model.json of model": [3, "f00"]},
        "asked": {"bucket_lines": 100},
        "inputs": [entry("/a.txt"), entry("/b.txt", "1")],
    }
    return made | changed


class TestFolder:
    def test_names_in_order_are_numbers_in_order(self):
        folder = Folder("/out", "jsonl", 3)
        assert folder.part(2) == "/out/part-000002.jsonl"
        names = [Folder("/out", "text", 2_000_000).part(i) for i in (5, 999_999, 1_000_000)]
        assert names == sorted(names)

    def test_without_resume_it_must_be_empty(self, here):
        with folders.open_folder("new/out", False) as before:
            assert before is None and (here / "new/out").is_dir()
        assert not (here / "new/out").exists()  # nothing was written
        write(here / "out" / "precious", b"x")
        with pytest.raises(FileError, match="not empty, there is precious"):
            folders.open_folder("out", False).__enter__()
        assert os.listdir(here / "out") == ["precious"]
        with pytest.raises(FileError, match="not empty"):
            folders.open_folder("out", True).__enter__()  # no job of ours
        write(here / "file", b"x")
        with pytest.raises(FileError, match="cannot write file"):
            folders.open_folder("file", False).__enter__()

    def test_a_job_goes_on_with_resume_alone(self, here):
        with folders.open_folder("out", False):
            folders.begin("out", manifest())
        with pytest.raises(FileError, match="give -resume"):
            folders.open_folder("out", False).__enter__()
        with folders.open_folder("out", True) as before:
            assert before == manifest()

    def test_what_was_killed_before_its_manifest_begins_anew(self, here):
        write(here / "out" / ".manifest.json.node7.4711.tmp", b'{"vers')
        write(here / "out" / ".lock", b"process 4711 on node7\n")
        for resume in (False, True):
            with folders.open_folder("out", resume) as before:
                assert before is None

    def test_a_second_job_is_told_who_writes(self, here):
        with folders.open_folder("out", False):
            with pytest.raises(FileError, match=rf"process {os.getpid()} on "):
                folders.open_folder("out", True).__enter__()
        with folders.open_folder("out", True):
            pass  # free again

    def test_a_damaged_manifest(self, here):
        write(here / "out" / "manifest.json", b'{"versions": ')
        with pytest.raises(FileError, match="damaged"):
            folders.open_folder("out", True).__enter__()

    @pytest.mark.parametrize("theirs", [b'{"name": "my web app"}', b'["a"]'])
    def test_another_programs_manifest_stays(self, here, theirs):
        write(here / "out" / "manifest.json", theirs)
        with pytest.raises(FileError, match="its manifest.json is none of a job"):
            folders.open_folder("out", True).__enter__()
        assert os.listdir(here / "out") == ["manifest.json"]
        assert (here / "out" / "manifest.json").read_bytes() == theirs

    def test_no_lock_is_written_through_a_link(self, here):
        write(here / "mine", b"precious")
        (here / "out").mkdir()
        (here / "out" / ".lock").symlink_to(here / "mine")
        with pytest.raises(FileError, match="cannot write out"):
            folders.open_folder("out", False).__enter__()
        assert (here / "mine").read_bytes() == b"precious"

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"versions": {"onmt_lite": "2"}}, "version of onmt_lite was 1, now 2"),
            ({"options": {"beam_size": 4}}, "beam_size was 5, now 4"),
            ({"files": {"model.json of model": [3, "bad"]}}, "model.json of model was changed"),
            ({"asked": {"bucket_lines": 50}}, "bucket_lines was 100, now 50"),
            ({"inputs": [entry("/a.txt")]}, "input 2, /b.txt, is missing"),
            ({"inputs": [entry("/a.txt"), entry("/b.txt")]}, "input 2, /b.txt, has other contents"),
            ({"inputs": [*manifest()["inputs"], entry("/c")]}, "input 3, /c, is new"),
            (
                {"inputs": [entry("/b.txt", "1"), entry("/a.txt")]},
                "input 1, /b.txt, was /a.txt, and has other contents",
            ),
        ],
    )
    def test_another_job_is_refused_by_name(self, changed, said):
        with pytest.raises(OptionError, match=said):
            folders.check_same(manifest(), manifest(**changed))

    def test_the_same_job_is_not(self):
        folders.check_same(manifest(), manifest())
        moved = [{**each, "path": f"/mnt{each['path']}"} for each in manifest()["inputs"]]
        folders.check_same(manifest(), manifest(inputs=moved))

    def test_parts_attempts_notes(self, here):
        folder = Folder("out", "text", 3)
        with folders.open_folder("out", False):
            folders.begin("out", manifest())
            folders.make_ready(folder)
            assert folders.missing_parts(folder) == [0, 1, 2]
            assert [folders.begin_attempt(folder, 1) for _ in range(4)] == [True, True, True, False]
            folders.finish_part(folder, 1, b"x\n", {"empty": Noted(1, 0, [4])})
            folders.finish_part(folder, 1, b"x\n", {"empty": Noted(1, 0, [4])})  # twice
            assert folders.missing_parts(folder) == [0, 2]
            folders.make_ready(folder)  # a new run counts from the beginning
            assert folders.begin_attempt(folder, 1)
            folders.finish_part(folder, 0, b"", {})
            folders.finish_part(folder, 2, b"y\n", {"empty": Noted(2, 0, [7, 9])})
            write(here / "out" / ".part-000002.txt.node7.4711.tmp", b"y")  # of a killed actor
            folders.tidy(folder)
            summary = folders.succeed(folder, 9)
        assert sorted(os.listdir("out")) == [
            *("_SUCCESS", "manifest.json"),
            *("part-000000.txt", "part-000001.txt", "part-000002.txt"),
        ]
        assert summary.notes == {"empty": Noted(3, 0, [4, 7, 9])}
        told = json.loads((here / "out" / "_SUCCESS").read_bytes())
        assert (told["lines"], told["parts"]) == (9, 3)
        assert told["notes"] == {"empty": {"n_lines": 3, "n_unknown": 0, "first": [4, 7, 9]}}

    def test_a_part_that_is_lost_later_is_done_again(self, here):
        """And the notes of all others are known."""
        folder = Folder("out", "text", 2)
        with folders.open_folder("out", False):
            folders.make_ready(folder)
            for i in range(2):
                folders.finish_part(folder, i, b"\n", {"empty": Noted(1, 0, [i + 1])})
            folders.succeed(folder, 2)
        os.unlink(folder.part(1))
        folders.make_ready(folder)
        assert folders.missing_parts(folder) == [1]
        folders.finish_part(folder, 1, b"\n", {"empty": Noted(1, 0, [2])})
        assert folders.succeed(folder, 2).notes == {"empty": Noted(2, 0, [1, 2])}

    def test_a_full_disk_leaves_nothing_half_written(self, here, monkeypatch):
        def full(fd):
            raise OSError(28, "No space left on device")

        write(here / "a", b"before")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="cannot write a: No space left"):
            folders.write_whole("a", b"after")
        assert os.listdir(here) == ["a"] and (here / "a").read_bytes() == b"before"

    def test_what_is_refused_leaves_nothing(self, here):
        with contextlib.suppress(DataError), folders.open_folder("out", False):
            folders.begin("out", manifest())
            folders.make_ready(Folder("out", "text", 1))
            folders.undo("out")
            raise DataError
        assert os.listdir(here) == []


class TestRefusals:
    """Of the command line, before Ray begins; it is enough that the library can be imported."""

    @pytest.fixture(autouse=True)
    def library(self, monkeypatch):
        monkeypatch.setattr("onmt_lite.ray.job.find_ray", lambda: None)

    @pytest.fixture
    def refused(self, here, capfd):
        """refused(words) -> exit code, the line on stderr"""

        def run(line):
            before = {str(path): path.stat().st_size for path in here.rglob("*")}
            code = main(line.split())
            err = capfd.readouterr().err
            assert err.count("\n") == 1 and err.startswith("onmt_lite: error: ")
            assert {str(path): path.stat().st_size for path in here.rglob("*")} == before
            return code, err

        return run

    def test_compressed_text(self, here, refused):
        import gzip

        write(here / "a.txt.gz", gzip.compress(b"katze\n"))
        code, err = refused("-src a.txt.gz -output out")
        assert code == 3 and "cannot be cut" in err and "gunzip" in err
        write(here / "b.txt", "katze\n".encode("utf-16"))
        code, err = refused("-src b.txt -output out")
        assert code == 3 and "iconv" in err

    def test_output_and_input(self, here, refused):
        write(here / "a.txt", b"katze\n")
        write(here / "out" / "x", b"")
        code, err = refused("-src a.txt -output out")
        assert code == 5 and "not empty" in err
        code, err = refused("-src out/x -output out -resume")
        assert code == 2 and "choose another folder" in err
        code, err = refused("-src gone.txt -output out2")
        assert code == 5 and "gone.txt" in err
        code, err = refused("-src a.txt -output out2 -log_file a.txt")
        assert code == 2 and "log_file" in err

    def test_a_model_that_is_not_there(self, here, refused):
        write(here / "a.txt", b"katze\n")
        code, err = refused("-src a.txt -output out -model gone.json")
        assert code == 4 and "gone.json" in err
