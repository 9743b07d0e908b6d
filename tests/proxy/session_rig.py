"""Sessions for tests: real notebook servers, or a small server that says what reaches it, behind the real proxy."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from small_server import SmallServer

from carrel.core.control.conversations import Conversations
from carrel.core.domain.errors import Unauthenticated, Unavailable
from carrel.core.domain.user import Caller, User
from carrel.core.transport.message_room import MessageRoom
from carrel.notebooks import identity
from carrel.notebooks.address import UnixAddress
from carrel.notebooks.proxy import Session, SessionHosts, TicketIssuer
from carrel.testing.waiting import PATIENCE, wait_until

PATTERN = "{session}.localhost"
_numbers = itertools.count(1)


class Clock:
    """The wall clock, which a test can put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@dataclass
class FoundSessions:
    """All sessions of the lab (the port `carrel.notebooks.proxy.Sessions`)."""

    secret: bytes
    by_label: dict[str, Session] = field(default_factory=dict)
    connections: dict[int, int] = field(default_factory=dict)
    uses: int = 0
    finds: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)
    #: Who has which token, by its number.
    tokens: dict[int, Caller] = field(default_factory=dict)
    #: Set while the lab cannot say whose token is whose.
    silent: bool = False

    def token_of(self, name: str) -> int:
        """The number of a token of this person's, who gets one when they have none."""
        with self.guard:
            for number, caller in self.tokens.items():
                if caller.user.subject == name:
                    return number
            number = next(_numbers)
            self.tokens[number] = Caller(user=User(subject=name, name=name.title()), token_id=number)
            return number

    def guest(self, token_id: int) -> Caller:
        with self.guard:
            if self.silent:
                raise Unavailable("The lab's database does not answer.")
            if token_id not in self.tokens:
                raise Unauthenticated("It is void.")
            return self.tokens[token_id]

    def add(self, session: Session) -> str:
        label = identity.session_label(self.secret, session.job_id, session.attempt)
        self.by_label[label] = session
        return label

    def find(self, label: str) -> Session | None:
        self.finds += 1
        return self.by_label.get(label)

    def connected(self, job_id: int, attempt: int, change: int) -> None:
        with self.guard:
            self.connections[job_id] = self.connections.get(job_id, 0) + change

    def used(self, job_id: int, attempt: int) -> None:
        self.uses += 1


class Gateway:
    """Stands for the lab: says which kind of request reached it."""

    hosts: SessionHosts | None = None

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                if message["type"] == "lifespan.shutdown":
                    assert self.hosts is not None
                    await self.hosts.aclose()
                    await send({"type": "lifespan.shutdown.complete"})
                    return
                await send({"type": "lifespan.startup.complete"})
        await _the_lab(scope, receive, send)


async def _the_lab(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "the lab"})
        await send({"type": "websocket.close", "code": 1000})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"the lab"})


@contextmanager
def serving(app: Any, listener: socket.socket) -> Iterator[uvicorn.Server]:
    """uvicorn in a thread, set as `carrel up` sets it."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="websockets-sansio",
        ws_max_size=2**40,
        ws_per_message_deflate=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server")
        yield server
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


@dataclass
class Front:
    """The proxy, in front of a lab, on a port of its own."""

    sessions: FoundSessions
    door: TicketIssuer
    clock: Clock
    port: int
    hosts: SessionHosts
    server: uvicorn.Server
    conversations: Conversations

    def ticket(self, label: str, name: str = "", path: str = "/lab") -> str:
        """A path with a ticket of this person's, by default of the session's owner."""
        return self.door.issue(label, self.sessions.token_of(name or self.sessions.by_label[label].owner), path)

    def host(self, label: str) -> str:
        return f"{label}.localhost:{self.port}"

    def origin(self, label: str) -> str:
        return f"http://{self.host(label)}"

    def enter(self, label: str, path: str = "/lab") -> Browser:
        """A browser that came in with a ticket of the session's owner."""
        browser = Browser(self, label)
        answer = browser.get(self.ticket(label, path=path))
        assert answer.status_code == 303, answer.text
        browser.take_cookies(answer)
        return browser

    def link(self, label: str, path: str = "/lab") -> str:
        return self.origin(label) + self.ticket(label, path=path)


