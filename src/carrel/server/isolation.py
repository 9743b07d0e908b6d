"""What jobs on the lab's own machine do not see of it (`isolation`)."""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import carrel
from carrel.containment.trial import attack, try_walls
from carrel.containment.walls import Bind, Isolation, Walls
from carrel.domain.errors import Impossible, Invalid
from carrel.domain.launch import LaunchWalls
from carrel.domain.user import directory_name
from carrel.server.home import LabHome

#: Where programs of the machine keep their sockets and what belongs to others.
_ALWAYS_HIDDEN = ("/run", "/var/tmp", "/var/spool", "/var/mail")
#: What programs look for there all the same.
_NEEDED = ("/run/systemd/resolve", "/run/nvidia-persistenced", "/run/resolvconf", "/run/NetworkManager/resolv.conf")


def check_isolation(text: str) -> None:
    """Raise `Invalid` unless the setting is one of `Isolation`."""
    if text not in list(Isolation):
        raise Invalid(f'isolation is "{text}".', remedy=f"It must be one of: {', '.join(Isolation)}.")


def walls_for(home: LabHome, isolation: str) -> Callable[[str], LaunchWalls | None]:
    """Say for an owner what their jobs do not see. Raises `Impossible` when this machine cannot keep them apart."""
    if isolation == Isolation.NONE:
        return lambda _owner: None
    trial = try_walls()
    if trial.why_not:
        raise Impossible(f'isolation is "{isolation}", which does not work on this machine: {trial.why_not}', remedy=trial.remedy)
    return LocalWalls(home)


class LocalWalls:
    """Made once for a lab."""

    def __init__(self, home: LabHome) -> None:
        self._homes = home.path / "homes"
        self._own = getpass.getuser()
        self._own_home = os.path.realpath(Path.home())
        closed = [home.path, home.run, *home.parts.values()]
        self._closed = tuple(dict.fromkeys([*(os.path.realpath(path) for path in closed), *_ALWAYS_HIDDEN]))
        prefixes = (sys.prefix, sys.base_prefix, *_NEEDED)
        lab = [*map(Path, prefixes), Path(carrel.__file__).parent, *_residency(), *_pythons()]
        self._readable = tuple(dict.fromkeys(os.path.realpath(path) for path in lab if path.exists()))

    def __call__(self, owner: str) -> LaunchWalls:
        """The lab's own user keeps their home; everybody else has one in the lab."""
        if owner == self._own:
            return LaunchWalls(hidden=self._closed, readable=self._readable, home=self._own_home)
        place = self._homes / directory_name(owner)
        return LaunchWalls(hidden=(*self._closed, self._own_home), readable=self._readable, home=str(place))


def _residency() -> list[Path]:
    try:
        import carrel_residency
    except ImportError:
        return []
    return [Path(carrel_residency.__file__).parent]


def _pythons() -> list[Path]:
    """Where uv puts the Pythons that it fetches."""
    own = os.environ.get("UV_PYTHON_INSTALL_DIR")
    return [Path(own) if own else Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "uv" / "python"]


def attack_walls(home: LabHome) -> dict[str, str]:
    """Try to get at the lab from behind the walls that a stranger's job has; return what got through. Raises `OSError`."""
    seen = LocalWalls(home)("somebody who is not there")
    with tempfile.TemporaryDirectory(prefix="carrel-attack-") as temporary:
        walls = Walls(hidden=seen.hidden, binds=tuple(Bind(path) for path in seen.readable), temporary=temporary)
        secrets = [path for path in (home.token, home.path / "secret", home.settings, home.database) if path.exists()]
        return attack(
            walls,
            secrets=[os.path.realpath(path) for path in secrets],
            processes=[os.getpid(), os.getppid()],
            devices=["/dev/mem", "/dev/kmsg", "/dev/nvidia0", "/dev/nvidiactl"],
        )
