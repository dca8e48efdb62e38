"""Translation with sequence-to-sequence models: one loop, one Beam per sentence."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Translator": "onmt_lite.translator",
    "TranslateOptions": "onmt_lite.options",
    "load_options": "onmt_lite.options",
    "load_checkpoint": "onmt_lite.checkpoints",
    "Translation": "onmt_lite.records",
    "Hypothesis": "onmt_lite.records",
    "Beam": "onmt_lite.search.beam",
    "OnmtLiteError": "onmt_lite.errors",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Public names on first use: reading options must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
