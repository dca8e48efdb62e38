"""Errors for option names of other tools."""

from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

import pytest

from onmt_lite.errors import OptionError


def catch_problem(load: Callable[[], object]) -> str:
    """Return the only problem that `load` raises."""
    with pytest.raises(OptionError) as caught:
        load()
    (problem,) = caught.value.problems
    return problem


def spellings(theirs: str, options: Container[str]) -> list[str]:
    """Return spellings with hyphens and underscores that are not options."""
    names = sorted({theirs.replace("-", "_"), theirs.replace("_", "-")})
    return [name for name in names if name not in options]


def catch_problems(name: str, load: Callable[[Sequence[str]], object], path: Path) -> Iterator[str]:
    """Yield the error for a name on the command line and in a YAML file.

    Args:
        name: Option name of another tool
        load: Function that loads a command line
        path: YAML file to write

    Yields:
        The errors.
    """
    path.write_text(f"{name}: 2\n", encoding="utf-8")
    yield catch_problem(lambda: load([f"-{name}", "2"]))
    yield catch_problem(lambda: load([f"--{name}", "2"]))
    yield catch_problem(lambda: load([f"--{name}=2"]))
    yield catch_problem(lambda: load(["-config", str(path)]))
