"""Downloads models from the Hugging Face hub: TEAM/NAME, TEAM/NAME@REVISION or a URL.

The optional package huggingface_hub transfers the files.  Its environment variables configure the
endpoint (HF_ENDPOINT), the cache (HF_HOME), the token (HF_TOKEN) and offline mode (HF_HUB_OFFLINE).
Existing paths and shipped models take precedence over names on the hub.
"""

import fnmatch
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from onmt_lite.checkpoints.config_reader import identify_by_name, read_json
from onmt_lite.checkpoints.huggingface.formats import refuse_unsupported_model
from onmt_lite.checkpoints.shipped import describe_missing_path, find_model
from onmt_lite.errors import CheckpointError
from onmt_lite.system.log import LOG

NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@(\S+))?", re.ASCII)
# URL of a page or repository
ADDRESS = re.compile(
    r"(?:hf://|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)(\w[\w.-]*/\w[\w.-]*?)(?:\.git)?"
    r"(?:/tree/([^/?#]+))?/*(?:[?#].*)?",
    re.ASCII | re.IGNORECASE,
)
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
FILE = re.compile(r"[^@]*\.(pt|npz|json|bin)")  # probably a mistyped path
# Files that readers need besides the weights
CONFIG_FILES = (
    *("config.json", "generation_config.json", "quant*_config.json", "quant_strategy.json"),
    *("tokenizer_config.json", "tokenizer.json", "added_tokens.json"),
    *("special_tokens_map.json", "tokenization_small100.py"),
    *("vocab.json", "target_vocab.json", "*_vocabulary.json", "*_vocabulary.txt", "dict.*.txt"),
    *("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model", "bpe.model", "*.spm"),
    *("model.json", "decoder.yml", "*vocab*.yml"),
)
INDEX = ".index.json"  # index of weight shards
# By precedence: the first pattern with a match is used
WEIGHTS = (
    *("weights.safetensors", "model.bin"),
    *("model.safetensors", f"model.safetensors{INDEX}"),
    *("pytorch_model.bin", f"pytorch_model.bin{INDEX}", "*.npz", "*.pt"),
)


@dataclass(frozen=True)
class Snapshot:
    """A commit of a repository in the cache."""

    repository: str
    directory: Path  # named after the commit
    files: list[str]  # in the repository, or in the cache if the hub is not available

    @property
    def name(self) -> str:
        return f"{self.repository}@{self.directory.name}"


SNAPSHOTS: dict[str, Snapshot] = {}  # by TEAM/NAME@COMMIT, because commits never change


def download_config_files(name: str) -> str:
    """Download the configuration files of a model, without its weights.

    Returns:
        The directory in the cache; a path that does not name a hub model is unchanged.

    Raises:
        CheckpointError: if the download fails.
    """
    snapshot = _get_snapshot(name)
    return str(snapshot.directory) if snapshot else name


def download_model(name: str, quiet: bool = False) -> str:
    """Download all files of a model that are needed to load it.

    Args:
        name: TEAM/NAME, TEAM/NAME@REVISION, a URL, or any other path.
        quiet: hide progress bars.

    Returns:
        The model in the cache; a path that does not name a hub model is unchanged.

    Raises:
        CheckpointError: if the download fails, or if the repository has no supported model.
    """
    if (snapshot := _get_snapshot(name)) is None:
        return name
    # Progress bars for the weights only: all other files are small
    with _use_library(name, bars=not quiet) as hub:
        needed = select_weight_files(snapshot.files, snapshot.directory)
        if not needed:  # the list is that of the cache, without weights
            files = hub.list_repo_files(snapshot.repository, revision=snapshot.directory.name)
            needed = select_weight_files(files, snapshot.directory)
        _check_weight_files(snapshot, needed)
        _download(hub, snapshot, needed)
        _download(hub, snapshot, _list_shards(snapshot.directory, needed))
    is_file = needed[-1].endswith(".pt") and not any(snapshot.directory.glob("dict.*.txt"))
    return str(snapshot.directory / needed[-1] if is_file else snapshot.directory)  # OpenNMT-py


