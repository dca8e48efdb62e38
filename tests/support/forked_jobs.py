"""Jobs forked from a process that has loaded torch, which saves seconds per start.

For kits with hundreds of trials and for command line tests.  The interpreter's setup before `main`
(locale, closed descriptors) is not covered this way.
"""

import fcntl
import json
import os
import socket
import subprocess
import sys
import termios
import traceback
from dataclasses import asdict, fields
from functools import partial
from importlib import import_module
from pathlib import Path

from tests.support import faulty
from tests.support.job_runner import ROOT, Job, LaunchOptions, open_streams, reap


class WarmStarter:
    """Starts jobs like `ColdStarter`, but forks them."""

    execs = False

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_jobs", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def __enter__(self) -> "WarmStarter":
        return self

    def __exit__(self, *error: object) -> None:
        self.ours.close()  # ends the process
        self.process.wait()

    def request(self, request: dict, fds: list[int] | None = None):
        socket.send_fds(self.ours, [json.dumps(request).encode()], fds or [])
        return json.loads(self.ours.recv(1 << 16))

    def fork_job(self, start: LaunchOptions, fds: list[int], program: str = "onmt_lite") -> int:
        """Fork a job.

        Args:
            start: how to start it
            fds: its standard streams
            program: module name, as for `python -m`

        Returns:
            Its pid.
        """
        return self.request({**asdict(start), "program": program}, fds)

    def reap(self, pid: int, seconds: float) -> tuple[int, float] | None:
        """Return exit code and peak memory (MB) of a job, or None if it does not end in time."""
        found = self.request({"pid": pid, "seconds": seconds})
        return None if found is None else tuple(found)

    def start(self, start: LaunchOptions, folder: Path) -> Job:
        with open_streams(start, folder) as fds:
            pid = self.fork_job(start, fds)
        return Job(pid, folder, partial(self.reap, pid))


def serve(control: socket.socket) -> None:
    """Handle requests until the parent closes the connection."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not data:
            return
        request = json.loads(data)
        if "pid" in request:
            reply = reap(request["pid"], request["seconds"])
        else:
            reply = os.fork()
            if not reply:
                control.close()
                start = LaunchOptions(
                    **{field.name: request[field.name] for field in fields(LaunchOptions)}
                )
                run_as_program(start, fds, request["program"])
            for fd in fds:
                os.close(fd)
        control.send(json.dumps(reply).encode())


def run_as_program(start: LaunchOptions, fds: list[int], program: str) -> None:
    """In the child: run the program, and exit like the interpreter.

    Args:
        start: how to start it
        fds: its standard streams
        program: module name, as for `python -m`
    """
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    if os.isatty(2):  # make it the controlling terminal, for Ctrl-C
        fcntl.ioctl(2, termios.TIOCSCTTY, 0)
    os.chdir(start.cwd)
    os.environ.clear()
    os.environ.update(start.env)
    code = 1
    try:
        start.apply()
        sys.argv = [str(ROOT / "translate.py"), *start.argv]
        sys.orig_argv = [sys.executable, *sys.argv]
        module = import_module(f"{program}.__main__")
        if program != "onmt_lite":
            sys.modules["__main__"], sys.argv[0] = module, module.__spec__.origin
            sys.orig_argv[1:2] = ["-m", program]
        if spec := os.environ.get("KIT_FAULT"):
            faulty.install(spec)
        code = module.main()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    import torch

    import onmt_lite.api  # noqa: F401
    import onmt_lite.jobs.job  # noqa: F401
    import onmt_lite.jobs.worker  # noqa: F401

    torch.set_num_threads(1)
    serve(socket.socket(fileno=int(sys.argv[1])))
