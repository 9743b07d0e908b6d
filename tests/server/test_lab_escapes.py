"""A user's code does not get out of a lab's walls, from wherever it runs; in a lab of the tests' user and of an ordinary one."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from test_isolated_lab import run, served, write

from carrel import Client, Executor
from carrel.core.spool import AttemptDirectory
from carrel.lab.server.settings import read_settings
from carrel.node.containment.walls import PREPARING_SHARED
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest
from support.escapes import limits_processes, read_table, victims
from support.lab_process import start_lab
from support.namespaces import why_no_namespaces
from support.notebook_client import SessionBrowser
from support.tricks import HOSTILE
from support.unix_users import common_ground, python_for_all, run_as

__all__ = ["served"]
ESCAPES = read_table(Path(__file__).parents[1] / "containment" / "escapes.txt")
#: A user of the machine without rights, who runs a lab.
USER = "games"
#: There the other end of its pipes is the test's, or the build tool's.
OF_THE_TEST: dict[str, Any] = {"pipe_is_the_labs": False}


@dataclass(frozen=True)
class Attacked:
    """A lab in which a user attacks, and what others have there meanwhile."""

    home: Path
    #: The words that run a program as the lab's own user, and its Python.
    words: tuple[str, ...]
    user: str
    own: Client
    other: Client
    about: dict[str, Any]

    def attacks(self, served: str, *own: str, network: bool = True) -> dict[str, Any]:
        """What is tried of this lab and its machine; the program itself looks first whether it is inside of walls."""
        home, attempt = self.home, AttemptDirectory(self.home / "spool" / str(self.about["job"]) / "1")
        named = read_settings(home / "carrel.toml", {}, {}).state_directory
        of_spool = [attempt.journal, attempt.launch]
        assert all(path.exists() for path in (*of_spool, attempt.log))
        # The broker's is what a job is given: it asks the kernel who calls, and is attacked by what it is asked. So is that of
        # large values, which gives nothing without a ticket (tests/gateway/test_body_files.py).
        given = {home / "run" / "broker" / "broker.sock", home / "run" / "bodies" / "lab"}
        sockets = [str(path) for path in (home / "run").rglob("*") if path.is_socket() and path not in given]
        return {
            **self.about,
            "files": {
                "token and secret": [
                    *(str(home / name) for name in ("token", "secret", "lab.db", "carrel.toml")),
                    f"{named}/key",
                ],
                "another's spool": [str(path) for path in of_spool],
                "another's log": [str(attempt.log)],
            },
            "directories": [str(home), str(home / "homes"), str(home / "snapshots"), str(home / "blobs"), named],
            "sockets": [*sockets, f"\0carrel-nobody-{os.getpid()}"],
            "given_sockets": [str(path) for path in given],
            "owner": self.user,
            "lab_home": pwd.getpwnam(self.user).pw_dir,
            "broker": str(home / "run" / "broker" / "broker.sock"),
            "addresses": [["127.0.0.1", urlsplit(served).port], ["::1", urlsplit(served).port]] if network else [],
            "closed": network,
            "devices": ["/dev/nvidia0", "/dev/kmsg", "/dev/mem", "/dev/vda"],
            "deputies": [["sudo", "-n", "-u", "nobody", "true"]],
            "hidden": [str(home), "/run", "/var/tmp"],
            "own": [str(home / "homes" / "mallory"), *own],
            "writable": "/tmp",
            "memory": 1024**3,
            "process_limit": 600 if self.user != "root" or limits_processes() else 0,
        }

    def judge(self, place: str, said: str) -> None:
        """Of the lab's directory only the way to the attempt's own is there, and nothing in it can be written."""
        ESCAPES.judge(place, said, {f"directories: list {self.home}", f"directories: list {self.home / 'homes'}"})


@pytest.fixture(scope="module", params=["as it is", "an ordinary user's"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    ordinary = request.param != "as it is"
    if ordinary and os.geteuid() != 0:
        pytest.skip("Who runs the tests is one.")
    user = USER if ordinary else pwd.getpwuid(os.geteuid()).pw_name
    with ExitStack() as stack:
        # Not in /tmp, of which jobs have their own: a directory that a setting names, and only the lab's user may read.
        private = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix=".private-", dir="/srv" if ordinary else Path(__file__).parent)
            )
        )
        (private / "key").write_text("the key")
        ground = stack.enter_context(common_ground()) if ordinary else tmp_path_factory.mktemp("attacked")
        home = ground / "home"
        home.mkdir(mode=0o700)
        (home / "carrel.toml").write_text(
            'isolation = "kernel"\njob_network = "loopback"\nprocess_limit = 600\ndisk_limit = "256M"\ntracking = false\n'
            f'state_directory = "{private}"\n'
        )
        python = python_for_all(ground / "python") if ordinary else Path(sys.executable)
        words = (*run_as(user), str(python)) if ordinary else (str(python),)
        if ordinary:
            for path in (private, private / "key", home, home / "carrel.toml"):
                shutil.chown(path, user, pwd.getpwnam(user).pw_gid)
        # Not what the tests' own user has set, whose directories another may not enter.
        variables = {"HOME": str(ground), "PYENV_ROOT": str(ground / "pyenv")} if ordinary else {}
        process = start_lab(home, "--cpus", "4", simulate_gpus=1, python=words if ordinary else None, variables=variables)
        stack.callback(process.stop)
        own = stack.enter_context(Client(url=process.url, token=process.token))
        other = stack.enter_context(Client(url=process.url, token=own.add_user("mallory").token))
        code = write(tmp_path_factory.mktemp("others") / "code", "import time\nprint('private', flush=True)\ntime.sleep(86400)\n")
        job = own.submit_project(code, script="task.py")
        log = home / "spool" / str(job.id) / "1" / "log"
        wait_until(lambda: log.exists() and log.read_bytes() == b"private\n")
        with victims(user if ordinary else "") as found:
            yield Attacked(home, words, user, own, other, {**found.about(), "job": job.id})
        assert own.job(job.id).state == "RUNNING"
        assert log.read_bytes() == b"private\n"
        process.end_jobs()


def test_nothing_gets_out_of_a_task(lab: Attacked, tmp_path: Path, served: str) -> None:
    """What it plants among its outputs leads the lab nowhere either."""
    token = (lab.home / "token").read_text()
    plant = f"""
