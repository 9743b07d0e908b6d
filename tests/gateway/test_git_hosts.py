"""From which hosts repositories are fetched that users name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from gateway_lab import Rig, a_lab

from carrel.core.domain.errors import Invalid
from carrel.lab.gateway.new_code import Incoming
from carrel.node.staging.git_hosts import GitHosts
from carrel.testing.waiting import PATIENCE


def leads_to(*addresses: str) -> Any:
    """A resolver for which every name leads to these."""
    return lambda _host, port, **_more: [(0, 0, 0, "", (address, port)) for address in addresses]


@pytest.mark.quick
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.9.9", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
        *("::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::"),
    ],
)
def test_addresses_inside_are_refused_unless_they_are_named(address: str) -> None:
    with pytest.raises(Invalid, match="in the lab's own network"):
        GitHosts(resolve=leads_to(address)).pin("https://code.example.org/x.git")
    named = GitHosts("*.example.org", resolve=leads_to(address)).pin("https://code.example.org/x.git")
    assert named.startswith("code.example.org:443:")
    with pytest.raises(Invalid):
        GitHosts("*.example.org", resolve=leads_to(address)).pin("https://example.org.evil.net/x.git")


@pytest.mark.quick
@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]"])
def test_no_way_of_writing_this_machine_is_overlooked(host: str) -> None:
    with pytest.raises(Invalid):
        GitHosts().pin(f"http://{host}:8642/x.git")


@pytest.mark.quick
def test_only_addresses_outside_and_named_ones_are_told_to_git() -> None:
    both = leads_to("10.2.3.4", "8.8.8.8", "2600::1", "10.9.9.9")
    assert GitHosts(resolve=both).pin("http://Code.example.org/x") == "code.example.org:80:8.8.8.8,[2600::1]"
    assert GitHosts("10.2.0.0/16", resolve=both).pin("https://a.b:8443/x") == "a.b:8443:10.2.3.4,8.8.8.8,[2600::1]"
    with pytest.raises(Invalid):  # another name to git than to who resolves it
        GitHosts(resolve=leads_to("8.8.8.8")).pin("https://example.org./x")
    with pytest.raises(Invalid, match="10.2.0.1/16"):
        GitHosts("gitlab.lan 10.2.0.1/16")


def test_what_only_a_proxy_knows_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **_more: object) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(Invalid, match="There is no host"):
        GitHosts(resolve=nobody).pin("https://example.org/x")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert GitHosts(resolve=nobody).pin("https://example.org/x") == ""
    with pytest.raises(Invalid):
        GitHosts(resolve=leads_to("127.0.0.1")).pin("https://example.org/x")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with a_lab(tmp_path / "lab") as rig:
        yield rig


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


class Elsewhere(BaseHTTPRequestHandler):
    """Answers everything with a redirect."""

    to = ""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", f"{self.to}{self.path}")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def web(tmp_path: Path) -> Iterator[int]:
    """The port of a web server with a repository."""
    work, bare = tmp_path / "work", tmp_path / "web" / "code.git"
    work.mkdir()
    (work / "train.py").write_text("print(1)\n")
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")):
        run(("git", "-C", str(work), *command), check=True)
    run(("git", "clone", "-q", "--bare", str(work), str(bare)), check=True)
    run(("git", "-C", str(bare), "update-server-info"), check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def incoming(rig: Rig, hosts: GitHosts, **more: float) -> Incoming:
    return Incoming(rig.lab, rig.lab.files.code, lambda _owner: None, git_hosts=hosts, **more)  # type: ignore[arg-type]


def test_git_goes_where_the_name_led_when_it_was_looked_at(rig: Rig, web: int) -> None:
    """No server for names knows this one: git has the address from the lab alone."""
    hosts = GitHosts("code.test", resolve=leads_to("127.0.0.1"))
    code = incoming(rig, hosts).repository(rig.caller("ada"), f"http://code.test:{web}/code.git", "")
    assert incoming(rig, hosts).of(rig.caller("ada"), code.snapshot).scripts == ("train.py",)


def test_no_redirect_leads_inside(rig: Rig, web: int) -> None:
    class ToTheOther(Elsewhere):
        to = f"http://127.0.0.1:{web}"

    server = ThreadingHTTPServer(("127.0.0.1", 0), ToTheOther)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        hosts = GitHosts("code.test", resolve=leads_to("127.0.0.1"))
        with pytest.raises(Invalid, match="could not be read"):
            incoming(rig, hosts).repository(rig.caller("ada"), f"http://code.test:{server.server_port}/code.git", "")
    finally:
        server.shutdown()
        server.server_close()


def test_a_repository_that_never_comes_is_given_up_and_no_git_is_left(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        came: list[socket.socket] = []
        threading.Thread(target=lambda: came.append(silent.accept()[0]), daemon=True).start()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/code.git"
        with pytest.raises(Invalid, match="was not here after 2 s"):
            incoming(rig, GitHosts("127.0.0.1"), fetch_time=2.0).repository(rig.caller("ada"), address, "")
        (connection,) = came
        connection.settimeout(PATIENCE)
        while connection.recv(4096):  # until the other side is closed: what git started for the network is gone, too
            pass
        connection.close()
