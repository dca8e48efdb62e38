"""The driver: one job, from files to a folder of parts, on the actors of Ray."""

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from onmt_lite.checkpoints.shipped import find_model, model_paths
from onmt_lite.config.interrupt import Interrupted, stop_on_signals
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import (
    CheckpointError,
    DataError,
    FileError,
    MemoryExhausted,
    OnmtLiteError,
    OptionError,
    WorkerLost,
)
from onmt_lite.files import check_paths
from onmt_lite.jobs.buckets import BUCKET_LINES
from onmt_lite.jobs.fingerprint import fingerprint
from onmt_lite.jobs.progress import Meter, logging_to
from onmt_lite.jobs.reports import LOG
from onmt_lite.ray import folder as folders
from onmt_lite.ray.actors import Task, TranslateBucket, packed, where_we_are
from onmt_lite.ray.folder import Folder
from onmt_lite.ray.inputs import (
    Input,
    Kind,
    Range,
    cut_lines,
    find_files,
    kind_of_files,
    look_at,
    number,
)
from onmt_lite.ray.options import ClusterOptions, RayOptions

INSTALL = "pip install 'ray[data]'"
OBJECT_STORE = 256 << 20  # bytes of a Ray of ours: ranges are small, and text never gets there
ERRORS = {e.exit_code: e for e in (DataError, CheckpointError, FileError, MemoryExhausted)}
REFUSALS = (OptionError, DataError, CheckpointError)  # as a rule before the first part


def run_job(options: RayOptions) -> None:
    """Translate the inputs into the folder.  Raises an OnmtLiteError, or Interrupted."""
    ray = find_ray()
    with logging_to(options.translation.jobs):
        for note in options.translation.notes:
            LOG.info("NOTE: %s", note)
        files = options.files
        paths = find_files(files.src)
        kind = kind_of_files(paths, files.input_format)
        made = files.output_format or kind
        check_inputs(paths, options)
        with folders.open_folder(files.output, files.resume) as before:
            try:
                task, ranges = plan(paths, kind, made, options, before)
                work(ray, task, ranges, options.cluster)
            except REFUSALS:
                if before is None:
                    folders.undo(files.output)
                raise


def find_ray() -> Any:
    """The library.  OptionError where it is not installed."""
    # Before the import.  What becomes of a worker that was killed is Ray's to mend and ours to tell
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # no Ray is to begin while ours ends
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise OptionError(f"the package ray is missing ({error}); run: {INSTALL}") from None
    return ray


# -- before the work ------------------------------------------------------------------------------


def check_inputs(paths: Sequence[str], options: RayOptions) -> None:
    """Raise OptionError, DataError or CheckpointError where names or first bytes tell that
    something cannot be read or written."""
    files, translation = options.files, options.translation
    log_file = translation.jobs.log_file
    check_paths([("src", path) for path in paths], [("log_file", log_file)] if log_file else [])
    output = os.path.realpath(files.output)
    for path in paths:
        if os.path.realpath(path).startswith(os.path.join(output, "")):
            raise OptionError(f"output: {path} of src is in {files.output}; choose another folder")
    for model in model_paths(translation.model.model):
        if not find_model(model).exists():
            raise CheckpointError(f"no model at {model}: there is no such file or directory")
    for path in paths:
        look_at(path)


def plan(
    paths: Sequence[str],
    kind: Kind,
    made: Kind,
    options: RayOptions,
    before: folders.Manifest | None,
) -> tuple[Task, list[Range]]:
    """What every actor does, and all ranges of the inputs; the manifest is written, or compared
    with the one from `before`."""
    files = options.files
    device = "cuda" if options.cluster.gpus_per_actor else "cpu"
    bucket_lines = files.bucket_lines or BUCKET_LINES[device]
    translation = of_lines(options.translation, made)
    inputs = [cut_lines(path, bucket_lines) for path in paths]
    job = fingerprint(translation)
    asked = {"bucket_lines": bucket_lines, "device": device}
    asked |= {"input_format": kind, "output_format": made, "text_field": files.text_field}
    manifest = {**job, "asked": asked, "inputs": [entry(each) for each in inputs]}
    if before is None:
        folders.begin(files.output, manifest)
    else:
        folders.check_same(before, manifest)
    ranges = number(inputs)
    folder = Folder(os.path.abspath(files.output), made, len(ranges))
    return Task(translation, kind, files.text_field, folder, job), ranges


def of_lines(options: TranslateOptions, form: Kind) -> TranslateOptions:
    """The options of lines that have been read already."""
    data = replace(options.data, src="", output_format=form, input_format="text")
    return replace(options, data=data)


def entry(read: Input) -> dict[str, Any]:
    return {"path": read.path, "bytes": read.n_bytes, "sha256": read.sha256, "lines": read.n_lines}


# -- the work -------------------------------------------------------------------------------------


def work(ray: Any, task: Task, ranges: Sequence[Range], cluster: ClusterOptions) -> None:
    """Make the parts that are not there, and say so at the end."""
    folder = task.folder
    missing = folders.missing_parts(folder)
    n_lines = sum(each.n_lines for each in ranges)
    if not missing and folders.is_complete(folder):
        LOG.info("%s is complete; nothing is left to do", folder.path)
        return
    started = time.monotonic()
    todo = [ranges[i] for i in missing]
    n_before = n_lines - sum(each.n_lines for each in todo)
    with Meter(n_lines, task.options.jobs.quiet, False, n_before=n_before) as meter:
        try:
            if todo:
                make_parts(ray, task, todo, cluster, meter)
        except BaseException as error:
            n_parts = len(ranges) - len(folders.missing_parts(folder))
            kept = f"after {n_parts} of {len(ranges)} parts; go on with:"
            vars(error).update(kept=kept, goes_on=not isinstance(error, REFUSALS))
            raise
        finally:
            folders.tidy(folder)
    summary = folders.succeed(folder, n_lines)
    summary.log(scores=False)
    meter.end(folder.path, time.monotonic() - started)
    summary.check()


