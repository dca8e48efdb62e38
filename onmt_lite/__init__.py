"""Translation with sequence-to-sequence models from many toolkits."""

# This file and translate.py must parse under every Python, including 2.7: no annotations, f-strings
# or unpacking
import sys

if sys.version_info < (3, 10):  # noqa: UP036
    version = ".".join(map(str, sys.version_info[:2]))
    problem = "Python " + version + " is too old (" + sys.executable + ")"
    sys.stderr.write("onmt_lite: error: " + problem + "; onmt_lite needs Python 3.10 or newer\n")
    raise SystemExit(2)

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from onmt_lite.version import __version__

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
    # Imported on first use, because importing torch is slow; all other names are errors
    _MODULES = {
        "Beam": "onmt_lite.search.beam",
        "Hypothesis": "onmt_lite.inference.records",
        "TranslateOptions": "onmt_lite.config.options",
        "Translation": "onmt_lite.inference.records",
        "Translator": "onmt_lite.api",
        "load_checkpoint": "onmt_lite.checkpoints.loading",
        "load_options": "onmt_lite.config.options",
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError("module '" + __name__ + "' has no attribute '" + name + "'")
        with warnings.catch_warnings():
            # torch works without numpy but warns that it is missing
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
            return getattr(import_module(_MODULES.get(name, "onmt_lite.errors")), name)

    def __dir__():
        return sorted(set(globals()) | set(__all__))


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
