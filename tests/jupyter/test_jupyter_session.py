"""A real session: its notebook server, its kernel, its terminal, reached through the proxy and past it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_seat import Seat
from session_rig import PATIENCE, a_jupyter, short_directory, wait_until
from small_broker import lease, tenant

from carrel.notebooks import identity
from support.notebook_client import Kernel, SessionBrowser


@pytest.fixture
def browser(seat: Seat) -> Any:
    with SessionBrowser(seat.link()) as browser:
        yield browser


# ---- who


@pytest.mark.gate
def test_the_proxy_vouches_for_the_owner(browser: SessionBrowser) -> None:
    me = browser.request("GET", "/api/me").json()["identity"]
    assert (me["username"], me["display_name"]) == ("ada", "Ada")


@pytest.mark.parametrize("path", ["/api/status", "/lab", "/api/kernels", "/carrel/activity", "/carrel/status", "/api/contents"])
def test_past_the_proxy_nobody_gets_in_without_its_word(seat: Seat, path: str) -> None:
    session = seat.jupyter.session
    about = {"job_id": session.job_id, "attempt": 1, "subject": "ada", "now": time.time()}
    wrong = [
        {},
        dict(identity.headers("carrel-job.8.1.other", **about)),
        dict(identity.headers(session.token, **about | {"job_id": 8})),
        dict(identity.headers(session.token, **about | {"now": time.time() - 120})),
        {"Authorization": f"token {session.token}"},
        {"Authorization": "token x"},
    ]
    with httpx.Client(transport=httpx.HTTPTransport(uds=session.address.path), base_url="http://session") as http:
        for headers in wrong:
            answer = http.get(path, headers=headers)
            assert answer.status_code in (302, 401, 403), (headers, answer.status_code)
            if answer.status_code == 302:
                assert answer.headers["location"].startswith("/login")
        assert http.get("/login", follow_redirects=False).status_code in (200, 302, 404, 405)
        assert http.post("/login", data={"password": ""}).status_code in (302, 401, 403, 404, 405)
    with seat.jupyter.http() as http:
        assert http.get(path).status_code == 200


def test_nobody_else_on_the_machine_reaches_it_and_nothing_tells_its_secrets(seat: Seat) -> None:
    jupyter = seat.jupyter
    assert stat.S_IMODE(Path(jupyter.session.address.path).stat().st_mode) == 0o600
    private = jupyter.temporary / "jupyter"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((jupyter.files / ".carrel/jupyter").stat().st_mode) == 0o700
    secret = jupyter.session.token.rpartition(".")[2]
    assert secret not in jupyter.log.read_text()
    assert secret.encode() not in Path(f"/proc/{jupyter.process.pid}/cmdline").read_bytes()
    for file in [*private.rglob("*"), *(jupyter.files / ".carrel").rglob("*")]:
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


def test_cookies_against_forgery_are_not_asked_for(browser: SessionBrowser) -> None:
    answer = browser.request("POST", "/api/contents", json={"type": "file", "ext": ".txt"})
    assert answer.status_code == 201


# ---- kernels


def test_one_kernel_is_offered_and_it_is_the_environments(browser: SessionBrowser) -> None:
    specs = browser.request("GET", "/api/kernelspecs").json()
    assert list(specs["kernelspecs"]) == ["python3"]
    assert specs["kernelspecs"]["python3"]["spec"]["display_name"] == "Python 3 (default)"
    assert specs["kernelspecs"]["python3"]["spec"]["argv"][0] == f"{sys.prefix}/bin/python"


def test_a_kernel_speaks_on_private_sockets_alone(seat: Seat, browser: SessionBrowser) -> None:
    """What it puts out asks for no key, and other users reach the ports of a machine."""
    kernel = browser.start_kernel(f"{uuid.uuid4().hex}.ipynb")
    assert kernel.execute("6 * 7").text == "42\n"
    runtime = seat.jupyter.temporary / "jupyter" / "runtime"
    about = json.loads((runtime / f"kernel-{kernel.id}.json").read_text())
    assert about["transport"] == "ipc"
    paths = [f"{about['ip']}-{about[f'{channel}_port']}" for channel in ("shell", "iopub", "stdin", "hb", "control")]
    assert all(Path(path).is_socket() for path in paths)
    assert stat.S_IMODE(runtime.parent.stat().st_mode) == 0o700
    # The path of a socket has 107 bytes at most (unix(7)), and TMPDIR 64 (`carrel.node.runner.prepare`).
    assert max(map(len, paths)) - len(str(seat.jupyter.temporary)) + 64 <= 107
    kernel.close()
    browser.request("DELETE", f"/api/kernels/{kernel.id}").raise_for_status()
    assert not any(Path(path).exists() for path in paths)


def test_a_kernel_finds_what_it_needs_and_no_more(seat: Seat, browser: SessionBrowser) -> None:
    kernel = browser.start_kernel()
    code = "import os, sys, json; print(json.dumps([sys.prefix, os.getcwd(), dict(os.environ)]))"
    prefix, directory, environ = json.loads(kernel.execute(code).text)
    assert prefix == sys.prefix
    assert directory == str(seat.jupyter.files)
    assert environ["CARREL_TOKEN"] == seat.jupyter.session.token
    assert environ["CARREL_BROKER"] == str(seat.broker.path)
    assert environ["PATH"].startswith(f"{sys.prefix}/bin:")
    assert environ["VIRTUAL_ENV"] == sys.prefix
    holders = {name for name, value in environ.items() if seat.jupyter.session.token in value}
    assert holders == {"CARREL_TOKEN"}
    assert not any("SECRET" in name for name in environ)
    kernel.close()


def test_the_page_that_comes_back_gets_what_it_missed(browser: SessionBrowser, tmp_path: Path) -> None:
    kernel = _heard_kernel(browser)
    client = uuid.uuid4().hex
    path = f"/api/kernels/{kernel.id}/channels?session_id={client}"
    kernel.close()
    first = browser.websocket(path)
    request = uuid.uuid4().hex
    header = {"msg_id": request, "msg_type": "execute_request", "username": "", "session": client, "version": "5.3", "date": ""}
    go, said, end = (tmp_path / name for name in ("go", "said", "end"))
    wait = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.02)\n"
    steps = "for step in range(1, 5):\n    print('step', step, flush=True)\n"
    code = f"print('step 0', flush=True)\n{wait.format(str(go))}{steps}"
    code += f"pathlib.Path({str(said)!r}).touch()\n{wait.format(str(end))}'the end'"
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {"cellId": "cell"}, "content": content, "channel": "shell"}
    first.send(json.dumps(message))
    _wait_for(first, request, "stream")
    first.close()
    # From now on Jupyter keeps what is said.
    wait_until(lambda: browser.request("GET", f"/api/kernels/{kernel.id}").json()["connections"] == 0, "the page to be gone")
    go.touch()
    wait_until(said.exists, "the cell to say what the page misses")
    # It is with Jupyter before the page comes back: what is on its way at that moment may be lost, too.
    wait_until(lambda: "step 4" in _printed(browser, kernel), "the server to have heard it")
    # The kernel is still busy. To an idle one Jupyter speaks first, and what it has said at that moment may be lost.
    again = browser.websocket(path)
    text, kinds = "", set()
    while "execute_reply" not in kinds or "'the end'" not in text:  # two channels, in any order
        if "step 4" in text:
            end.touch()
        message = json.loads(again.recv(timeout=PATIENCE))
        if message["parent_header"].get("msg_id") == request:
            kinds.add(message["msg_type"])
            text += message["content"].get("text", "") or message["content"].get("data", {}).get("text/plain", "")
    assert all(f"step {number}" in text for number in range(1, 5))
    again.close()


def _wait_for(channel: Any, request: str, kind: str) -> None:
    while True:
        message = json.loads(channel.recv(timeout=PATIENCE))
        if message["msg_type"] == kind and message["parent_header"].get("msg_id") == request:
            return


def test_a_new_page_can_ask_for_what_cells_put_out(browser: SessionBrowser, tmp_path: Path) -> None:
    kernel = _heard_kernel(browser)
    go = tmp_path / "go"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)"
    code = f"print('begin', flush=True)\n{wait}\nprint('end'); 6 * 7"
    request = kernel.send(code)
    wait_until(lambda: "begin" in _printed(browser, kernel), "the first output")
    kernel.close()
    run = _outputs(browser, kernel)[-1]
    assert run["client"]
    assert (run["running"], run["request"], run["cell"], run["code"]) == (True, request, request[:8], code)
    go.touch()
    wait_until(lambda: not _outputs(browser, kernel)[-1]["running"], "the cell to end")
    run = _outputs(browser, kernel)[-1]
    assert run["outputs"][0] == {"output_type": "stream", "name": "stdout", "text": "begin\nend\n"}
    assert run["outputs"][1]["data"]["text/plain"] == "42"
    assert run["execution_count"] == run["outputs"][1]["execution_count"]
    assert run["changed"] <= time.time()


def _outputs(browser: SessionBrowser, kernel: Kernel) -> list[dict[str, Any]]:
    answer = browser.request("GET", f"/carrel/outputs/{kernel.id}")
    assert answer.status_code == 200
    return list(answer.json()["cells"])


def _printed(browser: SessionBrowser, kernel: Kernel) -> str:
    return "".join(output.get("text", "") for run in _outputs(browser, kernel) for output in run["outputs"])


def _heard_kernel(browser: SessionBrowser) -> Kernel:
    """A kernel whose outputs are remembered from now on: what one says before its listeners are there is said to nobody."""
    kernel = browser.start_kernel(f"{uuid.uuid4().hex}.ipynb")
    wait_until(lambda: kernel.execute("print('heard')").text and "heard" in _printed(browser, kernel), "a first output")
    return kernel


def _answers(kernel: Kernel) -> bool:
    try:
        return kernel.execute("1 + 1", seconds=10).text == "2\n"
    except TimeoutError:  # what a new kernel says before its listeners are connected again is said to nobody
        return False


def test_what_a_killed_kernel_ran_does_not_go_on(browser: SessionBrowser) -> None:
    kernel = _heard_kernel(browser)
    last = kernel.send(
        "import os, signal, time; print('half', flush=True); time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
    )
    wait_until(lambda: "half" in _printed(browser, kernel), "the first output")
    wait_until(lambda: not _outputs(browser, kernel)[-1]["running"], "its end to be noticed")
    assert kernel.result(last).status == "dead"
    wait_until(lambda: _answers(kernel), "the kernel that took its place, on the page that is open")
    again = 'print("it is heard again")'
    wait_until(lambda: kernel.execute(again).text and "it is heard again" in _printed(browser, kernel), "its outputs")
    kernel.close()
    browser.request("DELETE", f"/api/kernels/{kernel.id}").raise_for_status()
    assert browser.request("GET", f"/carrel/outputs/{kernel.id}").status_code == 404


def test_what_ran_before_a_restart_does_not_go_on(browser: SessionBrowser) -> None:
    kernel = _heard_kernel(browser)
    kernel.send("import time; print('half', flush=True); time.sleep(600)")
    wait_until(lambda: "half" in _printed(browser, kernel), "the first output")
    browser.request("POST", f"/api/kernels/{kernel.id}/restart").raise_for_status()
    run = _outputs(browser, kernel)[-1]
    assert (run["running"], run["outputs"][0]["text"]) == (False, "half\n")
    kernel.close()
    again = browser.kernel(kernel.id)
    wait_until(lambda: again.execute("print('fresh')").text and "fresh" in _printed(browser, kernel), "its outputs")
    again.close()


def test_no_output_is_lost_while_the_server_is_busy(seat: Seat, browser: SessionBrowser) -> None:
    kernel = _heard_kernel(browser)
    place = seat.jupyter.temporary / "busy"
    place.mkdir()
    kernel.send(
        f"import pathlib, sys, time\nplace = pathlib.Path({str(place)!r})\n(place / 'began').touch()\n"
        "while not (place / 'go').exists(): time.sleep(0.01)\n"
        "for _ in range(10_000): sys.stdout.write(100 * '0'); sys.stdout.flush()\n"
        "(place / 'ended').touch()"
    )
    wait_until((place / "began").exists, "the beginning of the cell")
    os.kill(seat.jupyter.process.pid, signal.SIGSTOP)
    try:
        (place / "go").touch()
        wait_until((place / "ended").exists, "the end of the cell")
    finally:
        os.kill(seat.jupyter.process.pid, signal.SIGCONT)
    wait_until(lambda: not _outputs(browser, kernel)[-1]["running"], "the end of the cell, as the server has it")
    assert sum(len(output["text"]) for output in _outputs(browser, kernel)[-1]["outputs"]) == 1_000_000
    kernel.close()


# ---- files and terminals


def test_large_files_come_and_go(seat: Seat, browser: SessionBrowser) -> None:
    body = os.urandom(24 * 1024**2).hex()
    answer = browser.request(
        "PUT",
        "/api/contents/large.txt",
        json={"type": "file", "format": "text", "content": body, "name": "large.txt", "path": "large.txt"},
    )
    assert answer.status_code == 201
    assert (seat.jupyter.files / "large.txt").read_text() == body
    assert browser.request("GET", "/files/large.txt").text == body


def test_large_messages_come_and_go(browser: SessionBrowser) -> None:
    kernel = browser.start_kernel(f"{uuid.uuid4().hex}.ipynb")
    sent = 100 * 1024**2
    assert kernel.execute(f"sent = '{sent * 'x'}'; print(len(sent)); print(sent[: 30 * 1024**2])").text == (
        f"{sent}\n{30 * 1024**2 * 'x'}\n"
    )
    kernel.close()


# ---- what is ours in it


def test_activity_says_who_is_busy(browser: SessionBrowser, tmp_path: Path) -> None:
    kernel = browser.start_kernel(f"{uuid.uuid4().hex}.ipynb")
    kernel.execute("1")
    wait_until(lambda: browser.request("GET", "/carrel/activity").json()["kernels_busy"] == 0, "its first idle state")
    before = browser.request("GET", "/carrel/activity").json()
    assert before["connections"] >= 1
    go = tmp_path / "go"
    kernel.send(f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)")
    busy = wait_until(lambda: browser.request("GET", "/carrel/activity").json()["kernels_busy"], "the kernel to be busy")
    assert busy == 1
    go.touch()
    wait_until(lambda: browser.request("GET", "/carrel/activity").json()["kernels_busy"] == 0, "it to be idle again")
    after = browser.request("GET", "/carrel/activity").json()
    assert before["last_activity"] < after["last_activity"] <= time.time()
    still = browser.request("GET", "/carrel/activity").json()
    assert still["last_activity"] == after["last_activity"]  # looking is no use
    kernel.close()


def test_the_brokers_words_reach_the_page(seat: Seat, browser: SessionBrowser) -> None:
    seat.broker.say(tenants=[tenant("t1")], leases=[lease("l1")])
    state = browser.request("GET", "/carrel/status").json()
    assert (state["broker"], state["simulated"]) == ("connected", True)
    assert state["status"]["leases"][0]["id"] == "l1"
    with browser.websocket("/carrel/events") as events:
        wait_until(lambda: json.loads(events.recv(timeout=PATIENCE))["status"].get("leases"), "the state")
        seat.broker.notice("info", "hello")
        wait_until(lambda: json.loads(events.recv(timeout=PATIENCE))["type"] == "notice", "the notice")
    hello = seat.broker.hellos[-1]
    assert (hello["role"], hello["token"]) == ("observer", seat.jupyter.session.token)


def test_without_a_lab_the_session_says_what_it_knows(browser: SessionBrowser) -> None:
    facts = browser.request("GET", "/carrel/session").json()
    assert (facts["job"], facts["environment"], facts["gpus"], facts["reserved"]) == (7, "default", 1, False)
    assert facts["ends_at"] is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"path": "none.ipynb"},
        {"path": "../x.ipynb"},
        {"path": "/etc/passwd"},
        {"path": "a\0.ipynb"},
        {"path": "work.txt"},
    ],
)
def test_only_a_notebook_of_the_session_is_promoted(seat: Seat, browser: SessionBrowser, body: Any) -> None:
    (seat.jupyter.files / "work.txt").touch()
    (seat.jupyter.files.parent / "x.ipynb").write_text("{}")
    answer = browser.request("POST", "/carrel/promote", json=body)
    assert answer.status_code == 422
    assert answer.json()["remedy"]


# ---- begin and end


def test_settings_stay_with_the_files_and_a_persons_own_configuration_stays_out(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".jupyter").mkdir(parents=True)
    (home / ".jupyter/jupyter_server_config.py").write_text("raise SystemExit('read')")
    (home / ".jupyter/jupyter_server_config.json").write_text('{"ServerApp": {"password": "x", "allow_origin": "*"}}')
    theme = "/lab/api/settings/@jupyterlab/apputils-extension:themes"
    for turn in ("first", "second"):
        with a_jupyter(files=tmp_path / "files", variables={"HOME": str(home)}) as jupyter, jupyter.http() as http:
            if turn == "first":
                http.put(theme, json={"raw": '{"theme": "JupyterLab Dark"}'}).raise_for_status()
            assert http.get(theme).json()["settings"] == {"theme": "JupyterLab Dark"}
            page = http.get("/lab").text
            assert '"buildCheck": false' in page
            assert jupyter.session.token not in page
            assert (
                "access-control-allow-origin" not in http.get("/api/status").headers
                or not http.get("/api/status").headers["access-control-allow-origin"]
            )


def test_the_address_of_a_terminal_leads_to_where_it_is_shown() -> None:
    with a_jupyter(kind="terminal") as jupyter, jupyter.http() as http:
        assert http.get("/terminals/1").headers["location"] == "/lab"
        assert http.get("/carrel/session").json()["kind"] == "terminal"


def test_files_that_cannot_be_written_to_end_it_with_words(tmp_path: Path) -> None:
    (tmp_path / ".carrel").touch()
    result = _start(tmp_path, {})
    assert result.returncode == 2
    assert "cannot be written to" in result.stderr
    assert "Traceback" not in result.stderr


def test_outside_of_a_session_it_says_so(tmp_path: Path) -> None:
    result = _start(tmp_path, {"CARREL_TOKEN": None})
    assert result.returncode == 2
    assert "This is no session of Carrel's" in result.stderr
    assert "Traceback" not in result.stderr


def _start(directory: Path, changes: dict[str, str | None]) -> subprocess.CompletedProcess[str]:
    with short_directory() as place:
        environ: dict[str, str | None] = {
            "PATH": os.environ["PATH"],
            "CARREL_JOB_ID": "7",
            "CARREL_ATTEMPT": "1",
            "CARREL_TOKEN": "x",
            "CARREL_SESSION_SOCKET": str(place / "s"),
            "CARREL_SESSION_ENVIRONMENT": sys.prefix,
            "TMPDIR": str(place),
        } | changes
        return subprocess.run(
            [sys.executable, "-m", "carrel.notebooks.jupyter"],
            cwd=directory,
            env={name: value for name, value in environ.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
