"""Translation on many machines, by Ray: `python -m onmt_lite.ray`, and `translate_dataset`.

Ours are lines and buckets: what is cut, written, and done again where a job goes on.  Ray's is
where the actors run, and what becomes of those that die.  Files in the order of a job:

    options.py   the options, most of them those of translate.py
    job.py       the driver: one job from inputs to the folder
    inputs.py    files, cut into ranges of lines or rows
    actors.py    what runs on the machines: ranges to parts
    tables.py    rows of Parquet
    folder.py    the manifest, the parts, what is known of a job that was stopped
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.data import Dataset


def translate_dataset(
    ds: "Dataset",
    column: str = "text",
    actors: int = 1,
    cpus_per_actor: int = 1,
    gpus_per_actor: float = 0,
    bucket_lines: int | None = None,
    **options: Any,
) -> "Dataset":
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
    from ray.data import ActorPoolStrategy

    from onmt_lite.buckets import BUCKET_LINES
    from onmt_lite.ray.actors import TranslateRows
    from onmt_lite.ray.options import ClusterOptions, of_actors
    from onmt_lite.ray.tables import check_columns
    from onmt_lite.options import TranslateOptions

    ...
