"""The program with an injected fault: one system call on an output file fails or exits.

KIT_FAULT=ENOSPC:fsync:3   the fourth fsync of a file named out*, of a file in out.parts or of a
                           directory raises ENOSPC
KIT_FAULT=die:rename:0     the process exits with code 9 before the first rename
KIT_FAULT=count:FILE:0     the names of all these calls are written to FILE
"""

import errno
import os
import stat
import sys
from pathlib import Path

CALLS = (
    *("open", "write", "pwrite", "ftruncate", "fsync", "fdatasync"),
    *("rename", "replace", "unlink", "link", "mkdir", "rmdir"),
)


def install(spec: str) -> None:
    """Patch the functions of `os` as KIT_FAULT specifies."""
    kind, wanted, number = spec.split(":")
    real_open, real_write = os.open, os.write
    log = real_open(wanted, os.O_WRONLY | os.O_APPEND) if kind == "count" else -1
    seen = dict.fromkeys(CALLS, 0)

    def patch(name: str) -> None:
        original = getattr(os, name)

        def call(*args, **kwargs):
            if not is_output_call(name, args):
                return original(*args, **kwargs)
            if kind == "count":
                real_write(log, f"{name}\n".encode())
            elif name == wanted and seen[name] == int(number):
                seen[name] += 1
                if kind == "die":
                    os._exit(9)
                raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)))
            seen[name] += 1
            return original(*args, **kwargs)

        setattr(os, name, call)

    for name in CALLS:
        patch(name)


def is_output_call(name: str, args: tuple) -> bool:
    """Return True if the call changes an output file or syncs a directory."""
    if name == "open" and not args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
        return False
    try:
        path = args[0] if isinstance(args[0], (str, Path)) else f"/proc/self/fd/{args[0]}"
        target = os.readlink(path) if str(path).startswith("/proc/") else str(path)
        is_directory = name == "fsync" and stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False
    return is_directory or "/out.parts/" in target or os.path.basename(target).startswith("out")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    install(os.environ["KIT_FAULT"])
    from onmt_lite.__main__ import main

    sys.exit(main())
