"""The program, with one call on a file of its output that fails or is never reached.

KIT_FAULT=ENOSPC:fsync:3   the fourth fsync of a file named out*, of one in out.parts or of a folder
                           raises ENOSPC
KIT_FAULT=die:rename:0     the process ends with code 9 before the first rename
KIT_FAULT=count:FILE:0     names of all such calls are written to FILE
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
    kind, wanted, number = spec.split(":")
    real_open, real_write = os.open, os.write
    log = real_open(wanted, os.O_WRONLY | os.O_APPEND) if kind == "count" else -1
    seen = dict.fromkeys(CALLS, 0)

    def patched(name: str) -> None:
        original = getattr(os, name)

        def call(*args, **kwargs):
            if not concerns_output(name, args):
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
        patched(name)


def concerns_output(name: str, args: tuple) -> bool:
    if name == "open" and not args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
        return False
    try:
        path = args[0] if isinstance(args[0], (str, Path)) else f"/proc/self/fd/{args[0]}"
        target = os.readlink(path) if str(path).startswith("/proc/") else str(path)
        folder = name == "fsync" and stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False
    return folder or "/out.parts/" in target or os.path.basename(target).startswith("out")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    install(os.environ["KIT_FAULT"])
    from onmt_lite.__main__ import main

    sys.exit(main())
