"""Fixtures shared by several test directories."""

import os
import random
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from onmt_lite import Translator
from onmt_lite.config.job_options import JobOptions
from onmt_lite.jobs.progress import configure_logging
from onmt_lite.system.terminal import SIGNALS, pending_signals
from tests.support import tiny
from tests.support.tiny_training import write_pairs

# The same examples in every run: a failure comes from a change, not from the dice
settings.register_profile("onmt_lite", deadline=None, derandomize=True, database=None)
settings.load_profile("onmt_lite")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
os.environ["HF_HUB_OFFLINE"] = "1"  # what looks like a name of the hub is not looked up
# Blocked in what Ray starts, ignored under nohup or in the background of a script: jobs inherit it
signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
for signum in SIGNALS:
    if signal.getsignal(signum) == signal.SIG_IGN:
        default = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        signal.signal(signum, default)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run the full suite in two processes, and selected tests in this one."""
    whole = [Path(arg).absolute() for arg in config.args] == [Path(__file__).parent]
    if not whole or config.option.keyword:
        return 0
    # Both must find the same tests in the same order, and some are named by sets
    os.environ.setdefault("PYTHONHASHSEED", str(random.randrange(2**32)))
    return 2


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Give tests the same ids in both processes; gzip data contains the time, for example."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


@pytest.fixture(autouse=True)
def close_logs():
    """Close log files that a test has opened."""
    with configure_logging(JobOptions(quiet=True)):
        yield


@pytest.fixture(autouse=True)
def restore_signals():
    """Restore signal handlers: a program ignores signals at its end, and children inherit that."""
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    pending_signals.clear()
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@pytest.fixture(scope="session")
def tiny_pieces() -> bytes:
    return tiny.train_pieces()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Training pairs, `source<TAB>target` lines."""
    return write_pairs(tmp_path_factory.mktemp("corpus") / "pairs.tsv")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory, tiny_pieces):
    """Directory of a small model; tests that change it use a copy."""
    return tiny.write_checkpoint(tmp_path_factory.mktemp("tiny"), tiny_pieces)


@pytest.fixture(scope="session")
def translator(tiny_checkpoint) -> Translator:
    return Translator.from_pretrained(tiny_checkpoint, device="cpu")


@pytest.fixture(scope="session")
def space_translator(tiny_checkpoint) -> Translator:
    """A Translator for lines that are split into subwords already."""
    return Translator.from_pretrained(tiny_checkpoint, device="cpu", tokenizer="space")
