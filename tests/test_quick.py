"""`make quick` runs what needs no server: all of it, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import quick

REPOSITORY = quick.TESTS.parent
#: What starts one without a fixture.
STARTERS = ("start_lab(", "start_broker(", "SlurmSite(", "TestKernel(", "LocalEngine(")


@pytest.fixture(scope="module")
def collected() -> Counter[Path]:
    """How many quick tests each file has."""
    words = [sys.executable, "-m", "pytest", "--quick", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # a run's own, such as -v
    said = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    return Counter(REPOSITORY / line.partition("::")[0] for line in said.splitlines() if "::" in line)


@pytest.mark.slow
def test_every_room_without_servers_is_in_it_and_nothing_that_starts_one(collected: Counter[Path]) -> None:
    rooms = {path.name for path in quick.TESTS.iterdir() if any(path.glob("test_*.py"))} - quick.ROOMS_WITH_SERVERS
    assert rooms >= {"control", "devices", "policy", "simulate", "snapshots", "spool", "store", "tasks"}
    assert rooms <= {path.relative_to(quick.TESTS).parts[0] for path in collected}
    assert sum(collected.values()) > 1500
    marked = [
        path for room in quick.ROOMS_WITH_SERVERS for path in (quick.TESTS / room).glob("test_*.py") if quick.may_hold_some(path)
    ]
    assert set(marked) <= set(collected), "each file that says it is quick has quick tests"
    for path in collected:
        text = path.read_text()
        assert not [name for name in STARTERS if name in text], f"{path} starts servers, and is run by `make quick`"


HELD = """
import sys
sys.path.insert(0, {tests!r})
import quick
quick.hold_to_it()
"""
SERVER = """
import socket, subprocess, sys
def test_a_server():
    {line}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "socket.create_server(('127.0.0.1', 0)).close()",
        "subprocess.run([sys.executable, '-m', 'carrel.cli.main', 'up', '--help'])",
    ],
)
def test_a_quick_test_that_starts_a_server_fails_and_says_where_it_belongs(tmp_path: Path, line: str) -> None:
    (tmp_path / "conftest.py").write_text(HELD.format(tests=str(quick.TESTS)))
    (tmp_path / "test_new.py").write_text(SERVER.format(line=line))
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "ROOMS_WITH_SERVERS" in done.stdout
