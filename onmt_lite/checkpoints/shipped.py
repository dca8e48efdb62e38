"""Models and configurations that are shipped with the package.

Existing paths take precedence.  Otherwise, `de-en` or `data/de-en` is the shipped model of that
name, and `nbest`, `nbest.yaml` or `configs/nbest.yaml` is the shipped configuration.
"""

import difflib
import glob
import os
from collections.abc import Iterable
from pathlib import Path, PurePath

from onmt_lite.errors import hint_for_path

_HERE = Path(__file__).resolve().parent.parent
# Inside the package if installed, next to the package in a checkout
_ROOT = _HERE if (_HERE / "data").is_dir() else _HERE.parent
DATA, CONFIGS = _ROOT / "data", _ROOT / "configs"
DEFAULT_MODEL = DATA / "de-en"


def find_model(path: str | Path) -> Path:
    """Return the path of a shipped model by its name; return any other path unchanged."""
    path = Path(path)
    return DATA / path.name if path.name in list_models() and _may_refer_to(path, DATA) else path


def get_model_paths(names: Iterable[str]) -> list[Path]:
    """Return the paths of -model, or the default model if there are none."""
    return list(map(Path, names)) or [DEFAULT_MODEL]


def list_model_files(path: Path) -> list[Path]:
    """Return the existing files that may belong to a model."""
    if path.is_dir():
        directories = [path, path / "model"]  # Argos Translate: the CTranslate2 model is in model/
        files = [
            file for directory in directories if directory.is_dir() for file in directory.iterdir()
        ]
    elif path.suffix == ".npz":  # Marian: vocabularies and decoder.yml are in the same directory
        files = [path, *path.parent.glob("*.yml"), *path.parent.glob("*.spm")]
    else:
        shards = path.parent.glob(f"{glob.escape(path.stem)}.*.safetensors")
        dictionaries = path.parent.glob("dict.*.txt") if path.suffix == ".pt" else ()
        files = [path, path.with_suffix(".safetensors"), *shards, *dictionaries]
    return sorted({f for f in files if f.is_file() and not _is_log(f)})


def _is_log(file: Path) -> bool:
    """Return True for a log or hidden file: neither is part of a model."""
    return file.name.startswith(".") or file.suffix == ".log"


def find_config(path: str) -> str:
    """Return the path of a shipped configuration by name; return any other path unchanged."""
    name = PurePath(path).name.removesuffix(".yaml")
    is_shipped = name in list_configs() and _may_refer_to(path, CONFIGS)
    return str(CONFIGS / f"{name}.yaml") if is_shipped else path


def list_models() -> list[str]:
    """Return the names of the shipped models; empty if an image was built without them."""
    return sorted(path.name for path in DATA.glob("*") if path.is_dir() or path.suffix == ".json")


def describe_missing_path(path: str | Path) -> str:
    """Describe a path that does not exist, with similar names and the shipped models."""
    shipped = list_models()
    hint = hint_for_path(str(path))
    matches = difflib.get_close_matches(str(path).replace("_", "-"), shipped, 1)
    if not hint and matches:
        hint = f"did you mean {matches[0]}?"
    start = hint + (" " if hint.endswith("?") else "; " if hint else "")
    return f"no such file or directory ({start}shipped models: {', '.join(shipped) or 'none'})"


def list_configs() -> list[str]:
    """Return the names of the shipped configurations."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def _may_refer_to(path: str | Path, directory: Path) -> bool:
    """Return True for a missing path that is a bare name or DIRECTORY_NAME/NAME."""
    is_inside = PurePath(path).parent in (PurePath(), PurePath(directory.name))
    return is_inside and not os.path.lexists(path)
