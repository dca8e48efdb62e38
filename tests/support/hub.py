"""A hub of models on the loopback address, as far as huggingface_hub asks it.

Its answers are those of the public hub: error codes in headers, 401 for what a visitor may not see
whether it is there or not, descriptions of gated models but not their files.
"""

import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_readable"  # that may read private models
ROUTES = (
    ("info", r"/api/models/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>.+))?"),
    ("tree", r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)"),
    ("file", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)"),
)


@dataclass
class Repository:
    """A repository: files by name of each commit, and the commits of its branches and tags."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], *refs: str) -> str:
        """Add a commit, to which `main` leads too."""
        number = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[number] = files
        self.refs |= dict.fromkeys(("main", *refs), number)
        return number


class Hub(ThreadingHTTPServer):
    """The server.  `asked` lists the requests so far."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []
        self.cut: str | None = None  # the file in whose middle connections end
        self.stalls: str | None = None  # the one in whose middle nothing comes any more
        self.ends = threading.Event()
        self.status: int | None = None  # of all answers, while the hub is down

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, files: dict[str, bytes], **how: bool) -> Repository:
        self.repositories[name] = repository = Repository(**how)
        repository.commit(files)
        return repository

    def files_asked(self) -> list[str]:
        """Names of the files that were sent, or begun to be."""
        found = (re.fullmatch(r"GET /[^/]+/[^/]+/resolve/[^/]+/(.+)", line) for line in self.asked)
        return sorted(match[1] for match in found if match)


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if self.server.status is not None:
            return self.send(self.server.status, b"")
        for kind, pattern in ROUTES:
            if found := re.fullmatch(pattern, path):
                return self.answer(kind, **found.groupdict())
        return self.send(404, b"")

    def answer(self, kind: str, repo: str, revision: str | None, file: str = "") -> None:
        given = self.headers.get("Authorization")
        repository = self.server.repositories.get(repo)
        if given not in (None, f"Bearer {TOKEN}"):
            message = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return self.send(401, b"", message)
        if repository is None or (repository.private and not given):
            return self.refuse(404 if given else 401, "RepoNotFound")
        revision = revision or "main"
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            return self.refuse(404, "RevisionNotFound")
        files = repository.commits[commit]
        if kind == "info":
            siblings = [{"rfilename": name} for name in files]
            return self.send_json({"id": repo, "sha": commit, "siblings": siblings})
        if kind == "tree":
            return self.send_json([entry(name, data) for name, data in files.items()])
        if repository.gated and not given:
            return self.refuse(401, "GatedRepo")
        if file not in files:
            return self.refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        return self.send_file(file, files[file], commit)

    def send_file(self, name: str, data: bytes, commit: str) -> None:
        headers = {"X-Repo-Commit": commit, "ETag": f'"{entry(name, data)["oid"]}"'}
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        status, first = (206, int(start[1])) if start else (200, 0)
        if start:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.send(status, data[first:], headers, name)

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})})

    def send(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, file: str = ""
    ) -> None:
        whole = file not in (self.server.cut, self.server.stalls)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data if whole else data[: len(data) // 2])
        self.close_connection = not whole
        if file == self.server.stalls:
            self.server.ends.wait()


def entry(name: str, data: bytes) -> dict[str, object]:
    """A file in a listing, with its number in git."""
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": oid}


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


@contextlib.contextmanager
def running():
    """A hub that runs until the end of the context."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.ends.set()
            hub.shutdown()
            thread.join()
