"""`python -m onmt_lite.ray` without Ray: options, files, rejected jobs.

Tests that need Ray are in test_ray_cluster.py.
"""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

import translate
from onmt_lite.errors import FileError, OptionError
from onmt_lite.ray.__main__ import main
from onmt_lite.ray.job import detect_input_format, find_files
from onmt_lite.ray.options import load_ray_options
from tests.support.stop_signals import stop_before_part

ROOT = Path(__file__).resolve().parents[3]
TOY = str(ROOT / "data" / "toy.json")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def load(line):
    return load_ray_options(["-src", "a", "-output", "b", *line.split()])[0]


class TestOptions:
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
    def test_actor_uses_its_reserved_cpus_and_gpus(self, line, device, threads):
        speed = load(line).translation.speed
        assert (speed.device, speed.threads) == (device, threads)

    def test_translation_options_are_passed_on(self):
        found = load("-beam_size 7 -do_sample -seed 3 -batch_size 9 -tokenizer space -quiet")
        options = found.translation
        assert (options.search.beam_size, options.sampling.seed) == (7, 3)
        assert (options.speed.batch_size, options.text.tokenizer) == (9, "space")
        assert options.jobs.quiet

    def test_paths_are_absolute(self, here):
        write(here / "codes.bpe", b"")
        found = load("-src_subword_model codes.bpe -tokenizer bpe -model de-en").translation
        assert found.text.src_subword_model == str(here / "codes.bpe")
        assert found.model.model == ("de-en",)  # the shipped one, wherever that is installed

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("-src", "src: needs at least one value"),
            ("-src -", "actors cannot read standard input"),
            ("-gpu 0", "set gpus_per_actor"),
            ("-device cuda", "gpus_per_actor 0"),
            ("-device cpu -gpus_per_actor 1", "gpus_per_actor 1"),
            ("-device cuda:1", "must be auto, cpu or cuda"),
            ("-gpus_per_actor 2", "between 0 and 1"),
            ("-actors 0", "between 1 and"),
            ("-workers 2", "use actors instead"),
            ("-tgt c", "only supported by translate.py"),
            ("-output_format moses", "one of text, jsonl, got"),
            ("-beam_size 2 -n_best 3", "n_best 3 is more than beam_size 2"),
            ("-beta 1 -search marian", "is not supported by -search marian"),
        ],
    )
    def test_invalid_options_are_rejected(self, line, said):
        with pytest.raises(OptionError, match=said):
            load(line)

    def test_help_and_errors_import_neither_ray_nor_torch(self, here):
        """Each in a Python where importing them is an error."""
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

    def test_missing_ray_error_names_package(self, here, capfd, monkeypatch):
        write(here / "a.txt", b"katze\n")
        monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
        assert main(["-src", "a.txt", "-output", "out"]) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1 and "pip install 'ray[data]'" in err
        assert not (here / "out").exists()


def names(here, *words):
    return " ".join(os.path.relpath(path, here) for path in find_files(words))


class TestFindFiles:
    def test_find_files_keeps_argument_order(self, here):
        for name in ("b/2.txt", "b/10.txt", "b/1.txt", "c.txt", "a.txt", "a[1].txt"):
            write(here / name, b"x")
        for name in ("_SUCCESS", ".lock", "part-000000.txt", "part-000001.txt"):
            write(here / "out" / name, b"x")  # hidden files of a folder are none of its inputs
        folder = "b/1.txt b/10.txt b/2.txt"
        assert names(here, "c.txt", "b", "a.txt") == f"c.txt {folder} a.txt"
        assert names(here, "?.txt") == "a.txt c.txt"
        assert names(here, "**/?.txt", "b/10.txt") == "a.txt b/1.txt b/2.txt c.txt b/10.txt"
        assert names(here, "a.txt", "a.txt") == "a.txt a.txt"
        assert names(here, "out") == "out/part-000000.txt out/part-000001.txt"
        assert names(here, "a[1].txt") == "a[1].txt"

    @pytest.mark.parametrize("word", ["none.txt", "*.none", "empty", "gone"])
    def test_find_files_missing_path_is_rejected(self, here, word):
        (here / "empty").mkdir()
        (here / "gone").symlink_to(here / "nowhere")
        with pytest.raises(FileError, match="(src|cannot read) .*; (check the path|use )"):
            find_files([word])

    def test_find_files_unusable_paths_are_rejected(self, here):
        write(here / "a" / "b" / "c.txt", b"x")
        with pytest.raises(OptionError, match="is a subdirectory"):
            find_files(["a"])
        assert names(here, "a/**/*") == "a/b/c.txt"
        os.mkfifo(here / "pipe")
        with pytest.raises(OptionError, match="not a regular file"):
            find_files(["pipe"])

    def test_detect_input_format(self):
        for files, asked, kind in (
            (["a.txt", "b.de", "c"], "auto", "text"),
            (["a.jsonl", "b.JSONL"], "auto", "jsonl"),
            (["a.jsonl", "b.txt"], "text", "text"),
        ):
            assert detect_input_format(files, asked) == kind
        with pytest.raises(OptionError, match=r"a.txt is text, b.jsonl is jsonl"):
            detect_input_format(["a.txt", "b.jsonl", "c.txt"], "auto")


class TestRejectedJobs:
    """On the command line before Ray starts; the library only needs to be importable."""

    @pytest.fixture(autouse=True)
    def library(self, monkeypatch):
        monkeypatch.setattr("onmt_lite.ray.job.find_ray", lambda: None)

    @pytest.fixture
    def refused(self, here, capfd):
        """refused(words, code, *texts): one line on stderr, and nothing is written."""

        def run(line, code, *said):
            before = {str(path): path.stat().st_size for path in here.rglob("*")}
            assert main(line.split()) == code
            err = capfd.readouterr().err
            assert err.count("\n") == 1 and err.startswith("onmt_lite: error: ")
            assert all(word in err for word in said), err
            assert {str(path): path.stat().st_size for path in here.rglob("*")} == before

        return run

    def test_unusable_inputs_and_outputs_are_rejected(self, here, refused):
        write(here / "a.txt", b"katze\n")
        write(here / "a.txt.gz", gzip.compress(b"katze\n"))
        write(here / "b.txt", "katze\n".encode("utf-16"))
        (here / "out").mkdir()
        write(here / "b.parts" / "000000", b"katze\n")
        refused("-src a.txt.gz -output new", 3, "cannot be split", "gunzip")
        refused("-src b.txt -output new", 3, "iconv")
        refused("-src a.txt -output out", 5, "it is a directory")
        refused("-src a.txt -output a.txt", 2, "output a.txt is the same file as src")
        refused("-src b.parts/000000 -output b", 2, "where output b is stored")
        refused("-src a.txt -output b", 5, "b.parts already exists")
        refused("-src gone.txt -output new", 5, "gone.txt")
        refused("-src a.txt -output new -log_file a.txt", 2, "log_file")
        refused("-src a.txt -output -", 2, "output is standard output")
        refused("-src a.txt -output new -model gone.json", 4, "gone.json")

    def test_resume_of_different_job_is_rejected(self, here, refused, capfd):
        """For example of translate.py; differences are named."""
        write(here / "a.txt", b"katze\n" * 9)
        words = ["-src", "a.txt", "-model", TOY, "-bucket_lines", "3", "-output", "out"]
        with stop_before_part(2):
            assert translate.main([*words, "-beam_size", "4", "-quiet"]) == 143
        capfd.readouterr()
        refused(f"{' '.join(words)} -resume -quiet", 2, "resume: beam_size was 4, now 5")
