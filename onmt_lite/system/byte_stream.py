"""Bytes of a file descriptor that contains text, unpacked if they are gzip data.

Data that is not text is refused, with the command that makes text of it.
"""

import gzip
import os
import select
import shlex
import zlib
from collections.abc import Callable
from typing import IO, cast

from onmt_lite.errors import DataError, FileError, explain_os_error
from onmt_lite.system.file_types import HEAD_BYTES, detect_file_type

GZIP = b"\x1f\x8b"
STANDARD_INPUT = "standard input"


class ByteStream:
    """Bytes with a `peek` before they are read."""

    def __init__(self, read: Callable[[int], bytes], waits: Callable[[], bool]):
        """`read(n)` returns at most n bytes, b"" at the end; `waits()` is True if `read` would
        return at once."""
        self._read, self._waits = read, waits
        self._seen, self._over = b"", False

    def peek(self) -> bytes:
        """The next HEAD_BYTES bytes, fewer if the input ends or pauses before."""
        while not self._over and len(self._seen) < HEAD_BYTES:
            if not (self._seen in (b"", GZIP[:1]) or self._waits()):
                break
            more = self._read(HEAD_BYTES)
            self._seen, self._over = self._seen + more, not more
        return self._seen[:HEAD_BYTES]

    def read(self, size: int) -> bytes:
        """Read at least one byte and at most `size`; b"" at the end."""
        if not self._seen and not self._over:
            return self._read(size)
        head, self._seen = self._seen[:size], self._seen[size:]
        return head

    def waits(self) -> bool:
        return bool(self._seen) or self._waits()


def open_text_stream(fd: int, name: str) -> ByteStream:
    """Bytes of a file descriptor, unpacked if they are gzip data.

    Raises FileError if reading fails, DataError for data that is not text.  `name` is the name
    of the input in messages.
    """
    ready = select.poll()  # unlike select, it takes any descriptor
    ready.register(fd, select.POLLIN)

    def read(size: int) -> bytes:
        while True:
            try:
                return os.read(fd, size)
            except BlockingIOError:  # of a pipe or terminal that another program has set so
                ready.poll()
            except OSError as error:
                raise FileError(f"cannot read {name}: {explain_os_error(error)}") from None

    def unpack(size: int) -> bytes:
        try:
            return unpacked.read1(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = "it is cut off" if isinstance(error, EOFError) else "it is damaged"
            raise FileError(f"cannot unpack {name}: {reason}; check it with gzip -t") from None

    stream = ByteStream(read, lambda: bool(ready.poll(0)))  # a regular file is always ready
    packed = stream.peek().startswith(GZIP)
    if packed:
        # GzipFile calls `read` alone
        unpacked = gzip.GzipFile(mode="rb", fileobj=cast(IO[bytes], stream))
        stream = ByteStream(unpack, stream.waits)
    file_type = detect_file_type(stream.peek())
    if file_type is not None:
        within = " within gzip data" if packed and file_type.name == "gzip data" else ""
        shown = "FILE" if name == STANDARD_INPUT else shlex.quote(name)
        remedy = file_type.remedy_for(shown, packed)
        raise DataError(f"{name} is {file_type.name}{within}; {remedy}")
    return stream
