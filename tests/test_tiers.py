"""`make quick` runs what needs no server: all of it, and nothing else. A test that fails is looked at twice by `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tiers

REPOSITORY = tiers.TESTS.parent
#: What starts one without a fixture.
STARTERS = ("start_lab(", "start_broker(", "SlurmSite(", "TestKernel(", "LocalEngine(")


@pytest.fixture(scope="module")
def collected() -> Counter[Path]:
    """How many quick tests each file has."""
    words = [sys.executable, "-m", "pytest", "--tier", "quick", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # a run's own, such as -v
    said = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    return Counter(REPOSITORY / line.partition("::")[0] for line in said.splitlines() if "::" in line)


@pytest.mark.slow
def test_every_room_without_servers_is_in_it_and_nothing_that_starts_one(collected: Counter[Path]) -> None:
    rooms = {path.name for path in tiers.TESTS.iterdir() if any(path.glob("test_*.py"))} - tiers.ROOMS_WITH_SERVERS
    assert rooms >= {"control", "devices", "policy", "simulate", "snapshots", "spool", "store", "tasks"}
    assert rooms <= {path.relative_to(tiers.TESTS).parts[0] for path in collected}
    assert sum(collected.values()) > 1500
    marked = [
        path
        for room in tiers.ROOMS_WITH_SERVERS
        for path in (tiers.TESTS / room).glob("test_*.py")
        if tiers.may_hold_some(path, "quick")
    ]
    assert set(marked) <= set(collected), "each file that says it is quick has quick tests"
    for path in collected:
        text = path.read_text()
        assert not [name for name in STARTERS if name in text], f"{path} starts servers, and is run by `make quick`"


def pytest_in(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a directory, with nothing of ours."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(directory), *words]
    return subprocess.run([*command, str(directory)], cwd=directory, capture_output=True, text=True, check=False)


HELD = """
import sys
sys.path.insert(0, {tests!r})
import tiers
tiers.hold_to_it()
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
    (tmp_path / "conftest.py").write_text(HELD.format(tests=str(tiers.TESTS)))
    (tmp_path / "test_new.py").write_text(SERVER.format(line=line))
    done = pytest_in(tmp_path, "-q")
    assert done.returncode == 1, done.stdout
    assert "ROOMS_WITH_SERVERS" in done.stdout


FLAWED = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", ["a", "b@c", "d", "e"])
def test_fails(name):
    seen = Path({directory!r}) / name
    runs = int(seen.read_text()) + 1 if seen.exists() else 1
    seen.write_text(str(runs))
    if runs <= {failures}.get(name, 0):
        os._exit(3) if {crash} else pytest.fail("flawed")
"""


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.parametrize(
    ("failures", "crash", "code", "said"),
    [
        ({"a": 1, "b@c": 1}, False, 0, "unsteady: test_flawed.py::test_fails[b@c]"),
        ({"a": 1, "d": 2}, False, 1, "red: a test failed twice."),
        ({"a": 1, "b@c": 1, "d": 1, "e": 1}, False, 1, "4 tests failed. Up to 3"),
        ({"a": 1, "b@c": 1, "e": 1}, True, 0, "unsteady: test_flawed.py::test_fails[b@c]"),
        ({"d": 2}, True, 1, "red: a test failed twice."),
    ],
)
def test_what_fails_is_run_once_more_alone(tmp_path: Path, failures: dict[str, int], crash: bool, code: int, said: str) -> None:
    (tmp_path / "test_flawed.py").write_text(FLAWED.format(directory=str(tmp_path), failures=failures, crash=crash))
    plugin = f"import sys\nsys.path.insert(0, {str(tiers.TESTS)!r})\nimport crashed_workers\nimport second_look\n\n\n"
    plugin += "def pytest_xdist_make_scheduler(config, log):\n    return crashed_workers.Scheduling(config, log)\n\n\n"
    plugin += "def pytest_configure(config):\n"
    plugin += "    if not hasattr(config, 'workerinput') and config.getoption('--look'):\n"
    plugin += "        config.pluginmanager.register(second_look.SecondLook())\n\n\ndef pytest_addoption(parser):\n"
    plugin += "    parser.addoption('--look', action='store_true')\n"
    (tmp_path / "conftest.py").write_text(plugin)
    done = pytest_in(tmp_path, "-n", "1", "--dist", "loadgroup", "--look")
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout
    runs = {name: int((tmp_path / name).read_text()) for name in ("a", "b@c", "d", "e")}
    again = set(failures) if len(failures) < 4 else set()
    assert runs == {name: 2 if name in again else 1 for name in runs}