def _get_snapshot(name: str) -> Snapshot | None:
    """Download the configuration files of a model; return None if the path is not a hub model."""
    if (parsed := parse_name(name)) is None:
        return None
    repository, revision = parsed
    name = repository if revision == "main" else f"{repository}@{revision}"
    if name in SNAPSHOTS:
        return SNAPSHOTS[name]
    with _use_library(name) as hub:
        look_up = partial(hub.snapshot_download, repository, revision=revision)
        try:
            timeout = hub.constants.HF_HUB_ETAG_TIMEOUT  # model_info has no default timeout
            info = hub.model_info(repository, revision=revision, timeout=timeout)
            directory = Path(look_up(allow_patterns=[]))  # also records the commit in the cache
            files = [file.rfilename for file in info.siblings]
        except Exception as error:
            patterns = dict(allow_patterns=CONFIG_FILES, ignore_patterns="*/*")
            try:
                directory = Path(look_up(local_files_only=True, **patterns))
            except hub.errors.LocalEntryNotFoundError:
                raise error from None
            files = [file.name for file in directory.iterdir()]
            if not hub.constants.HF_HUB_OFFLINE:
                LOG.info("NOTE: %s: using the cached version: %s", name, _summarize(error))
        snapshot = Snapshot(repository, directory.absolute(), files)
        top = [file for file in files if "/" not in file]
        files = [file for pattern in CONFIG_FILES for file in fnmatch.filter(top, pattern)]
        _download(hub, snapshot, files)
    return SNAPSHOTS.setdefault(snapshot.name, snapshot)


def _download(hub: Any, snapshot: Snapshot, files: Iterable[str]) -> None:
    """Download files one by one, because snapshot_download delays signals until its threads end."""
    for file in files:
        hub.hf_hub_download(snapshot.repository, file, revision=snapshot.directory.name)


def select_weight_files(names: Iterable[str], directory: Path) -> list[str]:
    """Select the files that contain or list the weights.

    Args:
        names: all files of the repository.
        directory: the cached configuration files.

    Returns:
        Weight files, in the order of download.
    """
    top = [name for name in names if "/" not in name]
    matches = (sorted(fnmatch.filter(top, pattern)) for pattern in WEIGHTS)
    selected = next(filter(None, matches), [])
    decoder = directory / "decoder.yml"
    if selected and selected[0].endswith(".npz") and decoder.is_file():
        listed = re.findall(r"[\w.-]+\.npz", decoder.read_text(encoding="utf-8", errors="replace"))
        return [name for name in selected if name in listed] or selected
    if selected and selected[0].endswith(".pt"):  # OpenNMT-py may keep weights in safetensors files
        return [*fnmatch.filter(top, "*.safetensors"), *selected]
    return selected


def _list_shards(directory: Path, names: Iterable[str]) -> list[str]:
    """Return the shards listed in the index files among `names`."""
    maps = [read_json(directory / name).get("weight_map") for name in names if name.endswith(INDEX)]
    listed = {file for shards in maps if isinstance(shards, dict) for file in shards.values()}
    return sorted(file for file in listed if isinstance(file, str))  # the reader reports errors


def _check_weight_files(snapshot: Snapshot, files: list[str]) -> None:
    """Raise CheckpointError unless the files are the weights of a single supported model."""
    if not files:
        names = (identify_by_name(Path(file)) for file in snapshot.files)
        unsupported = next(filter(None, names), "")
        contents = f"only {unsupported}" if unsupported else "no model of a supported type"
        raise CheckpointError(f"{snapshot.name}: the repository contains {contents}")
    if len(models := [file for file in files if file.endswith((".pt", ".npz"))]) > 1:
        raise CheckpointError(
            f"{snapshot.name}: the repository contains several models ({', '.join(models)[:200]}); "
            f"download it (hf download {snapshot.repository} --local-dir DIR) and pass the path of "
            "a single model"
        )
    if files[0].startswith(("model.safetensors", "pytorch_model.bin")):
        refuse_unsupported_model(snapshot.directory)


