"""Long parametrisations: a few cases run by default, all of them with the marker `sweep`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def swept(values: Iterable[Any], daily: Collection[Any]) -> list[Any]:
    """The values as parameters, marked `sweep` unless they are in `daily`; a tuple is a value of
    several parameters."""
    values = list(values)
    assert all(value in values for value in daily), [v for v in daily if v not in values]
    return [v if v in daily else sweep(v) for v in values]


def sweep(value: Any) -> Any:
    """A value of which no test runs by default."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.sweep)
