"""-resume and -report on the command line: stopped jobs continue with the printed command."""

import contextlib
import dataclasses
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from onmt_lite import __main__ as program
from onmt_lite.config.cli import print_resume_command
from onmt_lite.config.option import META_NAMES
from onmt_lite.config.options import OPTIONS, TranslateOptions
from onmt_lite.inference import loading
from onmt_lite.jobs import job as job_module
from onmt_lite.jobs.fingerprint import IGNORED_OPTIONS, compute_fingerprint, list_differences
from onmt_lite.jobs.store import read_sealed
from onmt_lite.system.terminal import Interrupted
from tests.end_to_end.conftest import ROOT, SCRIPT, list_names
from tests.support.stop_signals import stop_before_part

LINES = b"one\ntwo\n\nodd\n" * 10
GOLD = "ein\nü\n\nx y z\n".encode() * 10
BUCKETS = ["-bucket_lines", "8"]  # five of them
REPORT = [{"id": i, "notes": ["empty"]} for i in range(2, 40, 4)]


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "src").write_bytes(LINES)


def state(folder):
    """Return all files, except the owner of the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def parts(folder):
    """Return the contents of the partial files of `out`."""
    paths = sorted((folder / "out.parts").glob("0*"))
    return [read_sealed(str(path))[1] for path in paths]


@pytest.fixture
def stop(main):
    """stop(n, *argv): a job that is stopped before bucket n is written."""

    def run(n, *argv, error=None):
        with stop_before_part(n, error):
            return main(*argv)

    return run


def test_resume_continues_stopped_job(main, stop, lines, tmp_path):
    argv = ["-src", "src", "-output", "out", "-report", "rep", *BUCKETS]
    (tmp_path / "out").write_bytes(b"older\n")
    for n in (0, 2, 4):
        done = stop(n, *argv)
        *_, message, command = done.err.splitlines()
        assert done.code == 143
        state = f"after {8 * n} of 40 lines" if n else "before the first line"
        assert message == (
            f"onmt_lite: stopped by SIGTERM {state}; out is as it was before; resume with:"
        )
        assert shlex.split(command)[-len(argv) - 3 :] == [
            *argv,
            *("-model", shlex.split(command)[-2]),
            "-resume",
        ]
        assert (tmp_path / "out").read_bytes() == b"older\n"
        assert parts(tmp_path) == [
            GOLD[len(GOLD) * i // 5 : len(GOLD) * (i + 1) // 5] for i in range(n)
        ]
    done = main(*argv, "-resume")
    assert done.code == 0 and "NOTE: resuming: 32 of 40 lines are done" in done.err
    assert "lines 3, 7, 11, 15, 19 and 5 more: the input line is empty" in done.err
    assert (tmp_path / "out").read_bytes() == GOLD
    report = (tmp_path / "rep").read_text().splitlines()
    assert [json.loads(line) for line in report] == REPORT
    assert list_names(tmp_path) == ["out", "rep", "src"]
    done = main(*argv, "-resume")
    assert (done.code, done.out, (tmp_path / "out").read_bytes()) == (0, b"", GOLD)


def test_job_without_resume_starts_over_with_notice(main, stop, lines, tmp_path):
    argv = ["-src", "src", "-output", "out", *BUCKETS]
    stop(3, *argv)
    done = main(*argv, "-beam_size", 2)
    message = f"NOTE: overwriting {tmp_path}/out.parts, which an interrupted job left"
    assert done.code == 0 and message in done.err
    assert (tmp_path / "out").read_bytes() == GOLD
    assert list_names(tmp_path) == ["out", "src"]


def test_resume_names_changes(main, stop, lines, table, tmp_path):
    shutil.copy(table, tmp_path / "m.json")
    (tmp_path / "tgt").write_bytes(LINES)
    argv = ["-src", "src", "-output", "out", "-model", "m.json", *BUCKETS]
    stop(2, *argv)
    before = state(tmp_path)
    remedy = "restore it, or start over without -resume"
    done = main(*argv, "-resume", "-beam_size", 4, "-n_best", 2, "-threads", 1, "-tgt", "src")
    done.failed(
        2,
        f"resume: beam_size was 5, now 4; {remedy}",
        f"resume: n_best was 1, now 2; {remedy}",
        f"resume: tgt is new; {remedy}",
    )
    (tmp_path / "m.json").write_bytes(before["m.json"] + b" ")
    main(*argv, "-resume").failed(2, f"resume: m.json of model has changed; {remedy}")
    (tmp_path / "m.json").write_bytes(before["m.json"])
    (tmp_path / "src").write_bytes(LINES.replace(b"two", b"one", 1))
    main(*argv, "-resume").failed(2, f"resume: src has changed; {remedy}")
    (tmp_path / "src").write_bytes(LINES)
    assert state(tmp_path) == before
    (tmp_path / "src").rename(tmp_path / "moved")  # the same input under another name
    assert main("-resume", "-src", "moved", *argv[2:]).code == 0
    assert (tmp_path / "out").read_bytes() == GOLD


def test_resume_needs_files(main, lines, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    again = "which cannot be read again; use a file"
    no_file = "which cannot be resumed; use a file"
    for words, message in [
        ("-output out", f"src is standard input, {again}"),
        ("-src pipe -output out", f"src is pipe, {again}"),
        ("-src /dev/stdin -output out", f"src is /dev/stdin, {again}"),
        ("-src src -tgt pipe -output out", f"tgt is pipe, {again}"),
        ("-src src", f"output is standard output, {no_file}"),
        ("-src src -output /dev/null", f"output is /dev/null, {no_file}"),
        ("-src src -output pipe", f"output is pipe, {no_file}"),
        ("-src src -output out -report /dev/null", f"report is /dev/null, {no_file}"),
    ]:
        main(*words.split(), "-resume").failed(2, f"resume: {message}")
    assert list_names(tmp_path) == ["pipe", "src"]
    done = main("-src", "none", "-output", "out", "-resume")
    assert done.code == 5 and "error: src none: the file does not exist; " in done.err


def test_rejected_job_keeps_store_of_earlier_job(main, stop, lines, tmp_path):
    argv = ["-src", "src", "-output", "out", *BUCKETS]
    stop(2, *argv)
    before = state(tmp_path)
    assert main(*argv, "-model", "no/such").code == 4
    assert main(*argv, "-tgt", SCRIPT).code == 3
    assert state(tmp_path) == before
    assert main(*argv, "-resume").code == 0
    assert (tmp_path / "out").read_bytes() == GOLD


def test_report_with_stdout_output(main, lines, tmp_path):
    done = main("-src", "src", "-report", "rep")
    assert (done.code, done.out) == (0, GOLD)
    assert [json.loads(line) for line in (tmp_path / "rep").read_text().splitlines()] == REPORT
    assert list_names(tmp_path) == ["rep", "src"]
    (tmp_path / "bad").write_bytes(b"one\n\nzz\n")
    assert main("-src", "bad", "-report", "rep").code == 3
    assert list_names(tmp_path) == ["bad", "rep", "src"]
    main("-src", "src", "-report", "-").failed(
        2, "report: standard input and output are reserved for translation; use a file"
    )


@pytest.mark.parametrize("error", [ValueError("a bug"), MemoryError()])
def test_resume_after_internal_error(main, stop, lines, tmp_path, error, capfdbinary):
    argv = ["-src", "src", "-output", "out", *BUCKETS]
    with pytest.raises(type(error)):
        stop(2, *argv, error=error)
    messages = capfdbinary.readouterr().err.decode().splitlines()
    stopped = "onmt_lite: stopped after 16 of 40 lines; out was not written; resume with:"
    assert messages[1] == stopped
    assert messages[2].endswith(" -resume")
    assert main(*argv, "-resume").code == 0
    assert (tmp_path / "out").read_bytes() == GOLD


@pytest.mark.parametrize("shard", ["1/2", "2/2"])
def test_resume_shard_of_gzip_input(main, stop, tmp_path, shard):
    (tmp_path / "src.gz").write_bytes(gzip.compress(LINES))
    argv = ["-src", "src.gz", "-shard", shard, "-output_format", "jsonl", "-bucket_lines", 4]
    assert main(*argv, "-output", "whole").code == 0
    stop(2, *argv, "-output", "out")
    done = main(*argv, "-output", "out", "-resume")
    assert done.code == 0 and "NOTE: resuming: 8 of 20 lines are done" in done.err
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("again", [[], ["-resume"], ["--resume"], ["--resume=true"]])
def test_resume_command_is_quoted_for_shell(again, capfd):
    words = ["-X", "utf8", "-m", "onmt_lite", "-src", "it's a file", "-output", "$HOME/ü", *again]
    stop = Interrupted(signal.SIGTERM)
    print_resume_command(stop, words)
    assert capfd.readouterr().err == ""
    stop.can_resume = True
    print_resume_command(stop, words)
    command = capfd.readouterr().err
    assert shlex.split(command) == [sys.executable, *words, *([] if again else ["-resume"])]
    assert command.count("\n") == 1


@pytest.mark.parametrize(
    "off", [["-resume", "false"], ["--resume=false"], ["-resume", "-resume", "false"]]
)
def test_resume_command_of_job_that_started_over(main, stop, lines, tmp_path, off):
    argv = ["-src", "src", "-output", "out", *BUCKETS]
    *_, command = stop(2, *argv, *off).err.splitlines()
    words = shlex.split(command)
    done = main(*argv, *off, *words[words.index("-model") :])
    assert done.code == 0 and "NOTE: resuming: 16 of 40 lines are done" in done.err
    assert (tmp_path / "out").read_bytes() == GOLD


# -- processes ------------------------------------------------------------------------------------

SLOW = """
import sys
from onmt_lite import __main__
from onmt_lite.jobs import output
append = output.Output.append
def slow(self, done):
    append(self, done)
    print("bucket", flush=True)
    sys.stdin.readline()  # as long as the test wants
