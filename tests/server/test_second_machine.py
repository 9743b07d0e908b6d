"""A person at another machine, with nothing but the lab's address and the line that an administrator gave them.

Both machines are network namespaces with a cable between them: nothing listens on a loopback that both see.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from tiers import TESTS

CARREL = (sys.executable, "-m", "carrel.cli.main")
LAB, GUEST, PORT = "10.87.65.1", "10.87.65.2", 8642
URL = f"https://lab.test:{PORT}"
#: What a person does with the library: a notebook, in a browser of which the names are looked up as the machine does it.
NOTEBOOK = """
import sys
from pathlib import Path
from urllib.parse import urlsplit
from carrel import Client
from support.notebook_client import SessionBrowser
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import SessionRequest

with Client() as client:
    session = client.start_session(SessionRequest()).job.id
    wait_until(lambda: client.session(session).ready, lambda: (client.session(session), b"".join(client.log(session))), 150)
    link = client.open_session(session)
    with Path("/etc/hosts").open("a") as hosts:
        print(sys.argv[1], urlsplit(link).hostname, file=hosts)
    with SessionBrowser(link, authority=client.authority) as browser:
        done = browser.start_kernel().execute("print(6 * 7)")
    print(link.partition(":")[0], done.status, done.text.strip())
    client.cancel(session)
"""


@dataclass(frozen=True)
class Machine:
    """A network namespace with its own view of /etc/hosts."""

    pid: int

    @property
    def words(self) -> tuple[str, ...]:
        """What runs a program there."""
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net", f"--mount=/proc/{self.pid}/ns/mnt", "--")

    def run(self, *words: str, **more: object) -> str:
        done = subprocess.run(  # type: ignore[call-overload]
            [*self.words, *words], capture_output=True, text=True, timeout=PATIENCE, check=False, **more
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return str(done.stdout)


def a_machine(stack: ExitStack) -> Machine:
    program = ["unshare", "--net", "--mount", "sh", "-c", "echo there; exec sleep infinity"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    assert process.stdout.readline() == b"there\n"
    return Machine(process.pid)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    """The lab's, and somebody's."""
    if os.getuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("machines of network namespaces need root, ip and nsenter")
    hosts = tmp_path_factory.mktemp("machines") / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{LAB} lab.test\n")
    with ExitStack() as stack:
        try:
            here, there = a_machine(stack), a_machine(stack)
            here.run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(there.pid))
            for machine, address in ((here, LAB), (there, GUEST)):
                machine.run("ip", "address", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    machine.run("ip", "link", "set", device, "up")
                machine.run("mount", "--bind", str(hosts), "/etc/hosts")
        except AssertionError as error:
            pytest.skip(f"this machine has no network namespaces with a cable: {error}")
        yield here, there


@pytest.fixture(scope="module")
def lab(machines: tuple[Machine, Machine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    variables = {"CARREL_TLS_OWN": "1", "CARREL_PUBLIC_URL": URL, "CARREL_SESSION_HOST": "{session}.lab.test"}
    home = tmp_path_factory.mktemp("lab") / "home"
    _prepare(home)
    options = ("--host", LAB, "--port", str(PORT), "--cpus", "4")
    running = start_lab(home, *options, simulate_gpus=1, variables=variables, python=(*machines[0].words, sys.executable))
    yield running
    running.stop()


def _prepare(home: Path) -> None:
    """Ada has worked here before, so that there is an environment for her notebooks: the cable leads to no package index."""
    before = start_lab(home, "--cpus", "4", simulate_gpus=1)
    with Client(home=home) as admin, Client(before.url, admin.add_user("ada").token) as ada:
        session = ada.start_session(SessionRequest()).job.id
        wait_until(lambda: ada.session(session).ready, lambda: b"".join(ada.log(session)))
        ada.cancel(session)
        ada.wait(session, timeout=PATIENCE)
    before.stop()


@pytest.fixture
def person(machines: tuple[Machine, Machine], lab: LabProcess, tmp_path: Path) -> Callable[..., str]:
    """Their command line, signed in with the line of the invitation."""
    here, there = machines
    said = here.run(*CARREL, "user", "invite", "ada", "--home", str(lab.home))
    (line,) = [line.strip() for line in said.splitlines() if "carrel login" in line]
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("CARREL_", "XDG_"))}
    variables = {**bare, "HOME": str(tmp_path / "ada"), "NO_COLOR": "1"}
    (tmp_path / "ada").mkdir()

    def run(*words: str) -> str:
        return there.run("env", f"--chdir={tmp_path / 'ada'}", *words, env=variables)

    assert "Signed in" in run(*CARREL, *line.split()[1:])
    return run


@pytest.mark.gate
def test_a_task_from_submission_to_its_outputs(person: Callable[..., str], tmp_path: Path) -> None:
    script = tmp_path / "ada" / "task.sh"
    script.write_text("echo hello from the lab; mkdir -p outputs; echo kept > outputs/found.txt\n")
    assert "hello from the lab" in person(*CARREL, "run", "task.sh")
    job = next(job for job in json.loads(person(*CARREL, "ps", "--all", "--json"))["jobs"] if job["kind"] == "task")
    assert job["state"] == "COMPLETED"
    assert "hello from the lab" in person(*CARREL, "logs", str(job["id"]))
    person(*CARREL, "outputs", str(job["id"]), "fetched")
    assert [path.read_text() for path in (tmp_path / "ada" / "fetched").rglob("found.txt")] == ["kept\n"]


def test_a_notebook(person: Callable[..., str]) -> None:
    assert person(f"PYTHONPATH={TESTS}", sys.executable, "-c", NOTEBOOK, LAB).split() == ["https", "ok", "42"]
