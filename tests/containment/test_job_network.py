"""A network of a contained process' own: what is outside is out of reach, but for the doors that it was given."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.network import Network, least
from carrel.node.containment.program import start_program
from carrel.node.containment.walls import Bind, Door, Walls
from carrel.testing.waiting import PATIENCE
from support.attacking import attack
from support.inside import run_inside
from support.namespaces import why_no_namespaces

TALK = """
import socket, sys, threading
def talk(number):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as there:
        sent = bytes([number]) * 300_000
        threading.Thread(target=lambda: (there.sendall(sent), there.shutdown(socket.SHUT_WR))).start()
        got = b""
        while piece := there.recv(65536):
            got += piece
        answers[number] = got == sent[::-1]
answers = {}
threads = [threading.Thread(target=talk, args=(number,)) for number in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(answers) == list(range(20)) and all(answers.values()))
"""


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Walls:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    prefixes = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    binds = tuple(Bind(path) for path in sorted(prefixes))
    return Walls(hidden=("/run",), binds=binds, temporary=str(tmp_path_factory.mktemp("private")), doors=())


@pytest.fixture
def mirror() -> Iterator[int]:
    """A program on the loopback that gives back what it got, the last byte first."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:

        def answer(there: socket.socket) -> None:
            with there:
                got = b""
                while piece := there.recv(65536):
                    got += piece
                there.sendall(got[::-1])

        def serve() -> None:
            while True:
                try:
                    there, _address = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(there,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.gate
def test_nothing_outside_is_reached(walls: Walls, mirror: int) -> None:
    own = socket.gethostbyname(socket.gethostname())
    addresses = [("127.0.0.1", mirror), ("::1", mirror), (own, mirror), ("0.0.0.0", mirror), ("127.0.0.1", 53)]
    assert attack(walls, secrets=[], addresses=addresses).through == {}


def test_what_is_out_of_reach_is_there_for_others(walls: Walls, mirror: int) -> None:
    through = attack(replace(walls, doors=None), secrets=[], addresses=[("127.0.0.1", mirror)]).through
    assert through == {f"loopback: connect to 127.0.0.1 port {mirror}": "connected"}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "192.0.2.7", "2001:db8::7"])
def test_a_door_leads_out(walls: Walls, mirror: int, address: str) -> None:
    """Many connections at once, and more bytes than are under way at once, each way with its end."""
    if ":" in address and not Path("/proc/net/if_inet6").exists():
        pytest.skip("This kernel has no IPv6.")
    through = replace(walls, doors=(Door("127.0.0.1", mirror, (address,)),))
    python = os.path.realpath(sys.executable)
    assert run_inside(through, [python, "-I", "-c", TALK, address, str(mirror)]) == (0, b"True\n")


def test_only_the_door_leads_out(walls: Walls, mirror: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        through = attack(
            replace(walls, doors=(Door("127.0.0.1", mirror),)),
            secrets=[],
            addresses=[("127.0.0.1", port), ("127.0.0.1", mirror)],
        ).through
    assert through == {f"loopback: connect to 127.0.0.1 port {mirror}": "connected"}


def test_a_door_at_which_nobody_answers_is_closed(walls: Walls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    look = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(1))"
    code, said = run_inside(
        replace(walls, doors=(Door("127.0.0.1", port),)), [os.path.realpath(sys.executable), "-I", "-c", look]
    )
    assert (code, said) == (0, b"b''\n") or b"ConnectionResetError" in said


def test_nothing_of_it_is_left(walls: Walls, mirror: int) -> None:
    """The process that serves the doors ends with those whom it serves, also when whoever started them has gone."""
    for stop in (False, True):
        program = start_program(
            replace(walls, doors=(Door("127.0.0.1", mirror),)),
            [os.path.realpath(sys.executable), "-I", "-c", "print('here', flush=True); input()"],
            directory="/tmp",
            variables={},
            stdin=subprocess.PIPE,
        )
        with program.process as process:
            assert process.stdout.readline() == b"here\n"
            below = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert len(below) == 2
            watched = [os.pidfd_open(int(pid)) for pid in below]
            if stop:
                process.kill()
            else:
                process.stdin.write(b"\n")
                process.stdin.flush()
            process.wait()
            program.end()
            for fd in watched:
                assert select.select([fd], [], [], PATIENCE)[0]
                os.close(fd)


@given(st.sampled_from(Network), st.none() | st.sampled_from(Network))
def test_a_wish_is_never_for_more(at_most: Network, wanted: Network | None) -> None:
    order = list(Network)
    had = least(at_most, wanted)
    assert order.index(had) >= order.index(at_most)
    assert had in (at_most, wanted)
