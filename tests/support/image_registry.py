"""The reading half of a registry of images, on the loopback (OCI distribution specification 1.0)."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from support.images import make_image


class _Handler(BaseHTTPRequestHandler):
    blobs: dict[str, bytes]
    tags: dict[str, str]

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        if self.path == "/v2/":
            self._answer(200, b"{}", "application/json", body=body)
            return
        what, name = self.path.rsplit("/", 2)[1:]
        data = self.blobs.get(self.tags.get(name, name))
        if data is None:
            self._answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', "application/json", body=body)
            return
        kind = json.loads(data)["mediaType"] if what == "manifests" else "application/octet-stream"
        self._answer(200, data, kind, body=body)

    def _answer(self, status: int, data: bytes, kind: str, *, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Registry:
    """A context manager: inside it there is a registry in which every name has the same tags."""

    def __init__(self) -> None:
        #: Digests by tag, and content by digest; both may change while it runs.
        self.tags: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        handler = type("Handler", (_Handler,), {"blobs": self.blobs, "tags": self.tags})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.host = f"127.0.0.1:{self._server.server_port}"

    def publish(self, tag: str, layers: Sequence[bytes], variables: Mapping[str, str] | None = None) -> str:
        """Give the tag to an image; return its digest."""
        digest, blobs = make_image(layers, variables)
        self.tags[tag] = digest
        self.blobs |= blobs
        return digest

    def __enter__(self) -> Registry:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
