"""Click to a ready JupyterLab: a Carrel session against JupyterHub with its local spawner, in turns, in the same run.

"Ready" is the same for both: the server that belongs to the user answers ``GET …/api/status`` with 200 through the address that
the browser uses. Then the same request again and again on a connection that is kept: what the way to the server costs. Memory:
what the session's server has beyond a plain ``jupyter lab`` of the same installation, started here too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from carrel import Client
from carrel.wire.v1 import SessionRequest
from figure import Figure
from support.lab_process import start_lab
from support.notebook_client import SessionBrowser

SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(check, what: str) -> float:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        try:
            if check():
                return time.monotonic() - began
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{what} took more than {SECONDS:.0f} s")


def request_milliseconds(ask: Callable[[], httpx.Response]) -> float:
    """The median of many requests, one after another."""
    found = []
    for _ in range(100):
        began = time.perf_counter()
        ask().raise_for_status()
        found.append(1000 * (time.perf_counter() - began))
    return statistics.median(found)


def proportional(pid: int) -> int:
    """PSS of a process, in bytes (proc(5), smaps_rollup)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def listening_lab(pids: list[int]) -> int:
    """The process of `pids` that is a notebook server: the one with most memory."""
    return max(pids, key=proportional)


def below(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += below(int(child))
    return found


# --- Carrel -----------------------------------------------------------------------------------------------------------------


def carrel_session(client: Client) -> tuple[float, float, int]:
    """Seconds from the click to a ready server, milliseconds of a request to it, and the server's memory."""
    began = time.monotonic()
    session = client.start_session(SessionRequest(name=f"bench-{secrets.token_hex(3)}"))
    job = session.job.id
    while not session.ready:
        assert not session.job.ended, session.job.message
        time.sleep(0.02)
        session = client.session(job)
    with SessionBrowser(client.open_session(job)) as browser:
        wait_for(lambda: browser.request("GET", "/api/status").status_code == 200, "the session")
        seconds = time.monotonic() - began
        request = request_milliseconds(lambda: browser.request("GET", "/api/status"))
        memory = _memory_of(job)
    client.cancel(job)
    client.wait(job)
    return seconds, request, memory


def _memory_of(job: int) -> int:
    """The server's memory: of all processes that carry the job's number, the one with most."""
    mark = f"CARREL_JOB_ID={job}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return proportional(listening_lab(found)) if found else 0


# --- JupyterHub -------------------------------------------------------------------------------------------------------------

CONFIG = """
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {home!r} + "/{{username}}"
c.Spawner.args = ["--allow-root"]
c.Spawner.default_url = "/lab"
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.JupyterHub.services = [{{"name": "bench", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [{{"name": "bench", "services": ["bench"],
    "scopes": ["admin:users", "admin:servers", "access:servers", "tokens"]}}]
"""


@contextmanager
def jupyterhub(home: Path) -> Iterator[tuple[httpx.Client, str]]:
    """A hub with its local spawner; needs npm for its proxy."""
    proxy = home / "node_modules/.bin/configurable-http-proxy"
    if not proxy.exists():
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "configurable-http-proxy@5"], cwd=home, check=True
        )
    token, port = secrets.token_hex(16), free_port()
    (home / "users").mkdir(exist_ok=True)
    config = home / "jupyterhub_config.py"
    text = CONFIG.format(home=str(home / "users"), port=port, hub=free_port(), api=free_port(), proxy=[str(proxy)], token=token)
    config.write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (home / "hub.log").open("wb") as log:
        hub = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(config)],
            cwd=home,
            env={**os.environ, "PATH": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"token {token}"}, timeout=60)
    try:
        wait_for(lambda: http.get("/hub/api/").status_code == 200, "JupyterHub")
        yield http, token
    finally:
        http.close()
        hub.send_signal(signal.SIGTERM)
        hub.wait(30)


