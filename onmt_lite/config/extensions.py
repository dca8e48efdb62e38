"""File extensions: the output format they select, and extensions that are not supported."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath

# Output formats by extension, and other extensions that suggest a format
EXTENSIONS = {".jsonl": "jsonl", ".tsv": "tsv"}
LIKELY_EXTENSIONS = {**EXTENSIONS, ".json": "jsonl", ".ndjson": "jsonl"}
# Compression that is not supported
UNSUPPORTED_COMPRESSION = tuple(
    ".zst .zstd .xz .lzma .bz2 .lz4 .lz .br .z .zip .7z .rar .tgz".split()
)


def format_from_path(path: str, extensions: Mapping[str, str] = EXTENSIONS) -> str | None:
    """Return the output format for the extension of a path, ignoring .gz; None if unknown."""
    return extensions.get(PurePath(path.lower().removesuffix(".gz")).suffix)


def is_gzip_path(path: str) -> bool:
    """Return True if a file with this name is compressed with gzip."""
    return path.lower().endswith(".gz")


def find_bad_extensions(outputs: Mapping[str, str | None]) -> Iterator[str]:
    """Yield errors for output paths, given by option, with an unsupported extension."""
    for name, path in outputs.items():
        extension = PurePath((path or "").lower()).suffix
        can_compress = name in ("output", "report")
        if extension in UNSUPPORTED_COMPRESSION or (extension == ".gz" and not can_compress):
            remedy = "that ends in .gz" if can_compress else f"without {extension}"
            yield f"{name} {path}: {extension} files are not supported; use a name {remedy}"
