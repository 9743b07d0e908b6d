"""The moment in which a session learns what its JupyterHub has for it.

The hub's variables hold secrets (the server's API token). They reach the session through the lab and this socket, straight into
the session's memory: they are in no file, no database, no argument list and no log. Until they have come the session listens
here; after that its notebook server does, on the same path.
"""

from __future__ import annotations

import json
import socket
import socketserver
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from carrel.core.control.hub import check_service_url, check_variables
from carrel.core.domain.errors import Invalid, Unavailable
from carrel.notebooks.identity import HEADER, HUB_PATH, read_identity
from carrel.notebooks.jupyter.context import SessionContext

#: Seconds that a client has for one request, and bytes of one that are read.
_PATIENCE, _LONGEST = 10.0, 1024 * 1024
_WAITING = "The session waits for its JupyterHub."


@dataclass(frozen=True, slots=True)
class Handover:
    """What the hub has for a session."""

    variables: Mapping[str, str]
    #: Where its server is to listen. It listens already, so that nobody is refused while the server starts.
    listener: socket.socket


class HandoverServer:
    """Listens on the session's socket for what the hub has for it, and takes it from the lab alone."""

    def __init__(self, session: SessionContext) -> None:
        self._session = session
        self._joined: Handover | None = None
        self._server = _Server(str(session.socket), self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.server_close()
        Path(self._session.socket).unlink(missing_ok=True)

    def wait(self, seconds: float) -> Handover:
        """What the hub has. Raises `Unavailable` when it does not come within `seconds`."""
        deadline = time.monotonic() + seconds
        while self._joined is None:
            self._server.timeout = deadline - time.monotonic()
            if self._server.timeout <= 0:
                raise Unavailable(
                    f"The JupyterHub of {self._session.hub} did not tell this session anything within {seconds:g} s.",
                    remedy="Start the server at the hub again; the hub's log says more.",
                )
            self._server.handle_request()
        return self._joined

    def known(self, header: str) -> bool:
        """True when a request comes from the lab."""
        session = self._session
        found = read_identity(header, session.token, job_id=session.job_id, attempt=session.attempt, now=time.time())
        return found is not None

    def take(self, body: bytes) -> int:
        """Take the variables and begin to listen; returns the port. Raises `Invalid`, and then goes on waiting."""
        variables = _read(body)
        check_variables(variables)
        address = variables["JUPYTERHUB_SERVICE_URL"]
        host, port = check_service_url(address)
        try:
            listener = _listen(host, port)
        except OSError as error:
            raise Invalid(
                f"The session cannot listen on {host or 'all addresses'}, port {port or 'any'}: {error.strerror or error}.",
                remedy="Set `c.CarrelSpawner.ip` to an address of the lab's machine, and its port to 0.",
            ) from error
        listener.setblocking(False)  # as tornado takes it
        port = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
        url = urlsplit(address)._replace(netloc=f"{shown}:{port}").geturl()
        self._joined = Handover({**variables, "JUPYTERHUB_SERVICE_URL": url}, listener)
        return int(port)


def _read(body: bytes) -> Mapping[str, str]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise Invalid("The hub's variables are not JSON.", remedy="Send an object.") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Invalid("The hub's variables are not an object of texts.", remedy="Send an object of texts.")
    return found


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


class _Server(socketserver.UnixStreamServer):
    request_queue_size = 16

    def __init__(self, path: str, desk: HandoverServer) -> None:
        self.desk = desk
        super().__init__(path, _Handler)

    def server_bind(self) -> None:
        super().server_bind()
        Path(str(self.server_address)).chmod(0o600)

    def handle_timeout(self) -> None:
        """`HandoverServer.wait` looks at the clock."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE
    server: _Server

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not self.server.desk.known(self.headers.get(HEADER, "")) or self.path != HUB_PATH:
            self._answer(HTTPStatus.FORBIDDEN, {"message": _WAITING})
        elif not length.isdigit() or int(length) > _LONGEST:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"message": "The hub's variables are too long."})
        else:
            try:
                port = self.server.desk.take(self.rfile.read(int(length)))
            except Invalid as error:
                self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"message": error.message, "remedy": error.remedy})
            else:
                self._answer(HTTPStatus.OK, {"port": port})

    def do_GET(self) -> None:
        # The lab asks whether anybody uses the session: nobody can yet.
        self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"message": _WAITING})

    def _answer(self, status: HTTPStatus, value: Mapping[str, object]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a session's log is its user's."""
