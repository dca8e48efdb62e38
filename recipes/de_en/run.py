"""Make a run of the recipe: `python -m recipes.de_en.run 7`, or only `--print` its commands.

runs.yaml has the steps of each run.  A step is a program of this folder, or another by its full
name, with its options; or `shell` with a line for the shell.  With `--resume` a run that was
stopped goes on: what it has written stays, and a training continues.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.train.run_directory import STATE

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("runs.yaml")
# By name of a run, its steps: each one program with its options
RUNS: dict[str, list[dict[str, Any]]] = {
    str(name): steps for name, steps in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()
}


def commands(run: str, resume: bool = False) -> Iterator[str]:
    """The lines for the shell, to be run in the project's directory."""
    for step in RUNS[run]:
        ((program, options),) = step.items()
        if program == "shell":
            yield options
            continue
        module = program if "." in program else f"recipes.de_en.{program}"
        if resume and Path(ROOT, options["output"]).exists():
            if not Path(ROOT, options["output"], STATE).exists():
                continue
            options = options | {"resume": True}
        yield shlex.join(["python", "-m", module, *words(options)])


def words(options: dict[str, Any]) -> Iterator[str]:
    """Options as they are typed."""
    for name, value in options.items():
        yield f"-{name}"
        for each in value if isinstance(value, list) else [value]:
            yield str(each).lower() if isinstance(each, bool) else str(each)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the first command that fails, 0 if none does."""
    parser = argparse.ArgumentParser("python -m recipes.de_en.run")
    parser.add_argument("run", choices=RUNS, help="a run of runs.yaml", metavar="RUN")
    parser.add_argument("--print", action="store_true", help="print its commands only")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    given = parser.parse_args(argv)
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"  # `python` is this one
    for command in commands(given.run, given.resume):
        print(command, flush=True)
        if given.print:
            continue
        done = subprocess.run(command, shell=True, cwd=ROOT, env={**os.environ, "PATH": path})
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
