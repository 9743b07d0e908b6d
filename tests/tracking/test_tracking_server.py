"""The MLflow process: it comes up, comes back, and never outlives its lab."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tracking_support import Tracking, authenticate, serve

from carrel.lab.tracking.proxy import TrackingProxy, by_token
from carrel.lab.tracking.rest import MlflowRest
from carrel.lab.tracking.server import ServerState, ServerStatus, TrackingServer
from carrel.testing.waiting import PATIENCE

API = "/api/2.0/mlflow"


def gone(pidfd: int, timeout: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout)[0])


def holds(pid: int) -> set[str]:
    """Inodes of the sockets that the process has open."""
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return {link[8:-1] for link in links if link.startswith("socket:")}


@pytest.mark.gate
@pytest.mark.mlflow
def test_it_listens_on_no_port_and_nobody_else_reaches_its_socket(tracking: Tracking) -> None:
    server = tracking.server
    assert server.status == ServerStatus(ServerState.READY)
    assert server.pid is not None
    sockets = holds(server.pid)
    listening = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    assert not [row for row in listening if row[3] == "0A" and row[9] in sockets]
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.stat().st_mode) & 0o077 == 0


@pytest.mark.mlflow
def test_it_comes_back_and_requests_wait_for_it(tracking: Tracking) -> None:
    with tracking.client("alice-token") as alice:
        made = alice.post(f"{API}/runs/create", json={"experiment_id": "0"}).raise_for_status().json()["run"]["info"]["run_id"]
        pid = tracking.server.pid
        assert pid is not None
        states: list[ServerState] = []
        down = threading.Event()

        def note() -> None:
            states.append(tracking.server.status.state)
            down.set()

        end = tracking.server.on_change(note)
        os.kill(pid, signal.SIGKILL)
        assert down.wait(PATIENCE)
        # It is not there; a client that asks now is served as soon as it is.
        assert alice.get(f"{API}/runs/get?run_id={made}").is_success
        end()
    assert states[0] is ServerState.STARTING
    assert states[-1] is ServerState.READY
    assert tracking.server.pid != pid


LAB = """
import sys
from pathlib import Path
from typing import Any
from carrel.lab.tracking.server import TrackingServer
server = TrackingServer(Path(sys.argv[1]), python=sys.executable)
server.start()
if sys.argv[2] == "ready":
    assert server.wait_ready(60), server.status
else:  # as soon as there is a process
    while server.pid is None:
        pass
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.mlflow
@pytest.mark.parametrize("when", ["starting", "ready"])
def test_it_does_not_survive_a_killed_lab(tmp_path: Path, when: str) -> None:
    home = tmp_path / ("a-long-way-from-home-" * 5) / "lab"
    home.mkdir(parents=True)
    lab = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LAB), home, when], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pid = int(lab.stdout.readline())
    pidfd = os.pidfd_open(pid)
    try:
        assert b"child.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        lab.kill()
        lab.wait()
        assert gone(pidfd, 10)
    finally:
        os.close(pidfd)
        lab.stdin.close()
        lab.stdout.close()
        shutil.rmtree(TrackingServer(home, python=sys.executable).socket.parent)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Stands in for the interpreter that runs MLflow."""
    return tmp_path / "python"


def write(program: Path, text: str) -> str:
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    program.chmod(0o700)
    return str(program)


#: Says that it is ready, and answers every request with an empty object; its last arguments are as for the real one.
QUICK = """
import http.server, os, socketserver, sys
socket, lock, ready, parent = sys.argv[-4:]
assert socket.endswith(".sock")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        length = int(self.headers.get("content-length") or 0)
        self.rfile.read(length)
        self.send_response(200); self.send_header("content-length", "2"); self.end_headers(); self.wfile.write(b"{}")
    do_POST = do_GET
    def address_string(self): return "-"
    def log_message(self, *args): pass
