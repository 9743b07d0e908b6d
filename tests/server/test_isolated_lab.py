"""A lab whose jobs are kept apart by the kernel (`isolation = "kernel"`): what they see, and that all else is as it was."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from carrel.client import Client
from carrel.core.domain.errors import CarrelError
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest, SessionRequest
from support.lab_process import start_lab
from support.namespaces import why_no_namespaces
from support.notebook_client import SessionBrowser

LOOK = """
import json, os, pathlib, resource, sys
home = pathlib.Path(sys.argv[1])
found = {}
for name in ("token", "secret", "lab.db", "carrel.toml"):
    try:
        found[name] = (home / name).read_text(errors="replace")
    except OSError as error:
        found[name] = type(error).__name__
attempt = pathlib.Path.cwd().parent
found["spool"] = sorted(os.listdir(home / "spool"))
processes = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 1]
found["others"] = [pid for pid in processes if "carrel.node.runner" in open(f"/proc/{pid}/cmdline").read()]
found["tmp"] = os.listdir("/tmp")
try:
    (attempt / "journal").open("a").close()
    found["journal"] = "writable"
except OSError as error:
    found["journal"] = type(error).__name__
found["home"] = os.environ["HOME"]
found["limit"] = resource.getrlimit(resource.RLIMIT_NPROC)[0]
room = os.statvfs("/dev/shm")
found["shared"] = room.f_blocks * room.f_frsize
pathlib.Path(os.environ["HOME"], "kept").write_text("kept")
pathlib.Path(os.environ["CARREL_OUTPUT_DIR"], "made.txt").write_text("made")
pathlib.Path(os.environ["TMPDIR"], "scratch").write_text("x")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def private() -> Iterator[Path]:
    """A directory that a setting names, and only the lab's user may read. Not in /tmp, of which jobs have their own."""
    with tempfile.TemporaryDirectory(prefix=".private-", dir=Path(__file__).parent) as directory:
        Path(directory, "key").write_text("the key")
        yield Path(directory)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, private: Path) -> Path:
    home = tmp_path_factory.mktemp("isolated") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text(
        'isolation = "kernel"\njob_network = "loopback"\nprocess_limit = 600\ndisk_limit = "256M"\ntracking = false\n'
        f'state_directory = "{private}"\n'
    )
    return home


@pytest.fixture(scope="module")
def clients(home: Path) -> Iterator[tuple[Client, Client]]:
    """Of the lab's own user, and of somebody else."""
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    lab = start_lab(home, "--cpus", "4", simulate_gpus=1)
    with Client(home=home) as own:
        token = own.add_user("mallory").token
        with Client(url=lab.url, token=token) as other:
            yield own, other
    lab.stop()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("code")
    (directory / "look.py").write_text(LOOK)
    return directory


def write(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "task.py").write_text(text)
    return directory


def run(client: Client, code: Path, script: str | None = None, *arguments: str, **more: Any) -> tuple[JobDetail, str]:
    job = client.submit_project(code, script=script, arguments=arguments, **more)
    ended = client.wait(job.id, timeout=PATIENCE)
    return ended, b"".join(client.log(job.id)).decode()


@pytest.mark.gate
def test_a_task_sees_its_own_and_nothing_of_the_labs(clients: tuple[Client, Client], code: Path, home: Path) -> None:
    own, other = clients
    run(own, code, "look.py", str(home))
    job, log = run(other, code, "look.py", str(home), resources=ResourceRequest(memory="256M"))
    assert job.state == "COMPLETED", log
    found = json.loads(log.splitlines()[-1])
    assert [found[name] for name in ("token", "secret", "lab.db", "carrel.toml")] == ["FileNotFoundError"] * 4
    assert len(found["spool"]) == 1
    assert found["others"] == []
    assert found["journal"] == "OSError"
    assert (found["limit"], found["shared"]) == (600, 256 * 1024**2)
    assert found["home"] == str(home / "homes" / "mallory")
    assert (home / "homes" / "mallory" / "kept").read_text() == "kept"
    assert [output.path for output in other.outputs(job.id)] == ["outputs/made.txt"]
    wait_until(lambda: not (home / "spool" / str(job.id) / "1" / "private-tmp").exists())


