"""Errors can be passed between processes."""

import pickle
import pkgutil
import signal
from importlib import import_module

import pytest

import onmt_lite
from onmt_lite.errors import OnmtLiteError, OptionError
from onmt_lite.system.terminal import Interrupted

OPTIONAL = ("onmt_lite.ray", "onmt_lite.__main__")  # requires ray; runs the program

for module in pkgutil.walk_packages(onmt_lite.__path__, "onmt_lite."):
    if not module.name.startswith(OPTIONAL):
        import_module(module.name)


def list_error_types(error: type) -> list[type]:
    return [
        error,
        *(error_type for child in error.__subclasses__() for error_type in list_error_types(child)),
    ]


def pickle_and_load(error: BaseException) -> BaseException:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize(
    "error_type", list_error_types(OnmtLiteError), ids=lambda error_type: error_type.__name__
)
def test_error_survives_pickling(error_type):
    """Errors are created from their message only."""
    error = error_type("what (where); what to do")
    restored = pickle_and_load(error)
    assert type(restored) is error_type and str(restored) == "what (where); what to do"
    assert restored.exit_code == error.exit_code


def test_option_error_keeps_all_problems():
    restored = pickle_and_load(OptionError("beam_size 0", "alpha: a\nb"))
    assert restored.problems == ("beam_size 0", "alpha: a\nb")
    assert str(restored) == "beam_size 0\nalpha: a\nb"


def test_interrupted_survives_pickling():
    stop = Interrupted(signal.SIGTERM)
    stop.status = "after 3 lines"
    restored = pickle_and_load(stop)
    assert (restored.signal, restored.exit_code) == (signal.SIGTERM, 143)
    assert restored.status == "after 3 lines"
