"""The table of attempts to get out is whole: each kind in each place, or a reason why not."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from carrel.node.containment.walls import Bind, Walls
from support.attacks import ATTACKS, KINDS, NOTHING
from support.escapes import FEWEST, read_table
from support.inside import outside, run_inside
from support.namespaces import why_no_namespaces

TABLE = read_table(Path(__file__).with_name("escapes.txt"))


@pytest.mark.quick
def test_each_kind_is_attempted_in_each_place_or_left_out_with_a_reason() -> None:
    assert set(TABLE.places) == {"task", "notebook", "terminal", "build", "staging", "image", "cluster"}
    for place, kinds in TABLE.places.items():
        assert tuple(kinds) == KINDS, place
        assert all(number is None or number > 0 for number in kinds.values()), place
        assert sum(number or 0 for number in kinds.values()) >= FEWEST, place
    assert all(reason for reason in TABLE.reasons.values())
    assert {kind for kind in KINDS if f'attempt("{kind}"' in ATTACKS or kind in ATTACKS} | {
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
