"""The table of attempts to get out is whole: each kind in each place, or a reason why not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.node.containment.walls import Bind, Walls
from support.attacks import ATTACKS, NOTHING
from support.escapes import FEWEST, read_table, victims
from support.inside import outside, run_inside
from support.namespaces import why_no_namespaces
from support.tricks import HOSTILE, KINDS

TABLE = read_table(Path(__file__).with_name("escapes.txt"))


@pytest.mark.quick
def test_each_kind_is_attempted_in_each_place_or_left_out_with_a_reason() -> None:
    assert set(TABLE.places) == {"task", "notebook", "terminal", "call", "build", "staging", "image", "cluster"}
    for place, kinds in TABLE.places.items():
        assert tuple(kinds) == KINDS, place
        assert all(number is None or number > 0 for number in kinds.values()), place
        assert sum(number or 0 for number in kinds.values()) >= FEWEST, place
    assert all(reason for reason in TABLE.reasons.values())
    assert {kind for kind in KINDS if f'attempt("{kind}"' in HOSTILE} | {
        "token and secret",
        "another's spool",
        "another's log",
    } == set(KINDS)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("tried", "through", "words"),
    [
        ({}, {"mounts: mount": "mounted"}, "mounted"),
        ({"mounts": []}, {}, "mounts is attempted 0 times"),
        ({"fork bomb": [], "kernel": ["one"]}, {}, "attempted"),
    ],
)
def test_what_gets_through_or_is_forgotten_is_a_failure(tried: dict[str, list[str]], through: dict[str, str], words: str) -> None:
    whole = {kind: ["one"] * number for kind, number in TABLE.places["task"].items() if number}
    TABLE.judge("task", f"{json.dumps(whole)}\n{{}}")
    with pytest.raises(AssertionError, match=words):
        TABLE.judge("task", f"{json.dumps({**whole, **tried})}\n{json.dumps(through)}")
    with pytest.raises(AssertionError, match="left out"):
        TABLE.judge("build", f"{json.dumps({**whole, 'network': ['one'] * 6})}\n{{}}")


def test_the_attempts_succeed_where_nothing_is_hidden_or_limited(tmp_path: Path) -> None:
    """An attack that fails everywhere shows nothing. Still in namespaces of its own: what harms the machine is not tried."""
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    for name in ("token", "journal", "log"):
        (tmp_path / name).write_text("x")
    (tmp_path / "private").mkdir()
    (tmp_path / "scratch").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener, socket.create_server(("127.0.0.1", 0)) as port:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        files = {"token and secret": "token", "another's spool": "journal", "another's log": "log"}
        about = {
            **NOTHING,
            **outside(),
            "files": {kind: [str(tmp_path / name)] for kind, name in files.items()},
            "directories": [str(tmp_path)],
            "scratch": [str(tmp_path / "scratch")],
            "sockets": [str(tmp_path / "s")],
            "addresses": [["127.0.0.1", port.getsockname()[1]]],
            "devices": ["/dev/null"],
            "deputies": [["/bin/true"]],
            "writable": str(tmp_path),
            "memory": 1024**2,
            "process_limit": 100,
        }
        walls = Walls(binds=(Bind(str(tmp_path), writable=True),), temporary=str(tmp_path / "private"), nests=True)
        code, said = run_inside(walls, [os.path.realpath(sys.executable), "-I", "-c", ATTACKS, json.dumps(about)])
    assert code == 0, said
    through = json.loads(said.splitlines()[-1])
    assert {name.partition(":")[0] for name in through} >= {
        *files,
        *("directories", "planted links", "scratch takeover", "sockets", "loopback", "device not leased", "the deputy"),
        *("full disk", "fork bomb", "namespaces"),
    }, through


@pytest.mark.gate
def test_no_trick_gets_out(tmp_path: Path) -> None:
    """One way through; the places of the table have these attempts in a lab."""
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    for name in ("home", "work", "private"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "token").write_text("x")
    with victims() as found:
        about = {
            **found.about(),
            "files": {"token and secret": [str(tmp_path / "home" / "token")]},
            "directories": [str(tmp_path / "home")],
            "hidden": [str(tmp_path / "home"), "/run"],
            "own": [str(tmp_path / "work")],
            "writable": str(tmp_path / "work"),
            "closed": True,
            "memory": 1024**2,
            "pipe_is_the_labs": False,
        }
        walls = Walls(
            hidden=(str(tmp_path / "home"), "/run", "/var/tmp", "/var/spool", "/sys/firmware"),
            frozen=("/etc", "/etc/security"),
            binds=(*map(Bind, {sys.prefix, sys.base_prefix}), Bind(str(tmp_path / "work"), writable=True)),
            temporary=str(tmp_path / "private"),
            shared_memory=1024**2,
            doors=(),
        )
        code, said = run_inside(walls, [os.path.realpath(sys.executable), "-I", "-c", HOSTILE, json.dumps(about)])
    assert code == 0, said
    tried, through = map(json.loads, said.splitlines()[-2:])
    assert set(tried) >= set(KINDS) - {
        "another's spool",
        "another's log",
        "broker",
        "loopback",
        "the deputy",
        "fork bomb",
        "sockets",
    }
    assert set(through) == {f"directories: list {tmp_path / 'home'}"} & set(through), through


#: What a process of the same Unix user may do to the neighbour where nothing is between them.
TAKE = """
import ctypes, json, os, socket, sys
about, libc = json.loads(sys.argv[1]), ctypes.CDLL(None)
assert libc.shmget(0, 4096, 0o1600) >= 0 and libc.shmctl(about["segment"], 2, ctypes.create_string_buffer(128)) == 0
assert libc.mq_open(about["queue"].encode(), os.O_RDONLY) >= 0
socket.socket(socket.AF_UNIX).connect("\\0" + about["abstract"])
"""


def test_what_the_tricks_take_is_there_to_be_taken() -> None:
    with victims() as found:
        subprocess.run([sys.executable, "-I", "-c", TAKE, json.dumps(found.has)], check=True)
