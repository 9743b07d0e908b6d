"""What a runner does before a session starts: have its environment ready, or say why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.launch import LaunchWalls
from carrel.node.environments.guards import OpenGuard
from carrel.node.environments.named import making
from carrel.node.environments.named.holding import storage
from carrel.node.environments.named.making import Work
from carrel.node.environments.named.records import Kind
from carrel.node.environments.named.store import NamedEnvironments


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnvironment:
    """The environment in which a session's kernels run."""

    #: Its `bin/python` has ipykernel.
    prefix: Path
    #: Implementation and exact version ("cpython-3.11.7").
    python: str
    #: What is installed now; "" never.
    lock: str
    #: Open for as long as the session uses it (the end of the process will do): it is then neither removed nor replaced. None
    #: for a prefix that is no environment of the lab's.
    hold: OpenGuard | None = field(default=None, repr=False, compare=False)


def _never() -> bool:
    return False


def prepare_session_environment(
    root: Path,
    owner: str,
    name_or_path: str,
    report: Callable[[str], None],
    deadline: float | None = None,
    stop: Callable[[], bool] = _never,
    log: Path | None = None,
    walls: LaunchWalls | None = None,
    default: str = "",
) -> SessionEnvironment:
    """Return the environment of a session of `owner`, made now if it is one that is made on first use.

    `root` is the lab's directory of environments. `name_or_path` is a name ("default", "torch", "ada/torch", "site/torch") or
    the absolute path of a virtual environment or conda prefix, which is used as it is. `report` gets short lines for the
    owner, `deadline` is by `time.monotonic`, `stop` is asked at least every 0.2 s, `log` gets what the tools say,
    `walls` is what they do not see of the machine, `default` what "default" is for who has none (`SessionSpec.default`).

    Raises `EnvironmentFailed`, `EnvironmentTimeout`, `EnvironmentStopped`, `StorageFull`, `NotFound`, `Conflict`, `Invalid`.
    """
    environments = NamedEnvironments(root, walls=lambda _owner: walls)
    work = Work(report=report, deadline=deadline, stop=stop, log=log)
    environments.check_room(owner, "the session")
    if name_or_path.startswith("/"):
        found = environments.look_at(owner, Path(name_or_path), work)
        return SessionEnvironment(prefix=found.prefix, python=found.python, lock=_installed(environments, found.prefix))
    opened = environments.open(owner, name_or_path, work, default)
    try:
        prefix, record = environments.make_usable(opened, work), opened.record
        if record.kind is Kind.REFERENCE:
            return SessionEnvironment(
                prefix=prefix, python=record.python, lock=_installed(environments, prefix), hold=opened.hold
            )
        lock = environments.lock(owner, record.name)
        return SessionEnvironment(prefix=prefix, python=record.python, lock=lock.text, hold=opened.hold)
    except BaseException:
        opened.hold.close()
        raise


def _installed(environments: NamedEnvironments, prefix: Path) -> str:
    with storage(environments.layout):
        return making.installed(prefix)
