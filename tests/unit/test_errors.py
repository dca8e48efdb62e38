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
    return [error, *(kind for child in error.__subclasses__() for kind in list_error_types(child))]


def pickle_and_load(error: BaseException) -> BaseException:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("kind", list_error_types(OnmtLiteError), ids=lambda kind: kind.__name__)
def test_error_survives_pickling(kind):
    """Errors are created from their message only."""
    error = kind("what (where); what to do")
    found = pickle_and_load(error)
    assert type(found) is kind and str(found) == "what (where); what to do"
    assert found.exit_code == error.exit_code


def test_option_error_keeps_all_problems():
    found = pickle_and_load(OptionError("beam_size 0", "alpha: a\nb"))
    assert found.problems == ("beam_size 0", "alpha: a\nb")
    assert str(found) == "beam_size 0\nalpha: a\nb"


def test_interrupted_survives_pickling():
    stop = Interrupted(signal.SIGTERM)
    stop.status = "after 3 lines"
    found = pickle_and_load(stop)
    assert (found.signal, found.exit_code, found.status) == (signal.SIGTERM, 143, "after 3 lines")
