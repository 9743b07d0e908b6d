"""Users who are put out, and browsers that sign out: what they have open in a real lab ends, and a killed lab keeps it so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from carrel import Client
from carrel.core.domain.errors import Denied, Unauthenticated
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest, SessionView
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser


@pytest.fixture
def labs(tmp_path: Path) -> Iterator[list[LabProcess]]:
    """The lab that runs now, in a list: tests replace it."""
    box = [start(tmp_path)]
    try:
        yield box
        box[0].end_jobs()
    finally:
        box[0].stop()


def start(home: Path) -> LabProcess:
    return start_lab(home, "--cpus", "16", simulate_gpus=0)


def killed(labs: list[LabProcess]) -> None:
    labs[0].kill()
    labs[0] = start(labs[0].home)


def terminal(client: Client) -> SessionView:
    session = client.start_session(SessionRequest(kind="terminal"))

    def ready() -> SessionView | None:
        found = client.session(session.job.id)
        assert not found.job.ended, found.job.message
        return found if found.ready else None

    return wait_until(ready, "the session to be ready")


def shell(browser: SessionBrowser) -> ClientConnection:
    name = browser.request("POST", "/api/terminals").json()["name"]
    return browser.websocket(f"/terminals/websocket/{name}")


def type_in(shell: ClientConnection, line: str, pattern: str) -> str:
    """Type a line; return what the shell says to it that is of this pattern."""
    shell.send(json.dumps(["stdin", f"{line}\r"]))
    said = ""
    while (found := re.search(pattern, said)) is None:
        said += "".join(str(part) for part in json.loads(shell.recv(timeout=PATIENCE))[1:])
    return found[1]


def ends(shell: ClientConnection) -> bool:
    with pytest.raises(ConnectionClosed):
        while True:
            shell.recv(timeout=PATIENCE)
    return True


def refused(browser: SessionBrowser) -> bool:
    with pytest.raises(InvalidStatus):
        browser.websocket("/terminals/websocket/1")
    return browser.request("GET", "/api/status").status_code == 401


def answers(browser: SessionBrowser) -> bool:
    return browser.request("GET", "/api/status").status_code == 200


@pytest.mark.gate
def test_what_a_user_has_open_ends_now_and_stays_so(labs: list[LabProcess], tmp_path: Path) -> None:
    with Client(home=tmp_path) as own:
        added = own.add_user("bob")
        with Client(url=labs[0].url, token=added.token) as bob:
            session = terminal(bob)
            browser = SessionBrowser(bob.open_session(session.job.id))
        with shell(browser) as typed:
            token = type_in(typed, "echo is=$CARREL_TOKEN=", r"is=(carrel-job[.0-9a-f]+)=")
            with Client(url=labs[0].url, token=token) as job:
                assert job.job(session.job.id).state == "RUNNING"
                own.suspend_user("bob", "for a test")
                assert ends(typed)
                assert refused(browser)
                with pytest.raises(Denied, match="for a test"):
                    job.job(session.job.id)
    killed(labs)
    with Client(home=tmp_path) as own, Client(url=labs[0].url, token=token) as job:
        assert refused(browser)
        with pytest.raises(Denied, match="for a test"):
            job.job(session.job.id)
        own.resume_user("bob")
        wait_until(lambda: answers(browser), "the session's answer")
        assert job.job(session.job.id).state == "RUNNING"
        with shell(browser) as typed:
            type_in(typed, "echo $((6 * 7))", "(42)")
            own.revoke_tokens("bob")
            assert ends(typed)
    killed(labs)
    with Client(home=tmp_path) as own, Client(url=labs[0].url, token=token) as job:
        assert refused(browser)
        with Client(url=labs[0].url, token=own.reset_user("bob").token) as bob:
            assert bob.session(session.job.id).job.state == "RUNNING"  # the job is the same, and goes on
            with SessionBrowser(bob.open_session(session.job.id)) as again:
                wait_until(lambda: answers(again), "the session's answer")
        with pytest.raises(Unauthenticated, match="revoked"):
            job.job(session.job.id)
    browser.close()


def test_a_restart_signs_nobody_out_and_signing_out_ends_notebooks_too(labs: list[LabProcess], tmp_path: Path) -> None:
    with Client(home=tmp_path) as own:
        session = terminal(own)
        headers = {"Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
        with (
            httpx.Client(timeout=PATIENCE, follow_redirects=True, headers=headers) as one,
            httpx.Client(timeout=PATIENCE) as other,
        ):
            for http in (one, other):
                assert http.get(own.sign_in_link(), headers={"Sec-Fetch-Site": "none"}).status_code < 400
            (name,) = [name for name in one.cookies if name.startswith("carrel_session")]
            cookie = headers | {"Cookie": f"{name}={one.cookies[name]}"}
            killed(labs)
            page = one.get(f"{labs[0].url}/notebooks/{session.job.id}")
            assert page.status_code == 200
            form = {"form_secret": re.findall(r'name="form_secret" value="([^"]+)"', page.text)[0]}
            wait_until(lambda: own.session(session.job.id).ready, "the session to be found again")
            opening = one.post(f"{labs[0].url}/notebooks/{session.job.id}/open", data=form)
            link = re.findall(r'href="(http://s\d[^"]+)"', opening.text)[0]
            with SessionBrowser(link) as browser, shell(browser) as typed:
                type_in(typed, "echo $((6 * 7))", "(42)")
                one.post(f"{labs[0].url}/logout", data=form)
                assert ends(typed)
                assert refused(browser)
                killed(labs)
                assert refused(browser)
            assert httpx.get(f"{labs[0].url}/notebooks", headers=cookie).status_code == 401
            assert other.get(f"{labs[0].url}/notebooks").status_code == 200
