"""Write a model in another toolkit's format: `python -m onmt_lite.export -help`."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.config.cli import run_program
from onmt_lite.config.option import META_GROUPS, Option, collect_options, opt
from onmt_lite.config.options import hint_translation_option
from onmt_lite.config.other_tools import ForeignOption
from onmt_lite.config.rules import reject_if, require_paths
from onmt_lite.config.sources import Program
from onmt_lite.errors import OptionError, wrap_os_errors
from onmt_lite.system.atomic_files import replace_files

USAGE = """\
-model PATH -to {opennmt-py,marian} -output PATH

Writes a Transformer for another toolkit, which translates with it as we do.  A model that the
other toolkit cannot hold is refused by name, and nothing is written."""


@dataclass(frozen=True)
class ExportOptions:
    """What is exported, and to where."""

    title: ClassVar[str] = "Export"

    model: str = opt("", metavar="PATH")
    to: Literal["opennmt-py", "marian"] | None = None
    output: str = opt("", metavar="PATH")


CTRANSLATE2 = (
    "for CTranslate2, export to opennmt-py and run ct2-opennmt-py-converter "
    "--unsafe_deserialization on the file"
)
RULES = (
    require_paths("model", "output"),
    reject_if(lambda v: v.to is None, "to is missing; give opennmt-py or marian"),
    reject_if(
        lambda v: v.to == "opennmt-py" and v.output and Path(v.output).suffix != ".pt",
        "{output} must end in .pt for opennmt-py",
    ),
)
OPTIONS: dict[str, Option] = collect_options((ExportOptions, *META_GROUPS), ("export",))
PROGRAM = Program(
    "onmt_lite.export",
    USAGE,
    OPTIONS,
    RULES,
    build=lambda resolved: resolved.build(ExportOptions),
    shared_options={"to": ForeignOption((), CTRANSLATE2, is_rejected=True)},
    hint=hint_translation_option,
)
load_export_options = PROGRAM.load


def export(options: ExportOptions) -> None:
    """The whole program.  OnmtLiteError where the model is refused or cannot be written."""
    # Imported late: wrong options must not wait for torch
    from onmt_lite.checkpoints.loading import load_checkpoint
    from onmt_lite.checkpoints.writing import export_marian, export_opennmt

    output = Path(os.path.abspath(options.output))
    _check_free(output)
    checkpoint = load_checkpoint(options.model)
    if options.to == "marian":
        exported = export_marian(checkpoint)
        written = [output]
        write_whole(exported.files, output.parent, output.name)
    else:
        exported = export_opennmt(checkpoint, output.stem)
        written = [output.with_name(name) for name in exported.files]
        for path in written:
            _check_free(path)
        write_whole(exported.files, output.parent)
    for line in (f"wrote {', '.join(map(str, written))}", *exported.notes):
        print(line, file=sys.stderr)


def _check_free(path: Path) -> None:
    """OptionError where something is there: nothing that exists is ever touched."""
    if os.path.lexists(path):
        raise OptionError(f"output: {path} exists already; choose another path or remove it")


def write_whole(files: dict[str, bytes], parent: Path, directory: str | None = None) -> None:
    """Write all files into `parent`, or into a new directory there, or none.  Raises FileError."""
    if directory is None:
        replace_files(parent, files)
        return
    part = parent / f".{directory}.{os.getpid()}.part"  # which then gets the name
    try:
        with wrap_os_errors(f"write {parent / directory}"):
            part.mkdir()
        replace_files(part, files)
        with wrap_os_errors(f"write {parent / directory}"):
            os.rename(part, parent / directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, export)


if __name__ == "__main__":
    sys.exit(main())
