"""Translation on many machines, by Ray: `python -m onmt_lite.ray`, and `translate_dataset`.

A job is that of `onmt_lite.jobs`, with another engine.  Ray's is where the actors run, and to
notice when they die.  Files in the order of a job:

    options.py   the options, most of them those of translate.py
    files.py     which files -src names
    job.py       the driver: one job from files to a file
    cluster.py   the engine: actors, to which it hands out ranges
    actors.py    what runs on the machines: ranges to parts
    tables.py    rows of a dataset
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.data import Dataset


def translate_dataset(
    ds: Dataset,
    column: str = "text",
    actors: int = 1,
    cpus_per_actor: int = 1,
    gpus_per_actor: float = 0,
    bucket_lines: int | None = None,
    **options: Any,
) -> Dataset:
    """A Ray Dataset with the columns translation (text), score (None for a blank line) and notes
    (a list of names) besides those of `ds`.

    column          what to translate; rows without a text count as blank lines
    actors          processes that load the model, each with so many CPUs and GPUs
    bucket_lines    rows that an actor takes at a time: 1,024 without a GPU, 8,192 with one
    options         of a translation, by name, as in `Translator.from_pretrained`

    Order, numbers and checkpoints of rows are Ray's and the caller's.  Raises OptionError for wrong
    options and for a column that is not there or is there already, the latter when `ds` is run
    unless its columns are known before.
    """
    from pyarrow import Schema
    from ray.data import ActorPoolStrategy

    from onmt_lite.config.options import OPTIONS as TRANSLATE
    from onmt_lite.config.options import TranslateOptions
    from onmt_lite.errors import OptionError
    from onmt_lite.jobs.inputs import BUCKET_LINES
    from onmt_lite.ray.actors import TranslateRows, where_we_are
    from onmt_lite.ray.options import SHARED_NAMES, ClusterOptions, of_actors
    from onmt_lite.ray.tables import check_columns

    cluster = ClusterOptions(
        actors=actors, cpus_per_actor=cpus_per_actor, gpus_per_actor=gpus_per_actor
    )
    taken = set(SHARED_NAMES) - {"report", "resume"}
    if names := [name for name in options if name in TRANSLATE and name not in taken]:
        raise OptionError(f"{', '.join(names)}: of the command line only")
    given = TranslateOptions.of(**options, output_format="jsonl")
    if given.search.n_best > 1:
        raise OptionError(f"n_best {given.search.n_best}: a row has one translation; give n_best 1")
    known = ds.schema(fetch_if_missing=False)
    if known is not None and isinstance(known.base_schema, Schema):
        check_columns(known.base_schema, column)
    device = "cuda" if gpus_per_actor else "cpu"
    return ds.map_batches(
        TranslateRows,
        batch_size=bucket_lines or BUCKET_LINES[device],
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=cpus_per_actor,
        num_gpus=gpus_per_actor,
        fn_constructor_kwargs={"options": of_actors(given, cluster), "column": column},
        **where_we_are(),
    )
