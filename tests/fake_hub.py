"""A model hub on loopback that serves one repository's files and remembers what was asked of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


@dataclass(slots=True)
class FakeHub:
    """`files` maps a path in the repository to its bytes; `asked` collects the paths whose bytes were sent."""

    repo_id: str
    files: Mapping[str, bytes]
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers for a path of the hub's HTTP interface."""
        path = path.partition("?")[0]
        api, resolve = f"/api/models/{self.repo_id}", f"/{self.repo_id}/resolve/{COMMIT}/"
        if path.startswith(f"{api}/tree/"):
            return 200, json.dumps([self._entry(name) for name in self.files]).encode(), {}
        if path.startswith(api):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, json.dumps({"id": self.repo_id, "sha": COMMIT, "siblings": siblings}).encode(), {}
        name = path.removeprefix(resolve)
        if path.startswith(resolve) and name in self.files:
            return 200, self.files[name], {"ETag": f'"{_etag(self.files[name])}"', "X-Repo-Commit": COMMIT}
        return 404, b"", {"X-Error-Code": "RepoNotFound"}

    def _entry(self, name: str) -> dict[str, object]:
        data = self.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}


@contextmanager
def fake_hub(repo_id: str, files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    """Serves until the block ends; after that the address refuses connections."""
    hub = FakeHub(repo_id, files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
            """Says nothing."""

        def _send(self, *, with_body: bool) -> None:
            status, body, headers = hub.answer(self.path)
            if with_body and "/resolve/" in self.path:
                hub.asked.append(self.path.rpartition(f"{COMMIT}/")[2])
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
