"""-workers N: the output of a single process, whatever happens to the workers."""

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from onmt_lite.config import job_options as options_module
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, MemoryExhausted, OptionError, WorkerLost
from onmt_lite.jobs import engine as engine_module
from onmt_lite.jobs import worker as worker_module
from onmt_lite.jobs import workers as workers_module
from onmt_lite.jobs.dispatcher import MAX_DEATHS, MAX_OPEN_TASKS, READ_AHEAD
from onmt_lite.jobs.fingerprint import compute_fingerprint
from onmt_lite.jobs.inputs import choose_bucket_lines, scan_inputs
from onmt_lite.jobs.tasks import Bucket, BucketResult, InProcessEngine, Task
from onmt_lite.jobs.worker import build_pipeline, load_shared, make_picklable
from onmt_lite.jobs.workers import Workers
from onmt_lite.system.log import LOG
from onmt_lite.system.resources import count_usable_cores
from onmt_lite.text.lines import Line
from tests.support.injected_faults import FaultyTask
from tests.support.stop_signals import restore_default_signals

ROOT = Path(__file__).resolve().parents[3]
TOY = str(ROOT / "data" / "toy.json")
OPTIONS = TranslateOptions.of(model=TOY, device="cpu", output_format="jsonl", verbose=True)


class CustomError(Exception):
    """An error of a module that the parent does not import."""


def make_tasks(first: int, n: int, n_lines: int = 3) -> list[Task]:
    """Build tasks with the faults of tests/support/injected_faults.py."""
    texts = ["katze", "", "katze"]
    numbered = [Line(i, texts[i % 3]) for i in range(first * n_lines, (first + n) * n_lines)]
    buckets = [Bucket(first + i, numbered[i * n_lines : (i + 1) * n_lines]) for i in range(n)]
    return [FaultyTask(bucket, OPTIONS) for bucket in buckets]


def in_process(tasks: list[Task]) -> list[BucketResult]:
    with InProcessEngine(OPTIONS) as engine:
        tasks = [Task(task.work, task.options) for task in tasks]
        return list(engine.run(tasks, lambda *added: None))


def run(engine, tasks, seen: list | None = None) -> list[BucketResult]:
    """Run tasks and return their results; `seen` collects the progress."""
    return list(engine.run(tasks, lambda *batch: None if seen is None else seen.append(batch)))


def get_stable_fields(results: Iterable[BucketResult]) -> list[tuple]:
    """Return the fields that do not differ between runs."""
    results = sorted(results, key=lambda result: result.number)
    return [(r.number, r.n_lines, r.data, r.report, r.log, vars(r.summary)) for r in results]


def assert_done(results: Iterable[BucketResult], tasks: list[Task]) -> None:
    assert get_stable_fields(results) == get_stable_fields(in_process(tasks))


def is_alive(pid: int) -> bool:
    """Return True if a process runs or is stopped, but is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def list_children(pid: int) -> list[int]:
    """Return the child processes of all threads of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, path.read_text("utf-8").split())
    return found


def list_family(pid: int) -> list[int]:
    """Return the fork server of a process and its workers."""
    return [found for child in list_children(pid) for found in (child, *list_children(child))]


def wait_until(holds, seconds: float = 200):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def run_with_faults(folder: Path, faults: dict[int, str], n: int = 2, timeout: float = 15.0):
    """Yield an engine whose workers fail in the given buckets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INJECTED_FAULTS", str(folder))
        for number, words in faults.items():
            (folder / str(number)).write_text(words, "utf-8")
        with Workers(OPTIONS, n, timeout) as engine:
            yield engine


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An engine of two workers, shared by tests that use different bucket numbers."""
    folder = tmp_path_factory.mktemp("faults")
    with run_with_faults(folder, {}, timeout=3.0) as engine:
        yield engine, folder


