"""Which files -src names, and of which kind they are."""

import glob
import os
import stat
from collections.abc import Sequence
from typing import Literal

from onmt_lite.errors import FileError, OptionError, refused

Kind = Literal["text", "jsonl"]  # of inputs and outputs


def find_files(words: Sequence[str]) -> list[str]:
    """Absolute paths of the files that -src names, in the order of the words; those of a folder
    and of a pattern are sorted.

    Of a folder, files whose names begin with a dot or an underscore are left out.  FileError for
    what is not there or cannot be read, OptionError for what is no file.
    """
    return [os.path.abspath(path) for word in words for path in _files_of(word)]


def _files_of(word: str) -> list[str]:
    if os.path.lexists(word):
        return _in_folder(word) if os.path.isdir(word) else [_checked(word)]
    found = sorted(glob.glob(word, recursive=True))
    if not found:
        what = "nothing has a name like this" if glob.has_magic(word) else "no such file or folder"
        raise FileError(f"cannot read {word}: {what}")
    # A pattern such as text/** finds folders besides the files in them
    files = [_checked(path) for path in found if not os.path.isdir(path)]
    return files or [file for folder in found for file in _in_folder(folder)]


def _in_folder(folder: str) -> list[str]:
    with refused(f"read {folder}"):
        names = sorted(os.listdir(folder))
    paths = [os.path.join(folder, n) for n in names if n[0] not in "._"]
    for path in paths:
        if os.path.isdir(path):
            raise OptionError(
                f"src: {path} is a folder within a folder; name each folder, or give "
                f"{os.path.join(folder, '**', '*')}"
            )
    if not paths:
        raise FileError(f"cannot read {folder}: there is no file in it")
    return [_checked(path) for path in paths]


def _checked(path: str) -> str:
    with refused(f"read {path}"):
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OptionError(f"src: {path} is no regular file, so that actors cannot share it")
    return path


def kind_of_files(paths: Sequence[str], asked: Kind | Literal["auto"]) -> Kind:
    """What -input_format asks for, or what all suffixes say.  OptionError where suffixes differ."""
    if asked != "auto":
        return asked
    kinds: dict[Kind, str] = {}  # the first file of each
    for path in paths:
        kinds.setdefault("jsonl" if path.lower().endswith(".jsonl") else "text", path)
    if len(kinds) > 1:
        shown = ", ".join(f"{path} is {kind}" for kind, path in kinds.items())
        raise OptionError(f"src: files of several kinds ({shown}); translate each kind by itself")
    return next(iter(kinds))