def hub_session(http: httpx.Client, user: str) -> tuple[float, float]:
    """Seconds from the click (the hub's own API) to a ready server, for a known user; milliseconds of a request to it."""
    http.post(f"/hub/api/users/{user}")
    began = time.monotonic()
    http.post(f"/hub/api/users/{user}/server").raise_for_status()
    wait_for(lambda: http.get(f"/user/{user}/api/status").status_code == 200, "the hub's server")
    seconds = time.monotonic() - began
    request = request_milliseconds(lambda: http.get(f"/user/{user}/api/status"))
    http.request("DELETE", f"/hub/api/users/{user}/server")
    wait_for(lambda: not http.get(f"/hub/api/users/{user}").json()["servers"], "the end of the hub's server")
    return seconds, request


# --- plain JupyterLab -------------------------------------------------------------------------------------------------------


def plain_lab(home: Path) -> tuple[float, float, int]:
    """The same for `jupyter lab` by itself."""
    port, token = free_port(), secrets.token_hex(8)
    words = ("--allow-root", "--no-browser", f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}")
    began = time.monotonic()
    lab = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *words],
        env={**os.environ, "JUPYTER_TOKEN": token},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"token {token}"}) as http:
            wait_for(lambda: http.get("/api/status").status_code == 200, "jupyter lab")
            seconds = time.monotonic() - began
            return seconds, request_milliseconds(lambda: http.get("/api/status")), proportional(lab.pid)
    finally:
        lab.terminate()
        lab.wait(30)


def measure(scratch: Path, rounds: int = 5, *, with_hub: bool = True) -> list[Figure]:
    """In turns, so that a busy moment of the machine meets all of them."""
    ours: list[tuple[float, float, int]] = []
    hubs: list[tuple[float, float]] = []
    plain: list[tuple[float, float, int]] = []
    with contextlib.ExitStack() as stack:
        lab = start_lab(scratch / "lab", simulate_gpus=2)
        stack.callback(lab.stop)
        client = stack.enter_context(Client(lab.url, lab.token))
        carrel_session(client)  # makes the environment, which is there from then on
        hub = None
        if with_hub and shutil.which("npm") is not None:
            (scratch / "hub").mkdir()
            hub, _token = stack.enter_context(jupyterhub(scratch / "hub"))
            hub_session(hub, "warm")
        for number in range(rounds):
            ours.append(carrel_session(client))
            if hub is not None:
                hubs.append(hub_session(hub, f"user{number}"))
            plain.append(plain_lab(scratch))
    seconds, request, memory = (statistics.median(column) for column in zip(*ours, strict=True))
    plain_seconds, plain_request, plain_memory = (statistics.median(column) for column in zip(*plain, strict=True))
    worst = max(second for second, *_ in ours)
    figures = [Figure(name="session, click → ready", value=seconds, unit="s", spread=f"worst {worst:.2f}", at_most=3)]
    if hubs:
        hub_seconds, hub_request = (statistics.median(column) for column in zip(*hubs, strict=True))
        figures += [
            Figure(name="JupyterHub with its local spawner, the same", value=hub_seconds, unit="s", spread=f"n={rounds}"),
            Figure(name="click → ready: Carrel ÷ JupyterHub", value=seconds / hub_seconds, unit="×", at_most=1),
        ]
    figures += [
        Figure(name="plain `jupyter lab`, the same", value=plain_seconds, unit="s"),
        Figure(name="a request to a session that is ready", value=request, unit="ms"),
        Figure(name="plain `jupyter lab`, the same request", value=plain_request, unit="ms"),
    ]
    if hubs:
        figures += [
            Figure(name="JupyterHub with its proxy, the same request", value=hub_request, unit="ms"),
            Figure(name="a request: Carrel ÷ JupyterHub", value=request / hub_request, unit="×"),
        ]
    beyond = (memory - plain_memory) / 1024**2
    return [*figures, Figure(name="memory of a session beyond plain JupyterLab", value=beyond, unit="MiB", at_most=60)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as directory:
        for figure in measure(Path(directory), rounds=int(sys.argv[1]) if len(sys.argv) > 1 else 5):
            print(figure.row())