def outputs(name):
    return os.path.join(os.environ["CARREL_OUTPUT_DIR"], name)
for name, leads in (("stolen", {str(lab.home / "token")!r}), ("all", {str(lab.home)!r}), ("up", "../../../../../token")):
    os.symlink(leads, outputs(name))
os.symlink("itself", outputs("itself"))
os.symlink("/dev/zero", outputs("endless"))
os.symlink("/proc/self/environ", outputs("environment"))
os.mkfifo(outputs("pipe"))
socket.socket(socket.AF_UNIX).bind(outputs("socket"))
os.makedirs(outputs("a/b"))
os.symlink("../..", outputs("a/b/round"))
os.chmod(outputs("a"), 0)
"""
    about = lab.attacks(served, str(lab.home / "spool"))
    code = write(tmp_path / "evil", HOSTILE + plant)
    job, log = run(lab.other, code, "task.py", json.dumps(about), resources=ResourceRequest(memory="1G"))
    assert job.state == "COMPLETED", (job.reason, log)
    lab.judge("task", log.split("[carrel]")[0])
    fetched = lab.other.download_outputs(job.id, tmp_path / "fetched")
    assert not [path for path in fetched if token in path.read_text(errors="replace")]


def test_nothing_gets_out_of_a_notebook_or_its_terminal(lab: Attacked, served: str) -> None:
    session = lab.other.start_session(SessionRequest(memory="1G"))
    wait_until(lambda: lab.other.session(session.job.id).ready, "the session")
    about = lab.attacks(served, str(lab.home / "spool"), session.directory, str(lab.home / "environments"))
    about |= {"lent": True}
    arguments = ["-I", "-c", HOSTILE, json.dumps(about)]
    with SessionBrowser(lab.other.open_session(session.job.id)) as browser:
        kernel = browser.start_kernel()
        look = "import subprocess, sys\nprint(subprocess.run([sys.executable, *%r], capture_output=True, text=True).stdout)"
        of_cell = kernel.execute(look % (arguments,)).text
        words = ["python3", *arguments]
        kernel.execute(f"import pathlib, shlex\npathlib.Path('evil.sh').write_text(shlex.join({words!r}))")
        with browser.websocket(f"/terminals/websocket/{browser.request('POST', '/api/terminals').json()['name']}") as shell:
            shell.send(json.dumps(["stdin", "sh evil.sh > said.txt 2>&1; echo it ended with $?.\r"]))
            seen = ""
            while "it ended with 0." not in seen:
                seen += str(json.loads(shell.recv(timeout=PATIENCE))[1:])
        of_terminal = kernel.execute("print(open('said.txt').read())").text
        kernel.close()
    lab.other.cancel(session.job.id)
    assert lab.other.wait(session.job.id, timeout=PATIENCE).state == "CANCELLED"
    lab.judge("notebook", of_cell)
    lab.judge("terminal", of_terminal)


def test_nothing_gets_out_of_a_call(lab: Attacked, served: str) -> None:
    words = [
        "-I",
        "-c",
        HOSTILE,
        json.dumps(lab.attacks(served, str(lab.home / "spool"), str(lab.home / "environments")) | {"lent": True}),
    ]

    def attack() -> str:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        return done.stdout or done.stderr

    with Executor(1, requirements=[], cpus=1, memory="1G", client=lab.other) as executor:
        said = executor.submit(attack).result(PATIENCE)
    lab.judge("call", said)


#: What reads inputs, around another program than Carrel's: somebody's code that runs there (a fault of git's, or of a library).
STAGE = """
import json, os, sys
from pathlib import Path
from carrel.core.domain.launch import LaunchPaths
from carrel.core.spool import AttemptDirectory
from carrel.lab.server.home import LabHome
from carrel.lab.server.isolation import LocalWalls
from carrel.lab.server.private_files import secret_files
from carrel.lab.server.settings import read_settings
from support.inside import run_inside
from carrel.node.runner.walls import staging_walls
home, place, words = LabHome(Path(sys.argv[1])), Path(sys.argv[2]), json.load(sys.stdin)
directory = AttemptDirectory(place / "attempt")
directory.work.mkdir(parents=True)
paths = LaunchPaths(environments="", snapshots="", blobs="", files=str(home.files), inputs=str(home.path / "inputs" / "mallory"))
walls = LocalWalls(home, processes=600, secrets=secret_files(read_settings(home.settings, {}, {}).values))
code, said = run_inside(staging_walls(walls("mallory"), directory, paths), [os.path.realpath(sys.executable), *words])
sys.stdout.write(said.decode())
sys.exit(code)
"""


def test_nothing_gets_out_of_what_reads_inputs(lab: Attacked, served: str) -> None:
    # It has the machine's network: it is there to fetch.
    with common_ground() as place:
        inputs = str(lab.home / "inputs" / "mallory")
        about = lab.attacks(served, str(place / "attempt" / "work"), inputs, network=False) | {
            "memory": PREPARING_SHARED,
            **OF_THE_TEST,
        }
        said = subprocess.run(
            [*lab.words, "-c", STAGE, str(lab.home), str(place)],
            input=json.dumps(["-I", "-c", HOSTILE, json.dumps(about)]),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
    assert said.returncode == 0, said.stdout + said.stderr
    lab.judge("staging", said.stdout)


#: A build backend that attacks, and leaves what it found in the package.
BACKEND = """
import os, subprocess, sys, zipfile
def get_requires_for_build_wheel(settings=None):
    return []
def build_wheel(place, settings=None, metadata=None):
    words = open("words").read().split("\\0")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    with zipfile.ZipFile(os.path.join(place, "pkg-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("pkg.py", f"said = {done.stdout + done.stderr!r}")
        wheel.writestr("pkg-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: pkg\\nVersion: 1\\n")
        wheel.writestr("pkg-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("pkg-1.dist-info/RECORD", "")
    return "pkg-1-py3-none-any.whl"
"""


def test_nothing_gets_out_of_a_build(lab: Attacked, tmp_path: Path, served: str) -> None:
    about = lab.attacks(served, str(lab.home / "environments"), network=False) | {"memory": PREPARING_SHARED, **OF_THE_TEST}
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/backend.py").write_text(BACKEND)
    (tmp_path / "pkg/words").write_text("\0".join(["-I", "-c", HOSTILE, json.dumps(about)]))
    (tmp_path / "pkg/pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "pkg"\nversion = "1"\n'
    )
    (tmp_path / "requirements.txt").write_text("./pkg\n")
    (tmp_path / "look.py").write_text("import pkg; print(pkg.said)")
    job, log = run(lab.other, tmp_path, "look.py")
    assert job.state == "COMPLETED", (job.reason, log)
    lab.judge("build", log)
