"""Fetches models of the Hugging Face hub by name, TEAM/NAME or TEAM/NAME@REVISION, or by address.

The optional package huggingface_hub does the transfer.  Its environment variables set the address
(HF_ENDPOINT), the cache (HF_HOME), the token (HF_TOKEN) and work without a network
(HF_HUB_OFFLINE).  A path that exists is no name, nor is that of a shipped model.
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
# A page or a repository of the hub
ADDRESS = re.compile(
    r"(?:hf://|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)(\w[\w.-]*/\w[\w.-]*?)(?:\.git)?"
    r"(?:/tree/([^/?#]+))?/*(?:[?#].*)?",
    re.ASCII | re.IGNORECASE,
)
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
FILE = re.compile(r"[^@]*\.(pt|npz|json|bin)")  # rather a mistyped path
# What readers look at besides the weights
DESCRIPTIONS = (
    *("config.json", "generation_config.json", "quant*_config.json", "quant_strategy.json"),
    *("tokenizer_config.json", "tokenizer.json", "added_tokens.json"),
    *("special_tokens_map.json", "tokenization_small100.py"),
    *("vocab.json", "target_vocab.json", "*_vocabulary.json", "*_vocabulary.txt", "dict.*.txt"),
    *("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model", "bpe.model", "*.spm"),
    *("model.json", "decoder.yml", "*vocab*.yml"),
)
INDEX = ".index.json"  # lists the shards of weights
# The first of these that a repository has is read
WEIGHTS = (
    *("weights.safetensors", "model.bin"),
    *("model.safetensors", f"model.safetensors{INDEX}"),
    *("pytorch_model.bin", f"pytorch_model.bin{INDEX}", "*.npz", "*.pt"),
)


@dataclass(frozen=True)
class Snapshot:
    """A commit of a repository in the cache."""

    repository: str
    folder: Path  # has the name of the commit
    files: list[str]  # of the repository, or of the folder if the hub does not answer

    @property
    def name(self) -> str:
        return f"{self.repository}@{self.folder.name}"


SNAPSHOTS: dict[str, Snapshot] = {}  # by name with the commit, which stays what it is


def download_config_files(name: str) -> str:
    """Return the directory of the cache with the files that describe a model of the hub, which are
    downloaded unless they are there; another path as it is.  Raises CheckpointError."""
    found = _find(name)
    return str(found.folder) if found else name


def download_model(name: str, quiet: bool = False) -> str:
    """Return where a model of the hub is, after a download of all that is needed of it; another
    path as it is.  Raises CheckpointError."""
    if (found := _find(name)) is None:
        return name
    # Bars are for the weights: the rest is small, and comes at once if it is cached
    with _library(name, bars=not quiet) as hub:
        if not (
            needed := select_weight_files(found.files, found.folder)
        ):  # the cache may lack them
            files = hub.list_repo_files(found.repository, revision=found.folder.name)
            needed = select_weight_files(files, found.folder)
        _check(found, needed)
        _download(hub, found, needed)
        _download(hub, found, _shards(found.folder, needed))
    is_file = needed[-1].endswith(".pt") and not any(found.folder.glob("dict.*.txt"))
    return str(found.folder / needed[-1] if is_file else found.folder)  # a .pt of OpenNMT-py


def _find(name: str) -> Snapshot | None:
    """Download what describes a model unless the cache has it.  None for what is not of the hub."""
    if (parts := parse_name(name)) is None:
        return None
    repository, revision = parts
    name = repository if revision == "main" else f"{repository}@{revision}"
    if name in SNAPSHOTS:
        return SNAPSHOTS[name]
    with _library(name) as hub:
        look_up = partial(hub.snapshot_download, repository, revision=revision)
        try:
            patience = hub.constants.HF_HUB_ETAG_TIMEOUT  # what follows has none
            info = hub.model_info(repository, revision=revision, timeout=patience)
            folder = Path(look_up(allow_patterns=[]))  # the cache notes the commit
            files = [file.rfilename for file in info.siblings]
        except Exception as error:
            wanted = dict(allow_patterns=DESCRIPTIONS, ignore_patterns="*/*")
            try:
                folder = Path(look_up(local_files_only=True, **wanted))
            except hub.errors.LocalEntryNotFoundError:
                raise error from None
            files = [file.name for file in folder.iterdir()]
            if not hub.constants.HF_HUB_OFFLINE:
                LOG.info("NOTE: %s is taken as the cache has it: %s", name, _shown(error))
        found = Snapshot(repository, folder.absolute(), files)
        top = [file for file in files if "/" not in file]
        files = [file for each in DESCRIPTIONS for file in fnmatch.filter(top, each)]
        _download(hub, found, files)
    return SNAPSHOTS.setdefault(found.name, found)


def _download(hub: Any, snapshot: Snapshot, files: Iterable[str]) -> None:
    """One by one: snapshot_download waits for its threads if a signal arrives."""
    for file in files:
        hub.hf_hub_download(snapshot.repository, file, revision=snapshot.folder.name)


def select_weight_files(names: Iterable[str], folder: Path) -> list[str]:
    """Return those of these files that hold the weights, or list them, in the order to fetch."""
    top = [name for name in names if "/" not in name]
    found = next(filter(None, (sorted(fnmatch.filter(top, each)) for each in WEIGHTS)), [])
    decoder = folder / "decoder.yml"
    if found and found[0].endswith(".npz") and decoder.is_file():
        named = re.findall(r"[\w.-]+\.npz", decoder.read_text(encoding="utf-8", errors="replace"))
        return [name for name in found if name in named] or found
    if found and found[0].endswith(".pt"):  # those of OpenNMT-py may have weights beside them
        return [*fnmatch.filter(top, "*.safetensors"), *found]
    return found


def _shards(folder: Path, found: Iterable[str]) -> list[str]:
    """Return the files that the indexes among these list."""
    tables = [read_json(folder / name).get("weight_map") for name in found if name.endswith(INDEX)]
    listed = {file for table in tables if isinstance(table, dict) for file in table.values()}
    return sorted(file for file in listed if isinstance(file, str))  # the reader refuses others


def _check(snapshot: Snapshot, needed: list[str]) -> None:
    """Raise CheckpointError unless these files are the weights of one model that is read."""
    if not needed:
        other = next(filter(None, (identify_by_name(Path(file)) for file in snapshot.files)), "")
        holds = f"only {other}" if other else "no model of a supported type"
        raise CheckpointError(f"{snapshot.name}: the repository holds {holds}")
    if len(models := [file for file in needed if file.endswith((".pt", ".npz"))]) > 1:
        raise CheckpointError(
            f"{snapshot.name}: the repository holds several models ({', '.join(models)[:200]}); "
            f"download it, hf download {snapshot.repository} --local-dir DIR, and give the path "
            "of one"
        )
    if needed[0].startswith(("model.safetensors", "pytorch_model.bin")):
        refuse_unsupported_model(snapshot.folder)


def parse_name(name: str) -> tuple[str, str] | None:
    """Return repository and revision of a model of the hub, by its name or address; None for a
    path.  Raises CheckpointError for another URL."""
    if os.path.lexists(name):
        return None
    if found := ADDRESS.fullmatch(name):
        return found[1], unquote(found[2] or "main")
    if URL.match(name):
        raise CheckpointError(
            f"model {name[:200]}: this URL is not supported; download the model and give its path, "
            "or give TEAM/NAME for a model of the Hugging Face hub"
        )
    found = NAME.fullmatch(name.rstrip("/"))
    if found is None or FILE.fullmatch(name) or find_model(name) != Path(name):
        return None
    return found[1], found[2] or "main"


@contextmanager
def _library(name: str, bars: bool = False) -> Iterator[Any]:
    """The package, which shows nothing but bars on a terminal, if they are wanted.  What is raised
    within becomes a CheckpointError."""
    try:
        import huggingface_hub as hub
        import huggingface_hub.utils.logging
    except ImportError:
        repository, _, revision = name.partition("@")
        wanted = f"{repository} --revision {revision}" if revision else repository
        folder = repository.partition("/")[2]
        raise CheckpointError(
            f"{_absent(name)}; to fetch it from the Hugging Face hub: pip install huggingface_hub; "
            f"or elsewhere: hf download {wanted} --local-dir {folder}, and give that folder"
        ) from None
    log = hub.utils.logging
    level, shown = log.get_verbosity(), not hub.utils.are_progress_bars_disabled()
    hides = shown and not (bars and sys.stderr is not None and sys.stderr.isatty())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log.set_verbosity_error()
            if hides:
                hub.utils.disable_progress_bars()
            yield hub
    except CheckpointError:
        raise
    except Exception as error:  # of whatever package does the transfer, too
        raise CheckpointError(_reason(hub, name, error)) from None
    finally:
        log.set_verbosity(level)
        if hides:
            hub.utils.enable_progress_bars()


def _reason(hub: Any, name: str, error: BaseException) -> str:
    """Say what an error of the package means, and what to do."""
    if isinstance(error, hub.errors.LocalEntryNotFoundError):  # since the hub has not given it
        error = error.__cause__ or error
    errors, address, cache = hub.errors, hub.constants.ENDPOINT, hub.constants.HF_HUB_CACHE
    repository, _, revision = name.partition("@")
    token = "give a token that may read it (HF_TOKEN, or hf auth login)"
    if isinstance(error, OSError) and error.errno:
        where = error.filename or cache
        return f"cannot use {where}: {error.strerror}; HF_HOME names another place for the cache"
    if hub.constants.HF_HUB_OFFLINE:
        lacks = f"the cache ({cache}) does not hold all of such a model of the hub"
        return f"{_absent(name)}, and {lacks}; unset HF_HUB_OFFLINE to fetch it"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no revision {revision!r}; give another after the @, or none"
    if isinstance(error, errors.GatedRepoError):
        return f"{repository} is gated: ask for access at {address}/{repository}, and {token}"
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return f"{_absent(name)}, and {address} has no such model, or a private one: {token}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"{address} refuses access to {repository} ({status}); {token}"
    remedy = "there is no such path either; check name and network, and try again: files that have "
    remedy += "arrived are kept"
    return f"{repository} cannot be fetched from {address}: {_shown(error)}; {remedy}"


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def _absent(name: str) -> str:
    return f"no model at {name}: {describe_missing_path(name)}"
