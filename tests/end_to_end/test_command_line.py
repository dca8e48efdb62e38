"""translate.py from the outside: exit codes, messages, files; no real process needed."""

import json
import math
import os
import re
from types import SimpleNamespace

import pytest
import torch
import yaml

from onmt_lite import OptionError, Translator
from onmt_lite.jobs.output import Output
from onmt_lite.jobs.progress import format_times
from onmt_lite.models.table_model import TableModel
from onmt_lite.system import clock
from onmt_lite.text.tokenizers import SpaceTokenizer
from tests.end_to_end.conftest import list_names, write_table

ERROR = "onmt_lite: error: "
MATCH = "they must match line by line"


def log_softmax(logits, i):
    return logits[i] - math.log(sum(math.exp(x) for x in logits))


def test_output_text_and_summary(main, src):
    done = main("-src", src)
    assert (done.code, done.lines) == (0, ["ein", "ü", "", "x y z"])
    assert done.err == "line 3: the input line is empty, so the output line is empty [empty]\n"
    done = main("-src", src, "-n_best", 2, "-beam_size", 3)
    assert (done.code, len(done.lines)) == (0, 8)
    assert done.lines[:6] == ["ein", "ü", "ü", "ein", "", ""]


def test_output_format_jsonl(main, src):
    done = main("-src", src, "-output_format", "jsonl")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [r["id"] for r in records] == [0, 1, 2, 3]
    assert [r["src"] for r in records] == ["one", "two", "", "odd"]
    assert [r["notes"] for r in records] == [[], [], ["empty"], []]
    assert set(records[0]) == {"id", "src", "hyps", "notes"}
    assert [h["text"] for r in records for h in r["hyps"]] == ["ein", "ü", "", "x\u2028y\nz"]
    (hyp,) = records[0]["hyps"]
    assert (hyp["text"], hyp["tokens"], hyp["ended"]) == ("ein", ["ein"], True)
    expected = [log_softmax([-2, 3, 1, 0, -9], 1), log_softmax([5, 0, 0, 0, -9], 0)]
    assert hyp["token_log_probs"] == pytest.approx(expected, abs=1e-5)
    assert hyp["log_prob"] == pytest.approx(sum(expected), abs=1e-5)
    assert hyp["score"] == pytest.approx(sum(expected) / 2, abs=1e-5)


def test_tgt_reference_scores_are_logged_and_output_is_unchanged(main, src, tmp_path):
    (tmp_path / "tgt.txt").write_bytes("ü\nein b\nb\nein\n".encode())
    plain, gold = main("-src", src), main("-src", src, "-tgt", "tgt.txt")
    assert gold.out == plain.out
    first, end = [-2, 3, 1, 0, -9], [5, 0, 0, 0, -9]
    expected = log_softmax(first, 2) + log_softmax(end, 0)
    assert f"GOLD 1: ü\nGOLD SCORE: {expected:.4f}\n" in gold.err
    assert "GOLD 3: b\nGOLD 4:" in gold.err  # a blank line has no score
    assert re.search(r"\nGOLD AVG SCORE: -\d+\.\d{4}, GOLD PPL: \d+\.\d{4}\n", gold.err)
    assert re.search(r"\nGOLD SCORE: .*, GOLD PPL: .* NB SENTENCES: 3\n", gold.err)
    done = main("-src", src, "-tgt", "tgt.txt", "-output_format", "jsonl", "-quiet")
    assert done.err == ""
    scores = [json.loads(line)["gold_log_prob"] for line in done.out.splitlines()]
    assert scores[0] == pytest.approx(expected, abs=1e-5)
    longer = log_softmax([-2, 1, 3, 0, -9], 1) + log_softmax(end, 3) + log_softmax(end, 0)
    assert scores[1] == pytest.approx(longer, abs=1e-5)
    assert scores[2] is None


def test_src_with_invalid_bytes_keeps_line_count(main, tiny_checkpoint, tmp_path):
    """n input lines give n * n_best output lines, whatever they contain."""
    lines = [b"\xef\xbb\xbfder hund", b"", b" \t", "a\u2028b\x85c".encode(), b"a\0b", b"a\rb"]
    lines += [b"\xff\xfe x", "\u00a0\u3000".encode(), b"</s> <unk>", "😀 \u202e".encode(), b"end"]
    for end in (b"\n", b"\r\n"):
        (tmp_path / "odd.txt").write_bytes(end.join(lines))  # the last one without line feed
        argv = ["-src", "odd.txt", "-model", tiny_checkpoint, "-max_length", 9, "-n_best", 2]
        done = main(*argv, "-output", "out.txt")
        assert (done.code, done.out) == (0, b"")
        out = (tmp_path / "out.txt").read_bytes()
        assert out.endswith(b"\n")
        assert len(out.decode("utf-8").splitlines()) == out.count(b"\n") == 2 * len(lines)
        assert "\nline 7: invalid UTF-8 bytes" in f"\n{done.err}"
        assert "lines 2, 3 and 8: the input line is empty" in done.err


