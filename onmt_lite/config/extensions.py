"""Formats by the endings of file names: what an output is written as, and what is refused."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath

# Output formats by ending, and further endings that mean a format
EXTENSIONS = {".jsonl": "jsonl", ".tsv": "tsv"}
LIKELY_EXTENSIONS = {**EXTENSIONS, ".json": "jsonl", ".ndjson": "jsonl"}
# Compressed files that are not written
UNSUPPORTED_COMPRESSION = tuple(
    ".zst .zstd .xz .lzma .bz2 .lz4 .lz .br .z .zip .7z .rar .tgz".split()
)


def format_from_path(path: str, endings: Mapping[str, str] = EXTENSIONS) -> str | None:
    """Return the output format that the ending of a name means, .gz left out; None if none."""
    return endings.get(PurePath(path.lower().removesuffix(".gz")).suffix)


def is_gzip_path(path: str) -> bool:
    """Return True if a file of this name is written as gzip data."""
    return path.lower().endswith(".gz")


def find_bad_extensions(written: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what is wrong with the names of files to be written, by option."""
    for name, path in written.items():
        ending = PurePath((path or "").lower()).suffix
        packs = name in ("output", "report")
        if ending in UNSUPPORTED_COMPRESSION or (ending == ".gz" and not packs):
            remedy = f"give a name {'that ends in .gz' if packs else f'without {ending}'}"
            yield f"{name} {path}: {ending} files are not written; {remedy}"