def make_parts(
    ray: Any, task: Task, todo: Sequence[Range], cluster: ClusterOptions, meter: Meter
) -> None:
    """Hand out ranges until all have become parts.  Raises the error of an actor."""
    folders.make_ready(task.folder)
    with silent_stdout(), running(ray, cluster) as own:
        n_actors = choose_actors(ray, cluster, len(todo), own)
        rows = ray.data.from_items([*map(packed, todo)], override_num_blocks=len(todo))
        done = rows.map_batches(
            TranslateBucket,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=n_actors, max_tasks_in_flight_per_actor=1),
            num_cpus=cluster.cpus_per_actor,
            num_gpus=cluster.gpus_per_actor,
            fn_constructor_kwargs={"task": task},
            **where_we_are(),
        )
        said: set[str] = set()
        try:
            for row in as_they_come(done):
                if row is None:
                    meter.add(0, 0)
                    continue
                if row["error"]:
                    raise error_of(row["code"], row["error"])
                for line in dict.fromkeys(row["log"].split("\n")):
                    if line and line not in said:  # each actor has the same to say
                        LOG.info("%s", line)
                        said.add(line)
                meter.add(row["lines"], row["tokens"])
        except ray.exceptions.RayTaskError:
            raise  # a defect of ours
        except ray.exceptions.RayError as error:
            raise WorkerLost(
                f"Ray has ended the job ({last_line(error)}); onmt_lite must be installed on all "
                "machines, and Ray's logs say more"
            ) from None


@contextlib.contextmanager
def running(ray: Any, cluster: ClusterOptions) -> Iterator[bool]:
    """Connected to a cluster; whether it is one of this job alone, which ends with it."""
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    more: dict[str, Any] = {}
    if not address:
        n_cpus = max(os.cpu_count() or 1, (cluster.actors or 1) * cluster.cpus_per_actor)
        more = dict(num_cpus=n_cpus, object_store_memory=OBJECT_STORE, include_dashboard=False)
    try:
        if address:
            knock(address)
        with silent_stderr():
            ray.init(address or "local", logging_level="error", log_to_driver=False, **more)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        where = f"the Ray cluster at {address}" if address else "a Ray on this machine"
        raise OptionError(f"address: cannot reach {where} ({reason}); see ray status") from None
    except SystemExit:
        raise Interrupted(signal.SIGTERM) from None  # Ray's answer to it
    try:
        stop_on_signals()  # Ray has its own handlers
        settle(ray)
        yield not address
    finally:
        ray.shutdown()


def knock(address: str) -> None:
    """OSError where nobody listens at HOST:PORT; Ray would try for an hour."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def silent_stdout() -> Iterator[None]:
    """Ray prints there, at length, that a worker has died."""
    with open(os.devnull, "w", encoding="utf-8", newline="") as nothing:
        with contextlib.redirect_stdout(nothing):
            yield


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """While Ray begins, the one thing that it says is how little it will say."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # closed by the shell
            before = os.dup(2)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, 2)
            stack.enter_context(nothing := open(os.devnull, "wb"))
            os.dup2(nothing.fileno(), 2)
        yield


def settle(ray: Any) -> None:
    """What Ray would print, we say; and when to give up."""
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = -1  # a bucket may take longer than 30 minutes
    context.max_consecutive_actor_init_deaths = 3  # a machine may die while an actor starts there


def choose_actors(ray: Any, cluster: ClusterOptions, n_buckets: int, own: bool) -> int:
    """How many there are to be; an idle one is of no use."""
    total = ray.cluster_resources()
    room = int(total.get("CPU", 0) // cluster.cpus_per_actor)
    if cluster.gpus_per_actor:
        room = min(room, int(total.get("GPU", 0) / cluster.gpus_per_actor + 1e-6))
    if room == 0 and own:
        raise OptionError("gpus_per_actor: this machine has no GPU that Ray finds; give 0")
    wanted = cluster.actors or max(1, room)
    if wanted > room:
        LOG.info("NOTE: actors %d: the cluster has room for %d now", wanted, room)
    return min(wanted, n_buckets)


def as_they_come(dataset: Any) -> Iterator[dict[str, Any] | None]:
    """The rows of a dataset, and None each second that passes without one.

    They come by a thread, so that a signal is answered at once, whatever Ray is waiting for.
    """
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    end = object()

    def fetch() -> None:
        try:
            for row in dataset.iter_rows():
                waiting.put(row)
            waiting.put(end)
        except BaseException as error:
            waiting.put(error)
            raise SystemExit from None

    threading.Thread(target=fetch, daemon=True).start()
    while True:
        try:
            found = waiting.get(timeout=1)
        except queue.Empty:
            found = None
        if found is end:
            return
        if isinstance(found, BaseException):
            raise found
        yield found


def last_line(error: Exception) -> str:
    return next((line for line in str(error).split("\n")[::-1] if line.strip()), "without a word")


def error_of(code: int, text: str) -> OnmtLiteError:
    """The error that an actor has told as a row."""
    if code == OptionError.exit_code:
        return OptionError(*text.split("\n"))
    return ERRORS.get(code, WorkerLost)(text)
