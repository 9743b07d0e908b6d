"""Dask's dashboard in a session of a real lab: at the session's own address, for its owner, and nowhere else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from session_rig import wait_until
from websockets.exceptions import InvalidStatus

pytest.importorskip("distributed")
pytest.importorskip("bokeh")

from carrel import Client
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import Kernel, SessionBrowser

CLUSTER = """
from carrel.dask import CarrelCluster
cluster = CarrelCluster(0, cpus=1, memory="256M", requirements=[])
print(cluster.dashboard_link)
"""


@pytest.fixture(scope="module")
def dask_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    process = start_lab(tmp_path_factory.mktemp("dask") / "home", "--cpus", "8", simulate_gpus=1)
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture(scope="module")
def browser(dask_lab: LabProcess) -> Iterator[SessionBrowser]:
    with Client(url=dask_lab.url, token=dask_lab.token) as client:
        job = client.start_session(SessionRequest(name="notebook", time="2h", environment=sys.prefix)).job.id
        wait_until(lambda: client.session(job).ready, "the session")
        with SessionBrowser(client.open_session(job), patience=PATIENCE) as browser:
            assert client.session(job).address == browser.origin
            yield browser
        client.cancel(job)


@pytest.fixture
def kernel(browser: SessionBrowser) -> Iterator[Kernel]:
    kernel = browser.start_kernel()
    kernel.listen()
    yield kernel
    kernel.close()


def test_the_dashboard_is_at_the_sessions_address_for_its_owner_alone(browser: SessionBrowser, kernel: Kernel) -> None:
    found = kernel.execute(CLUSTER)
    assert found.status == "ok", found
    link = urlsplit(found.text.strip().splitlines()[-1])
    assert f"{link.scheme}://{link.netloc}" == browser.origin
    page = browser.request("GET", link.path)
    assert (page.status_code, "Dask" in page.text) == (200, True)
    token = re.search(r'"token":\s*"([^"]+)"', page.text)
    assert token, page.text
    words = ["bokeh", token[1]]
    with browser.websocket(f"{link.path}/ws", subprotocols=words) as talk:
        assert json.loads(talk.recv(PATIENCE))["msgtype"] == "ACK"  # Bokeh's own greeting
    with pytest.raises(InvalidStatus, match="403"):
        browser.websocket(f"{link.path}/ws", subprotocols=words, cookie="carrel-session=forged")


def test_nobody_else_gets_in_and_no_port_has_it(browser: SessionBrowser, kernel: Kernel) -> None:
    found = kernel.execute(CLUSTER + "import os; print(os.environ['CARREL_SESSION_PAGES'], cluster.scheduler.http_server.port)")
    *_, link, last = found.text.strip().splitlines()
    directory, port = last.split()
    path = urlsplit(link).path
    stranger = httpx.get(f"{browser._http.base_url}{path}", headers={"Host": urlsplit(link).netloc})
    assert stranger.status_code in (401, 403)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/status")
    (page,) = (one for one in Path(directory).iterdir() if f"/{one.name}/" in path)
    assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert kernel.execute("cluster.close()").status == "ok"
    wait_until(lambda: not page.exists())
    assert browser.request("GET", path).status_code == 404
