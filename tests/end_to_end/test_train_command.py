"""The trainer as a program: exit codes, signals and suggested commands."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
import sentencepiece as spm

from onmt_lite import export
from onmt_lite.system.terminal import SIGNALS, Interrupted, stop_on_signals
from onmt_lite.train import __main__ as train
from onmt_lite.train import data
from tests.end_to_end.conftest import ROOT, ForkedProcess, kill_processes
from tests.support.job_runner import LaunchOptions
from tests.support.sweeps import mark_sweeps
from tests.support.tiny_training import write_pairs

TINY = (
    "-train my.tsv -output run -train_minutes 30 -vocab_size 26 -d_model 16 -heads 2 -d_ff 16 "
    "-enc_layers 1 -dec_layers 1 -batch_tokens 400 -threads 1 -device cpu"
).split()


@pytest.fixture
def folder(tmp_path):
    write_pairs(tmp_path / "my.tsv")
    return tmp_path


@pytest.fixture
def start(folder, env, warm):
    """start(*words) -> a training process in `folder`, killed at the end of the test."""
    started = []

    def run(*more, ignored=()):
        start = LaunchOptions([*TINY, *more], str(folder), env, ignored=ignored)
        started.append(ForkedProcess(warm, start, "onmt_lite.train"))
        return started[-1]

    yield run
    kill_processes(started)


@pytest.fixture
def run(folder, env):
    """run(*words) -> stdout and stderr of a command in `folder`."""

    def run(*words):
        popen = {"cwd": folder, "env": {**env, "PYTHONPATH": str(ROOT)}, "text": True}
        done = subprocess.run(words, capture_output=True, timeout=200, **popen)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    ("main", "words", "name"),
    [(train.main, TINY, "train my.tsv"), (export.main, ["-to", "marian"], "model my.tsv")],
    ids=["train", "export"],
)
def test_save_config_does_not_replace_input(folder, monkeypatch, capfd, main, words, name):
    monkeypatch.chdir(folder)
    before = (folder / "my.tsv").read_bytes()
    words = [*words, f"-{name.split()[0]}", "my.tsv", "-output", "run", "-save_config", "my.tsv"]
    assert main(words) == 2
    same = f"save_config my.tsv is the same file as {name}; choose another path"
    assert same in capfd.readouterr().err
    assert (folder / "my.tsv").read_bytes() == before


@pytest.fixture
def training(start, folder, until):
    """training() -> a process after a few steps."""

    def begin():
        # Far more steps than the test waits for
        steps = ["-train_steps", "1000000"]
        process = start(*steps)
        log = folder / "run" / "train.log"
        until(
            lambda: process.poll() is not None or (log.exists() and "held out" in log.read_text())
        )
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
        return process

    return begin


def find_command(text, before):
    """Return the words of the command at the end of a line."""
    (line,) = re.findall(rf"^.*{re.escape(before)}: (.*)$", text, re.M)
    words = shlex.split(line)
    assert words[0] == "python"
    return [sys.executable, *words[1:]]


@pytest.mark.parametrize("number", mark_sweeps(SIGNALS, [signal.SIGINT]))
def test_signal_stops_run_that_can_resume(training, run, folder, number):
    process = training()
    process.send_signal(number)
    out, err = (found.decode() for found in process.communicate())
    assert (process.returncode, out) == (128 + number, "")
    name = signal.Signals(number).name
    last = err.split("\n")[-2]
    step = re.match(
        rf"onmt_lite: stopped by {name} at step (\d+), state saved; continue with: ", last
    )
    assert step, err
    if number != signal.SIGINT:
        return
    # The suggested commands work unchanged
    steps = str(int(step[1]) + 2)
    out, more = run(*find_command(err, "continue with"), "-train_steps", steps)
    assert out == "" and f"continuing after step {step[1]}\n" in more
    (folder / "FILE").write_text("eins.\n\nzwei drei.\n", encoding="utf-8")
    command = find_command(err, "translate with it")
    assert find_command(more, "translate with it") == command
    assert len(run(*command)[0].split("\n")) == 4


def test_second_signal_exits_immediately(training, folder):
    process = training()
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
        process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode in (129, 143)
    assert b"Traceback" not in err and b"stopped" not in err
    assert not (folder / "run" / "train_state.pt").exists()


def test_ignored_hangup_stays_ignored(start, folder, until):
    process = start("-train_steps", "1000000", ignored=[signal.SIGHUP])
    until(lambda: (folder / "run" / "train.csv").exists())
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143


def test_signal_while_reading_leaves_no_files(start, folder, until):
    os.mkfifo(folder / "pipe")
    process = start("-train", "pipe")
    with open(folder / "pipe", "w", encoding="utf-8"):  # waits for the reader
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert (process.returncode, err) == (143, b"onmt_lite: stopped by SIGTERM\n")
    assert not (folder / "run").exists()


def test_signal_while_training_subwords_is_handled_immediately(folder, monkeypatch):
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    done = threading.Event()

    def make(**options):
        os.kill(os.getpid(), signal.SIGTERM)
        done.wait(60)

    monkeypatch.setattr(spm.SentencePieceTrainer, "train", make)
    stop_on_signals()
    try:
        with pytest.raises(Interrupted):
            data.train_sentencepiece([("eins", "one")], 20)
        assert not done.is_set()
    finally:
        done.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            "-train none.tsv",
            5,
            "train none.tsv: the file does not exist; train must be a file of .*; did you .*",
        ),
        (
            "-train wrong.tsv",
            3,
            r"wrong.tsv:2: the line is not `source<TAB>target`: 'no tab'; separate .*",
        ),
        ("-init_from none", 4, r"init_from: none does not exist: .*"),
        ("-vocab_size 99999", 2, r"vocab_size 99999: the text has too few subwords; .* \d+"),
        (
            "-device gpu",
            2,
            r"device: must be auto, cpu, cuda or cuda:N, got 'gpu' .*",
        ),
        ("-train_minutes 0", 2, r"train_minutes is missing; set a limit .*"),
        ("-train_src a", 2, r"unknown option train_src; did you mean train or .*"),
    ],
)
def test_error_is_one_line_with_exit_code(folder, monkeypatch, capfd, words, code, says):
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.chdir(folder)
    (folder / "wrong.tsv").write_text("a\tb\nno tab\n", encoding="utf-8")
    before = sorted(os.listdir(folder))
    try:
        assert train.main([*TINY, *words.split()]) == code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    out, err = capfd.readouterr()
    err = re.sub(r"^training a SentencePiece model on \d+ pairs\n", "", err)
    assert re.fullmatch(rf"onmt_lite: error: {says}\n", err) and not out
    assert sorted(os.listdir(folder)) == before