def test_src_empty_file_gives_empty_output(main, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    done = main("-src", "empty", "-output", "out", "-report_time")
    assert (done.code, (tmp_path / "out").read_bytes()) == (0, b"")


def test_log_file_contents(main, src, tmp_path):
    done = main("-src", src, "-verbose", "-report_time", "-log_file", "log.txt", "-n_best", 2)
    assert done.out.count(b"\n") == 8
    assert "SENT 1: ['one']\nPRED 1: ein\nPRED SCORE: -0." in done.err
    assert "BEST HYP:\n[-0." in done.err
    one = r"\d+\.\d\n"
    end = (
        r"PRED AVG SCORE: -\d+\.\d{4}, PRED PPL: \d+\.\d{4}\n"
        r"PRED SCORE: -\d+\.\d{4}, PRED PPL: \d+\.\d\d NB SENTENCES: 3\n"
        rf"Total translation time \(s\): {one}Average translation time \(ms\): {one}"
        rf"Tokens per second: {one}"
        r"TIME: \d+\.\d\d s to load, \d+\.\d\d s to tokenize, .* to write\n"
    )
    assert re.search(rf"\n{end}\Z", done.err)
    logged = (tmp_path / "log.txt").read_text(encoding="utf-8")
    messages = re.sub(r"(?m)^\[\d{4}-\d\d-\d\d [\d:,]+ \d+ INFO\] ", "", logged)
    begins, messages = messages.split("\n", 1)
    assert begins.startswith("onmt_lite ") and "precision fp32 on cpu\n" in done.err
    assert messages.startswith(done.err)
    assert re.fullmatch(r"4 lines -> standard output \(\d+\.\d s\)\n", messages[len(done.err) :])


def test_averages_match_scores_in_output(main, src, tmp_path):
    """Averages per token and per sentence are in the log file, and on stderr on request."""
    done = main("-src", src, "-output_format", "jsonl", "-log_file", "log.txt")
    assert "PRED" not in done.err
    hyps = [json.loads(line)["hyps"][0] for line in done.out.splitlines()]
    total = sum(hyp["score"] for hyp in hyps)
    mean = total / sum(len(hyp["tokens"]) for hyp in hyps)
    logged = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert f" PRED AVG SCORE: {mean:.4f}, PRED PPL: {math.exp(-mean):.4f}\n" in logged
    scores = f"{total / 3:.4f}, PRED PPL: {math.exp(-total / 3):.2f} NB SENTENCES: 3\n"
    assert f" PRED SCORE: {scores}" in logged
    for more in ("-verbose", "-report_time"):
        assert f"\nPRED SCORE: {scores}" in main("-src", src, more).err


def test_report_time_per_line_and_token():
    total, *averages = format_times(2.5, 10, 400)
    assert total == "Total translation time (s): 2.5"
    assert averages == ["Average translation time (ms): 250.0", "Tokens per second: 160.0"]
    assert format_times(0.01, 0, 0)[1:] == [
        "Average translation time (ms): 10.0",
        "Tokens per second: 0.0",
    ]


def test_report_time_lists_phases(main, src, monkeypatch):
    """The test replaces the clock: it only advances with the work of each phase."""
    now = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def takes(owner, name, seconds):
        original = getattr(owner, name)

        def work(*args):
            now[0] += seconds
            return original(*args)

        monkeypatch.setattr(owner, name, work)

    takes(SpaceTokenizer, "encode", 1.0)
    takes(TableModel, "encode", 10.0)
    takes(TableModel, "init_state", 100.0)
    takes(os, "write", 1000.0)
    # Two buckets of two lines
    done = main("-src", src, "-output", "out", "-report_time", "-bucket_lines", 2)
    loaded = r"TIME: \d+\.\d\d s to load, "
    phases = (
        loaded + r"4\.00 s to tokenize, 20\.00 s to encode, 200\.00 s to decode, (\d+)000\.00 s"
    )
    assert int(re.search(phases + " to write\n", done.err)[1]) >= 2


def test_quiet_prints_only_errors_and_logs_to_file(main, src, tmp_path):
    done = main("-src", src, "-quiet", "-report_time", "-log_file", "log.txt")
    assert (done.code, done.err) == (0, "")
    assert "TIME: " in (tmp_path / "log.txt").read_text(encoding="utf-8")
    failed = main("-src", "no.txt", "-quiet")
    assert failed.code == 5 and failed.err.startswith(
        f"{ERROR}src no.txt: the file does not exist; "
    )


def test_print_config(main, tmp_path):
    (tmp_path / "a.yaml").write_text("beam_size: 3\n")
    done = main("-print_config", "-config", "a.yaml", "-alpha", "0.5", "-model", "no.such")
    assert (done.code, done.err) == (0, "")
    values = yaml.safe_load(done.out)
    assert (values["beam_size"], values["alpha"], values["model"]) == (3, 0.5, ["no.such"])
    assert "beam_size: 3  # a.yaml:1" in done.lines
    assert "alpha: 0.5  # command line" in done.lines


def test_invalid_options_are_reported_before_files_are_read(main):
    argv = ["-model", "no/such", "-src", "no/such", "-output", "no/such/out"]
    argv += ["-n_best", "6", "-beam_siez", "3", "-alpha", "x"]
    main(*argv).failed(
        2,
        "unknown option beam_siez; did you mean beam_size? (command line)",
        "alpha: must be a number between -10 and 10, got 'x' (command line)",
        "n_best 6 is more than beam_size 5; raise beam_size or lower n_best",
    )


def test_gpu_missing_is_reported_before_model_is_loaded(main, src):
    given = [("gpu", number) for number in (63, 300, 99999999999)]
    given += [("device", f"cuda:{number}") for number in ("63", "007", "99999999999")]
    for name, value in given:
        done = main("-src", src, f"-{name}", value, "-model", "no.such")
        assert (done.code, done.out) == (2, b"")
        assert re.fullmatch(rf"onmt_lite: error: .*{name}.*\n", done.err)
    for options in ({"device": "cuda:98"}, {"gpu": 98}):
        with pytest.raises(OptionError, match="GPU"):
            Translator.from_pretrained("no/such", **options)
    if not torch.cuda.is_available():
        problem = "this machine has no usable GPU; remove the option to run on CPU"
        for words in (["-gpu", 0], ["-device", "cuda"], ["-gpu", 1]):
            done = main("-src", src, *words)
            assert (done.code, done.err.count("\n")) == (2, 1) and problem in done.err


def test_option_that_depends_on_model_is_rejected_after_loading(main, src):
    done = main("-src", src, "-output", "out", "-tokenizer", "sentencepiece")
    assert (done.code, done.out) == (2, b"")
    assert done.err.count("\n") == 1 and "space" in done.err
    assert not os.path.exists("out")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none.txt", "the file does not exist"),
        (".", "it is a directory"),
        ("x" * 300, "File name too long"),
        ("src.txt/x", "Not a directory"),
    ],
)
def test_src_unreadable_is_an_error(main, src, path, reason):
    for option, words in (("src", ["-src", path]), ("tgt", ["-src", src, "-tgt", path])):
        done = main(*words, "-model", "no/such")
        assert (done.code, done.out, done.err.count("\n")) == (5, b"", 1)
        problem = f"{ERROR}{option} {path[:200]}: {reason}; {option} must be a text file with one "
        assert done.err.startswith(problem)