@pytest.mark.parametrize(
    ("text", "state", "code_of"),
    [
        ("import sys; sys.exit(3)", "FAILED", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "FAILED", None),
        ("x = bytearray(600 * 1024**2)", "OUT_OF_MEMORY", None),
        ("import time; time.sleep(600)", "TIMEOUT", None),
        ("import subprocess; subprocess.Popen(['sleep', '600'])", "COMPLETED", 0),
        ("import os, time; os.posix_fallocate(os.open('/tmp/big', 65), 0, 300 << 20); time.sleep(600)", "FAILED", None),
        (
            "import os, time; os.posix_fallocate(os.open(os.path.expanduser('~/big'), 65), 0, 300 << 20); time.sleep(600)",
            "FAILED",
            None,
        ),
    ],
    ids=["exit", "signal", "memory", "time", "left behind", "its own /tmp", "home"],
)
def test_jobs_end_as_they_do_without(
    clients: tuple[Client, Client], tmp_path: Path, text: str, state: str, code_of: int | None
) -> None:
    _own, other = clients
    (tmp_path / "end.py").write_text(text)
    resources = ResourceRequest(memory="256M", time="3s" if state == "TIMEOUT" else "10m")
    job, log = run(other, tmp_path, "end.py", resources=resources)
    assert job.state == state, log
    assert job.exit_code == code_of
    assert ("DiskLimit" in job.reason) == ("big" in text)


REACH = """
import json, os, socket, sys, threading, urllib.request
found = {}
def connects(host, port):
    try:
        socket.create_connection((host, port), 30).close()
        return True
    except OSError:
        return False
found["neighbour"] = connects("127.0.0.1", int(sys.argv[1]))
found["lab"] = connects("127.0.0.1", int(sys.argv[2]))
found["url"] = os.environ.get("CARREL_URL", "")
if found["url"]:
    request = urllib.request.Request(found["url"] + "/api/v1/jobs/" + os.environ["CARREL_JOB_ID"])
    request.add_header("Authorization", "Bearer " + os.environ["CARREL_TOKEN"])
    found["state"] = json.load(urllib.request.urlopen(request))["state"]
listener = socket.create_server(("127.0.0.1", 0))
found["own"] = connects(socket.gethostname(), listener.getsockname()[1])
print(json.dumps(found))
"""


@pytest.mark.parametrize("network", [None, "loopback", "off", "on"])
def test_a_task_has_the_network_that_it_is_given_at_most(
    clients: tuple[Client, Client], tmp_path: Path, served: str, network: str | None
) -> None:
    """The lab is reached; what else listens on the machine is not, whatever is asked for."""
    _own, other = clients
    neighbour, lab = urlsplit(served).port, urlsplit(other.url).port
    code = write(tmp_path / "reach", REACH)
    job, log = run(other, code, "task.py", str(neighbour), str(lab), network=network)
    assert job.state == "COMPLETED", (job.reason, log)
    found = json.loads(log.splitlines()[-1])
    assert (found["neighbour"], found["own"]) == (False, True)
    assert (found["lab"], bool(found["url"]), found.get("state")) == (
        (False, False, None) if network == "off" else (True, True, "RUNNING")
    )
    assert other.record(job.id)["attempts"][-1]["hardware"]["network"] == ("off" if network == "off" else "loopback")


def test_a_network_that_there_is_not_is_refused(clients: tuple[Client, Client], code: Path) -> None:
    with pytest.raises(CarrelError, match="loopback"):
        clients[1].submit_project(code, script="look.py", network="wlan")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A file behind a web server on the loopback."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served/data.txt").write_text("from the web")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/data.txt"
        server.shutdown()
        thread.join()


