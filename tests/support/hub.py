"""A fake Hugging Face hub on the loopback address, with the endpoints that huggingface_hub uses.

It responds like the public hub: error codes in headers, 401 for both private and missing
repositories, and metadata but no files of gated models.
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

TOKEN = "hf_readable"  # has access to private models
ROUTES = (
    ("info", r"/api/models/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>.+))?"),
    ("tree", r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)"),
    ("file", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)"),
)


@dataclass
class Repository:
    """A repository: the files of each commit, and the commit of each branch and tag."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], *refs: str) -> str:
        """Add a commit and move `main` and other refs to it."""
        number = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[number] = files
        self.refs |= dict.fromkeys(("main", *refs), number)
        return number


class Hub(ThreadingHTTPServer):
    """The server; `requests` lists all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RequestHandler)
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.cut: str | None = None  # close the connection in the middle of this file
        self.stalls: str | None = None  # stop sending in the middle of this file
        self.ends = threading.Event()
        self.status: int | None = None  # status of all responses while the hub is down

    @property
    def address(self) -> str:
        """Base URL of the hub."""
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, files: dict[str, bytes], **access: bool) -> Repository:
        self.repositories[name] = repository = Repository(**access)
        repository.commit(files)
        return repository

    def list_requested_files(self) -> list[str]:
        """Return the names of all files that were requested."""
        matches = (
            re.fullmatch(r"GET /[^/]+/[^/]+/resolve/[^/]+/(.+)", line) for line in self.requests
        )
        return sorted(match[1] for match in matches if match)


class RequestHandler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        """Log nothing to stderr."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if self.server.status is not None:
            return self.send(self.server.status, b"")
        for endpoint, pattern in ROUTES:
            if match := re.fullmatch(pattern, path):
                return self.respond(endpoint, **match.groupdict())
        return self.send(404, b"")

    def respond(self, endpoint: str, repo: str, revision: str | None, file: str = "") -> None:
        token = self.headers.get("Authorization")
        repository = self.server.repositories.get(repo)
        if token not in (None, f"Bearer {TOKEN}"):
            message = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return self.send(401, b"", message)
        if repository is None or (repository.private and not token):
            return self.refuse(404 if token else 401, "RepoNotFound")
        revision = revision or "main"
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            return self.refuse(404, "RevisionNotFound")
        files = repository.commits[commit]
        if endpoint == "info":
            siblings = [{"rfilename": name} for name in files]
            return self.send_json({"id": repo, "sha": commit, "siblings": siblings})
        if endpoint == "tree":
            return self.send_json([describe_file(name, data) for name, data in files.items()])
        if repository.gated and not token:
            return self.refuse(401, "GatedRepo")
        if file not in files:
            return self.refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        return self.send_file(file, files[file], commit)

    def send_file(self, name: str, data: bytes, commit: str) -> None:
        headers = {"X-Repo-Commit": commit, "ETag": f'"{describe_file(name, data)["oid"]}"'}
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        status, offset = (206, int(start[1])) if start else (200, 0)
        if start:
            headers["Content-Range"] = f"bytes {offset}-{len(data) - 1}/{len(data)}"
        self.send(status, data[offset:], headers, name)

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})})

    def send(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, file: str = ""
    ) -> None:
        is_complete = file not in (self.server.cut, self.server.stalls)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data if is_complete else data[: len(data) // 2])
        self.close_connection = not is_complete
        if file == self.server.stalls:
            self.server.ends.wait()


def describe_file(name: str, data: bytes) -> dict[str, object]:
    """Return the entry of a file in a listing, with its git object ID."""
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": oid}


def read_files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.is_file()}


@contextlib.contextmanager
def run_hub():
    """Run a hub until the end of the context."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.ends.set()
            hub.shutdown()
            thread.join()