def test_src_read_error_is_an_error(main, src):
    expected = "cannot read /proc/self/mem: Input/output error; check the disk and the path"
    main("-src", "/proc/self/mem", "-model", "no/such").failed(5, expected)
    main("-src", src, "-tgt", "/proc/self/mem", "-model", "no/such").failed(5, expected)


def test_src_with_utf16_like_start_is_text(main, tiny_checkpoint, tmp_path):
    (tmp_path / "garbage").write_bytes(b"\xff\xfe\x01\n\xfe\n")
    done = main("-src", "garbage", "-model", tiny_checkpoint, "-max_length", "3")
    assert (done.code, len(done.lines)) == (0, 2)


@pytest.mark.parametrize("name", ["x.parts", "link.parts"])
def test_src_inside_parts_directory_is_preserved(main, src, tmp_path, name):
    """-output x works in x.parts: a source of that name must survive."""
    if name == "x.parts":
        src.rename(tmp_path / name)
    else:
        os.symlink(src, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    done = main("-src", name, "-output", name.removesuffix(".parts"))
    assert (tmp_path / name).read_bytes() == before
    assert done.code in (2, 5)


WRITTEN = {"output": "out", "report": "notes", "log_file": "log", "dump_beam": "beam.html"}
WRITTEN["save_config"] = "job.yaml"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_directory_without_permission_is_named(main, src, tmp_path):
    (tmp_path / "folder").mkdir(mode=0o500)
    done = main("-src", src, "-output", "folder/out")
    assert done.code == 5 and "the directory folder is not writable; change" in done.err


def test_output_unwritable_is_an_error(main, src, tmp_path):
    (tmp_path / "folder").mkdir()
    for output, reason in [
        ("none/", "it is a directory; use the path of a file"),
        ("src.txt/out", "Not a directory; check the path: a part of it is a file, not a directory"),
        ("x" * 300, "File name too long; choose a shorter name"),
    ]:
        # Before the model is looked at: a long load must not end in this
        done = main("-src", src, "-output", output, "-model", "no/such")
        done.failed(5, f"cannot write {output}: {reason}")
    for option, name in WRITTEN.items():
        model = [] if option == "save_config" else ["-model", "no/such"]
        done = main("-src", src, f"-{option}", f"no such/dir/{name}", *model)
        missing = "the directory no such/dir does not exist; create it: mkdir -p 'no such/dir'"
        done.failed(5, f"cannot write no such/dir/{name}: {missing}")
        (tmp_path / name).mkdir()
        done = main("-src", src, f"-{option}", name, *model)
        done.failed(5, f"cannot write {name}: it is a directory; use the path of a file")
        (tmp_path / name).rmdir()
    assert list_names(tmp_path) == ["folder", "src.txt"]


def test_output_on_full_disk_is_an_error(main, src):
    reason = "No space left on device; free some space or choose another disk"
    full = f"cannot write /dev/full: {reason}"
    main("-src", src, "-quiet", "-output", "/dev/full").failed(5, full)
    done = main("-src", src, "-log_file", "/dev/full")
    assert "Logging error" not in done.err
    assert done.code == 5 and done.err.endswith(f"onmt_lite: error: {full}\n")


def test_output_of_failed_run_is_unchanged(main, tmp_path):
    (tmp_path / "src").write_bytes(b"one\nzz\n")
    (tmp_path / "out").write_bytes(b"older\n")
    done = main("-src", "src", "-output", "out")
    problem = "line 2: 'zz' is not in the vocabulary, and the model has no unknown token"
    done.failed(3, f"{problem}; remove it from the line or use another model")
    assert (tmp_path / "out").read_bytes() == b"older\n"
    assert list_names(tmp_path) == ["out", "src"]


def test_tgt_unknown_token_is_located(main, src, tmp_path):
    (tmp_path / "tgt").write_bytes(b"ein\nzz\n\n\n")
    done = main("-src", src, "-tgt", "tgt")
    assert (done.code, done.out) == (3, b"")
    assert "'zz' is not in the vocabulary" in done.err
    assert "line 2" in done.err
    assert "tgt" in done.err


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (None, "no such file or directory"),
        (b"", "the file is empty"),
        (b"PK\x03\x04", "zip archive"),
        (b"{}", "not a table model"),
        (b"[" * 100_000, "file format is unknown"),
        (b'{"a":' + b"[" * 100_000, "not a table model"),
    ],
)
def test_model_invalid_is_rejected(main, src, tmp_path, model, word):
    if model is not None:
        (tmp_path / "model").write_bytes(model)
    done = main("-src", src, "-output", "out", "-model", "model")
    assert (done.code, done.out) == (4, b"")
    assert re.fullmatch(r"onmt_lite: error: .*model.*\n", done.err)
    assert word in done.err
    assert not [name for name in list_names(tmp_path) if name.startswith("out")]