class Browser:
    """Requests to one session's host name, with the cookies that it gave."""

    def __init__(self, front: Front, label: str) -> None:
        self.front = front
        self.label = label
        self.cookies: dict[str, str] = {}

    @property
    def headers(self) -> dict[str, str]:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Host": self.front.host(self.label), "Origin": self.front.origin(self.label)} | (
            {"Cookie": cookies} if cookies else {}
        )

    def take_cookies(self, answer: httpx.Response) -> None:
        for header in answer.headers.get_list("set-cookie"):
            name, _, rest = header.partition("=")
            self.cookies[name] = rest.partition(";")[0]

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {**self.headers, **more.pop("headers", {})}
        headers = {name: value for name, value in headers.items() if value is not None}
        return httpx.request(method, f"http://127.0.0.1:{self.front.port}{path}", headers=headers, timeout=PATIENCE, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def websocket(self, path: str, **more: Any) -> Any:
        from websockets.sync.client import connect

        sock = socket.create_connection(("127.0.0.1", self.front.port), timeout=PATIENCE)
        origin = more.pop("origin", self.front.origin(self.label))
        cookie = more.pop("cookie", self.headers.get("Cookie", ""))
        return connect(
            f"ws://{self.front.host(self.label)}{path}",
            sock=sock,
            origin=origin,
            additional_headers={"Cookie": cookie, **more.pop("headers", {})},
            max_size=None,
            open_timeout=PATIENCE,
            compression=None,
            **more,
        )


@contextmanager
def a_front(
    pattern: str = PATTERN,
    secret: bytes | None = None,
    port: int = 0,
    tokens: Mapping[int, Caller] | None = None,
    room: MessageRoom | None = None,
) -> Iterator[Front]:
    """The proxy on a port of this machine, a free one by default; `tokens` are those that a lab before it has given out."""
    secret = secret or secrets.token_bytes(32)
    sessions, clock = FoundSessions(secret, tokens=dict(tokens or {})), Clock()
    door = TicketIssuer(clock)
    lab = Gateway()
    conversations = Conversations(lambda caller: sessions.guest(caller.token_id or 0), clock=clock)
    hosts = lab.hosts = SessionHosts(
        lab,
        sessions=sessions,
        door=door,
        pattern=pattern,
        secret=secret,
        clock=clock,
        conversations=conversations,
        room=room,
    )
    with socket.create_server(("127.0.0.1", port)) as listener, serving(hosts, listener) as server:
        yield Front(sessions, door, clock, listener.getsockname()[1], hosts, server, conversations)


class Switch:
    """An application behind which stands another one for each test."""

    target: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        await self.target(scope, receive, send)


@dataclass
class Place:
    """A session with a small server in it, and a browser that was let in."""

    front: Front
    server: SmallServer
    label: str
    browser: Browser

    @property
    def session(self) -> Session:
        return self.front.sessions.by_label[self.label]

    def becomes(self, **fields: Any) -> None:
        """The session is another way from now on."""
        self.front.sessions.by_label[self.label] = replace(self.session, **fields)
        self.front.hosts._known.clear()


@contextmanager
def short_directory() -> Iterator[Path]:
    """Paths of sockets are short (unix(7))."""
    place = Path(tempfile.mkdtemp(prefix="carrel-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def a_unix_server(app: Any) -> Iterator[str]:
    """`app` on a unix socket."""
    with short_directory() as place:
        path = str(place / "s")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(100)
            with serving(app, listener):
                yield path


@contextmanager
def a_relay(path: str, ports: str = "") -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """The relay in front of a session's socket: the file with its address, which is there soon, and its process."""
    with short_directory() as place:
        file = place / "session.json"
        words = [sys.executable, "-P", "-m", "carrel.notebooks.relay", path, str(file), ports, "http://127.0.0.1:8642"]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            yield file, process
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stderr):
                if stream is not None:
                    stream.close()


def a_session(socket_path: str, **fields: Any) -> Session:
    return replace(
        Session(
            job_id=7,
            attempt=1,
            owner="ada",
            owner_name="Ada",
            address=UnixAddress(socket_path),
            token="carrel-job.7.1.c0ffee",
            ready=True,
            over=False,
            message="",
        ),
        **fields,
    )


@dataclass
class Jupyter:
    """One real session's notebook server."""

    process: subprocess.Popen[bytes]
    session: Session
    files: Path
    temporary: Path
    log: Path
    #: Seconds from the start of the process to its first answer.
    seconds: float = 0.0

    def http(self, subject: str | None = None) -> httpx.Client:
        """Past the proxy, with what the proxy would say."""
        session = self.session
        headers = identity.headers(
            session.token, job_id=session.job_id, attempt=session.attempt, subject=subject or session.owner, now=time.time()
        )
        transport = httpx.HTTPTransport(uds=session.address.path)
        return httpx.Client(transport=transport, base_url="http://session", headers=headers, timeout=PATIENCE)


@contextmanager
def a_jupyter(
    *, job_id: int = 7, owner: str = "ada", kind: str = "notebook", files: Path | None = None, variables: Mapping[str, str] = {}
) -> Iterator[Jupyter]:
    """`python -m carrel.notebooks.jupyter`, with this interpreter's environment for its kernels, as the runner starts it."""
    with short_directory() as place:
        files = files or place / "files"
        files.mkdir(exist_ok=True)
        temporary = place / "t"
        temporary.mkdir()
        token, path = f"carrel-job.{job_id}.1.{secrets.token_hex(16)}", str(temporary / "jupyter.sock")
        session = a_session(path, job_id=job_id, owner=owner, owner_name=owner.title(), token=token)
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environ |= {
            "CARREL_JOB_ID": str(job_id),
            "CARREL_ATTEMPT": "1",
            "CARREL_TOKEN": token,
            "CARREL_SESSION_SOCKET": path,
            "CARREL_SESSION_ENVIRONMENT": sys.prefix,
            "CARREL_SESSION_ENVIRONMENT_NAME": "default",
            "CARREL_SESSION_KIND": kind,
            "CARREL_SESSION_GPUS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(temporary),
            **variables,
        }
        log = place / "log"
        began = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "carrel.notebooks.jupyter"], cwd=files, env=environ, stdout=out, stderr=out
            )
        jupyter = Jupyter(process, session, files, temporary, log)
        try:
            wait_until(lambda: _answers(jupyter), "the notebook server")
            jupyter.seconds = time.monotonic() - began
            yield jupyter
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            if process.poll() is None:
                process.kill()
            process.wait()


def _answers(jupyter: Jupyter) -> bool:
    assert jupyter.process.poll() is None, jupyter.log.read_text()
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(jupyter.session.address.path) != 0:
            return False
    with jupyter.http() as http:
        answer = http.get("/api/status")
        assert answer.status_code == 200, answer.text
        return True
