"""Translation on a Ray cluster: `python -m onmt_lite.ray`, and `translate_dataset`.

A job is a job of `onmt_lite.jobs` with a different engine.  Ray decides where actors run and
notices when they die.  Modules in the order of a job:

    options.py   options, most of them shared with translate.py
    job.py       the driver: one job from files to a file
    cluster.py   the engine: actors that run tasks
    dataset.py   translate_dataset: a Dataset instead of files
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import translate_dataset on first use, because it needs ray and pyarrow."""
    if name != "translate_dataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onmt_lite.ray.dataset import translate_dataset

    return translate_dataset
