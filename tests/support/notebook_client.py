"""What a browser does with a session, for tests and benchmarks: enter with a link, start kernels, run cells.

Host names below ``localhost`` are resolved here and not by the machine (RFC 6761, 6.3 lets a resolver do so, and not all do).
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from carrel.testing.waiting import PATIENCE


@dataclass(slots=True)
class CellResult:
    """What a cell left."""

    #: As in the execute_reply; "dead" when the kernel's process has gone.
    status: str
    #: Name of the exception, "" without one.
    error: str = ""
    text: str = ""
    #: Texts of displays by their id, as they were last.
    displays: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    messages: list[dict[str, Any]] = field(default_factory=list)


class SessionBrowser:
    """A browser that was let into one session."""

    def __init__(
        self, link: str, *, patience: float = PATIENCE, authority: Path | None = None, found_at: str | None = None
    ) -> None:
        """Enter with the one-time `link` of `carrel.Client.open_session`; `authority` is whom to believe over TLS.

        `found_at` is the address of its host name, where this machine does not know that.
        """
        parts = urlsplit(link)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.patience = patience
        host = parts.hostname or ""
        found_at = found_at or ("127.0.0.1" if host.endswith("localhost") else host)
        self._place = (found_at, parts.port or (443 if authority else 80))
        self._trust = ssl.create_default_context(cafile=authority) if authority else None
        self._name = host
        self._extensions = {"sni_hostname": host}
        self._http = httpx.Client(
            base_url=f"{parts.scheme}://{self._place[0]}:{self._place[1]}",
            headers={"Host": parts.netloc},
            timeout=patience,
            verify=self._trust or False,
            trust_env=False,
        )
        answer = self._http.get(f"{parts.path}?{parts.query}", extensions=self._extensions)
        if answer.status_code != 303:
            raise RuntimeError(f"The session let nobody in: {answer.status_code} {answer.text[:500]}")
        self.lands_on = answer.headers["location"]
        self.cookies: dict[str, str] = {}
        for header in answer.headers.get_list("set-cookie"):
            self.cookies |= {name: morsel.value for name, morsel in SimpleCookie(header).items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request of this browser carries."""
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), "Origin": self.origin}

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request to the session's origin."""
        headers = {**self.headers, **more.pop("headers", {})}
        return self._http.request(method, path, headers=headers, extensions=self._extensions, **more)

    def start_kernel(self, path: str = "work.ipynb") -> Kernel:
        """Start a kernel for a notebook and connect to it."""
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        answer = self.request("POST", "/api/sessions", json=body)
        if answer.status_code != 201:
            raise RuntimeError(f"No kernel: {answer.status_code} {answer.text[:500]}")
        return self.kernel(answer.json()["kernel"]["id"])

    def kernel(self, kernel_id: str) -> Kernel:
        """Connect to a kernel that runs."""
        return Kernel(self, kernel_id)

    def websocket(self, path: str, *, cookie: str | None = None, subprotocols: Sequence[str] = ()) -> ClientConnection:
        """A websocket on the session's origin; `cookie` instead of what this browser was given."""
        tls: dict[str, Any] = {} if self._trust is None else {"ssl": self._trust, "server_hostname": self._name}
        sock = socket.create_connection(self._place, timeout=self.patience)
        return connect(
            "ws" + self.origin.removeprefix("http") + path,
            sock=sock,
            **tls,
            origin=self.origin,  # type: ignore[arg-type]
            additional_headers={"Cookie": self.headers["Cookie"] if cookie is None else cookie},
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            max_size=None,
            # A test may look elsewhere for as long as a slow machine needs: what comes meanwhile waits here, and no connection is
            # given up for it, as the browser's would not be.
            max_queue=None,
            ping_interval=None,
            open_timeout=self.patience,
        )


