"""Sessions of a real lab, used as a browser uses them: enter, run cells, come back, end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest, SessionView
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser
from support.small_code_server import put

VARIABLES = {"CARREL_LINGER_TIME": "1s", "CARREL_DEFAULT_ENVIRONMENT": "iniconfig"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module", autouse=True)
def code_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A small program in the place of code-server on the PATH of the lab."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", put(tmp_path_factory.mktemp("bin")))
        yield


@pytest.fixture(scope="module")
def lab(home: Path) -> Iterator[list[LabProcess]]:
    """The lab that runs now, in a list: tests replace it."""
    box = [start_lab(home, "--cpus", "16", simulate_gpus=1, variables=VARIABLES)]
    try:
        yield box
        with Client(home=home) as client:
            for session in client.sessions():
                client.cancel(session.job.id)
            for session in client.sessions():
                client.wait(session.job.id)
    finally:
        box[0].stop()


@pytest.fixture
def client(lab: list[LabProcess], home: Path) -> Iterator[Client]:
    with Client(home=home) as client:
        yield client


def ready(client: Client, session: SessionView) -> SessionView:
    def look() -> SessionView | None:
        found = client.session(session.job.id)
        assert not found.job.ended, found.job.message
        return found if found.ready else None

    return wait_until(look, "the session to be ready")


def start(client: Client, **asked: Any) -> SessionView:
    return ready(client, client.start_session(SessionRequest(**asked)))


def enter(client: Client, session: SessionView, path: str = "") -> SessionBrowser:
    return SessionBrowser(client.open_session(session.job.id, path))


@pytest.mark.gate
def test_cells_borrow_the_gpu_and_files_stay(client: Client, home: Path) -> None:
    session = start(client, name="first")
    with enter(client, session) as browser:
        assert browser.lands_on == "/lab"
        kernel = browser.start_kernel("notes.ipynb")
        assert kernel.execute("import iniconfig").status == "ok", "what the lab's default_environment names is there"
        assert kernel.execute("# carrel: gpus=1\nopen('made.txt', 'w').write('here')\nprint('on the GPU')").text.startswith(
            "on the"
        )
        lending = wait_until(
            lambda: next((g for g in [client.gpus()] if g.tenants and g.tenants[0].cells), None), "the lease's end"
        )
        assert lending.simulated
        assert (lending.tenants[0].label, lending.tenants[0].mine, lending.leases) == ("first: notes.ipynb", True, [])
        kernel.close()
    client.cancel(session.job.id)
    assert client.wait(session.job.id).state == "CANCELLED"
    assert (Path(session.directory) / "made.txt").read_text() == "here"
    again = start(client)
    with enter(client, again) as browser:
        assert "made.txt" in browser.request("GET", "/api/contents/").text
    client.cancel(again.job.id)


def test_a_session_outlives_the_server_with_its_kernels(client: Client, lab: list[LabProcess], home: Path) -> None:
    session = start(client, name="lasting")
    with enter(client, session) as browser:
        kernel = browser.start_kernel()
        kernel.execute("kept = 42")
        cookie = dict(browser.cookies)
        lab[0].kill()
        lab[0] = start_lab(home, "--cpus", "16", simulate_gpus=1, variables=VARIABLES)
        # The browser that was let in stays in, and the kernel has gone on.
        assert browser.cookies == cookie
        assert wait_until(lambda: browser.request("GET", "/api/status").status_code == 200, "the session's answer")
        assert browser.kernel(kernel.id).execute("print(kept)").text == "42\n"
    with Client(home=home) as fresh:
        assert [row.job.id for row in fresh.sessions()] == [session.job.id]
        fresh.cancel(session.job.id)
        assert fresh.wait(session.job.id).state == "CANCELLED"


def test_shutting_jupyterlab_down_is_a_good_end(client: Client) -> None:
    session = start(client)
    with enter(client, session) as browser:
        assert browser.request("POST", "/api/shutdown").status_code == 200
    assert client.wait(session.job.id).state == "COMPLETED"


def test_what_a_notebook_installs_is_there_tomorrow_and_in_the_lock(client: Client) -> None:
    session = start(client, environment="default")
    with enter(client, session) as browser:
        kernel = browser.start_kernel()
        assert kernel.execute("%pip install --quiet tabulate").status == "ok"
        assert kernel.execute("import tabulate; print(tabulate.tabulate([[1]]))").status == "ok"
    # The runner looks every few seconds while the session runs.
    wait_until(lambda: "tabulate==" in str(client.environment_lock("default")), "the lock to know it")
    client.cancel(session.job.id)
    client.wait(session.job.id)
    again = start(client)
    with enter(client, again) as browser:
        assert browser.start_kernel().execute("import tabulate").status == "ok"
    client.cancel(again.job.id)


def test_a_terminal(client: Client) -> None:
    session = start(client, kind="terminal", name="shell")
    with enter(client, session) as browser:
        assert browser.lands_on == "/lab"  # where our JupyterLab extension opens a terminal
        name = browser.request("POST", "/api/terminals").json()["name"]
        with browser.websocket(f"/terminals/websocket/{name}") as shell:
            shell.send(json.dumps(["stdin", "echo $((6 * 7)) $VIRTUAL_ENV\r"]))
            said = ""
            while "42 /" not in said:
                said += str(json.loads(shell.recv(timeout=PATIENCE))[1:])
    client.cancel(session.job.id)


def test_vscode(client: Client) -> None:
    session = start(client, kind="vscode")
    with enter(client, session) as browser:
        assert browser.lands_on == "/code"
        assert browser.request("GET", "/code").headers["location"] == "/proxy/code/"
        said = browser.request("GET", "/proxy/code/").json()
        assert said["directory"] == session.directory
        assert said["python"].startswith(f"{Path(session.directory).parents[1]}/"), "the session's own environment"
        with browser.websocket("/proxy/code/talk") as talk:
            talk.send("hello")
            assert talk.recv(timeout=PATIENCE) == "hello"
            wait_until(lambda: client.session(session.job.id).connections, "the connection to count as use")
        assert browser.request("POST", "/api/shutdown").status_code == 200
    ended = client.wait(session.job.id)
    assert (ended.state, "left" in ended.message) == ("COMPLETED", False), ended.message


def test_a_reservation_holds_its_gpu_and_cells_of_others_wait(client: Client) -> None:
    held = start(client, gpus=1, reserve=True, name="mine")
    assert held.job.devices
    with enter(client, held) as browser:
        kernel = browser.start_kernel()
        assert kernel.execute("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])").text.strip() == held.job.devices[0]
        assert "for itself" in kernel.execute("%gpu").text
    other = start(client, name="other")
    with enter(client, other) as browser:
        kernel = browser.start_kernel()
        waiting = kernel.send("# carrel: gpus=1\nprint('got it')")
        wait_until(lambda: client.gpus().queue, "the cell to wait")
        client.cancel(held.job.id)
        assert kernel.result(waiting).text == "got it\n"
    client.cancel(other.job.id)


def test_a_path_without_an_environment_ends_the_session_with_words(client: Client, tmp_path: Path) -> None:
    session = client.start_session(SessionRequest(environment=str(tmp_path / "no-such-thing")))
    job = client.wait(session.job.id)
    assert job.state == "FAILED"
    assert "no-such-thing" in job.message


def test_a_session_is_ended_when_nobody_uses_it_and_not_while_a_cell_runs(home: Path, tmp_path: Path) -> None:
    lab_home, go = tmp_path / "lab", tmp_path / "go"
    lab_home.mkdir()
    (lab_home / "carrel.toml").write_text('default_qos = "q"\nsession_qos = "q"\n[qos.q]\nidle_time = "20s"\n')
    lab = start_lab(lab_home, simulate_gpus=1, variables={"CARREL_SESSION_LOOK_TIME": "1s"})
    try:
        with Client(home=lab_home) as client:
            session = start(client)
            with enter(client, session) as browser:
                kernel = browser.start_kernel()
                kernel.send(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)")
                kernel.close()  # nobody is connected, but a cell runs
                unused = client.wait(client.start_session(SessionRequest()).job.id, timeout=PATIENCE)
                assert unused.state == "CANCELLED"
                assert "idle" in unused.message
                assert client.session(session.job.id).job.state == "RUNNING"
                go.touch()
            assert client.wait(session.job.id).state == "CANCELLED"
    finally:
        lab.stop()


@pytest.mark.gate
def test_who_waits_for_the_memory_of_idle_sessions_reads_which_and_can_end_one(tmp_path: Path) -> None:
    variables = {"CARREL_SESSION_LOOK_TIME": "1s", "CARREL_MEMORY": "5G"}
    lab = start_lab(tmp_path / "lab", simulate_gpus=1, variables=variables)
    try:
        with Client(home=tmp_path / "lab") as client:
            idle = start(client, name="thesis")
            waits = client.start_session(SessionRequest()).job.id

            def said() -> str:
                return client.session(waits).job.message

            wait_until(lambda: "1 idle session of the same owner holds 4G of memory (thesis): end one" in said(), said)
            assert said().startswith("needs 4G of memory on one node; at most 1G is free; ")
            client.cancel(idle.job.id)
            ready(client, client.session(waits))
    finally:
        lab.end_jobs()
        lab.stop()