@pytest.fixture
def log(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(LOG, "info", lambda text, *args, **kw: lines.append(text % args))
    return lines


def test_workers_results_equal_single_process(shared):
    engine, _ = shared
    seen = []
    assert_done(run(engine, iter(make_tasks(0, 40)), seen), make_tasks(0, 40))
    assert sum(n_lines for n_lines, _ in seen) == 120
    large = make_tasks(100, 2, n_lines=1500)  # of more bytes than a pipe holds, both ways
    assert_done(run(engine, large), large)
    assert run(engine, []) == []
    with InProcessEngine(OPTIONS) as alone:
        assert (engine.notes, engine.machine) == (alone.notes, alone.machine)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("SIGKILL", "was killed (SIGKILL), likely out of memory, at lines 607 to 609"),
        ("SIGKILL SIGSEGV", "was killed (SIGSEGV), at lines 607 to 609"),
        ("exit", "ended with exit code 3, at lines 607 to 609"),
        ("SIGSTOP", "sent no heartbeat for 3 s, at lines 607 to 609"),
        ("late", "was killed (SIGKILL)"),
    ],
)
def test_workers_repeat_bucket_of_dead_worker(shared, log, faults, expected):
    engine, folder = shared
    (folder / "202").write_text(faults, "utf-8")
    buckets, seen = make_tasks(200, 8), []
    assert_done(run(engine, buckets, seen), buckets)
    assert sum(n_lines for n_lines, _ in seen) == 24  # repeated work counts once
    assert expected in log[-1] and len(log) == len(faults.split())


def test_workers_replace_dead_idle_workers_and_fork_server(shared, log):
    """Idle workers are replaced as well, and a dead fork server is started again."""
    engine, _ = shared
    server = engine._server.process.pid
    before = list_children(server)
    os.kill(before[0], signal.SIGKILL)
    assert_done(run(engine, make_tasks(300, 6)), make_tasks(300, 6))
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, list_children(server))))
    assert_done(run(engine, make_tasks(310, 20)), make_tasks(310, 20))
    assert engine._server.process.pid != server and log


def test_dispatcher_slow_bucket_limits_open_tasks(shared):
    """Few later buckets are assigned until the first is done, so memory is bounded."""
    engine, folder = shared
    (folder / "400").write_text("wait", "utf-8")
    (folder / "continue").unlink(missing_ok=True)
    n_read = 0

    def source():
        nonlocal n_read
        for bucket in make_tasks(400, 60):
            n_read += 1
            yield bucket

    most = MAX_OPEN_TASKS * engine.n
    done = []

    def look_and_go_on():
        wait_until(lambda: len(done) == most - 1)
        time.sleep(0.2)  # a chance to do more than that
        assert len(done) == most - 1 and n_read <= most + READ_AHEAD + 1
        (folder / "continue").touch()

    opener = threading.Thread(target=look_and_go_on)
    opener.start()
    for result in engine.run(source(), lambda *batch: None):
        done.append(result.number)
    opener.join()
    assert done.index(400) >= most - 1 and sorted(done) == list(range(400, 460))


def test_dispatcher_yields_results_while_waiting_for_input(shared):
    """A typed line is translated before the next one arrives, even if that one fails."""
    engine, _ = shared
    has_result, results = threading.Event(), []

    def typed():
        for bucket in make_tasks(500, 3):
            yield bucket
            assert has_result.wait(200)
            has_result.clear()
        yield from make_tasks(503, 2)
        raise DataError("line 16: bad")

    with pytest.raises(DataError, match="line 16"):
        for done in engine.run(typed(), lambda *batch: None):
            results.append(done.number)
            has_result.set()
    assert sorted(results) == list(range(500, 505))


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("data", DataError, "line 7: bad"),
        ("bug", KeyError, "seven"),
        ("SIGKILL SIGSEGV SIGKILL", WorkerLost, r"3 workers died at lines 13 to 15 \(the last one"),
    ],
)
def test_workers_raise_error_after_earlier_buckets(tmp_path, fault, kind, text):
    """The error comes from the worker; a bucket that kills three workers is an error, too."""
    results = []
    with run_with_faults(tmp_path, {4: fault}) as engine:
        with pytest.raises(kind, match=text) as caught:
            for done in engine.run(make_tasks(0, 30), lambda *batch: None):
                results.append(done.number)
        server = engine._server.process.pid
        pids = [server, *list_children(server)]
        assert len(pids) > 1
    assert {0, 1, 2, 3} <= set(results) <= {*range(4), 5, 6, 7} and type(caught.value) is kind
    if fault == "bug":
        assert "in run_with_fault" in str(caught.value.__cause__)
    wait_until(lambda: not any(map(is_alive, pids)), 5)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OptionError("one", "two"), OptionError),
        (MemoryExhausted("out of memory at line 3 alone"), MemoryExhausted),
        (WorkerLost("killed", by_memory=True), WorkerLost),
        (KeyError("seven"), KeyError),
        (CustomError("seven"), RuntimeError),
    ],
)
def test_make_picklable_preserves_errors(error, kind):
    found, traceback = pickle.loads(pickle.dumps(make_picklable(error)))
    assert type(found) is kind and str(error) in str(found)
    assert bool(traceback) is (kind in (RuntimeError, KeyError))
    for name in ("exit_code", "problems"):
        assert getattr(found, name, None) == getattr(error, name, None)


