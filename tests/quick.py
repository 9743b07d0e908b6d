"""What `make quick` runs: every test that starts no server. `pytest --quick` selects them and holds them to it.

A new directory or file belongs to them, unless its directory is one of `ROOMS_WITH_SERVERS`. In those, a file that needs no
server says `pytestmark = pytest.mark.quick`; elsewhere, one that takes long says `pytest.mark.slow`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

#: Here a test has a lab, an engine, a broker, a kernel, a cluster or a page before it, unless it says otherwise.
ROOMS_WITH_SERVERS = frozenset(
    [
        "broker",
        "cli",
        "client",
        "containment",
        "engines",
        "environments",
        "executor",
        "gateway",
        "hook",
        "hub",
        "jupyter",
        "leases",
        "portal",
        "promote",
        "proxy",
        "residency",
        "runner",
        "server",
        "signin",
        "slurm",
        "staging",
        "submitit",
        "suspension",
        "sweeps",
        "tracking",
    ]
)
#: What says of a test that it is not quick, wherever it is.
NOT_QUICK = ("slow", "mlflow", "chaos", "soak", "browser", "heavy", "hub", "slurm")
#: Programs of servers, by the last part of a word of their command line.
SERVERS = frozenset(
    [
        "carrel.node.broker",
        "carrel.cli.main",
        "carrel.notebooks.jupyter",
        "chromium",
        "configurable-http-proxy",
        "ipykernel_launcher",
        "initdb",
        "jupyter",
        "mariadbd",
        "mlflow",
        "munged",
        "node",
        "pg_ctl",
        "postgres",
        "slurmctld",
        "slurmd",
        "slurmdbd",
        "slurmrestd",
        "uvicorn",
    ]
)


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test belongs to `make quick`."""
    if any(item.get_closest_marker(name) for name in NOT_QUICK):
        return False
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("database_url") == "postgresql":
        return False
    room = item.path.relative_to(TESTS).parts[0]
    return room not in ROOMS_WITH_SERVERS or item.get_closest_marker("quick") is not None


def may_hold_some(path: Path) -> bool:
    """Return whether a file may hold quick tests; one that does not is not even imported."""
    room = path.relative_to(TESTS).parts[0]
    return path.is_dir() or room not in ROOMS_WITH_SERVERS or "pytest.mark.quick" in path.read_text()


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the quick ones among `items`."""
    left_out = [item for item in items if not is_quick(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_quick(item)]


def hold_to_it() -> None:
    """From now on, a test of this process that starts a server fails at that moment."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.bind" and arguments[1]:
            _refuse(f"listens at {arguments[1]!r}")
        if event == "subprocess.Popen":
            words = [str(word) for word in arguments[1]] if isinstance(arguments[1], (list, tuple)) else [str(arguments[1])]
            served = [word for word in (str(arguments[0]), *words) if Path(word).name in SERVERS]
            if served:
                _refuse(f"starts {served[0]}")

    sys.addaudithook(hear)


def _refuse(what: str) -> None:
    raise RuntimeError(
        f"A quick test {what}. Tests that need a server belong to a directory in tests/quick.py (ROOMS_WITH_SERVERS), or say "
        "pytest.mark.slow."
    )
