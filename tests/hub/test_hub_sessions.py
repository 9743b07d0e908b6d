"""A real JupyterHub, its real proxy, a real lab: what users of the hub see."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from hub_rig import HubBrowser, HubRig

from carrel.core.control.hub import REQUIRED
from carrel.core.domain.errors import Conflict
from carrel.notebooks import identity
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest

pytestmark = [pytest.mark.hub, pytest.mark.xdist_group("hub")]


@pytest.mark.gate
def test_a_server_of_the_hub_is_a_session_of_the_lab(rig: HubRig, ada: str) -> None:
    with rig.served(ada) as served:
        said, _kernel = served.run("import os; print(os.environ['GREETING'], os.environ['JUPYTERHUB_USER'])")
        assert said == f"from the hub {ada}"
        # Of the hub's own surroundings nothing has come along.
        said, _kernel = served.run("print([name for name in os.environ if name.startswith(('RIG', 'CONFIGPROXY'))])", _kernel)
        assert said == "[]"
    with rig.lab_of(ada) as lab:
        session = lab.session(rig.session(ada))
        assert (session.job.owner, session.kind, session.job.state, session.ready) == (ada, "notebook", "RUNNING", True)
        assert session.hub is not None
        assert session.hub.endswith(f"/user/{ada}/")
        with pytest.raises(Conflict, match="run for a JupyterHub") as refusal:
            lab.open_session(session.job.id)
        assert session.hub in refusal.value.remedy
        variables = dict.fromkeys(REQUIRED, "x") | {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/"}
        with pytest.raises(Conflict, match="does not wait for a JupyterHub any more"):
            lab.join_hub(session.job.id, variables)


def test_the_hubs_secret_is_nowhere_but_in_the_sessions_memory(rig: HubRig, ada: str) -> None:
    with rig.served(ada) as served:
        secret, _kernel = served.run("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])")
    assert len(secret) > 20
    number = rig.session(ada)
    with rig.lab_of(ada) as lab:
        told = f"{lab.session(number)} {lab.record(number)} {lab.job(number)} {b''.join(lab.log(number))!r}"
    assert str(number) in told
    assert secret not in told
    files = 0
    for path in _files(rig.lab.home):
        files += 1
        assert secret.encode() not in path.read_bytes(), path
    assert files > 20
    assert not any(secret.encode() in line for line in _command_lines())


def test_a_browser_signs_in_at_the_hub_and_nobody_else_gets_in(rig: HubRig, ada: str) -> None:
    eve = rig.add_user("eve")
    with closing(HubBrowser(rig, ada)) as browser:
        page = browser.http.get(f"/user/{ada}/lab")
        assert (page.status_code, page.url.path) == (200, f"/user/{ada}/lab")
        assert 'id="jupyter-config-data"' in page.text
        # What the lab shows in JupyterLab works here too.
        facts = browser.http.get(f"/user/{ada}/carrel/session")
        assert (facts.status_code, facts.json()["job"]) == (200, rig.session(ada))
    with closing(HubBrowser(rig, eve)) as browser:
        assert browser.http.get(f"/user/{ada}/lab").status_code == 403
    with rig.served(eve, ada) as served:
        assert served.request("GET", "/api/contents").status_code == 403
        assert served.request("POST", "/api/kernels").status_code == 403
    # Past the hub's proxy: the port itself lets nobody in, and the lab's way in is not one for others.
    with rig.served(ada) as served:
        port, _kernel = served.run("import os, urllib.parse as u; print(u.urlsplit(os.environ['JUPYTERHUB_SERVICE_URL']).port)")
    direct = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{direct}/user/{ada}/api/contents").status_code == 403
    for headers in ({}, {"X-Carrel-Identity": "e30.e30."}):
        assert httpx.get(f"{direct}/carrel/activity", headers=headers).status_code == 403


def test_a_hub_that_was_killed_finds_its_servers_again(rig: HubRig, ada: str) -> None:
    number = rig.session(ada)
    with rig.served(ada) as served:
        _said, kernel = served.run("answer = 42")
        rig.crash_and_restart()
        user = rig.api.get(f"/users/{ada}").json()
        assert user["servers"][""]["ready"] is True
        assert user["servers"][""]["state"]["carrel"] == {"session": number, "attempt": 1}
        assert served.run("print(answer)", kernel) == ("42", kernel)
    assert rig.session(ada) == number


def test_a_lab_that_is_away_for_a_while_costs_no_server(rig: HubRig, ada: str) -> None:
    number = rig.session(ada)
    with rig.served(ada) as served:
        _said, kernel = served.run("kept = 'kept'")
        with rig.without_lab():
            rig.hub.wait_for(f"Session {number} of {ada} cannot be looked at")
            assert served.run("print(kept)", kernel)[0] == "kept"
        assert served.run("print(kept)", kernel)[0] == "kept"
    assert rig.session(ada) == number
    assert rig.api.get(f"/users/{ada}").json()["servers"][""]["ready"] is True


def test_the_lab_asks_how_busy_a_session_of_a_hub_is_and_nothing_else(rig: HubRig, ada: str) -> None:
    number = rig.session(ada)
    spool = rig.lab.home / f"spool/{number}/1"
    token = (spool / "token").read_text()
    headers = dict(identity.headers(token, job_id=number, attempt=1, subject=ada, now=time.time()))
    transport = httpx.HTTPTransport(uds=str(spool / "tmp/jupyter.sock"))
    with httpx.Client(transport=transport, base_url="http://session", headers=headers, timeout=PATIENCE) as asked:
        with rig.served(ada) as served, closing(served.kernel()) as kernel:
            assert kernel.execute("1").status == "ok"
            activity = asked.get("/carrel/activity")
            assert activity.status_code == 200
            # Somebody who came through the hub is there, and so it is not idle.
            assert activity.json()["connections"] >= 1
        assert asked.get("/carrel/activity", headers={"X-Carrel-Identity": "e30.e30."}).status_code == 403
        assert asked.get(f"/user/{ada}/api/contents").status_code == 403


def test_a_session_that_the_lab_ends_is_over_for_the_hub_too(rig: HubRig) -> None:
    who = rig.add_user("lee")
    rig.start(who, gpus=0)
    number = rig.session(who)
    with rig.lab_of(who) as lab:
        assert lab.session(number).gpus == 0
        lab.cancel(number)
        lab.wait(number, timeout=PATIENCE)
    wait_until(lambda: not rig.api.get(f"/users/{who}").json()["servers"], "the hub to see that the server is gone")


def test_the_form_offers_what_the_lab_has_starts_it_and_the_hub_stops_it(rig: HubRig) -> None:
    who = rig.add_user("mia")
    with rig.lab_of(who) as lab, closing(HubBrowser(rig, who)) as browser:
        # A session that an earlier life of the hub started and could not write down.
        hub_port = httpx.URL(rig.hub_api).port
        address = f"http://{socket.getfqdn()}:{hub_port}/user/{who}/"
        left = lab.start_session(SessionRequest(hub=address)).job.id

        form = browser.http.get("/hub/spawn")
        assert form.status_code == 200
        for text in ('name="gpus"', "Simulated GPUs for a cell", '<option value="2">2</option>', 'name="reserve"', ">single<"):
            assert text in form.text
        assert '<option value="3">' not in form.text
        answer = browser.http.post(
            "/hub/spawn",
            params={"_xsrf": browser.http.cookies.get("_xsrf", path="/hub/")},
            data={"environment": "default", "gpus": "1", "reserve": "on", "qos": ""},
        )
        assert answer.status_code == 200, answer.text[:3000]
        if rig.api.get(f"/users/{who}").json()["servers"][""]["pending"]:
            assert list(rig.progress(who))[-1].get("ready"), rig.said()
        number = rig.session(who)
        session = lab.session(number)
        assert number != left
        assert (session.reserve, session.gpus, len(session.job.devices)) == (True, 1, 1)
        assert lab.wait(left, timeout=PATIENCE).state == "CANCELLED"
        rig.stop(who)
        assert lab.session(number).job.state == "CANCELLED"
        assert lab.sessions() == []


def test_who_has_to_wait_reads_why_and_gets_in_later(rig: HubRig) -> None:
    who = rig.add_user("noa")
    with rig.lab_of(who) as lab:
        first = lab.start_session(SessionRequest(qos="single")).job.id
        wait_until(lambda: lab.session(first).ready, "the first session")
        assert rig.spawn(who, qos="single").status_code in (201, 202)
        shown = []
        for step in rig.progress(who):
            shown.append(step)
            if "in line" in step.get("message", ""):
                lab.cancel(first)
        waited = next(step for step in shown if "in line" in step["message"])
        assert waited["message"].startswith("#1 in line: ")
        assert "single" in waited["message"]
        assert shown[-1].get("ready"), (shown, rig.said())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"qos": "single", "time": "2h"}, "1 h"),
        ({"gpus": 3}, "The session asks for 3 GPUs, but no node has more than 2."),
        ({"qos": "luxury"}, 'There is no QoS "luxury". Those that take a session are "free", "single".'),
        ({"directory": "/"}, 'The option "directory" is unknown.'),
        ({"gpus": "many"}, "The option \"gpus\" is 'many'"),
    ],
)
def test_what_the_lab_refuses_the_hub_shows_in_the_labs_words(rig: HubRig, options: dict[str, object], words: str) -> None:
    who = rig.add_user("oda")
    answer = rig.spawn(who, **options)
    if answer.status_code != 202:  # it took longer than the hub waits
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["message"]
    *_before, failed = rig.progress(who)
    assert failed["failed"] is True
    assert words in failed["message"]
    with rig.lab_of(who) as lab:
        assert lab.sessions(ended=True) == []


def test_a_user_whom_the_lab_does_not_know_is_told_so(rig: HubRig) -> None:
    who = rig.add_stranger()
    assert rig.spawn(who).status_code in (202, 401)
    *_before, failed = rig.progress(who)
    assert failed["failed"] is True
    assert f"The hub has no token of the lab for {who}." in failed["message"]


def _files(home: Path) -> Iterator[Path]:
    """What the lab keeps, without the environments' packages."""
    for directory, names, files in os.walk(home):
        if directory == str(home):
            names.remove("environments")
        for name in files:
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue  # it ended meanwhile
