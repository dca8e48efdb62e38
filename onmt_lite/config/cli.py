"""Entry point of all command-line programs: help, errors, signals and exit codes."""

import os
import platform
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from onmt_lite.checkpoints.shipped import find_config, find_model, get_model_paths, list_model_files
from onmt_lite.config.files import check_directories, check_distinct, write_text
from onmt_lite.config.help import describe_options, format_help, format_markdown
from onmt_lite.config.sources import Program, Resolved, split_argv
from onmt_lite.errors import OnmtLiteError, OptionError
from onmt_lite.system.terminal import CONSOLE, Interrupted, pending_signals, stop_on_signals
from onmt_lite.version import __version__

T = TypeVar("T")
ENABLED: tuple[list[str], ...] = ([], ["true"])  # words after a boolean option that turn it on


def run_program(argv: Sequence[str] | None, program: Program[T], run: Callable[[T], None]) -> int:
    """Parse a command line and run a program.

    An unexpected error is a bug: it is reported and raised, so that the process ends with a
    traceback and exit code 1.

    Args:
        argv: Words after the command (default: sys.argv).
        program: The program.
        run: Function to call with the options.

    Returns:
        The exit code: 0 success, 2 options, 3 input, 4 model, 5 files, 6 out of memory,
        7 some lines not translated, 128+N stopped by signal N.
    """
    words = sys.orig_argv[1:] if argv is None else ["-m", "onmt_lite", *argv]
    argv = sys.argv[1:] if argv is None else argv
    try:
        stop_on_signals()
        if information := format_information(argv, program):
            write_text(information + "\n")
            return 0
        loaded, resolved = program.load(argv)
        if resolved.values["print_config"]:
            write_text(resolved.to_yaml(program.describe_auto(resolved.values)))
        elif (path := resolved.values["save_config"]) is not None:
            check_directories([("save_config", path)])
            check_distinct(list(list_files(program, resolved)), [("save_config", path)])
            write_text(resolved.to_yaml(program.describe_auto(resolved.values)), path)
        else:
            run(loaded)
    except OnmtLiteError as error:
        problems = error.problems if isinstance(error, OptionError) else (str(error),)
        for problem in problems:
            print(f"onmt_lite: error: {_one_line(problem)}", file=CONSOLE)
        print_resume_command(error, words)
        return error.exit_code
    except Interrupted as interrupted:
        pending_signals.clear()
        # The interpreter must not flush to a closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if interrupted.signal != signal.SIGPIPE:  # after SIGPIPE the reader is done
            echoed = "\r" if CONSOLE.isatty() else ""  # overwrite ^C
            status = f" {_one_line(interrupted.status)}" if interrupted.status else ""
            print(f"{echoed}onmt_lite: stopped by {interrupted.signal.name}{status}", file=CONSOLE)
            print_resume_command(interrupted, words)
        return interrupted.exit_code
    except Exception as error:
        problem = f"internal error ({_one_line(f'{type(error).__name__}: {error}')})"
        print(f"onmt_lite: error: {problem}; please report the traceback below", file=CONSOLE)
        print_resume_command(error, words)
        raise
    return 0


def print_resume_command(error: BaseException, words: Sequence[str]) -> None:
    """Print the command that resumes a job; `words` are the current command line."""
    if not getattr(error, "can_resume", False):
        return
    if not isinstance(error, Interrupted):  # already printed for a signal
        print(f"onmt_lite: stopped {_one_line(vars(error)['status'])}", file=CONSOLE)
    resumes = dict(split_argv(words)[0]).get("resume") in ENABLED
    extra = [] if resumes else ["-resume"]  # the last one wins
    print(shlex.join([sys.executable, *words, *extra]), file=CONSOLE)


def format_information(argv: Sequence[str], program: Program[Any]) -> str:
    """Return the output of -help, -version or -md; "" if none of them is given.

    Raises:
        OptionError: -help names an unknown option.
    """
    given = dict(split_argv(argv)[0])
    columns = shutil.get_terminal_size((80, 24)).columns
    if (names := given.get("help", given.get("h"))) is not None:
        if names in ENABLED or names == ["all"]:
            usage = f"{get_command_name()} {program.usage}".replace("{command}", get_command_name())
            return format_help(
                program.options, usage, columns, program.common_options if names in ENABLED else ()
            )
        return describe_options(
            names, program.options, columns, program.common_options, program.hint
        )
    if given.get("version") in ENABLED:
        return format_versions()
    if "md" in given and "md" in program.foreign_options():  # an OpenNMT-py option
        return format_markdown(program.options)
    return ""


def get_command_name() -> str:
    """Return the command of this program for the help, such as `python translate.py`."""
    module = sys.modules["__main__"].__spec__  # None unless started with `python -m`
    if module is not None and module.origin == sys.argv[0]:
        return f"python -m {module.name.removesuffix('.__main__')}"
    path = Path(sys.argv[0])
    return f"python {path.name}" if path.suffix == ".py" else path.name


def format_versions() -> str:
    """Return the versions, such as "onmt_lite 0.1.0 (Python 3.11.7, torch 2.13.0)"."""
    from importlib import metadata  # slow to import

    try:
        torch = metadata.version("torch")  # importing torch takes seconds
    except metadata.PackageNotFoundError:
        torch = "of unknown version"
    return f"onmt_lite {__version__} (Python {platform.python_version()}, torch {torch})"


def list_files(program: Program[Any], resolved: Resolved) -> Iterator[tuple[str, str]]:
    """Yield option and path of every input file in the options, with all files of each model."""
    for name, option in program.options.items():
        if not option.is_path or name == "save_config":
            continue
        value = resolved.values[name]
        paths = list(filter(None, value if option.is_list else [value]))
        if name in ("model", "init_from"):
            models = map(find_model, get_model_paths(paths) if name == "model" else paths)
            files = [file for path in models for file in list_model_files(path)]
            # The shell may have created an empty file for `> file`
            paths = [str(file) for file in files if file.stat().st_size]
        elif name == "config":
            paths = [find_config(path) for path in paths]
        yield from ((name, path) for path in paths)


def _one_line(problem: str) -> str:
    """Return an error as a single printable line, whatever names and values it contains."""
    return " ".join(problem.encode("utf-8", "backslashreplace").decode("utf-8").split())
