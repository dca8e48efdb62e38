"""The driver: a job whose parts are made by the actors of Ray."""

import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from onmt_lite.checkpoints.hub import download_config_files
from onmt_lite.checkpoints.shipped import describe_missing_path, find_model, get_model_paths
from onmt_lite.config.extensions import format_from_path
from onmt_lite.config.files import check_directories, check_distinct
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import (
    CheckpointError,
    DataError,
    FileError,
    OptionError,
    hint_for_path,
    wrap_os_errors,
)
from onmt_lite.jobs.job import Run, find_resume_obstacle, list_read_files, list_written_files
from onmt_lite.jobs.progress import configure_logging
from onmt_lite.jobs.tasks import Engine, is_gzip
from onmt_lite.ray.cluster import Cluster
from onmt_lite.ray.options import RayOptions

Format = Literal["text", "jsonl"]  # of inputs and outputs


def run_job(options: RayOptions) -> None:
    """Translate the inputs to -output.  Raises an OnmtLiteError, or Interrupted."""
    ray = find_ray()
    paths, data = find_files(options.src), options.translation.data
    kind = detect_input_format(paths, data.input_format)
    if data.output_format == "auto" and not format_from_path(data.output):
        data = replace(data, output_format=kind)
    translation = replace(options.translation, data=replace(data, src=paths[0]))
    check_inputs(paths, translation)

    def choose(_: TranslateOptions, n_buckets: int | None) -> Engine:
        return Cluster(ray, options.cluster, n_buckets) if n_buckets else Engine()

    with configure_logging(translation.jobs):
        summary = Run(translation, paths, resumable=True).translate(choose)
    summary.check()


def find_ray() -> Any:
    """The library.  OptionError if it is not installed."""
    # Before the import.  What becomes of a worker that was killed is ours to tell
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # no Ray is to begin while ours ends
    try:
        import ray
    except ImportError as error:
        what = f"the package ray is missing ({error})"
        raise OptionError(f"{what}; run: pip install 'ray[data]'") from None
    return ray


def check_inputs(paths: Sequence[str], options: TranslateOptions) -> None:
    """Raise an OnmtLiteError if names or first bytes tell what cannot be read or written."""
    read = [("src", path) for path in paths] + list(list_read_files(options))[1:]
    check_distinct(read, list_written_files(options))
    check_directories(list_written_files(options))
    if why := find_resume_obstacle(options):
        raise OptionError(why)
    for model in get_model_paths(map(download_config_files, options.model.model)):
        if not find_model(model).exists():
            raise CheckpointError(
                f"no model at {model}: {describe_missing_path(model)}; check the path"
            )
    for path in paths:
        if is_gzip(path):
            remedy = f"unpack it first: gunzip {path}"
            raise DataError(f"{path} is gzip data, which cannot be cut into buckets; {remedy}")


def find_files(words: Sequence[str]) -> list[str]:
    """Find the files that -src names.

    Args:
        words: files, folders and patterns.

    Returns:
        Absolute paths in the order of the words; those of a pattern are sorted, as are those of a
        folder, without names that begin with a dot or an underscore.

    Raises:
        FileError: for what is not there or cannot be read.
        OptionError: for what is no file.
    """
    return [os.path.abspath(path) for word in words for path in _expand(word)]


def _expand(word: str) -> list[str]:
    found = [word] if os.path.lexists(word) else sorted(glob.glob(word, recursive=True))
    if not found:
        raise FileError(
            f"src {word}: nothing has this name; {hint_for_path(word) or 'check the path'}"
        )
    # A pattern such as text/** finds folders besides the files in them
    files = [path for path in found if not os.path.isdir(path)]
    files = files or [file for folder in found for file in _list_directory(folder)]
    for path in files:
        with wrap_os_errors(f"read {path}"):
            mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OptionError(
                f"src: {path} is no regular file, so that actors cannot share it; copy it to a file"
            )
    return files


def _list_directory(folder: str) -> list[str]:
    with wrap_os_errors(f"read {folder}"):
        names = sorted(os.listdir(folder))
    paths = [os.path.join(folder, n) for n in names if n[0] not in "._"]
    if inner := next(filter(os.path.isdir, paths), None):
        pattern = os.path.join(folder, "**", "*")
        raise OptionError(
            f"src: {inner} is a folder within a folder; name each folder, or give {pattern}"
        )
    if not paths:
        raise FileError(
            f"cannot read {folder}: there is no file in it; give a folder with text files"
        )
    return paths


def detect_input_format(paths: Sequence[str], asked: Format | Literal["auto"]) -> Format:
    """Return the kind that -input_format or all suffixes say.  OptionError if suffixes differ."""
    if asked != "auto":
        return asked
    kinds: dict[Format, str] = {}  # the first file of each
    for path in paths:
        kinds.setdefault("jsonl" if path.lower().endswith(".jsonl") else "text", path)
    if len(kinds) > 1:
        shown = ", ".join(f"{path} is {kind}" for kind, path in kinds.items())
        raise OptionError(f"src: files of several kinds ({shown}); translate each kind by itself")
    return next(iter(kinds))
