"""A server on a session's socket that says what reaches it, and sends what it is asked for."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs


def resident() -> int:
    """Bytes of memory of this process (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@dataclass
class SmallServer:
    """ASGI application: what it saw, and gates by which a test holds it up."""

    #: The path of each request.
    paths: list[str] = field(default_factory=list)
    peak: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    close_code: int | None = None
    #: While this is not set, websockets are not read.
    reading: threading.Event = field(default_factory=threading.Event)
    read: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        asked = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        if scope["type"] == "websocket":
            await self.websocket(scope, receive, send, asked)
        else:
            await getattr(self, scope["path"].strip("/").split("/")[0] or "echo", self.echo)(scope, receive, send, asked)

    async def _send(self, send: Any, body: bytes, status: int = 200, headers: Any = ()) -> None:
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
        await send({"type": "http.response.body", "body": body})

    async def echo(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        said = {
            "method": scope["method"],
            "raw_path": scope["raw_path"].decode(),
            "query": scope["query_string"].decode(),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
            "body": body.decode("latin-1"),
        }
        await self._send(send, json.dumps(said).encode())

    async def headers(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        """Answers with the headers of the request's body (JSON pairs)."""
        body = (await receive())["body"]
        await self._send(send, b"ok", headers=[(name.encode(), value.encode()) for name, value in json.loads(body)])

    async def status(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        await self._send(send, b"" if asked["is"] in ("204", "304") else b"text", status=int(asked["is"]))

    async def upload(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        size, digest = 0, hashlib.sha256()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.ended.set()
                return
            piece = message.get("body", b"")
            size += len(piece)
            digest.update(piece)
            self.started.set()
            self.peak = max(self.peak, resident())
            if not message.get("more_body"):
                break
        await self._send(send, json.dumps({"size": size, "digest": digest.hexdigest()}).encode())

    async def download(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        pieces, piece = int(asked["pieces"]), b"x" * 65536
        headers = [] if "chunked" in asked else [(b"content-length", str(pieces * len(piece)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            self.peak = max(self.peak, resident())
        await send({"type": "http.response.body", "body": b""})

    async def endless(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        """An event stream; sets `ended` when nobody listens any more."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        self.started.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        self.ended.set()

    async def broken(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        """Half an answer."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2000000")]})
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        raise ConnectionResetError

    async def websocket(self, scope: Any, receive: Any, send: Any, asked: dict[str, str]) -> None:
        await receive()
        if scope["path"] == "/refuse":
            await send({"type": "websocket.http.response.start", "status": 404, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"no"})
            return
        protocols = scope["subprotocols"]
        await send({"type": "websocket.accept", "subprotocol": protocols[-1] if protocols else None})
        if scope["path"] == "/say":
            headers = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
            await send({"type": "websocket.send", "text": json.dumps(headers)})
        if scope["path"] == "/close":
            await send({"type": "websocket.close", "code": int(asked["code"]), "reason": "as asked"})
        if scope["path"] == "/slow":
            while not self.reading.is_set():
                await asyncio.sleep(0.02)
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.close_code = message.get("code")
                self.ended.set()
                return
            self.read += 1
            data = message.get("bytes")
            reply = {"text": message["text"]} if data is None else {"bytes": data}
            if scope["path"] != "/slow":
                await send({"type": "websocket.send", **reply})