class Kernel:
    """A connection to a kernel's channels (Jupyter's websocket protocol, JSON messages)."""

    def __init__(self, browser: SessionBrowser, kernel_id: str) -> None:
        self.id = kernel_id
        self._browser = browser
        self._client = uuid.uuid4().hex
        self._socket = browser.websocket(f"/api/kernels/{kernel_id}/channels?session_id={self._client}")

    def listen(self) -> None:
        """Wait until what the kernel publishes arrives here, as JupyterLab does by asking for `kernel_info` first.

        Jupyter makes sure of it when it connects, but not for a kernel that is busy at that moment.
        """
        deadline = time.monotonic() + self._browser.patience
        asked: set[str] = set()
        while True:
            asked.add(self._say("kernel_info_request", {}))
            try:
                while True:
                    left = deadline - time.monotonic()
                    message = json.loads(self._socket.recv(timeout=max(0.01, min(left, 1.0))))
                    if message["channel"] == "iopub" and message.get("parent_header", {}).get("msg_id") in asked:
                        return
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        """Go away; the kernel goes on."""
        self._socket.close()

    def interrupt(self) -> None:
        """What the stop button does."""
        self._browser.request("POST", f"/api/kernels/{self.id}/interrupt").raise_for_status()

    def send(self, code: str, *, tags: list[str] | None = None, silent: bool = False) -> str:
        """Ask for a cell to be run; return the id of the request."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "allow_stdin": False,
            "stop_on_error": True,
        }
        return self._say("execute_request", content, {"tags": tags or []})

    def _say(self, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> str:
        message_id = uuid.uuid4().hex
        header = {"msg_id": message_id, "msg_type": kind, "username": "", "session": self._client, "version": "5.3", "date": ""}
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {**(metadata or {}), "cellId": message_id[:8]},
            "content": content,
            "channel": "shell",
        }
        self._socket.send(json.dumps(message))
        return message_id

    def execute(
        self,
        code: str,
        *,
        tags: list[str] | None = None,
        silent: bool = False,
        on_message: Callable[[dict[str, Any]], None] | None = None,
        seconds: float | None = None,
    ) -> CellResult:
        """Run a cell and wait for its end."""
        return self.result(self.send(code, tags=tags, silent=silent), on_message=on_message, seconds=seconds)

    def result(
        self, message_id: str, *, on_message: Callable[[dict[str, Any]], None] | None = None, seconds: float | None = None
    ) -> CellResult:
        """Wait for the end of a cell. Raises `TimeoutError` after `seconds` (default: the browser's patience)."""
        began = time.monotonic()
        deadline = began + (self._browser.patience if seconds is None else seconds)
        found = CellResult(status="")
        idle = False
        while not (idle and found.status):
            try:
                message = json.loads(self._socket.recv(timeout=max(0.01, deadline - time.monotonic())))
            except TimeoutError as error:
                kinds = [f"{one['channel']} {one['header']['msg_type']}" for one in found.messages]
                raise TimeoutError(f"{error}; status {found.status!r}, displays {found.displays}, heard {kinds}") from error
            if _died(message):
                found.status = "dead"
                break
            if message.get("parent_header", {}).get("msg_id") != message_id:
                continue
            found.messages.append(message)
            idle = _take(found, message) or idle
            if on_message is not None:
                on_message(message)
        found.seconds = time.monotonic() - began
        return found


def _died(message: Mapping[str, Any]) -> bool:
    """True when the notebook server says, to connected clients, that the kernel's process has gone."""
    kind = message.get("msg_type") or message["header"]["msg_type"]
    return bool(kind == "status" and message["content"]["execution_state"] in ("restarting", "autorestarting", "dead"))


def _take(found: CellResult, message: Mapping[str, Any]) -> bool:
    """Add one message to the result; return whether it says that the kernel is done with the cell."""
    kind = message.get("msg_type") or message["header"]["msg_type"]
    content = message["content"]
    if kind == "stream":
        found.text += content["text"]
    elif kind in ("execute_result", "display_data", "update_display_data"):
        text = content["data"].get("text/plain", "")
        display = (content.get("transient") or {}).get("display_id")
        if display:
            found.displays[display] = text
        else:
            found.text += text + "\n"
    elif kind == "error":
        found.error = content["ename"]
    elif kind == "execute_reply":
        found.status = content["status"]
        found.error = found.error or content.get("ename", "")
    return bool(kind == "status" and content["execution_state"] == "idle")