def test_tgt_impossible_reference_keeps_output(main, src, table, tmp_path):
    """-Infinity in a table is probability 0; JSON cannot represent its logarithm."""
    (tmp_path / "never.json").write_text(table.read_text().replace("1.0", "-Infinity"))
    (tmp_path / "tgt").write_bytes("ü\n\n\n\n".encode())
    argv = ["-src", src, "-tgt", "tgt", "-model", "never.json", "-output_format", "jsonl"]
    done = main(*argv)
    assert (done.code, len(done.lines)) == (0, 4)
    assert "Infinity" not in done.out.decode("utf-8")


def test_src_line_without_possible_translation(main, src, table, tmp_path):
    """Every token is impossible or not allowed yet, so the output line is empty."""
    end, *others = json.loads(table.read_text())["vocab"]
    row = [0.0] + [-math.inf] * len(others)
    write_table(tmp_path / "end.json", [end, *others], dict.fromkeys(("one", "two", "odd"), row))
    for output_format in ("text", "jsonl", "moses"):
        argv = ["-model", "end.json", "-min_length", 1, "-output_format", output_format]
        done = main("-src", src, *argv, "-verbose")
        assert (done.code, len(done.lines)) == (0, 4)


@pytest.mark.parametrize("n_tgt", [0, 3, 5])
def test_tgt_with_different_line_count_is_rejected(main, src, tmp_path, n_tgt):
    (tmp_path / "tgt").write_bytes(b"ein\n" * n_tgt)
    argv = ["-tgt", "tgt", "-output", "out"]
    done = main("-src", src, *argv, "-model", "no/such")
    done.failed(3, f"src has 4 lines, tgt has {n_tgt}; {MATCH}")
    done = main(*argv, stdin=src.read_bytes())  # cannot be counted beforehand
    assert done.code == 3
    assert MATCH in done.err
    assert not [name for name in list_names(tmp_path) if name.startswith("out")]


