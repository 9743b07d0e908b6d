"""The lab's side of a session for a hub, over its API, without a hub."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from carrel import Client
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound, Unavailable
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess

HUB = "https://hub.example.org/user/bob/"
VARIABLES = {
    "JUPYTERHUB_API_TOKEN": "secret-of-the-hub",
    # Nobody listens there: the server that is started waits for its hub until it is ended.
    "JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api",
    "JUPYTERHUB_SERVICE_PREFIX": "/user/bob/",
    "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/user/bob/",
}


@pytest.fixture
def session(bob: Client) -> Iterator[int]:
    """A session of bob's that waits for its hub."""
    number = bob.start_session(SessionRequest(hub=HUB)).job.id
    wait_until(lambda: bob.session(number).ready, "the session to wait")
    yield number
    bob.cancel(number)
    bob.wait(number, timeout=PATIENCE)


@pytest.mark.gate
def test_a_session_takes_what_its_hub_has_once_and_from_its_owner(
    lab: LabProcess, client: Client, bob: Client, session: int
) -> None:
    assert bob.session(session).hub == HUB
    stranger = client.add_user(f"eve-of-{session}")
    with Client(url=lab.url, token=stranger.token) as eve, pytest.raises(NotFound):
        eve.join_hub(session, VARIABLES)
    with pytest.raises(Denied, match="Its owner alone may"):
        client.join_hub(session, VARIABLES)
    token = (lab.home / f"spool/{session}/1/token").read_text()
    by_job = httpx.put(
        f"{lab.url}/api/v1/sessions/{session}/hub",
        json={"variables": VARIABLES},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert by_job.status_code == 403
    with pytest.raises(Invalid, match="lacks JUPYTERHUB_API_URL"):
        bob.join_hub(session, {"JUPYTERHUB_API_TOKEN": "x", "JUPYTERHUB_SERVICE_PREFIX": "/", "JUPYTERHUB_SERVICE_URL": "x"})
    with pytest.raises(Invalid, match=r"cannot listen on 192\.0\.2\.1"):
        bob.join_hub(session, {**VARIABLES, "JUPYTERHUB_SERVICE_URL": "http://192.0.2.1:0/"})
    assert bob.join_hub(session, VARIABLES) > 0
    # Nobody listens before the server has found its hub.
    with pytest.raises(Unavailable, match=f"Session {session} does not answer"):
        bob.join_hub(session, VARIABLES)


def test_only_a_session_for_a_hub_can_be_told_about_it(bob: Client) -> None:
    number = bob.start_session(SessionRequest()).job.id
    with pytest.raises(Conflict, match="is not run for a JupyterHub"):
        bob.join_hub(number, VARIABLES)
    assert bob.session(number).hub is None
    bob.cancel(number)
    bob.wait(number, timeout=PATIENCE)


@pytest.mark.parametrize(
    "address", ["hub", "ftp://hub/user/ada/", "http:///user/ada/", "http://hub/a b", "https://h/" + "x" * 1000]
)
def test_the_hub_is_named_by_its_address(bob: Client, address: str) -> None:
    with pytest.raises(Invalid, match="is not the address of a server at a JupyterHub"):
        bob.start_session(SessionRequest(hub=address))


def test_a_terminal_is_not_for_a_hub(bob: Client) -> None:
    with pytest.raises(Invalid, match="A terminal for a JupyterHub"):
        bob.start_session(SessionRequest(hub=HUB, kind="terminal"))