# -- exit code 6 if the kernel kills a process, as it does if memory is short ----------------------

MEMORY = MemoryExhausted.exit_code


@pytest.mark.parametrize(
    ("faults", "exit_code"), [("SIGKILL SIGSEGV SIGKILL", MEMORY), ("SIGKILL SIGKILL SIGSEGV", 1)]
)
def test_workers_killed_exit_code_is_out_of_memory(tmp_path, faults, exit_code):
    with run_with_faults(tmp_path, {1: faults}) as engine, pytest.raises(WorkerLost) as caught:
        run(engine, make_tasks(0, 4))
    assert caught.value.exit_code == exit_code


def test_fork_server_killed_while_loading_exit_code_is_out_of_memory(monkeypatch):
    monkeypatch.setattr(workers_module, "FORK_SERVER_PROGRAM", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(WorkerLost, match=r"was killed \(SIGKILL\), .*; free some memory") as caught:
        Workers(OPTIONS, 2).__enter__()
    assert caught.value.exit_code == MEMORY


def test_fork_server_killed_repeatedly_exit_code_is_out_of_memory(tmp_path):
    with run_with_faults(tmp_path, {}) as engine:
        engine._server.n_starts = MAX_DEATHS  # the last try
        os.kill(engine._server.process.pid, signal.SIGKILL)
        with pytest.raises(
            WorkerLost, match=r"3 times \(the last one was killed \(SIGKI"
        ) as caught:
            run(engine, make_tasks(0, 4))
    assert caught.value.exit_code == MEMORY


def test_gpu_detection_killed_exit_code_is_out_of_memory(monkeypatch):
    kill = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    monkeypatch.setattr(worker_module, "resolve_device", kill)
    with pytest.raises(WorkerLost, match="detects GPUs was killed") as caught:
        worker_module.resolve_machines(OPTIONS)
    assert caught.value.exit_code == MEMORY


# -- the fork server, in this process -------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with eight cores; records which process detects GPUs."""
    asked = tmp_path / "asked"

    def answer(name, value):
        def answered(*args):
            with asked.open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
            return value

        monkeypatch.setattr(torch.cuda, name, answered)

    answer("is_available", True)
    answer("device_count", 3)
    answer("is_bf16_supported", True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return asked


def test_workers_use_no_gpu_before_fork(machine, tiny_checkpoint):
    """CUDA would fail in the workers.  Weights stay in main memory with the dtype of the GPU."""
    for given, devices in (
        (dict(), ["cuda"] * 2),
        (dict(gpu=[2]), ["cuda:2"] * 2),
        (dict(gpu=[2, 0]), ["cuda:2", "cuda:0"]),
    ):
        shared = load_shared(TranslateOptions.of(model=str(tiny_checkpoint), **given), 2)
        assert [str(device) for device, _ in shared.machines[:2]] == devices
        assert {precision for _, precision in shared.machines} == {"bf16"}
        weights = list(shared.parts[0].model.parameters())
        assert {(w.device.type, w.dtype) for w in weights} == {("cpu", torch.bfloat16)}
    assert str(os.getpid()) not in machine.read_text("utf-8").split()
    with pytest.raises(OptionError, match="gpu 5: this machine has 3 usable GPUs"):
        load_shared(TranslateOptions.of(model=str(tiny_checkpoint), gpu=[0, 5]), 2)


def test_workers_share_weights_and_divide_cores(machine, tiny_checkpoint):
    options = dict(model=str(tiny_checkpoint), device="cpu")
    for n, given, threads in ((2, {}, 4), (3, {}, 2), (20, {}, 1), (2, dict(threads=5), 5)):
        shared = load_shared(TranslateOptions.of(**options, **given), n)
        translator = build_pipeline(shared, n - 1)
        assert shared.options.speed.threads == threads
        assert translator.model is shared.parts[0].model


# -- the command line -----------------------------------------------------------------------------

SLOW = """
import sys
from onmt_lite.__main__ import main
from onmt_lite.jobs import job
from tests.support.injected_faults import FaultyTask
from tests.support.stop_signals import restore_default_signals
job.Task = FaultyTask
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


@contextlib.contextmanager
def started(folder: Path, *argv: object, **given):
    """Run a job with two workers in a separate process group."""
    words = [sys.executable, "-c", SLOW, "-model", TOY, "-workers", "2", "-threads", "1"]
    env = {**os.environ, "INJECTED_FAULTS": str(folder), "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen(
        [*words, *map(str, argv)],
        cwd=folder,
        env=env,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restore_default_signals,
        **given,
    )
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


@pytest.fixture
def waiting(tmp_path):
    """Return the arguments of a job that waits at its second bucket."""
    (tmp_path / "src").write_text("katze\n" * 12, "utf-8")
    (tmp_path / "1").write_text("wait", "utf-8")
    return ["-src", tmp_path / "src", "-bucket_lines", 2, "-output", tmp_path / "out"]


def test_workers_command_line(tmp_path, waiting):
    """The parent does not import torch."""
    (tmp_path / "1").write_text("SIGKILL", "utf-8")
    with started(tmp_path, *waiting, "-output_format", "jsonl") as job:
        _, err = job.communicate(timeout=200)
    assert job.returncode == 0 and "NOTE: a worker was killed (SIGKILL)" in err
    bucket = Bucket(0, [Line(i, "katze") for i in range(12)])
    (done,) = in_process([Task(bucket, OPTIONS)])
    assert (tmp_path / "out").read_bytes() == done.data
    with started(tmp_path, *waiting, "-model", tmp_path / "none", "-output", "new") as job:
        _, err = job.communicate(timeout=200)
    assert job.returncode == 4 and err.count("\n") == 1 and "none" in err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_end_with_parent(tmp_path, waiting, stopped):
    with started(tmp_path, *waiting) as job:
        wait_until(lambda: (tmp_path / "1").read_text("utf-8") == "")  # a worker is at work
        wait_until(lambda: len(list_family(job.pid)) == 3)
        time.sleep(0.2)  # of the other one's life
        pids = list_family(job.pid)
        if stopped:
            os.kill(pids[-1], signal.SIGSTOP)
            os.kill(job.pid, signal.SIGSTOP)
        os.kill(job.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), 5)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_workers_signal_to_process_group(tmp_path, waiting, signum):
    """Prints one line, as without workers; SIGHUP arrives while the model is loaded."""
    with started(tmp_path, *waiting) as job:
        wait_until(lambda: len(list_family(job.pid)) == (1 if signum == signal.SIGHUP else 3))
        pids = list_family(job.pid)
        os.killpg(job.pid, signum)
        _, err = job.communicate(timeout=200)
        assert job.returncode == 128 + signum
        assert f"stopped by {signal.Signals(signum).name}" in err and "Traceback" not in err
        wait_until(lambda: not any(map(is_alive, pids)), 5)


def test_workers_with_typed_lines_and_closed_descriptors(tmp_path):
    """Each line of a pipe is translated at once; no standard stream is needed."""
    with started(tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        for _ in range(3):
            job.stdin.write("katze\n")
            job.stdin.flush()
            assert job.stdout.readline() == "a cat\n"
    (tmp_path / "src").write_text("katze\n", "utf-8")
    words = f"-model {TOY} -workers 2 -src src -output out <&- >&- 2>&-"
    subprocess.run(
        f"{sys.executable} {ROOT}/translate.py {words}", shell=True, cwd=tmp_path, check=True
    )
    assert (tmp_path / "out").read_text("utf-8") == "a cat\n"


@pytest.fixture
def eight_cores(monkeypatch):
    """A machine with eight cores and no GPU; eight_cores(**limits) changes it."""

    def limited(platform="linux", has_gpu=False, **limits):
        defaults = {"count_usable_cores": 8, "count_workers_in_memory": 99}
        for name, value in {**defaults, **limits}.items():
            monkeypatch.setattr(engine_module, name, lambda value=value: value)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(options_module, "may_have_gpu", lambda: has_gpu)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    limited()
    return limited


@pytest.mark.parametrize(
    ("given", "n_lines", "expected"),
    [
        ({}, 10_000, 8),
        ({}, 63, 1),  # small
        ({}, 64, 2),
        ({}, 100, 2),
        ({}, 300, 3),
        ({}, None, 1),  # a stream
        (dict(threads=1), 10_000, 1),
        (dict(threads=4), 10_000, 1),
        (dict(gpu=[-1]), 10_000, 8),
        (dict(gpu=[0]), 10_000, 1),
        (dict(device="cuda"), 10_000, 1),
        (dict(deterministic=True), 10_000, 8),
        (dict(bucket_lines=5000), 10_000, 2),
        (dict(bucket_lines=1), 63, 8),
        (dict(shard="1/5"), 10_000, 2),
        (dict(search="opennmt-2018"), 1024, 1),  # what shares a batch matters there
    ],
)
def test_workers_default_count(eight_cores, tmp_path, given, n_lines, expected):
    (tmp_path / "src").write_text("katze\n" * (n_lines or 0), "utf-8")
    options = TranslateOptions.of(model=TOY, **{"src": str(tmp_path / "src"), **given})
    assert options.n_workers is None
    n_buckets = None
    if n_lines is not None:
        n_buckets = len(scan_inputs(options, [str(tmp_path / "src")]).ranges)
    assert engine_module.choose_worker_count(options, n_buckets) == expected


@pytest.mark.parametrize(
    "scarce", ["count_usable_cores", "count_workers_in_memory", "get_omp_threads"]
)
def test_workers_default_is_limited_by_scarce_resource(eight_cores, scarce):
    options, on_cpu = TranslateOptions.of(model=TOY), TranslateOptions.of(model=TOY, device="cpu")
    for where, which, expected in (
        ({}, options, 3),
        (dict(has_gpu=True), options, 1),
        (dict(has_gpu=True), on_cpu, 3),
        (dict(has_gpu=True, platform="darwin"), on_cpu, 1),
    ):
        eight_cores(**{"get_omp_threads": 8, scarce: 3}, **where)
        assert engine_module.choose_worker_count(which, 10) == expected


def test_workers_change_neither_buckets_nor_fingerprint(tmp_path):
    """So a job can be resumed with a different number of workers."""
    (tmp_path / "src").write_text("katze\n" * 500, "utf-8")
    src = str(tmp_path / "src")
    jobs = [TranslateOptions.of(model=TOY, src=src, workers=n) for n in (None, 1, 7)]
    inputs = [scan_inputs(options, [src]) for options in jobs]
    found = [compute_fingerprint(options, each.files) for options, each in zip(jobs, inputs)]
    assert len(set(map(str, found))) == 1 and inputs == [inputs[0]] * 3
    assert [each.n_lines for each in inputs[0].ranges] == [128, 128, 128, 116]


@pytest.mark.parametrize("n_lines", [500, 20_000])
def test_shard_ranges_do_not_depend_on_gpu(tmp_path, n_lines):
    (tmp_path / "src").write_text("katze\n" * n_lines, "utf-8")
    src, joined = str(tmp_path / "src"), []
    for part, device in ((1, "cuda"), (2, "cpu"), (3, "cuda")):
        options = TranslateOptions.of(model=TOY, src=src, shard=f"{part}/3", device=device)
        joined += scan_inputs(options, [src]).ranges
    whole = TranslateOptions.of(model=TOY, src=src, device="cpu")
    assert joined == scan_inputs(whole, [src]).ranges


@pytest.mark.parametrize("n_lines", [63, 64, 65, 100, 500, 1025, 5000, 10**7])
def test_bucket_lines_small_file_is_split_for_workers(n_lines):
    """At least two buckets of 32 lines or more; large files and streams use the default size."""
    size = choose_bucket_lines(TranslateOptions.of(model=TOY, device="cpu"), n_lines)
    n = math.ceil(n_lines / size)
    assert 32 <= size <= 1024
    assert (n == 1) if n_lines < 64 else n >= 2
    assert (size == 1024) == (n_lines < 64 or n_lines > 4 * 1023)
    assert choose_bucket_lines(TranslateOptions.of(model=TOY, device="cuda"), n_lines) == 8192
    assert choose_bucket_lines(TranslateOptions.of(model=TOY, device="cpu"), None) == 1024


def test_workers_default_from_command_line(tmp_path):
    """A long file uses workers if there are two cores, with the same output as one process."""
    (tmp_path / "src").write_text("katze\n\n" * 100, "utf-8")
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    outputs = []
    for i, more in enumerate((["-device", "cpu"], ["-device", "cpu", "-workers", "1"])):
        words = ["-model", TOY, "-src", "src", "-output", str(i), "-output_format", "jsonl", *more]
        words += ["-log_file", f"{i}.log"]
        done = subprocess.run(
            [sys.executable, ROOT / "translate.py", *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        n = min(count_usable_cores(), 2) if i == 0 else 1
        note = (
            f"NOTE: using {n} workers with one thread each; set -workers 1 for a single process\n"
        )
        assert (note in (tmp_path / f"{i}.log").read_text("utf-8")) == (n > 1)
        assert "workers" not in done.stderr
        outputs.append((tmp_path / str(i)).read_bytes())
    assert outputs[0] == outputs[1] and outputs[0].count(b"\n") == 200
