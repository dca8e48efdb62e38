"""The driver of a Ray job."""

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
    input_format = detect_input_format(paths, data.input_format)
    if data.output_format == "auto" and not format_from_path(data.output):
        data = replace(data, output_format=input_format)
    translation = replace(options.translation, data=replace(data, src=paths[0]))
    check_inputs(paths, translation)

    def choose(_: TranslateOptions, n_buckets: int | None) -> Engine:
        return Cluster(ray, options.cluster, n_buckets) if n_buckets else Engine()

    with configure_logging(translation.jobs):
        summary = Run(translation, paths, resumable=True).translate(choose)
    summary.check()


def find_ray() -> Any:
    """Import ray.  Raises OptionError if it is not installed."""
    # Before the import: the dispatcher reports dead workers itself
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # do not start another Ray at exit
    try:
        import ray
    except ImportError as error:
        problem = f"the package ray is missing ({error})"
        raise OptionError(f"{problem}; run: pip install 'ray[data]'") from None
    return ray


def check_inputs(paths: Sequence[str], options: TranslateOptions) -> None:
    """Raise an OnmtLiteError if an input, a model or an output is known to be unusable."""
    inputs = [("src", path) for path in paths] + list(list_read_files(options))[1:]
    check_distinct(inputs, list_written_files(options))
    check_directories(list_written_files(options))
    if obstacle := find_resume_obstacle(options):
        raise OptionError(obstacle)
    for model in get_model_paths(map(download_config_files, options.model.model)):
        if not find_model(model).exists():
            raise CheckpointError(
                f"no model at {model}: {describe_missing_path(model)}; check the path"
            )
    for path in paths:
        if is_gzip(path):
            remedy = f"unpack it first: gunzip {path}"
            raise DataError(f"{path} is gzip data, which cannot be split into buckets; {remedy}")


def find_files(arguments: Sequence[str]) -> list[str]:
    """Find the files that -src names.

    Args:
        arguments: files, directories and glob patterns.

    Returns:
        Absolute paths in the order of the arguments.  The files of a pattern or directory are
        sorted; names in a directory that begin with a dot or an underscore are skipped.

    Raises:
        FileError: if a path does not exist or cannot be read.
        OptionError: if a path is not a regular file.
    """
    return [
        os.path.abspath(path) for pattern_or_path in arguments for path in _expand(pattern_or_path)
    ]


def _expand(pattern_or_path: str) -> list[str]:
    matches = (
        [pattern_or_path]
        if os.path.lexists(pattern_or_path)
        else sorted(glob.glob(pattern_or_path, recursive=True))
    )
    if not matches:
        remedy = hint_for_path(pattern_or_path) or "check the path"
        raise FileError(f"src {pattern_or_path}: no such file or directory; {remedy}")
    # A pattern such as text/** also matches directories
    files = [path for path in matches if not os.path.isdir(path)]
    files = files or [file for directory in matches for file in _list_directory(directory)]
    for path in files:
        with wrap_os_errors(f"read {path}"):
            mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OptionError(
                f"src: {path} is not a regular file, so actors cannot share it; copy it to a file"
            )
    return files


def _list_directory(directory: str) -> list[str]:
    with wrap_os_errors(f"read {directory}"):
        names = sorted(os.listdir(directory))
    paths = [os.path.join(directory, n) for n in names if n[0] not in "._"]
    if subdirectory := next(filter(os.path.isdir, paths), None):
        pattern = os.path.join(directory, "**", "*")
        raise OptionError(
            f"src: {subdirectory} is a subdirectory; list each directory, or use {pattern}"
        )
    if not paths:
        raise FileError(
            f"cannot read {directory}: it contains no files; use a directory with text files"
        )
    return paths


def detect_input_format(paths: Sequence[str], requested: Format | Literal["auto"]) -> Format:
    """Return the format of -input_format or of all suffixes.  Raises OptionError if they differ."""
    if requested != "auto":
        return requested
    paths_by_format: dict[Format, str] = {}  # first file of each format
    for path in paths:
        paths_by_format.setdefault("jsonl" if path.lower().endswith(".jsonl") else "text", path)
    if len(paths_by_format) > 1:
        shown = ", ".join(
            f"{path} is {input_format}" for input_format, path in paths_by_format.items()
        )
        raise OptionError(
            f"src: files of different formats ({shown}); translate each format in a separate job"
        )
    return next(iter(paths_by_format))