if os.path.exists(socket): os.unlink(socket)
server = socketserver.ThreadingUnixStreamServer(socket, Handler)
os.write(int(ready), b"ready")
os.close(int(ready))
server.serve_forever()
"""


def test_a_leftover_is_ended_before_a_new_one_starts(home: Path, program: Path) -> None:
    (home / "run").mkdir(parents=True)
    lock = home / "run" / "mlflow.lock"
    script = """
        import fcntl, os, signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        lock = open(sys.argv[1], "w"); fcntl.flock(lock, fcntl.LOCK_EX); lock.write(f"{os.getpid()}\\n"); lock.flush()
        print("held", flush=True); signal.pause()
    """
    leftover = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), lock], stdout=subprocess.PIPE)
    assert leftover.stdout.readline() == b"held\n"
    server = TrackingServer(home, python=write(program, QUICK))
    server.start()
    try:
        assert server.wait_ready(20), server.status
        assert leftover.wait(PATIENCE) == -signal.SIGTERM
    finally:
        server.stop()
        leftover.stdout.close()
    assert server.status.state is ServerState.STOPPED


def test_a_database_address_is_in_no_argument_list(home: Path, program: Path) -> None:
    server = TrackingServer(home, python=write(program, QUICK), database_url="postgresql://lab:hunter2@localhost/mlflow")
    server.start()
    try:
        assert server.wait_ready(20)
        assert b"hunter2" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert b"hunter2" in Path(f"/proc/{server.pid}/environ").read_bytes()
    finally:
        server.stop()


def test_stopping_ends_the_process(home: Path, program: Path) -> None:
    server = TrackingServer(home, python=write(program, QUICK))
    server.start()
    assert server.wait_ready(20)
    assert server.pid is not None
    pidfd = os.pidfd_open(server.pid)
    server.stop()
    assert gone(pidfd, 0)
    os.close(pidfd)
    assert server.pid is None


def test_a_server_that_never_comes_up_is_said_to_have_failed(home: Path, program: Path) -> None:
    server = TrackingServer(home, python=write(program, "import sys; sys.exit(3)"))
    failed = threading.Event()
    server.on_change(lambda: failed.set() if server.status.state is ServerState.FAILED else None)
    server.start()
    served = serve(TrackingProxy(server, identify=by_token(authenticate), patience=60))
    url = next(served)
    try:
        assert failed.wait(PATIENCE)
        assert "exit code 3" in server.status.reason
        assert "mlflow.log" in server.status.reason
        # Nobody is kept waiting for it.
        answer = httpx.get(f"{url}/version", headers={"Authorization": "Bearer alice-token"}, timeout=30)
        assert answer.status_code == 503
        assert "exit code 3" in answer.json()["detail"]
    finally:
        served.close()
        server.stop()


def test_a_program_that_does_not_exist_is_a_reason_and_no_traceback(home: Path) -> None:
    server = TrackingServer(home, python=str(home / "no-python"))
    told = threading.Event()
    server.on_change(lambda: told.set() if "no-python" in server.status.reason else None)
    server.start()
    try:
        assert told.wait(PATIENCE)
    finally:
        server.stop()


class Starting:
    """A server that never gets beyond starting."""

    socket = Path("/nonexistent/mlflow.sock")
    status = ServerStatus(ServerState.STARTING, "MLflow is starting")

    def on_change(self, callback: object) -> object:
        return lambda: None


def test_patience_ends_with_an_honest_answer() -> None:
    served = serve(TrackingProxy(Starting(), identify=by_token(authenticate), patience=0.2))  # type: ignore[arg-type]
    url = next(served)
    try:
        answer = httpx.get(f"{url}/version", headers={"Authorization": "Bearer alice-token"}, timeout=PATIENCE)
    finally:
        served.close()
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "MLflow is not available: MLflow is starting."


class Silent:
    """A server that answers alice never, and others at once."""

    status = ServerStatus(ServerState.READY, "")

    def __init__(self, place: Path) -> None:
        self.socket = place
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen(200)
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def on_change(self, callback: object) -> object:
        return lambda: None

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._held.append(self._listener.accept()[0])
                if b"alice" not in self._held[-1].recv(65536):
                    self._held[-1].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        for one in (self._listener, *self._held):
            one.close()


def test_who_waits_for_many_answers_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    upstream = Silent(tmp_path / "mlflow.sock")
    served = serve(TrackingProxy(upstream, identify=by_token(authenticate), patience=0.2))  # type: ignore[arg-type]
    host, port = next(served).removeprefix("http://").removesuffix("/mlflow").split(":")
    waiting = [socket.create_connection((host, int(port))) for _ in range(150)]
    try:
        for one in waiting:
            one.sendall(b"GET /mlflow/version HTTP/1.1\r\nHost: lab\r\nAuthorization: Bearer alice-token\r\n\r\n")
        answer = httpx.get(
            f"http://{host}:{port}/mlflow/version", headers={"Authorization": "Bearer bob-token"}, timeout=PATIENCE
        )
        assert answer.text == "here"
    finally:
        for one in waiting:
            one.close()
        upstream.close()
        served.close()


def test_the_socket_of_a_home_with_a_long_path_can_be_bound(tmp_path: Path) -> None:
    deep = TrackingServer(tmp_path / ("x" * 120), python=sys.executable).socket
    assert len(os.fsencode(deep)) < 108
    assert deep != TrackingServer(tmp_path / ("y" * 120), python=sys.executable).socket
    assert TrackingServer(Path("/srv/lab"), python=sys.executable).socket == Path("/srv/lab/run/mlflow/mlflow.sock")


def test_a_directory_that_somebody_else_made_is_not_used(tmp_path: Path) -> None:
    home = tmp_path / ("z" * 120)
    server = TrackingServer(home, python=sys.executable)
    server.socket.parent.symlink_to(tmp_path)
    try:
        with pytest.raises(Exception, match="is not a directory of this user's"):
            server.start()
    finally:
        server.socket.parent.unlink()


@pytest.mark.mlflow
def test_its_tables_may_be_in_postgresql(postgresql: Any, home: Path) -> None:
    server = TrackingServer(home, python=sys.executable, database_url=postgresql.url())
    server.start()
    try:
        assert server.wait_ready(90), (server.status, (home / "logs" / "mlflow.log").read_text())
        rest = MlflowRest(server.socket)
        experiment = rest.experiment("ann-workspace", "trials")
        run = rest.create_run("ann-workspace", experiment, name="first", start_time=1, tags={"a": "b"})
        assert rest.find_run("ann-workspace", experiment, {"a": "b"}) == run
        rest.close()
    finally:
        server.stop()
    assert not (home / "mlflow" / "mlflow.db").exists()
