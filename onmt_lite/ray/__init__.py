"""Translation on many machines, by Ray: `python -m onmt_lite.ray`, and `translate_dataset`.

A job is that of `onmt_lite.jobs`, with another engine.  Ray's is where the actors run, and to
notice when they die.  Files in the order of a job:

    options.py   the options, most of them those of translate.py
    job.py       the driver: one job from files to a file
    cluster.py   the engine: actors, to which it hands out ranges
    dataset.py   translate_dataset: a Dataset instead of files
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """translate_dataset, whose import needs ray and pyarrow."""
    if name != "translate_dataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onmt_lite.ray.dataset import translate_dataset

    return translate_dataset