def test_tgt_with_equal_line_count_from_stream(main, src, tmp_path):
    (tmp_path / "tgt").write_bytes(b"ein\nein\n\nein")
    done = main("-tgt", "tgt", stdin=src.read_bytes())
    assert (done.code, done.lines) == (0, ["ein", "ü", "", "x y z"])


def test_output_locked_by_another_job_is_an_error(main, src, tmp_path):
    (tmp_path / "out").write_bytes(b"older\n")
    with Output(str(tmp_path / "out")):
        done = main("-src", src, "-output", "out", "-model", "no/such")
        holder = f"process {os.getpid()} on {os.uname().nodename}"
        busy = f"cannot write out: another job is writing it ({holder})"
        done.failed(5, f"{busy}; wait until it ends or choose another output")
        assert list_names(tmp_path) == ["out", "out.parts", "src.txt"]
    assert (tmp_path / "out").read_bytes() == b"older\n"
    assert main("-src", src, "-output", "out").code == 0
    assert (tmp_path / "out").read_bytes() == "ein\nü\n\nx y z\n".encode()
    assert list_names(tmp_path) == ["out", "src.txt"]


def test_output_symbolic_link_is_kept(main, src, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real").write_bytes(b"older\n")
    os.symlink("there/real", tmp_path / "out")
    os.symlink("there/new", tmp_path / "dangling")
    for link, real in (("out", "real"), ("dangling", "new")):
        assert main("-src", src, "-output", link).code == 0
        assert os.path.islink(link)
        assert (tmp_path / "there" / real).read_bytes() == "ein\nü\n\nx y z\n".encode()
    assert list_names(tmp_path / "there") == ["new", "real"]


def test_errors_are_single_lines(main, tmp_path):
    """A file name may contain a line break."""
    done = main("-src", "a\nb\u2028c")
    assert done.code == 5
    assert len(done.err.splitlines()) == 1
    done = main("-src", b"\xff".decode("utf-8", "surrogateescape"))
    assert done.code == 5


def test_empty_translation(main, tmp_path):
    """EOS is the most probable first token: no tokens, and no division by zero."""
    first = [5.0, 0.0]
    write_table(tmp_path / "ends.json", ["</s>", "x"], {"one": first})
    (tmp_path / "src").write_text("one\none\n")
    done = main("-src", "src", "-model", "ends.json", "-output_format", "jsonl")
    assert done.code == 0
    for record in map(json.loads, done.lines):
        (hyp,) = record["hyps"]
        assert (hyp["text"], hyp["tokens"], hyp["ended"]) == ("", [], True)
        assert hyp["score"] == pytest.approx(log_softmax(first, 0), abs=1e-6)
    for penalty in ("none", "avg", "wu"):
        argv = ["-length_penalty", penalty, "-alpha", 1] if penalty != "none" else []
        assert main("-src", "src", "-model", "ends.json", *argv).lines == ["", ""]
