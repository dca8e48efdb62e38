"""The driver: a job whose parts are made by the actors of Ray."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onmt_lite.checkpoints.shipped import find_model, model_paths
from onmt_lite.config.files import check_paths
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, DataError, OptionError
from onmt_lite.jobs.engine import Engine, Idle
from onmt_lite.jobs.job import Run, files_read, files_written, why_not_resumed
from onmt_lite.jobs.progress import logging_to
from onmt_lite.jobs.reading import is_packed
from onmt_lite.ray.cluster import Cluster
from onmt_lite.ray.files import find_files, kind_of_files
from onmt_lite.ray.options import RayOptions

INSTALL = "pip install 'ray[data]'"


def run_job(options: RayOptions) -> None:
    """Translate the inputs to -output.  Raises an OnmtLiteError, or Interrupted."""
    ray = find_ray()
    paths = find_files(options.files.src)
    kind = kind_of_files(paths, options.files.input_format)
    data = replace(
        options.translation.data,
        src=paths[0],
        output=options.files.output,
        input_format=options.files.input_format,
        output_format=options.files.output_format or kind,
        text_field=options.files.text_field,
    )
    translation = replace(options.translation, data=data)
    check_inputs(paths, translation)

    def choose(n_buckets: int | None) -> Engine:
        return Cluster(ray, options.cluster, n_buckets) if n_buckets else Idle()

    with logging_to(translation.jobs):
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
        raise OptionError(f"the package ray is missing ({error}); run: {INSTALL}") from None
    return ray


def check_inputs(paths: Sequence[str], options: TranslateOptions) -> None:
    """Raise OptionError, DataError or CheckpointError if names or first bytes tell that something
    cannot be read or written."""
    read = [("src", path) for path in paths] + list(files_read(options))[1:]
    check_paths(read, files_written(options))
    if why := why_not_resumed(options):
        raise OptionError(why)
    for model in model_paths(options.model.model):
        if not find_model(model).exists():
            raise CheckpointError(f"no model at {model}: there is no such file or directory")
    for path in paths:
        if is_packed(path):
            raise DataError(
                f"{path} is gzip data, which cannot be cut into buckets; unpack it first: "
                f"gunzip {path}"
            )
