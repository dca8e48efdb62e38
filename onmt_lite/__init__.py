"""Translation with sequence-to-sequence models: one loop, one Beam per sentence."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from onmt_lite.api import Translator
    from onmt_lite.checkpoints.loading import load_checkpoint
    from onmt_lite.config.options import TranslateOptions, load_options
    from onmt_lite.errors import (
        CheckpointError,
        DataError,
        FileError,
        MemoryExhausted,
        OnmtLiteError,
        OptionError,
        OptionWarning,
    )
    from onmt_lite.inference.records import Hypothesis, Translation
    from onmt_lite.search.beam import Beam
else:
    # Each name's module is imported on first use: reading options must not wait for torch
    _MODULES = {
        "Beam": "onmt_lite.search.beam",
        "CheckpointError": "onmt_lite.errors",
        "DataError": "onmt_lite.errors",
        "FileError": "onmt_lite.errors",
        "Hypothesis": "onmt_lite.inference.records",
        "MemoryExhausted": "onmt_lite.errors",
        "OnmtLiteError": "onmt_lite.errors",
        "OptionError": "onmt_lite.errors",
        "OptionWarning": "onmt_lite.errors",
        "TranslateOptions": "onmt_lite.config.options",
        "Translation": "onmt_lite.inference.records",
        "Translator": "onmt_lite.api",
        "load_checkpoint": "onmt_lite.checkpoints.loading",
        "load_options": "onmt_lite.config.options",
    }

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with warnings.catch_warnings():
            # torch works without numpy and says at length that it is missing
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
            return getattr(import_module(_MODULES[name]), name)

    def __dir__():
        return sorted({*globals(), *_MODULES})


__all__ = [
    "Beam",
    "CheckpointError",
    "DataError",
    "FileError",
    "Hypothesis",
    "MemoryExhausted",
    "OnmtLiteError",
    "OptionError",
    "OptionWarning",
    "TranslateOptions",
    "Translation",
    "Translator",
    "__version__",
    "load_checkpoint",
    "load_options",
]
