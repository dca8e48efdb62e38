"""Names of other tools, as programs answer them."""

from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

import pytest

from onmt_lite.errors import OptionError


def problem_of(load: Callable[[], object]) -> str:
    """The only problem that `load` raises."""
    with pytest.raises(OptionError) as caught:
        load()
    (problem,) = caught.value.problems
    return problem


def spellings(theirs: str, options: Container[str]) -> list[str]:
    """A name with hyphens and with underscores, but for what is a name of ours."""
    names = sorted({theirs.replace("-", "_"), theirs.replace("_", "-")})
    return [name for name in names if name not in options]


def problems_of(name: str, load: Callable[[Sequence[str]], object], path: Path) -> Iterator[str]:
    """What is said of a name on the command line and in YAML, for which `path` is written."""
    path.write_text(f"{name}: 2\n", encoding="utf-8")
    yield problem_of(lambda: load([f"-{name}", "2"]))
    yield problem_of(lambda: load([f"--{name}", "2"]))
    yield problem_of(lambda: load([f"--{name}=2"]))
    yield problem_of(lambda: load(["-config", str(path)]))