output.Output.append = slow
sys.exit(__main__.main())
"""


def test_resume_after_sigkill_and_sigterm(lines, table, tmp_path, env):
    """SIGKILL, then SIGTERM, then the printed command in a shell."""
    shutil.copy(table, tmp_path / "a model's.json")
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["slow.py", "-src", "src", "-output", "out's end", "-model", "a model's.json"]
    words = [sys.executable, *words, *BUCKETS]
    env = {**env, "PYTHONPATH": str(ROOT)}
    popen = {"cwd": tmp_path, "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    waiting, popen = {**popen, "stdin": subprocess.PIPE}, {**popen, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(words, **waiting) as job:
        assert job.stdout.readline() == b"bucket\n"
        # Meanwhile another job does not wait for it
        other = subprocess.run(words, **popen, timeout=200)
        holder = f"(process {job.pid} on {os.uname().nodename})"
        busy = f"cannot write out's end: another job is writing it {holder}; wait "
        busy += "until it ends or choose another output"
        assert other.returncode == 5
        assert other.stderr.decode() == f"onmt_lite: error: {busy}\n"
        job.kill()
    with subprocess.Popen([*words, "-resume"], **waiting) as job:
        job.stdout.readline()
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=200)
    assert job.returncode == 143, err
    command = err.decode().splitlines()[-1]
    assert shlex.split(command) == [*words, "-resume"]
    done = subprocess.run(command, shell=True, **popen, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out's end").read_bytes() == GOLD
    assert list_names(tmp_path) == ["a model's.json", "out's end", "slow.py", "src"]


def test_stop_signal_while_loading_can_resume(main, lines, tmp_path, monkeypatch):
    def stops(*args):
        raise Interrupted(signal.SIGINT)

    def is_stopped(state, *left):
        done = main("-src", "src", "-output", "out")
        message, command = done.err.splitlines()
        message_before = (
            f"onmt_lite: stopped by SIGINT before the first line; {state}; resume with:"
        )
        assert (done.code, message) == (130, message_before)
        assert command.endswith("-resume") and list_names(tmp_path) == [*left, "src"]

    with monkeypatch.context() as patch:  # before the options are read
        patch.setattr(program, "prepare_environment", lambda: os.kill(os.getpid(), signal.SIGINT))
        is_stopped("out was not written")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a new process
        done = main("-src", "src", "-print_model")
        assert (done.code, done.out) == (130, b"") and list_names(tmp_path) == ["src"]
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load_checkpoints", stops)
        (tmp_path / "out").write_bytes(b"older\n")
        is_stopped("out is as it was before", "out")
        (tmp_path / "out").unlink()
    monkeypatch.setattr(job_module, "run_job", stops)
    is_stopped("out was not written")
    done = main(stdin=LINES)
    state = "before the first line; nothing was written"
    assert done.err == f"onmt_lite: stopped by SIGINT {state}\n"


# -- the fingerprint ------------------------------------------------------------------------------


def test_resume_compares_or_ignores_every_option():
    options = TranslateOptions.of()
    compared = compute_fingerprint(options, {})["options"]
    assert set(compared).isdisjoint(IGNORED_OPTIONS) and all(IGNORED_OPTIONS.values())
    assert set(compared) | set(IGNORED_OPTIONS) == set(OPTIONS) - set(META_NAMES)


def test_resume_compared_option_changes_fingerprint():
    """Options are set directly, without checks of combinations, to allow any value."""
    options = TranslateOptions.of()
    job = {**compute_fingerprint(options, {}), "files": {}}
    for group in ("model", "text", "data", "search", "sampling", "speed", "jobs", "information"):
        values = getattr(options, group)
        for field in dataclasses.fields(values):
            was = getattr(values, field.name)
            now = not was if isinstance(was, bool) else ("x",) if was == () else f"{was}x"
            changed = dataclasses.replace(values, **{field.name: now})
            other = compute_fingerprint(dataclasses.replace(options, **{group: changed}), {})
            found = list_differences(job, {**other, "files": {}})
            assert bool(found) == (field.name not in IGNORED_OPTIONS), field.name
            assert all(text.startswith(f"{field.name} was ") for text in found)


def test_resume_compares_all_model_files(tmp_path):
    (tmp_path / "model").mkdir()
    folder = ("config.json", "weights.bin", "source.spm")
    for name in (*folder, ".hidden"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / "model" / name).write_bytes(name.encode())
    parts = ("m.pt", "m.safetensors", "m.00.safetensors", "m.01.safetensors")
    for name in (*parts, "mm.00.safetensors", "other.pt", "n.npz", "vocab.yml"):
        (tmp_path / name).write_bytes(name.encode())

    def files(*models):
        paths = [str(tmp_path / model) for model in models]
        return set(compute_fingerprint(TranslateOptions.of(model=paths), {})["files"])

    assert files("model") == {f"{name} of model" for name in folder}
    assert files("m.pt", "n.npz") == {
        *(f"{name} of model 1" for name in parts),
        *(f"{name} of model 2" for name in ("n.npz", "vocab.yml", "source.spm")),
    }


@pytest.mark.timeout(60)
def test_resume_does_not_read_pipes(main, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(LINES,), daemon=True)
    writer.start()
    assert main("-src", "pipe", "-output", "out").code == 0
    assert (tmp_path / "out").read_bytes() == GOLD
    assert list_names(tmp_path) == ["out", "pipe"]


def test_resume_with_dump_beam_logs_notice(main, stop, lines, tmp_path):
    argv = ["-src", "src", "-output", "out", "-dump_beam", "beam.json", *BUCKETS]
    *_, command = stop(2, *argv).err.splitlines()
    assert "-dump_beam" in shlex.split(command)
    done = main(*argv, "-resume")
    assert done.code == 0 and "NOTE: beam.json is not written: earlier lines" in done.err
    assert list_names(tmp_path) == ["out", "src"] and (tmp_path / "out").read_bytes() == GOLD
    (tmp_path / "out").unlink()
    assert main(*argv, "-resume").code == 0  # from the first line
    assert len(json.loads((tmp_path / "beam.json").read_text())["scores"]) == 40


@pytest.mark.timeout(60)
def test_resume_with_phrases_from_pipe_is_rejected(main, lines, tmp_path):
    """The contents of a pipe cannot be compared."""
    os.mkfifo(tmp_path / "pipe")
    for more in ([], ["-resume"]):

        def write():
            with contextlib.suppress(OSError):
                (tmp_path / "pipe").write_text("cat\n")

        threading.Thread(target=write, daemon=True).start()
        done = main("-src", "src", "-output", "out", "-ban_words", "pipe", *more)
        if more:
            assert done.code == 2
            assert "resume: ban_words is pipe, which cannot be read again" in done.err
        else:
            assert done.code == 0 and list_names(tmp_path) == ["out", "pipe", "src"]