def parse_name(name: str) -> tuple[str, str] | None:
    """Parse the name or URL of a hub model.

    Returns:
        Repository and revision; None for any other path.

    Raises:
        CheckpointError: for a URL that is not on the hub.
    """
    if os.path.lexists(name):
        return None
    if match := ADDRESS.fullmatch(name):
        return match[1], unquote(match[2] or "main")
    if URL.match(name):
        raise CheckpointError(
            f"model {name[:200]}: this URL is not supported; download the model and pass its path, "
            "or pass TEAM/NAME for a model on the Hugging Face hub"
        )
    match = NAME.fullmatch(name.rstrip("/"))
    if match is None or FILE.fullmatch(name) or find_model(name) != Path(name):
        return None
    return match[1], match[2] or "main"


@contextmanager
def _use_library(name: str, bars: bool = False) -> Iterator[Any]:
    """Import huggingface_hub and silence it, except for progress bars on a terminal.

    Exceptions inside the context become CheckpointError.

    Args:
        name: name of the model, for error messages.
        bars: show progress bars.
    """
    try:
        import huggingface_hub as hub
        import huggingface_hub.utils.logging
    except ImportError:
        repository, _, revision = name.partition("@")
        arguments = f"{repository} --revision {revision}" if revision else repository
        directory = repository.partition("/")[2]
        raise CheckpointError(
            f"{_describe_missing_model(name)}; to download it from the Hugging Face hub: "
            "pip install huggingface_hub; or on another machine: "
            f"hf download {arguments} --local-dir {directory}, and pass that directory"
        ) from None
    log = hub.utils.logging
    level, shows_bars = log.get_verbosity(), not hub.utils.are_progress_bars_disabled()
    hides_bars = shows_bars and not (bars and sys.stderr is not None and sys.stderr.isatty())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log.set_verbosity_error()
            if hides_bars:
                hub.utils.disable_progress_bars()
            yield hub
    except CheckpointError:
        raise
    except Exception as error:  # including exceptions of the HTTP library
        raise CheckpointError(_explain(hub, name, error)) from None
    finally:
        log.set_verbosity(level)
        if hides_bars:
            hub.utils.enable_progress_bars()


def _explain(hub: Any, name: str, error: BaseException) -> str:
    """Return an error message with a remedy for an exception of huggingface_hub.

    Args:
        hub: the imported package.
        name: name of the model.
        error: the exception.
    """
    if isinstance(error, hub.errors.LocalEntryNotFoundError):  # caused by a failed request
        error = error.__cause__ or error
    errors, address, cache = hub.errors, hub.constants.ENDPOINT, hub.constants.HF_HUB_CACHE
    repository, _, revision = name.partition("@")
    token = "use a token with read access (HF_TOKEN, or hf auth login)"
    if isinstance(error, OSError) and error.errno:
        path = error.filename or cache
        return f"cannot use {path}: {error.strerror}; set HF_HOME to another cache directory"
    if hub.constants.HF_HUB_OFFLINE:
        reason = f"the cache ({cache}) has no complete hub model of that name"
        return f"{_describe_missing_model(name)}, and {reason}; unset HF_HUB_OFFLINE to download it"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no revision {revision!r}; use another revision, or leave it out"
    if isinstance(error, errors.GatedRepoError):
        return f"{repository} is gated: request access at {address}/{repository}, and {token}"
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        missing = _describe_missing_model(name)
        return f"{missing}, and {address} has no such model, or it is private: {token}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"{address} denies access to {repository} ({status}); {token}"
    return (
        f"{repository} cannot be downloaded from {address}: {_summarize(error)}; no such path "
        "exists either; check name and network, and try again (downloaded files are kept)"
    )


def _summarize(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def _describe_missing_model(name: str) -> str:
    return f"no model at {name}: {describe_missing_path(name)}"
