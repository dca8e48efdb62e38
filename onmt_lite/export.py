"""Export a model to the format of another toolkit: `python -m onmt_lite.export -help`."""

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

Exports a Transformer to the format of another toolkit, with the same translations.  A model that
the format does not support is rejected before anything is written."""


@dataclass(frozen=True)
class ExportOptions:
    """Options of the export program."""

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
    reject_if(lambda v: v.to is None, "to is missing; set it to opennmt-py or marian"),
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
    """Load a model and write it in another format.

    Raises:
        OnmtLiteError: if the model cannot be loaded, exported or written.
    """
    # Imported here so that invalid options fail before the slow import of torch
    from onmt_lite.checkpoints.loading import load_checkpoint
    from onmt_lite.checkpoints.writing import export_marian, export_opennmt

    output = Path(os.path.abspath(options.output))
    _refuse_existing(output)
    checkpoint = load_checkpoint(options.model)
    if options.to == "marian":
        exported = export_marian(checkpoint)
        written = [output]
        write_files(exported.files, output.parent, output.name)
    else:
        exported = export_opennmt(checkpoint, output.stem)
        written = [output.with_name(name) for name in exported.files]
        for path in written:
            _refuse_existing(path)
        write_files(exported.files, output.parent)
    for line in (f"wrote {', '.join(map(str, written))}", *exported.notices):
        print(line, file=sys.stderr)


def _refuse_existing(path: Path) -> None:
    """Raise OptionError if the path exists, because an export never overwrites anything."""
    if os.path.lexists(path):
        raise OptionError(f"output: {path} already exists; choose another path or remove it")


def write_files(files: dict[str, bytes], parent: Path, directory: str | None = None) -> None:
    """Write all files or, on failure, none.

    Args:
        files: contents by file name.
        parent: the directory.
        directory: name of a new subdirectory of `parent` for the files.

    Raises:
        FileError: if writing fails.
    """
    if directory is None:
        replace_files(parent, files)
        return
    partial = parent / f".{directory}.{os.getpid()}.part"  # renamed when complete
    try:
        with wrap_os_errors(f"write {parent / directory}"):
            partial.mkdir()
        replace_files(partial, files)
        with wrap_os_errors(f"write {parent / directory}"):
            os.rename(partial, parent / directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the export program; return its exit code."""
    return run_program(argv, PROGRAM, export)


if __name__ == "__main__":
    sys.exit(main())
