"""Translator.from_pretrained(workers=2) behaves like a single process."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.errors import CheckpointError, DataError, OptionError, OptionWarning
from onmt_lite.jobs.engine import choose_call_size
from tests.support import tiny
from tests.unit.jobs.test_workers import is_alive, list_children, list_family, wait_until

ROOT = Path(__file__).resolve().parents[2]
TOY = str(ROOT / "data" / "toy.json")
WORDS = tiny.SENTENCES[0].split()
LINES = [f"{a} {b}" if i % 7 else "" for i, a in enumerate(WORDS * 3) for b in "ab"]


@pytest.fixture(scope="module")
def pool(tiny_checkpoint):
    torch.randn(64, 64) @ torch.randn(64, 64)  # start torch threads in this process
    with Translator.from_pretrained(tiny_checkpoint, workers=2, device="cpu") as translator:
        yield translator


@contextlib.contextmanager
def toy_pool(**options):
    with Translator.from_pretrained(TOY, workers=2, **options) as translator:
        yield translator


def get_server_pid(pool):
    return pool.backend._workers._server.process.pid


def summarize(translations):
    """Return the fields that must be equal, with scores rounded to batch-independent digits."""
    return [
        (t.id, t.src, t.notes, [(h.text, h.tokens, round(h.score, 4)) for h in t.hyps])
        for t in translations
    ]


def test_workers_leave_this_process_without_torch():
    """torch would take 145 MiB here, in addition to the memory of the workers."""
    code = (
        "import sys; from onmt_lite import Translator\n"
        f"with Translator.from_pretrained({TOY!r}, workers=2) as translator:\n"
        "    assert translator.translate(['katze', 'katze'])[0].hyps\n"
        "    assert translator.machine['precision'] == 'fp32'\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "options",
    [
        dict(beam_size=3, n_best=2),
        dict(do_sample=True, seed=4),
        dict(search="opennmt-2018", batch_size=4, batch_type="sents"),
    ],
)
def test_workers_results_equal_one_process(pool, translator, options):
    for lines in (LINES, LINES[1:2], []):
        expected = summarize(translator.translate(lines, **options))
        assert summarize(pool.translate(lines, **options)) == expected
        assert summarize(pool.translate_stream(iter(lines), **options)) == (
            summarize(translator.translate_stream(iter(lines), **options))
        )


def test_workers_prefixes_and_scores_equal_one_process(pool, translator):
    prefixes = [LINES[1]] * len(LINES)
    expected = summarize(translator.translate(LINES, prefixes=prefixes))
    assert summarize(pool.translate(LINES, prefixes=prefixes)) == expected
    scores = pool.score(LINES, LINES[::-1])
    for found, wanted in zip(scores, translator.score(LINES, LINES[::-1]), strict=True):
        assert (found is None) == (wanted is None)
        assert found is None or found == pytest.approx(wanted, abs=1e-4)
    assert None in scores and any(scores)
    assert pool.score([], []) == []


def test_workers_translate_file_equals_one_process(pool, translator, tmp_path):
    (tmp_path / "src").write_text("\n".join(LINES * 4) + "\n", "utf-8")
    outputs, seen = [], []
    for i, each in enumerate((pool, translator)):
        summary = each.translate_file(
            tmp_path / "src", tmp_path / str(i), progress=lambda *done: seen.append(done), n_best=2
        )
        outputs.append((summary.n_lines, summary.notes, (tmp_path / str(i)).read_bytes()))
        assert seen[-1][0] == 4 * len(LINES)
    assert outputs[0] == outputs[1] and outputs[0][0] == 4 * len(LINES)
    with pytest.raises(Exception, match="src .*/none: the file does not exist; "):
        pool.translate_file(tmp_path / "none", tmp_path / "out")
    (tmp_path / "src").write_text("\n".join(LINES[::-1]) + "\n", "utf-8")  # in place
    for i, each in enumerate((pool, translator)):
        each.translate_file(tmp_path / "src", tmp_path / str(i), n_best=2)
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes() != outputs[0][2]


def test_workers_progress_counts_all_lines(pool):
    seen = []
    pool.translate(LINES, progress=lambda n_lines, n_tokens: seen.append((n_lines, n_tokens)))
    assert seen == sorted(seen) and seen[-1][0] == len(LINES) and len(seen) > 1
    with pytest.raises(ValueError, match="re-entrant"):
        pool.translate(LINES, progress=lambda *done: pool.translate(LINES))

    def stop(*done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.translate(LINES, progress=stop)
    assert [t.src for t in pool.translate(LINES)] == LINES


def test_workers_errors_keep_type_and_later_calls_work(pool):
    for error, call in (
        (TypeError, lambda: pool.translate([1])),
        (DataError, lambda: pool.translate(LINES, prefixes=[""])),
        (DataError, lambda: pool.score(["a"], [])),
        (OptionError, lambda: pool.translate(LINES, beam_size=0)),
        (OptionError, lambda: pool.translate(LINES, device="cpu")),
        # detected by workers
        (OptionError, lambda: pool.translate(LINES, prefixes=LINES, search="opennmt-2018")),
        (AttributeError, lambda: pool.backend.translate_lines([None])),
    ):
        for _ in range(2):
            with pytest.raises(error) as caught:
                call()
            assert type(caught.value) is error
    assert [t.src for t in pool.translate(LINES)] == LINES
    with pytest.raises(CheckpointError, match="no model"):
        Translator.from_pretrained("none", workers=2)


def test_workers_warning_is_at_line_of_call():
    with toy_pool() as pool, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            pool.translate(["katze"], ignore_when_blocking=["zebra"], block_ngram_repeat=2)
        (warning,) = caught
        assert warning.category is OptionWarning and "zebra" in str(warning.message)
        assert warning.filename == __file__


def test_workers_stream_does_not_block_other_calls(pool):
    """An abandoned stream does not block other calls, either."""
    stream = pool.translate_stream(iter(LINES))
    first = next(stream)
    assert pool.translate([LINES[0]])[0].text == first.text
    found: list = []
    threads = [
        threading.Thread(target=lambda: found.append(pool.translate(LINES))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [[t.src for t in each] for each in found] == [LINES] * 3
    assert [t.src for t in stream] == LINES[1:]


def test_workers_killed_worker_is_replaced(pool):
    os.kill(list_children(get_server_pid(pool))[0], signal.SIGKILL)
    assert [t.src for t in pool.translate(LINES)] == LINES
    os.kill(get_server_pid(pool), signal.SIGKILL)
    assert [t.src for t in pool.translate(LINES)] == LINES


def test_workers_survive_thread_that_started_them():
    """The system kills child processes when the thread that started them ends."""
    made = []
    thread = threading.Thread(
        target=lambda: made.append(Translator.from_pretrained(TOY, workers=2))
    )
    thread.start()
    thread.join()
    pool = made.pop()
    server = get_server_pid(pool)
    time.sleep(0.2)
    assert is_alive(server) and pool.translate(["katze"])[0].text == "a cat"
    assert get_server_pid(pool) == server
    pids = [server, *list_children(server)]
    del pool
    gc.collect()
    wait_until(lambda: not any(map(is_alive, pids)), 5)


def test_close_stops_workers():
    with toy_pool() as pool:
        pids = [get_server_pid(pool), *list_children(get_server_pid(pool))]
        assert len(pids) == 3
    assert not any(map(is_alive, pids)) and not set(pids) & set(list_children(os.getpid()))
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.translate(["katze"])
    with Translator.from_pretrained(TOY) as one:  # also without workers
        one.close()


@pytest.mark.parametrize(("n", "n_workers"), [(0, 2), (1, 2), (2, 2), (128, 2), (5000, 2), (99, 8)])
def test_workers_part_size(n, n_workers):
    """All workers get full batches, and no part is larger than a bucket."""
    size = choose_call_size(n, n_workers)
    parts = -(-n // size)
    assert 1 <= size <= 1024 and parts >= min(n, n_workers)
    assert parts <= n_workers or size >= min(64, n // n_workers)


# -- programs with workers ------------------------------------------------------------------------

PROGRAM = f"""\
import os, sys, torch
torch.ones(9, 9) @ torch.ones(9, 9)
from onmt_lite import Translator
t = Translator.from_pretrained({TOY!r}, workers=2)
print(t.backend._workers._server.process.pid, flush=True)
print(t.translate(["katze"])[0].text, flush=True)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param("", 0, marks=pytest.mark.sweep),
        ("os.kill(os.getpid(), 9)", -9),
        pytest.param(  # a fork does not stop the workers of its parent
            "pid = os.fork()\n"
            "if pid == 0: sys.exit(0)\n"
            "os.waitpid(pid, 0)\n"
            "assert t.translate(['katze'])[0].text == 'a cat'",
            0,
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_workers_end_with_program(end, code):
    """The program has no main guard."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    )
    server = int(program.stdout.readline())
    pids = [server, *list_children(server)]
    assert program.stdout.readline() == "a cat\n"
    assert program.wait(60) == code and len(pids) == 3
    program.stdout.close()
    wait_until(lambda: not any(map(is_alive, pids)), 10)
    assert not set(pids) & set(list_family(os.getpid()))
