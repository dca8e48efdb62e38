"""Fingerprint of a job: everything that its output depends on, except the machine."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.shipped import find_model, get_model_paths, list_model_files
from onmt_lite.config.options import GROUPS, TranslateOptions
from onmt_lite.version import __version__

LABEL = "user.onmt_lite.job"  # extended attribute of complete outputs
CHUNK = 1 << 20

# Options that name input files, except models and configurations: read line by line, and others
LINE_INPUTS = ("src", "tgt", "force_words", "ban_words")
SUBWORD_FILES = ("src_subword_model", "tgt_subword_model", "src_subword_vocab", "tgt_subword_vocab")
OTHER_FILES = ("phrase_table", *SUBWORD_FILES)

# Options that may differ when a job is resumed, and why
IGNORED_OPTIONS = {
    **dict.fromkeys(("model", *LINE_INPUTS, *OTHER_FILES), "file contents are compared instead"),
    "output": "the store is next to it",
    **dict.fromkeys(("device", "gpu"), "the resolved device is compared"),
    **dict.fromkeys(("threads", "workers"), "does not change the output"),
    **dict.fromkeys(("quiet", "verbose", "report_time"), "only changes the log"),
    **dict.fromkeys(("log_file", "log_file_level"), "only changes the log"),
    "dump_beam": "only records the search",
    "print_model": "runs no job",
    "resume": "requests the comparison",
}

Job = dict[str, dict[str, Any]]


def compute_fingerprint(options: TranslateOptions, inputs: Mapping[str, Any]) -> Job:
    """Return everything that the output depends on, except the machine.

    Args:
        options: options of the job.
        inputs: size in bytes and SHA-256 of each line input; None if unreadable.
    """
    try:
        torch = metadata.version("torch")  # importing torch takes seconds
    except metadata.PackageNotFoundError:
        torch = "unknown"
    groups = [vars(getattr(options, group)) for group in GROUPS]
    compared = {
        n: value for group in groups for n, value in group.items() if n not in IGNORED_OPTIONS
    }
    compared["output_format"] = options.data.format
    named = (options.data.output, options.jobs.log_file, options.jobs.report)
    output_paths = {os.path.realpath(p) for p in (*named, options.information.dump_beam) if p}
    files = {
        name: fingerprint_file(path)
        for name, path in (*list_option_files(options, OTHER_FILES), *list_all_model_files(options))
        if os.path.realpath(path) not in output_paths
    }
    return {
        "versions": {"onmt_lite": __version__, "torch": torch},
        "options": json.loads(
            json.dumps(compared)
        ),  # as read back from JSON: lists instead of tuples
        "files": {**inputs, **files},
    }


def list_differences(old: Job, new: Job) -> list[str]:
    """Describe each difference between two fingerprints."""
    changes = []
    for section, values in new.items():
        before = old.get(section, {})
        for name in dict.fromkeys([*before, *values]):
            was, now = before.get(name), values.get(name)
            if was == now:
                continue
            if section == "files":
                state = "has changed" if was and now else "is new" if now else "is missing"
                changes.append(f"{name} {state}")
            else:
                version = "version of " * (section == "versions")
                changes.append(f"{version}{name} was {format_value(was)}, now {format_value(now)}")
    return changes


def hash_job(job: Job) -> str:
    """Return the SHA-256 of a fingerprint in hexadecimal."""
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()


def format_value(value: Any) -> str:
    """Format the value of an option or version for messages."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "none" if value is None else text[:100] or "empty"


def list_option_files(
    options: TranslateOptions, names: tuple[str, ...] = LINE_INPUTS + OTHER_FILES
) -> Iterator[tuple[str, str]]:
    """Yield name and path of each of these options that is set."""
    values = vars(options.data) | vars(options.text) | vars(options.speed) | vars(options.phrases)
    return ((name, values[name]) for name in names if values[name])


def list_all_model_files(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """Yield the files of all models: name for messages, and path."""
    paths = get_model_paths(options.model.model)
    for i, path in enumerate(paths, 1):
        number = f" {i}" if len(paths) > 1 else ""
        for file in list_model_files(find_model(path)):
            if not is_job_output(file):  # skip a job output in the model directory
                yield f"{file.name} of model{number}", str(file)


def is_job_output(file: Path) -> bool:
    """Return True if a file is the complete output of a job."""
    try:
        return LABEL in os.listxattr(file)
    except (OSError, AttributeError):  # the file is gone, or no extended attributes
        return False


def fingerprint_file(path: str) -> list[Any] | None:
    """Return size in bytes and SHA-256 of a file; None if unreadable (reported later)."""
    sha = hashlib.sha256()
    if os.path.isfile(path):  # opening a FIFO would block
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                sha.update(chunk)
            return [file.tell(), sha.hexdigest()]
    return None
