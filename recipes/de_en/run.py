"""Execute a run of the recipe: `python -m recipes.de_en.run 7`; `--print` only prints it.

runs.yaml lists the steps of each run.  A step is a program in this directory, or the full name of
another module, with options; or `shell` with a shell command.  `--resume` continues an interrupted
run: steps that are complete are skipped, and training continues from its last state.
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
# Run name -> steps, each {program: options}
RUNS: dict[str, list[dict[str, Any]]] = {
    str(name): steps for name, steps in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()
}


def list_commands(run: str, resume: bool = False) -> Iterator[str]:
    """Yield the shell commands of a run, to be executed in the project directory."""
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
        yield shlex.join(["python", "-m", module, *to_arguments(options)])


def to_arguments(options: dict[str, Any]) -> Iterator[str]:
    """Yield options as command-line arguments."""
    for name, value in options.items():
        yield f"-{name}"
        for item in value if isinstance(value, list) else [value]:
            yield str(item).lower() if isinstance(item, bool) else str(item)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the first command that fails, or 0."""
    parser = argparse.ArgumentParser("python -m recipes.de_en.run")
    parser.add_argument("run", choices=RUNS, help="a run of runs.yaml", metavar="RUN")
    parser.add_argument("--print", action="store_true", help="print its commands only")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    args = parser.parse_args(argv)
    # `python` in a command is the interpreter of this process
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    for command in list_commands(args.run, args.resume):
        print(command, flush=True)
        if args.print:
            continue
        process = subprocess.run(command, shell=True, cwd=ROOT, env={**os.environ, "PATH": path})
        if process.returncode:
            return process.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
