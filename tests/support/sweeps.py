"""Long parametrizations: a few cases run by default, all of them with the marker `sweep`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mark_sweeps(values: Iterable[Any], daily: Collection[Any]) -> list[Any]:
    """Return values as pytest parameters, marked `sweep` unless they are in `daily`.

    A tuple has one value for each of several parameters.
    """
    values = list(values)
    assert all(value in values for value in daily), [v for v in daily if v not in values]
    return [v if v in daily else mark_sweep(v) for v in values]


def mark_sweep(value: Any) -> Any:
    """Return a value as a parameter that does not run by default."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.sweep)
