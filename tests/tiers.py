"""The tiers of the tests: which tests `make quick`, `make test` and `make test-all` run.

* **quick**: every test that starts no server and does not take long, with few random examples. They are held to it in every tier.
* **gate**: those, with more examples, and one way through each ability with the real programs: tests that say `pytest.mark.gate`.
* **all**: every test but those of `make soak`.

A new directory or file is quick, unless its directory is one of `ROOMS_WITH_SERVERS`. In those, a file that needs no server says
`pytestmark = pytest.mark.quick`; elsewhere, a test that takes long says `pytest.mark.slow`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

#: Each tier, and how many random examples its tests try, as a part of those that they name.
TIERS = {"quick": 0.05, "gate": 0.2, "all": 1.0}

#: Here a test has a lab, an engine, a broker, a kernel, a cluster or a page before it, unless it says otherwise.
ROOMS_WITH_SERVERS = frozenset(
    [
        "broker",
        "challenges",
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
        "nginx",
        "node",
        "pg_ctl",
        "postgres",
        "slurmctld",
        "slurmd",
        "slurmdbd",
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


def belongs(item: pytest.Item, tier: str) -> bool:
    """Return whether a test belongs to a tier."""
    return tier == "all" or is_quick(item) or (tier == "gate" and item.get_closest_marker("gate") is not None)


def may_hold_some(path: Path, tier: str) -> bool:
    """Return whether a file may hold tests of a tier; a file that holds none is not even imported."""
    room = path.relative_to(TESTS).parts[0]
    if tier == "all" or path.is_dir() or room not in ROOMS_WITH_SERVERS:
        return True
    text = path.read_text()
    return "mark.quick" in text or (tier == "gate" and "mark.gate" in text)


def select(config: pytest.Config, items: list[pytest.Item], tier: str) -> None:
    """Leave only the tests of a tier among `items`."""
    left_out = [item for item in items if not belongs(item, tier)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if belongs(item, tier)]


def hold_to_it(test: Callable[[], bool] = lambda: True) -> None:
    """From now on, while `test` says so, a test of this process that starts a server fails at that moment."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("socket.bind", "subprocess.Popen") or not test():
            return
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
        f"A quick test {what}. Tests that need a server belong to a directory in tests/tiers.py (ROOMS_WITH_SERVERS), or say "
        "pytest.mark.slow."
    )
