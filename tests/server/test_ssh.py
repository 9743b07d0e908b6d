"""Ssh into running jobs, with OpenSSH's own programs: what is entered, by whom, and what ends when."""

from __future__ import annotations

import os
import secrets
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from carrel.client import Client
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces

#: Shows in which namespaces and which cgroup a process is, its capabilities and filters, and its limits.
AROUND = (
    "for kind in mnt pid net user ipc uts; do readlink /proc/self/ns/$kind; done; cat /proc/self/cgroup /proc/self/limits; "
    "grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status; umask"
)
#: Writes this down, and ends when somebody writes into a pipe of its directory.
JOB = f"{{ {AROUND}; }} > around; mkfifo stop; touch ready; read _ < stop\n"


class Greeting(socketserver.BaseRequestHandler):
    """Listens on the machine's loopback, where the lab is."""

    def handle(self) -> None:
        self.request.sendall(b"a neighbour")


@dataclass(slots=True)
class Desk:
    """A user of the lab with OpenSSH's client, at a machine of their own."""

    client: Client
    lab: LabProcess
    home: Path

    def run(self, *words: str, text: str = "", environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=PATIENCE, cwd=self.home, env=self.environment(environment)
        )

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        known = {"CARREL_URL": self.client.url, "CARREL_TOKEN": self.client.token, "XDG_CONFIG_HOME": str(self.home)}
        return {**os.environ, **known, **(more or {})}

    def carrel(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "carrel.cli.main", *words)

    def openssh(self, program: str, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """One of OpenSSH's programs, with what `carrel ssh --config` says."""
        return self.run(program, "-F", str(config_of(self)), *words, text=text)

    def submit(self, code: Path) -> int:
        """A job that runs and can be entered."""
        job = self.client.submit_project(code, script="job.sh")
        work = self.work(job.id)
        wait_until((work / "ready").exists)
        return job.id

    def work(self, job_id: int) -> Path:
        return self.lab.home / "spool" / str(job_id) / "1" / "work"


@pytest.fixture(scope="module", params=["none", "kernel"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    walls = request.param == "kernel"
    if walls and why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    home = tmp_path_factory.mktemp("ssh") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text(f'isolation = "{request.param}"\n' + ('job_network = "loopback"\n' if walls else ""))
    running = start_lab(home, "--cpus", "4", simulate_gpus=1)
    yield running
    running.end_jobs()
    running.stop()


@pytest.fixture(scope="module")
def desk(lab: LabProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Client(home=lab.home) as client:
        yield Desk(client, lab, tmp_path_factory.mktemp("desk"))


@pytest.fixture
def stranger(desk: Desk, tmp_path: Path) -> Iterator[Desk]:
    token = desk.client.add_user(f"mallory-{secrets.token_hex(4)}", without_isolation=True).token
    with Client(url=desk.lab.url, token=token) as other:
        yield Desk(other, desk.lab, tmp_path)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("code")
    (directory / "job.sh").write_text(JOB)
    return directory


@pytest.fixture(scope="module")
def job(desk: Desk, code: Path) -> int:
    return desk.submit(code)


@pytest.mark.gate
def test_a_command_runs_in_the_walls_and_the_environment_of_the_job(desk: Desk, job: int) -> None:
    ran = desk.carrel("ssh", str(job), "--", f"{AROUND}; echo $CARREL_JOB_ID; pwd; exit 7")
    assert ran.returncode == 7, ran.stderr
    *around, number, directory = ran.stdout.splitlines()
    assert around == (desk.work(job) / "around").read_text().splitlines()
    assert (number, directory) == (str(job), str(desk.work(job)))


def test_a_terminal_has_the_type_that_the_client_has(desk: Desk, job: int) -> None:
    words = ("ssh", "-tt", "-F", str(config_of(desk)), f"{job}.carrel", "tty; echo $TERM")
    terminal, kind = desk.run(*words, environment={"TERM": "xterm-256color"}).stdout.split()
    assert terminal.startswith("/dev/pts/")
    assert kind == "xterm-256color"


@pytest.mark.parametrize("options", [(), ("-O",)], ids=["sftp", "scp"])
def test_files_are_copied_both_ways(desk: Desk, job: int, options: tuple[str, ...]) -> None:
    (desk.home / "there").write_text("there and back")
    for source, target in (("there", f"{job}.carrel:copied"), (f"{job}.carrel:copied", "back")):
        copied = desk.openssh("scp", *options, source, target)
        assert copied.returncode == 0, copied.stderr
    assert (desk.home / "back").read_text() == "there and back"
    assert "copied" in desk.openssh("sftp", f"{job}.carrel", text="ls\n").stdout


def test_the_owner_alone_enters(desk: Desk, stranger: Desk, job: int) -> None:
    refused = stranger.carrel("ssh", str(job))
    assert refused.returncode != 0
    assert f"There is no job {job}" in refused.stderr
    with pytest.raises(NotFound):
        stranger.client.carry_ssh(job, 0, 1)


def test_a_certificate_is_good_for_its_own_job_alone(desk: Desk, code: Path, job: int) -> None:
    other = desk.submit(code)
    config = config_of(desk)
    assert desk.openssh("ssh", f"{other}.carrel", "true").returncode == 0
    files = desk.home / "carrel" / "ssh"
    refused = desk.run(
        *(
            "ssh",
            "-F",
            "none",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "IdentitiesOnly=yes",
        ),
        *("-o", f"IdentityFile={files}/id_ed25519", "-o", f"CertificateFile={files}/{other}.carrel-cert.pub"),
        *("-o", line_of(config, "ProxyCommand"), f"{job}.carrel", "true"),
    )
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr
    desk.client.cancel(other)


def test_without_a_token_there_is_no_stream(desk: Desk, job: int) -> None:
    address = f"{desk.lab.url.replace('http', 'ws', 1)}/api/v1/jobs/{job}/ssh/stream"
    token_of_job = (desk.lab.home / "spool" / str(job) / "1" / "token").read_text().strip()
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer nothing"}, 401),
        ({"Authorization": f"Bearer {token_of_job}"}, 403),
    ):
        with pytest.raises(InvalidStatus) as refused:
            connect(address, additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == status


def test_what_is_no_key_has_no_certificate(desk: Desk, job: int) -> None:
    with pytest.raises(Invalid, match="public key"):
        desk.client.certify_ssh(job, "ssh-ed25519 nothing")


def test_no_agent_is_led_into_the_job_and_no_port_out_of_it(desk: Desk, job: int) -> None:
    config = config_of(desk)
    agent = desk.run("ssh-agent", "ssh", "-A", "-F", str(config), f"{job}.carrel", "echo agent: $SSH_AUTH_SOCK")
    assert agent.stdout.strip() == "agent:"
    back = desk.openssh("ssh", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:9", f"{job}.carrel", "true")
    assert back.returncode == 255
    assert "remote port forwarding failed" in back.stderr


def test_a_port_is_led_to_where_the_job_itself_gets(desk: Desk, job: int) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Greeting) as neighbour:
        threading.Thread(target=neighbour.serve_forever, daemon=True).start()
        led = desk.openssh("ssh", "-W", f"127.0.0.1:{neighbour.server_address[1]}", f"{job}.carrel")
        neighbour.shutdown()
    assert led.stdout == ("" if in_walls(desk) else "a neighbour"), led.stderr


def test_the_job_goes_on_when_ssh_ends_and_ssh_ends_with_the_job(desk: Desk, code: Path) -> None:
    job = desk.submit(code)
    with subprocess.Popen(
        ["ssh", "-F", str(config_of(desk)), f"{job}.carrel", "echo in; exec sleep 1000"],
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "env": desk.environment(), "cwd": desk.home},
    ) as ssh:
        assert ssh.stdout is not None
        assert ssh.stdout.readline() == b"in\n"
        assert desk.openssh("ssh", f"{job}.carrel", "true").returncode == 0
        assert desk.client.job(job).state == "RUNNING"
        desk.client.cancel(job)
        assert ssh.wait(PATIENCE) == 255
    assert desk.client.wait(job, timeout=PATIENCE).state == "CANCELLED"
    with pytest.raises(Conflict, match="CANCELLED"):
        desk.client.certify_ssh(job, (desk.home / "carrel/ssh/id_ed25519.pub").read_text())
    with pytest.raises(Conflict, match="CANCELLED"):
        desk.client.carry_ssh(job, 0, 1)


def test_a_token_that_is_revoked_ends_what_it_opened(desk: Desk, job: int) -> None:
    made = desk.client.create_token("ssh")
    with subprocess.Popen(
        ["ssh", "-F", str(config_of(desk)), f"{job}.carrel", "echo in; exec cat"],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": desk.home},
        env=desk.environment({"CARREL_TOKEN": made.token}),
    ) as ssh:
        assert ssh.stdout is not None
        assert ssh.stdout.readline() == b"in\n"
        desk.client.revoke_token(made.about.id)
        assert ssh.wait(PATIENCE) == 255


def test_a_narrow_token_enters_nothing(desk: Desk, job: int) -> None:
    made = desk.client.create_token("narrow", scopes=["submit", "sessions"])
    with Client(url=desk.lab.url, token=made.token) as narrow, pytest.raises(Denied):
        narrow.certify_ssh(job, "ssh-ed25519 nothing")


def test_the_audit_log_says_who_entered(desk: Desk, job: int) -> None:
    assert desk.openssh("ssh", f"{job}.carrel", "true").returncode == 0
    lines = [line for line in (desk.lab.home / "audit").rglob("*.jsonl") for line in line.read_text().splitlines()]
    entered = [line for line in lines if f"/jobs/{job}/ssh" in line and '"enter this job"' in line]
    assert any('"POST"' in line for line in entered)
    assert any(f"/jobs/{job}/ssh/stream" in line and '"allowed"' in line for line in entered)


def test_a_session_that_is_entered_is_in_use_and_has_its_environment_first(desk: Desk) -> None:
    session = desk.client.start_session(SessionRequest(kind="terminal", gpus=0))
    wait_until(lambda: desk.client.session(session.job.id).ready)
    with subprocess.Popen(
        ["ssh", "-F", str(config_of(desk)), f"{session.job.id}.carrel", "command -v python; exec cat"],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": desk.environment(), "cwd": desk.home},
    ) as ssh:
        assert ssh.stdout is not None
        assert ssh.stdout.readline().decode().startswith(str(desk.lab.home / "environments"))
        assert desk.client.session(session.job.id).connections == 1
        ssh.communicate()
    wait_until(lambda: desk.client.session(session.job.id).connections == 0)
    desk.client.cancel(session.job.id)


def in_walls(desk: Desk) -> bool:
    return "kernel" in (desk.lab.home / "carrel.toml").read_text()


def config_of(desk: Desk) -> Path:
    config = desk.home / "config"
    if not config.exists():
        config.write_text(desk.carrel("ssh", "--config").stdout)
    return config


def line_of(config: Path, name: str) -> str:
    return next(line.strip() for line in config.read_text().splitlines() if line.strip().startswith(name))
