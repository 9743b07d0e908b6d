"""Whom the ssh server of a job lets in: what OpenSSH's own programs have signed, and show to it."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from carrel.node.runner.ssh_server import HEAD
from carrel.testing.waiting import PATIENCE

SERVER = "from carrel.node.runner.ssh_server import main; main()"
PRINCIPAL = "job-12-attempt-1"
#: A ProxyCommand that gives ssh the connection itself (ssh_config(5), ProxyUseFdpass).
PASS = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=1), [b"-"], [connection.fileno()])
"""


class Place:
    """Keys and certificates of `ssh-keygen`, and a server for each connection."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Bytes of the server's that are carried at once: with few, the connection is slow.
        self.carried = 65536
        for name in ("authority", "other", "host", "user"):
            self.keygen("-t", "ed25519", "-N", "", "-f", name)
        self.keygen("-s", "authority", "-I", "job", "-h", "-n", "12.carrel", "host.pub")
        (root / "pass.py").write_text(PASS)
        (root / "known").write_text(f"@cert-authority *.carrel {self.text('authority.pub')}")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(root / "socket"))
        self.listener.listen()
        self.listener.settimeout(PATIENCE)  # a client that fails before it connects fails its test

    def keygen(self, *words: str) -> None:
        subprocess.run(["ssh-keygen", "-q", *words], cwd=self.root, check=True, stdin=subprocess.DEVNULL, capture_output=True)

    def text(self, name: str) -> str:
        return (self.root / name).read_text()

    def sign(self, *words: str, authority: str = "authority") -> None:
        self.keygen("-s", authority, "-I", "ada", *words, "user.pub")

    def enter(
        self, command: str = "echo in", options: Sequence[str] = (), stdin: int = subprocess.DEVNULL
    ) -> subprocess.CompletedProcess[str]:
        """Connect once with OpenSSH's client."""
        serving = threading.Thread(target=self._serve)
        serving.start()
        done = subprocess.run(
            [
                *("ssh", "-F", "none", "-o", "ProxyUseFdpass=yes", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
                *("-o", f"ProxyCommand={shlex.quote(sys.executable)} pass.py socket", "-o", "UserKnownHostsFile=known"),
                *("-o", "StrictHostKeyChecking=yes", "-i", "user", *options, "12.carrel", command),
            ],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=stdin,
        )
        serving.join()
        return done

    def _serve(self) -> None:
        """Tell a new server whom to let in, as the lab does, and carry the connection to it."""
        ours, its = socket.socketpair()
        client, _address = self.listener.accept()
        with ours, client:
            with its:
                server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=its, cwd=self.root)
            said = {"key": "host", "certificate": "host-cert.pub", "authority": "authority.pub"}
            message = json.dumps(
                {**{name: self.text(file).strip() for name, file in said.items()}, "principal": PRINCIPAL}
            ).encode()
            ours.sendall(HEAD.pack(len(message)) + message)
            back = threading.Thread(target=carry, args=(ours, client, self.carried))
            back.start()
            carry(client, ours)
            back.join()
            assert server.wait(PATIENCE) == 0


def carry(source: socket.socket, target: socket.socket, size: int = 65536) -> None:
    with suppress(OSError):
        while piece := source.recv(size):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.listener.close()


@pytest.mark.gate
def test_a_certificate_of_the_labs_for_this_attempt_enters(place: Place) -> None:
    place.sign("-n", PRINCIPAL)
    entered = place.enter("echo in; exit 3")
    assert (entered.stdout, entered.returncode) == ("in\n", 3), entered.stderr


@pytest.mark.gate
def test_an_output_that_ends_first_does_not_end_the_other(place: Place) -> None:
    place.sign("-n", PRINCIPAL)
    ran = place.enter("echo out; exec >&-; sleep 0.5; echo error >&2; exit 5")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("out\n", "error\n", 5)


def test_an_output_that_is_faster_than_the_connection_arrives_whole_while_the_other_waits(place: Place) -> None:
    place.sign("-n", PRINCIPAL)
    place.carried = 16
    ran = place.enter("yes | head -c 3000000; yes | head -c 3000000 >&2")
    assert (len(ran.stdout), len(ran.stderr), ran.returncode) == (3_000_000, 3_000_000, 0), ran.stderr[-200:]


def test_a_shell_in_a_terminal_has_its_size_and_ends_though_something_stays_in_the_background(place: Place) -> None:
    place.sign("-n", PRINCIPAL)
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(theirs, (33, 77))
        ran = place.enter("set -m; stty size; sleep 1000 & echo $! > stays; seq 100000; exit 3", ("-tt",), stdin=theirs)
        os.kill(int(place.text("stays")), signal.SIGKILL)
    finally:
        os.close(ours)
        os.close(theirs)
    first, *_, last = ran.stdout.split("\n")[:-1]
    assert (first.strip(), last.strip(), ran.returncode) == ("33 77", "100000", 3), ran.stderr


@pytest.mark.parametrize(
    ("words", "authority"),
    [
        (("-n", PRINCIPAL, "-V", "-10m:-5m"), "authority"),
        (("-n", PRINCIPAL, "-V", "+5m:+10m"), "authority"),
        (("-n", "job-12-attempt-2"), "authority"),
        (("-n", "root,job-13-attempt-1"), "authority"),
        ((), "authority"),
        (("-h", "-n", PRINCIPAL), "authority"),
        (("-n", PRINCIPAL), "other"),
    ],
    ids=["expired", "early", "attempt", "job", "anybody", "host", "signer"],
)
def test_no_other_certificate_enters(place: Place, words: tuple[str, ...], authority: str) -> None:
    place.sign(*words, authority=authority)
    refused = place.enter()
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr, refused.stderr


def test_a_key_alone_does_not_enter(place: Place) -> None:
    assert "Permission denied" in place.enter().stderr


def test_a_server_that_the_lab_has_not_signed_is_not_believed(place: Place) -> None:
    place.sign("-n", PRINCIPAL)
    place.keygen("-s", "other", "-I", "job", "-h", "-n", "12.carrel", "host.pub")
    assert "Host key verification failed" in place.enter().stderr


def test_what_comes_before_the_labs_message_ends_the_server(tmp_path: Path) -> None:
    for said in (b"SSH-2.0-OpenSSH_9.2\r\n", HEAD.pack(3) + b"{}}", HEAD.pack(2**31), b"\0"):
        ours, its = socket.socketpair()
        with its:
            server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=its, cwd=tmp_path, stderr=subprocess.PIPE)
        with ours:
            ours.sendall(said)
            ours.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):  # it has not read everything
                assert ours.recv(1) == b""
        assert server.communicate(timeout=PATIENCE)[1] == b""
