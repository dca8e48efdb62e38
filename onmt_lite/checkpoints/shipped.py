"""The models and configurations that come with the package.

A path that exists is what it says.  Where nothing exists, `de-en` or `data/de-en` is the shipped
model of that name, and `nbest`, `nbest.yaml` or `configs/nbest.yaml` the shipped configuration.
"""

import difflib
import glob
import os
from collections.abc import Iterable
from pathlib import Path, PurePath

from onmt_lite.errors import hint_for_path

_HERE = Path(__file__).resolve().parent.parent
# Inside the package where that is installed, beside it in a checkout
_ROOT = _HERE if (_HERE / "data").is_dir() else _HERE.parent
DATA, CONFIGS = _ROOT / "data", _ROOT / "configs"
DEFAULT_MODEL = DATA / "de-en"


def find_model(path: str | Path) -> Path:
    """The path itself if it exists or names no shipped model."""
    path = Path(path)
    return DATA / path.name if path.name in list_models() and _may_mean(path, DATA) else path


def get_model_paths(names: Iterable[str]) -> list[Path]:
    """What -model names, or the default model."""
    return list(map(Path, names)) or [DEFAULT_MODEL]


def list_model_files(path: Path) -> list[Path]:
    """The files that a model may consist of."""
    if path.is_dir():
        folders = [path, path / "model"]  # CTranslate2 models may be in a folder of theirs
        found = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    elif path.suffix == ".npz":  # its vocabularies and its decoder.yml lie beside it
        found = [path, *path.parent.glob("*.yml"), *path.parent.glob("*.spm")]
    else:
        parts = path.parent.glob(f"{glob.escape(path.stem)}.*.safetensors")
        of_fairseq = path.parent.glob("dict.*.txt") if path.suffix == ".pt" else ()
        found = [path, path.with_suffix(".safetensors"), *parts, *of_fairseq]
    return sorted({f for f in found if f.is_file() and not _is_log(f)})


def _is_log(file: Path) -> bool:
    """Return True for a hidden file or a log, which belong to no model."""
    return file.name.startswith(".") or file.suffix == ".log"


def find_config(path: str) -> str:
    """The path itself if it exists or names no shipped configuration."""
    name = PurePath(path).name.removesuffix(".yaml")
    shipped = name in list_configs() and _may_mean(path, CONFIGS)
    return str(CONFIGS / f"{name}.yaml") if shipped else path


def list_models() -> list[str]:
    """None where the models were left out, as in a smaller image."""
    return sorted(path.name for path in DATA.glob("*") if path.is_dir() or path.suffix == ".json")


def describe_missing_path(path: str | Path) -> str:
    """Say that nothing is at a path, what is near it, and which models there are."""
    shipped = list_models()
    hint = hint_for_path(str(path))
    if not hint and (near := difflib.get_close_matches(str(path).replace("_", "-"), shipped, 1)):
        hint = f"did you mean {near[0]}?"
    start = hint + (" " if hint.endswith("?") else "; " if hint else "")
    listed = f"{start}shipped are {', '.join(shipped) or 'none'}"
    return f"there is no such file or directory ({listed})"


def list_configs() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def _may_mean(path: str | Path, folder: Path) -> bool:
    in_folder = PurePath(path).parent in (PurePath(), PurePath(folder.name))
    return in_folder and not os.path.lexists(path)
