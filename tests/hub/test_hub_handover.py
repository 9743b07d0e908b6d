"""The moment in which a session learns what its hub has for it: from the lab alone, once, and kept nowhere."""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from carrel.core.domain.errors import Unavailable
from carrel.notebooks import identity
from carrel.notebooks.jupyter.context import SessionContext
from carrel.testing.waiting import PATIENCE
from carrel_jupyterhub.handover import Handover, HandoverServer

SECRET = "hub-secret-4711"
VARIABLES = {
    "JUPYTERHUB_API_TOKEN": SECRET,
    "JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api",
    "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/",
    "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/user/ada/",
}


def session_at(socket_path: Path) -> SessionContext:
    """A session that is to run for a hub."""
    about = {"JOB_ID": "7", "ATTEMPT": "2", "TOKEN": "carrel-job.7.2.abc", "SESSION_SOCKET": str(socket_path)}
    about |= {"SESSION_ENVIRONMENT": "/nowhere", "SESSION_HUB": "http://hub/user/ada/"}
    return SessionContext.read({f"CARREL_{name}": value for name, value in about.items()} | {"TMPDIR": str(socket_path.parent)})


class Waiting:
    """A session that waits, and the lab's way to it."""

    def __init__(self, socket_path: Path) -> None:
        self.session = session_at(socket_path)
        self.desk = HandoverServer(self.session)
        self.told = False
        self.joined: list[Handover] = []
        self._thread = threading.Thread(target=lambda: self.joined.append(self.desk.wait(PATIENCE)))
        self._thread.start()
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_path)), base_url="http://session", timeout=PATIENCE)

    def put(
        self, body: object, *, job: int = 7, token: str = "carrel-job.7.2.abc", path: str = identity.HUB_PATH
    ) -> httpx.Response:
        headers = identity.headers(token, job_id=job, attempt=2, subject="ada", now=time.time())
        more = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = self.http.put(path, headers=dict(headers), **more)
        self.told = self.told or answer.is_success
        return answer

    def take(self) -> Handover:
        self._thread.join(timeout=PATIENCE)
        assert not self._thread.is_alive()
        return self.joined[0]

    def close(self) -> None:
        if not self.told:  # nobody serves the socket any more once it was; the thread may end a little later
            self.put(VARIABLES)
        self._thread.join(timeout=PATIENCE)
        self.http.close()
        self.desk.__exit__(None, None, None)
        for joined in self.joined:
            joined.listener.close()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    found = Waiting(tmp_path / "s")
    yield found
    found.close()


@pytest.mark.gate
def test_the_session_takes_it_from_the_lab_and_listens_at_once(waiting: Waiting) -> None:
    path = waiting.session.socket
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    answer = waiting.put({**VARIABLES, "GREETING": "hello"})
    assert answer.status_code == 200
    port = answer.json()["port"]
    joined = waiting.take()
    # Whoever comes before the server is up waits in line, and is not refused.
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    assert joined.variables["GREETING"] == "hello"
    assert urlsplit(joined.variables["JUPYTERHUB_SERVICE_URL"]).netloc == f"127.0.0.1:{port}"
    assert urlsplit(joined.variables["JUPYTERHUB_SERVICE_URL"]).path == "/user/ada/"


def test_nobody_else_can_tell_it_anything(waiting: Waiting) -> None:
    assert waiting.http.put(identity.HUB_PATH, json=VARIABLES).status_code == 403
    assert waiting.put(VARIABLES, token="carrel-job.8.2.abc").status_code == 403
    assert waiting.put(VARIABLES, job=8).status_code == 403
    assert waiting.put(VARIABLES, path="/elsewhere").status_code == 403
    assert waiting.http.get("/carrel/activity").status_code == 503
    with ExitStack() as stack:  # one who says nothing keeps nobody else away
        silent = stack.enter_context(socket.socket(socket.AF_UNIX))
        silent.connect(str(waiting.session.socket))
    assert waiting.joined == []
    assert waiting.put(VARIABLES).status_code == 200


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"JUPYTERHUB_API_TOKEN": ""}, "lacks JUPYTERHUB_API_TOKEN"),
        ({"PATH": "/opt"}, "The variable PATH is the session's own."),
        ({"CARREL_TOKEN": "x"}, "The variable CARREL_TOKEN is the session's own."),
        ({"LD_PRELOAD": "/x.so"}, "The variable LD_PRELOAD is the session's own."),
        ({"not a name": "x"}, '"not a name" is not a name for a variable.'),
        ({"ZERO": "a\0b"}, "The variable ZERO holds a zero byte."),
        ({"LONG": "x" * 70_000}, "longer than 65536 characters"),
        ({"JUPYTERHUB_SSL_KEYFILE": "/key"}, "internal_ssl"),
        ({"JUPYTERHUB_SERVICE_URL": "ftp://127.0.0.1/"}, "JUPYTERHUB_SERVICE_URL is not like"),
        ({"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:99999/"}, "JUPYTERHUB_SERVICE_URL is not like"),
        # An address for documentation, which is nobody's (RFC 5737).
        ({"JUPYTERHUB_SERVICE_URL": "http://192.0.2.1:0/"}, "The session cannot listen on 192.0.2.1, port any"),
    ],
)
def test_what_cannot_be_used_is_refused_and_the_session_goes_on_waiting(
    waiting: Waiting, changes: dict[str, str], words: str
) -> None:
    answer = waiting.put({**VARIABLES, **changes})
    assert answer.status_code == 422
    assert words in answer.json()["message"]
    assert SECRET not in answer.text
    assert waiting.joined == []


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"JUPYTERHUB_API_TOKEN": 1}', b"\xff"])
def test_what_is_no_object_of_texts_is_refused(waiting: Waiting, body: bytes) -> None:
    assert waiting.put(body).status_code == 422


def test_a_session_of_which_the_hub_knows_nothing_ends_with_a_reason(tmp_path: Path) -> None:
    waiting = session_at(tmp_path / "s")
    with HandoverServer(waiting) as desk, pytest.raises(Unavailable, match=r"http://hub/user/ada/ did not tell .* within 0.2 s"):
        desk.wait(0.2)
    assert not waiting.socket.exists()
