"""Formats by the endings of file names: what an output is written as, and what is refused."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePath

# Output formats by ending, and further endings that mean a format
ENDINGS = {".jsonl": "jsonl", ".tsv": "tsv"}
SIMILAR_ENDINGS = {**ENDINGS, ".json": "jsonl", ".ndjson": "jsonl"}
# Compressed files that are not written: the command that writes them from a pipe, if there is one
COMPRESSORS = {
    **{".zst": "zstd", ".zstd": "zstd", ".xz": "xz", ".lzma": "lzma", ".bz2": "bzip2"},
    **{".lz4": "lz4", ".lz": "lzip", ".br": "brotli", ".z": "compress"},
    **dict.fromkeys((".zip", ".7z", ".rar", ".tgz"), ""),
}


def format_of(path: str, endings: Mapping[str, str] = ENDINGS) -> str | None:
    """Return the output format that the ending of a name means, .gz left out; None if none."""
    return endings.get(PurePath(path.lower().removesuffix(".gz")).suffix)


def is_gzip_name(path: str) -> bool:
    """Return True if a file of this name is written as gzip data."""
    return path.lower().endswith(".gz")


def wrong_endings(written: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what is wrong with the names of files to be written, by option."""
    for name, path in written.items():
        ending = PurePath((path or "").lower()).suffix
        packs = name in ("output", "report")
        if ending == ".gz" and not packs:
            yield f"{name} {path}: this file is not compressed; give a name without .gz"
        elif ending in COMPRESSORS:
            remedy = f"give a name {'that ends in .gz' if packs else f'without {ending}'}"
            if name == "output" and COMPRESSORS[ending]:
                command = f"{COMPRESSORS[ending]} > {shlex.quote(path or '')}"
                remedy += f", or leave -output out and append: | {command}"
            yield f"{name} {path}: {ending} files are not written; {remedy}"