def serve_repository(place: Path) -> str:
    """Make a repository with one file, which a server of files alone can serve; return its commit."""

    def git(*words: str, said: bytes = b"") -> str:
        about = {"GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(place.parent), "PATH": os.environ["PATH"]}
        about |= {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        command = ["git", f"--git-dir={place}", *words]
        return subprocess.run(command, input=said, capture_output=True, env=about, check=True).stdout.decode().strip()

    git("init", "-q", "--bare", "-b", "main", str(place))
    content = git("hash-object", "-w", "--stdin", said=b"from git")
    commit = git("commit-tree", git("mktree", said=f"100644 blob {content}\tdata.txt\n".encode()), "-m", "x")
    git("update-ref", "refs/heads/main", commit)
    git("update-server-info")
    return commit


def test_inputs_come_through_the_walls_of_their_owner(
    clients: tuple[Client, Client], home: Path, private: Path, tmp_path: Path, served: str
) -> None:
    """What the runner may read is no input of those whose job it is; what they may read, and what the lab gives them, is."""
    _own, other = clients
    made, _log = run(other, write(tmp_path / "first", "open('outputs/said.txt', 'w').write('said')"), "task.py")

    def fetched(name: str, uri: str) -> tuple[JobDetail, str]:
        code = write(tmp_path / name, "print(open('data.txt').read())")
        (code / "MLproject").write_text(
            f'name: t\nentry_points:\n  main:\n    command: "python3 task.py"\ncarrel:\n  inputs: {{data.txt: "{uri}"}}\n'
        )
        return run(other, code)

    for name, uri, text in (
        ("web", served, "from the web"),
        ("job", f"job:{made.id}/outputs/said.txt", "said"),
        ("system", "file:///etc/hostname", Path("/etc/hostname").read_text().strip()),
    ):
        job, log = fetched(name, uri)
        assert (job.state, log.strip().splitlines()[-1]) == ("COMPLETED", text), (job.reason, log)
    kept = [path.read_text() for path in (home / "inputs/mallory/content").iterdir()]
    room = os.statvfs(home)
    if room.f_bavail > 0.11 * room.f_blocks:  # on a fuller disk the cache keeps nothing
        assert kept == ["from the web"]  # the others lie on this machine anyway
    commit = serve_repository(tmp_path / "served" / "study.git")
    job, log = fetched("git", f"git+{served.rpartition('/')[0]}/study.git@main#subdirectory=data.txt")
    assert (job.state, log.strip().splitlines()[-1]) == ("COMPLETED", "from git"), (job.reason, log)
    (source,) = other.record(job.id)["attempts"][-1]["input_sources"].values()
    assert source == f"git+{served.rpartition('/')[0]}/study.git@{commit}#subdirectory=data.txt"
    job, log = run(other, write(tmp_path / "looks", f"import os; print(os.path.exists({str(home / 'inputs')!r}))"), "task.py")
    assert log == "False\n"
    (tmp_path / "lying").write_text("on the machine's own /tmp")
    for name, uri, words in (
        ("token", f"file://{home}/token", "the lab's own directory"),
        ("tmp", f"file://{tmp_path}/lying", "No such file"),
        ("private", f"file://{private}/key", "No such file"),
        ("process", "file:///proc/1/environ", "Permission denied"),
        ("through", f"simplecache::file://{tmp_path}/lying", "could not be read"),
    ):
        job, log = fetched(name, uri)
        assert (job.state, job.reason) == ("FAILED", "InputFailed"), log
        assert words in job.message


class Endless(BaseHTTPRequestHandler):
    """Sends until the other side has enough, or the test does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(ConnectionError):
            for _ in range(4096):
                self.wfile.write(bytes(1024**2))


def test_an_input_that_does_not_end_is_ended(clients: tuple[Client, Client], tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        code = write(tmp_path / "endless", "")
        (code / "MLproject").write_text(
            'name: t\nentry_points:\n  main:\n    command: "true"\ncarrel:\n'
            f'  inputs: {{data: "http://127.0.0.1:{server.server_port}/"}}\n'
        )
        job, log = run(clients[1], code)
        server.shutdown()
        thread.join()
    assert (job.state, job.reason) == ("FAILED", "InputFailed"), log
    assert "what prepares a job may take 256M (disk_limit)" in job.message


def test_a_cell_borrows_a_gpu_behind_the_walls(clients: tuple[Client, Client], home: Path) -> None:
    """The broker knows the kernel by what the system says of its socket, not by the number that it has inside."""
    _own, other = clients
    session = other.start_session(SessionRequest(gpus=1))
    wait_until(lambda: other.session(session.job.id).ready, "the session")
    with SessionBrowser(other.open_session(session.job.id)) as browser:
        kernel = browser.start_kernel()
        look = f"# carrel: gpus=1\nimport os\nprint(os.getpid() < 1000, os.path.exists({str(home / 'token')!r}), os.getcwd())"
        cell = kernel.execute(look)
        assert cell.text.split() == ["True", "False", session.directory], cell
        lending = wait_until(
            lambda: next((found for found in [other.gpus()] if any(one.cells for one in found.tenants)), None), "the lease's end"
        )
        assert [one.mine for one in lending.tenants if one.cells] == [True]
        kernel.close()
    other.cancel(session.job.id)
    assert other.wait(session.job.id, timeout=PATIENCE).state == "CANCELLED"
