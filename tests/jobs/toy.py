"""A translator of its own for table models, to try the kit on: it keeps the contract of a job as
simply as can be, and `-break NAME` breaks it in one way that the kit must find.

    direct      writes to OUT, neither to a part nor by rename
    drop        loses the last line that was written when SIGTERM comes
    splitlines  cuts lines where str.splitlines does
    swallow     takes no notice of errors of writing
    trust       resumes behind whatever is in the part
    deaf        does not ask whether another job writes
    clobber     empties an OUT.part that is somebody else's
    linger      takes 7 seconds to stop
    mute        does not say how to go on
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
                drop_a_line(given["output"] + ".part")
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


def drop_a_line(part):
    data = open(part, "rb").read()
    shorter = data[: data[:-1].rfind(b"\n") + 1]
    open(part, "wb").write(shorter)
    journal = open(part + ".journal").read().split("\n")[:-1]
    n = journal[-1].split()[0]
    journal[-1] = f"{n} {len(shorter)} {zlib.crc32(shorter)}\n"
    open(part + ".journal", "w").write("\n".join(journal))


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
    part = out if broken == "direct" else out + ".part"
    journal = out + ".part.journal"
    fd = open_part(part, journal, broken)
    if broken != "deaf":
        lock(fd, part, journal)
    n_done = done_before(fd, journal, broken) if "resume" in given else 0
    if not n_done:
        os.ftruncate(fd, 0)
        try:
            open(journal, "w").close()
        except OSError:
            os.unlink(part)
            raise
    with open(journal, "a") as log:
        log.write(f"pid {os.getpid()}\n")
        log.flush()
        for start in range(n_done, len(texts), size):
            time.sleep(SECONDS / 2)
            data = "".join(f"{text}\n" for text in texts[start : start + size]).encode()
            half = len(data) // 3 + 2  # amid a line
            write(fd, data[:half], broken)
            time.sleep(SECONDS / 2)
            write(fd, data[half:], broken)
            end = os.fstat(fd).st_size
            log.write(f"{min(start + size, len(texts))} {end} {crc_of(fd, end)}\n")
            log.flush()
    if broken != "direct":
        os.fsync(fd)
        os.rename(part, out)
    os.unlink(journal)
    return 0


def lock(fd, part, journal):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.stat(part)):
            raise OSError
    except OSError:
        holder = ""
        with contextlib.suppress(OSError):
            holder = open(journal).read().rpartition("pid ")[2].split("\n")[0]
        raise OSError(errno.EBUSY, f"process {holder} is writing it", part) from None


def write_through(out, texts, broken):
    fd = os.open(out, os.O_WRONLY)
    write(fd, "".join(f"{text}\n" for text in texts).encode(), broken)
    return 0


def open_part(part, journal, broken):
    if broken not in ("clobber", "direct"):
        for path in (part, journal):
            if os.path.lexists(path) and not is_ours(part, journal):
                raise OSError(errno.EEXIST, "somebody else's file", path)
    return os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND)


def is_ours(part, journal):
    if any(os.path.lexists(p) and not stat.S_ISREG(os.lstat(p).st_mode) for p in (part, journal)):
        return False
    if not os.path.exists(journal) or os.lstat(part).st_nlink > 1:
        return False
    return open(journal, "rb").read(4) == b"pid "


def done_before(fd, journal, broken):
    """Lines of the part that are well; all after them is cut off."""
    if broken == "trust":
        return os.pread(fd, 1 << 30, 0).count(b"\n")
    n_done = end = 0
    with contextlib.suppress(OSError, ValueError):
        for line in open(journal, encoding="ascii").read().split("\n")[:-1]:
            if line.startswith("pid "):
                continue
            n, size, crc = map(int, line.split())
            if size > os.fstat(fd).st_size or crc_of(fd, size) != crc:
                break
            n_done, end = n, size
    os.ftruncate(fd, end)
    return n_done


def crc_of(fd, size):
    return zlib.crc32(os.pread(fd, size, 0))


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
