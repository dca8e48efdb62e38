"""What the output of a job depends on, and in what two jobs differ."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from onmt_lite import __version__
from onmt_lite.checkpoints.shipped import find_model, model_files, model_paths
from onmt_lite.config.options import KINDS, TranslateOptions

CHUNK = 1 << 20

# Options that name a file to read, besides models and configurations: those that are read line by
# line, and others
INPUTS = ("src", "tgt", "force_words", "ban_words")
FILES = (
    "phrase_table",
    *("src_subword_model", "tgt_subword_model", "src_subword_vocab", "tgt_subword_vocab"),
)

# Options that may differ where a job goes on, and why
EXEMPT = {
    **dict.fromkeys(("model", *INPUTS, *FILES), "names files, whose contents are compared"),
    "output": "the store lies beside it",
    **dict.fromkeys(("device", "gpu"), "the device that was chosen is compared"),
    **dict.fromkeys(("threads", "workers"), "says who works, not what comes out"),
    **dict.fromkeys(("quiet", "verbose", "report_time"), "is for the log alone"),
    **dict.fromkeys(("log_file", "log_file_level"), "is for the log alone"),
    "dump_beam": "watches and changes nothing",
    "print_model": "does no job",
    "resume": "asks for the comparison",
}

Job = dict[str, dict[str, Any]]


def fingerprint(options: TranslateOptions, inputs: Mapping[str, Any]) -> Job:
    """What the output depends on, but for the machine that does the job.

    versions  of onmt_lite and torch
    options   all but those of EXEMPT
    files     bytes and SHA-256 of the `inputs`, of the models' files and of other files that
              options name; None for one that cannot be read
    """
    values = {name: v for group in KINDS for name, v in vars(getattr(options, group)).items()}
    compared = {name: value for name, value in values.items() if name not in EXEMPT}
    named = (options.data.output, options.jobs.log_file, options.jobs.report)
    written = {os.path.realpath(p) for p in (*named, options.information.dump_beam) if p}
    files = {
        name: describe(path)
        for name, path in (*named_files(options, FILES), *files_of_models(options))
        if os.path.realpath(path) not in written
    }
    return {
        "versions": {"onmt_lite": __version__, "torch": torch_version()},
        "options": json.loads(json.dumps(compared)),  # as they are read again: no tuples
        "files": {**inputs, **files},
    }


def differences(old: Job, new: Job) -> list[str]:
    """What was something else in the `old` job, in words."""
    found = []
    for section, values in new.items():
        before = old.get(section, {})
        for name in dict.fromkeys([*before, *values]):
            was, now = before.get(name), values.get(name)
            if was == now:
                continue
            if section == "files":
                state = "was changed" if was and now else "is new" if now else "is missing"
                found.append(f"{name} {state}")
            else:
                version = "version of " * (section == "versions")
                found.append(f"{version}{name} was {shown(was)}, now {shown(now)}")
    return found


def digest(job: Job) -> str:
    """SHA-256 of a fingerprint."""
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()


def shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "none" if value is None else text[:100] or "empty"


def torch_version() -> str:
    """Without the import, which takes seconds."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "unknown"


def named_files(
    options: TranslateOptions, wanted: tuple[str, ...] = INPUTS + FILES
) -> Iterator[tuple[str, str]]:
    """Each of these options that is given, and its path."""
    groups = (options.data, options.text, options.speed, options.phrases)
    values = {name: value for group in groups for name, value in vars(group).items()}
    return ((name, values[name]) for name in wanted if values[name])


def files_of_models(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """The files that the models consist of: what to call each, and its path."""
    paths = [find_model(path) for path in model_paths(options.model.model)]
    for i, path in enumerate(paths):
        number = f" {i + 1}" if len(paths) > 1 else ""
        for file in model_files(path):
            yield f"{file.name} of model{number}", str(file)


def describe(path: str) -> list[Any] | None:
    """Bytes and SHA-256 of a file; None for one that cannot be read, which the job will tell."""
    if not os.path.isfile(path):  # a FIFO would make the job wait
        return None
    total, sha = 0, hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                sha.update(chunk)
                total += len(chunk)
    except OSError:
        return None
    return [total, sha.hexdigest()]
