"""A separate, minimal translator for table models, used to test the kits.

`-break NAME` adds a bug that the kits must find.

    direct      writes to OUT, without partial files or rename
    drop        loses the last written line on SIGTERM
    splitlines  splits lines like str.splitlines
    swallow     ignores write errors
    trust       accepts damaged partial files
    deaf        ignores the lock of another job
    clobber     removes a foreign OUT.parts
    linger      takes 7 seconds to stop
    mute        does not print how to resume
"""

import contextlib
import errno
import fcntl
import json
import os
import shlex
import signal
import stat
import sys
import time
import zlib

SECONDS = 0.005  # that a bucket takes
MODE = 0o1700  # of a separate directory


class Stopped(BaseException):
    pass


def main(argv):
    given, name = {}, ""
    for word in argv:
        if word.startswith("-") and len(word) > 1:
            name = word.lstrip("-")
            given[name] = ""
        else:
            given[name] = word
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        return translate(given, given.get("break", ""))
    except Stopped as stopped:
        number = stopped.args[0]
        with contextlib.suppress(IndexError):
            if given.get("break") == "drop" and number == signal.SIGTERM:
                drop_a_line(given["output"] + ".parts")
        if given.get("break") == "linger":
            time.sleep(7)
        words = [sys.executable, *sys.argv] + ["-resume"] * ("-resume" not in argv)
        command = "" if given.get("break") == "mute" else f"; go on: {shlex.join(words)}"
        print(f"onmt_lite: stopped by {signal.Signals(number).name}{command}", file=sys.stderr)
        return 128 + number
    except OSError as error:
        where = error.filename or given.get("output")
        where = "standard output" if where == "-" else where
        print(f"onmt_lite: error: cannot write {where}: {error.strerror}", file=sys.stderr)
        return 5


def stop(number, frame):
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def drop_a_line(folder):
    part = os.path.join(folder, sorted(name for name in os.listdir(folder) if name.isdigit())[-1])
    data = open(part, "rb").read().split(b"\n", 1)[1]
    shorter = data[: data[:-1].rfind(b"\n") + 1]
    open(part, "wb").write(b"%d\n" % zlib.crc32(shorter) + shorter)


def translate(given, broken):
    for name in ("src", "model"):
        for written in (given["output"], given.get("log_file", "")):
            with contextlib.suppress(OSError):
                if os.path.samefile(given[name], written):
                    print(f"onmt_lite: error: {written} is the {name}", file=sys.stderr)
                    return 2
    table = read_table(given["model"])
    lines = read_lines(given["src"], broken)
    out, size = given["output"], int(given["bucket_lines"])
    texts = [table.get(line.strip(), "" if not line.strip() else "?") for line in lines]
    if out == "-":
        return write_through("/dev/stdout", texts, broken)
    if not os.path.isdir(os.path.dirname(out) or ".") or os.path.isdir(out) or not out:
        raise OSError(errno.ENOENT, "no such folder", out)
    if os.path.exists(out) and not os.path.isfile(out):
        return write_through(out, texts, broken)
    if broken == "direct":
        with open(out, "wb", buffering=0) as file:
            for text in texts:
                time.sleep(SECONDS / size)
                file.write(f"{text}\n".encode())
        return 0
    folder = out + ".parts"
    lock(open_folder(folder, out, broken), out, folder, broken)
    try:
        write_parts(folder, texts, size, "resume" in given, broken)
        join(folder, out, range(0, len(texts), size), broken)
    except OSError:
        if not any(name.isdigit() for name in os.listdir(folder)):
            remove(folder)
        raise
    remove(folder)
    return 0


def write_parts(folder, texts, size, resumes, broken):
    for start in range(0, len(texts), size):
        part = os.path.join(folder, f"{start:06}")
        if not resumes or read_part(part, broken) is None:
            time.sleep(SECONDS)
            data = "".join(f"{text}\n" for text in texts[start : start + size]).encode()
            write_file(part, b"%d\n" % zlib.crc32(data) + data, broken)


def write_file(path, data, broken):
    if broken == "trust":  # so that there is something torn to be trusted
        with open(path, "wb", buffering=0) as file:
            write(file.fileno(), data[: len(data) // 3], broken)
            time.sleep(SECONDS)
            write(file.fileno(), data[len(data) // 3 :], broken)
        return
    with open(path + ".tmp", "wb", buffering=0) as file:
        write(file.fileno(), data, broken)
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)


def read_part(path, broken):
    """Return the contents of a partial file; None if missing or damaged."""
    try:
        crc, _, data = open(path, "rb").read().partition(b"\n")
        return data if broken == "trust" or int(crc) == zlib.crc32(data) else None
    except (OSError, ValueError):
        return None


def join(folder, out, starts, broken):
    parts = [read_part(os.path.join(folder, f"{start:06}"), broken) for start in starts]
    new = os.path.join(folder, "output")
    with open(new, "wb", buffering=0) as file:
        write(file.fileno(), b"".join(part or b"" for part in parts), broken)
        os.fsync(file.fileno())
    os.rename(new, out)


def open_folder(folder, out, broken):
    """Return the directory and a descriptor of its lock."""
    if broken == "clobber" and os.path.lexists(folder) and not is_ours(folder):
        with contextlib.suppress(OSError):
            os.unlink(folder)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, MODE)
    if not is_ours(folder):
        raise OSError(errno.EEXIST, "a foreign file", folder)
    return os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)


def is_ours(folder):
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == MODE


def lock(fd, out, folder, broken):
    if broken == "deaf":
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.stat(os.path.join(folder, ".lock"))):
            raise OSError
    except OSError:
        holder = os.pread(fd, 20, 0).decode()
        raise OSError(errno.EBUSY, f"process {holder} is writing it", out) from None
    os.pwrite(fd, str(os.getpid()).encode(), 0)


def remove(folder):
    for name in sorted(os.listdir(folder), key=lambda name: name == ".lock"):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


def write_through(out, texts, broken):
    fd = os.open(out, os.O_WRONLY)
    write(fd, "".join(f"{text}\n" for text in texts).encode(), broken)
    return 0


def write(fd, data, broken):
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        if broken != "swallow":
            raise


def read_lines(path, broken):
    data = open(path, "rb").read().removeprefix(b"\xef\xbb\xbf")
    if broken == "splitlines":
        return data.decode("utf-8", "replace").splitlines()
    lines = data.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]


def read_table(path):
    model = json.load(open(path))
    table = {}
    for name, source in model["sources"].items():
        ids = []
        while True:
            row = source["rows"].get(" ".join(map(str, ids)), source["default"])
            best = row.index(max(row))
            if best == 0:
                break
            ids.append(best)
        table[name] = " ".join(model["vocab"][i] for i in ids)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
