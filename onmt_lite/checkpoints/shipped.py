"""The models and configurations that come with the package.

A path that exists is what it says.  Where nothing exists, `de-en` or `data/de-en` is the shipped
model of that name, and `nbest`, `nbest.yaml` or `configs/nbest.yaml` the shipped configuration.
"""

import os
from collections.abc import Iterable
from pathlib import Path, PurePath

_HERE = Path(__file__).resolve().parent.parent
# Inside the package where that is installed, beside it in a checkout
_ROOT = _HERE if (_HERE / "data").is_dir() else _HERE.parent
DATA, CONFIGS = _ROOT / "data", _ROOT / "configs"
DEFAULT_MODEL = DATA / "de-en"


def find_model(path: str | Path) -> Path:
    """The path itself if it exists or names no shipped model."""
    path = Path(path)
    return DATA / path.name if path.name in model_names() and _may_mean(path, DATA) else path


def model_paths(names: Iterable[str]) -> list[Path]:
    """What -model names, or the default model."""
    return list(map(Path, names)) or [DEFAULT_MODEL]


def find_config(path: str) -> str:
    """The path itself if it exists or names no shipped configuration."""
    name = PurePath(path).name.removesuffix(".yaml")
    shipped = name in config_names() and _may_mean(path, CONFIGS)
    return str(CONFIGS / f"{name}.yaml") if shipped else path


def model_names() -> list[str]:
    """None where the models were left out, as in a smaller image."""
    return sorted(path.name for path in DATA.glob("*") if path.is_dir() or path.suffix == ".json")


def config_names() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def _may_mean(path: str | Path, folder: Path) -> bool:
    in_folder = PurePath(path).parent in (PurePath(), PurePath(folder.name))
    return in_folder and not os.path.lexists(path)
