"""Bytes of a text input, unpacked if they are gzip data.

Data that is not text is rejected with a command that converts it.
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
    """A byte stream whose beginning can be inspected before it is read."""

    def __init__(self, read: Callable[[int], bytes], is_ready: Callable[[], bool]):
        """Wrap a function that reads bytes.

        Args:
            read: `read(n)` returns at most n bytes, b"" at the end.
            is_ready: returns True if `read` would return at once.
        """
        self._read, self._is_ready = read, is_ready
        self._buffer, self._has_ended = b"", False

    def peek(self) -> bytes:
        """Return the next HEAD_BYTES bytes; fewer if the input ends or pauses."""
        while not self._has_ended and len(self._buffer) < HEAD_BYTES:
            if not (self._buffer in (b"", GZIP[:1]) or self._is_ready()):
                break
            chunk = self._read(HEAD_BYTES)
            self._buffer, self._has_ended = self._buffer + chunk, not chunk
        return self._buffer[:HEAD_BYTES]

    def read(self, size: int) -> bytes:
        """Read at least one byte and at most `size`; b"" at the end."""
        if not self._buffer and not self._has_ended:
            return self._read(size)
        head, self._buffer = self._buffer[:size], self._buffer[size:]
        return head

    def is_ready(self) -> bool:
        """Return True if reading would not block."""
        return bool(self._buffer) or self._is_ready()


def open_text_stream(fd: int, name: str) -> ByteStream:
    """Return the bytes of a file descriptor, unpacked if they are gzip data.

    Args:
        fd: the file descriptor.
        name: name of the input for messages.

    Raises:
        FileError: if reading fails.
        DataError: if the data is not text.
    """
    ready = select.poll()  # unlike select, it accepts any descriptor
    ready.register(fd, select.POLLIN)

    def read(size: int) -> bytes:
        while True:
            try:
                return os.read(fd, size)
            except BlockingIOError:  # another program made the pipe or terminal non-blocking
                ready.poll()
            except OSError as error:
                raise FileError(f"cannot read {name}: {explain_os_error(error)}") from None

    def unpack(size: int) -> bytes:
        try:
            return unpacked.read1(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = "it is truncated" if isinstance(error, EOFError) else "it is damaged"
            raise FileError(f"cannot unpack {name}: {reason}; check it with gzip -t") from None

    stream = ByteStream(read, lambda: bool(ready.poll(0)))  # a regular file is always ready
    is_gzip = stream.peek().startswith(GZIP)
    if is_gzip:
        # GzipFile only calls `read`
        unpacked = gzip.GzipFile(mode="rb", fileobj=cast(IO[bytes], stream))
        stream = ByteStream(unpack, stream.is_ready)
    file_type = detect_file_type(stream.peek())
    if file_type is not None:
        in_gzip = " within gzip data" if is_gzip and file_type.name == "gzip data" else ""
        shown_name = "FILE" if name == STANDARD_INPUT else shlex.quote(name)
        remedy = file_type.get_remedy(shown_name, is_gzip)
        raise DataError(f"{name} is {file_type.name}{in_gzip}; {remedy}")
    return stream
