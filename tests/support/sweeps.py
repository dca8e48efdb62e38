"""Long parametrisations: a few cases run by default, all of them with the marker `sweep`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def swept(values: Iterable[Any], daily: Collection[Any]) -> list[Any]:
    """The values as parameters, marked `sweep` unless they are in `daily`."""
    values = list(values)
    assert set(daily) <= set(values), set(daily) - set(values)
    return [v if v in daily else pytest.param(v, marks=pytest.mark.sweep) for v in values]
