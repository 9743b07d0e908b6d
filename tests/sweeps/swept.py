"""Tasks of sweeps, as a user would write them, and what tests do with sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import carrel
from carrel import Client
from carrel.testing.waiting import wait_until
from carrel.wire import v1

SOURCE = Path(carrel.__file__).parents[1]
_HEAD = f"""
import argparse, os, sys, time
sys.path.insert(0, {str(SOURCE)!r})
import carrel
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("x", "n", "c", "flags"):
    parser.add_argument("--" + name)
given = parser.parse_args()
trial = int(os.environ.get("CARREL_TRIAL", 0))
flags = Path(given.flags) if given.flags else None


def wait_for(name):
    while not (flags / name).exists():
        time.sleep(0.02)


"""
#: Small, so that many run at once.
RESOURCES = v1.ResourceRequest(memory="128M", cpus=1)


def task(directory: Path, body: str, name: str = "train.py") -> Path:
    """A bare script with this body."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(_HEAD + body)
    return directory / name


def sweep(client: Client, target: Path, distributions: dict[str, str], **more: Any) -> v1.SweepDetail:
    """Start a sweep."""
    options = {"metric": "loss", "parallel": 4, "trials": 4} | more.pop("options", {})
    return client.sweep_project(
        target, distributions=distributions, options=options, packed=lambda _travelling: None, resources=RESOURCES, **more
    )


def wait_for_sweep(
    client: Client, sweep_id: int, holds: Callable[[v1.SweepDetail], bool] = lambda one: one.state != "RUNNING"
) -> v1.SweepDetail:
    """The sweep as soon as this holds of it."""
    found: list[v1.SweepDetail] = []

    def there() -> bool:
        found[:] = [client.sweep(sweep_id)]
        return holds(found[0])

    wait_until(there)
    return found[0]
