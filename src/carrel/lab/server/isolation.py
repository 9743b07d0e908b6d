"""What jobs on the lab's own machine do not see of it (`isolation`)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import carrel
from carrel.core.domain.errors import Conflict, Impossible, Invalid
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.launch import LaunchWalls, PreparingLimits
from carrel.core.domain.network import Network, read_network
from carrel.core.domain.user import directory_name
from carrel.core.spool import Spool
from carrel.core.spool.foreign import parse_json, read_regular
from carrel.core.submission.own_name import own_name
from carrel.lab.server.home import LabHome
from carrel.lab.server.private_files import closed_to_others, directories_of, look, named_in, own_homes
from carrel.node.containment.frozen import is_small
from carrel.node.containment.trial import Trial, try_python, try_walls
from carrel.node.containment.walls import Bind, Isolation, Walls
from carrel.node.environments.records import write_text

#: Where programs of the machine keep their sockets and what belongs to others.
_ALWAYS_HIDDEN = ("/run", "/var/tmp", "/var/spool", "/var/mail")
#: What programs look for there all the same.
_NEEDED = ("/run/systemd/resolve", "/run/nvidia-persistenced", "/run/resolvconf", "/run/NetworkManager/resolv.conf")
#: What root alone may read of the machine, and every job of a lab that runs as root could: files, and directories of the kernel.
_OF_ROOT = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-"),
    *("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware", "/sys/fs/pstore", "/sys/fs/bpf"),
    "/sys/devices/virtual/powercap",
)
#: Jobs have others, or these are not made of files; nor is the root frozen.
_NEVER_FROZEN = ("/dev", "/proc", "/sys", "/tmp")
#: How far a lab looks for private files when it starts, and how far `carrel doctor` does.
_look = partial(look, levels=4, seconds=1.0, entries=100_000)
_look_longer = partial(look, levels=6, seconds=10.0, entries=1_000_000)
#: How many of them it hides, and how many seconds it waits for a disk that may be away.
_MOST, _PATIENCE = 200, 2.0

_TRUST, _OTHER_MACHINE = "Or, where everybody may be trusted with the whole lab, say so", "Use a machine that can."
#: Bytes of a job's launch file.
_LAUNCH = 64 * 1024**2
_NETWORKS = {
    Network.ON: "this machine's, which they share",
    Network.LOOPBACK: "each its own loopback, and the lab",
    Network.OFF: "each its own loopback, not the lab either",
}


def check_isolation(text: str | None, network: str) -> None:
    """Raise `Invalid` unless the setting is one of `Isolation`, or absent, and `job_network` goes with it."""
    if text is not None and text not in list(Isolation):
        raise Invalid(f'isolation is "{text}".', remedy=f"It must be one of: {', '.join(Isolation)}.")
    if read_network(network, "job_network") is not Network.ON and text != Isolation.KERNEL:
        raise Invalid(
            f'job_network is "{network}", and isolation is not "kernel": nothing takes the network from jobs here.',
            remedy='Write isolation = "kernel" beside it, or leave job_network out.',
        )


def chosen_isolation(setting: str | None, home: LabHome, people: int) -> Isolation:
    """What holds in a lab that has had so many people: what `carrel.toml` says; else from two on, unless all may be trusted."""
    if setting is not None:
        return Isolation(setting)
    return Isolation.KERNEL if people > 1 and not home.trusted.exists() else Isolation.NONE


class LabIsolation:
    """Whether this lab's jobs are kept apart; called with an owner, it says what their jobs do not see.

    What `carrel.toml` says holds. Where it says nothing a lab of one person goes without, and begins to keep jobs apart when a
    second person is added. That all may be trusted a file in its home remembers.
    """

    def __init__(
        self, home: LabHome, settings: Mapping[str, Any], preparing: PreparingLimits, secrets: Iterable[str], people: int
    ) -> None:
        """`secrets` as `LocalWalls` has them; `people`: how many the lab has had.

        Raise `Impossible` when this machine cannot keep jobs apart, and should.
        """
        setting, network = settings["isolation"], Network(settings["job_network"])
        self._home, self._setting, self._network = home, setting, network
        self._make = partial(LocalWalls, home, network, settings["process_limit"], preparing, tuple(secrets))
        self._walls: LocalWalls | None = None
        #: True from the moment when it begins, until that was told.
        self._begun = False
        self._tried = Trial()
        self._trial: threading.Thread | None = None
        if chosen_isolation(setting, home, people) is Isolation.KERNEL:
            trial = try_walls(network=network is not Network.ON)
            if trial.why_not:
                why = 'isolation is "kernel"' if setting else "this lab has several people, whose jobs are kept apart"
                trust = f'{_TRUST}: isolation = "none" in carrel.toml.'
                raise Impossible(
                    f"{why}, which does not work on this machine: {trial.why_not}",
                    remedy=trial.remedy if setting else f"{trial.remedy or _OTHER_MACHINE} {trust}",
                )
            self._walls = self._make()
        if setting != Isolation.NONE:
            self._trial = threading.Thread(target=self._try, daemon=True)
            self._trial.start()

    def _try(self) -> None:
        """See whether it works, or would, also for the lab's own Python: beside the lab's start, which need not wait for it."""
        self._tried = try_walls(network=self._network is not Network.ON) if self._walls is None else Trial()
        if not self._tried.why_not:
            self._tried = (self._walls or self._make()).try_python()

    def __call__(self, owner: str) -> LaunchWalls | None:
        """What jobs of an owner do not see; None: all that the lab sees."""
        return self._walls(owner) if self._walls is not None else None

    @property
    def in_force(self) -> bool:
        """True when jobs are kept apart."""
        return self._walls is not None

    def begin(self, *, without: bool) -> None:
        """A second person comes: keep jobs apart from now on, or raise `Conflict`; `without`: all may be trusted from now on."""
        if self.in_force or self._setting is not None:
            return
        if without:
            write_text(self._home.trusted, "An administrator has said that all users may be trusted with the whole lab.\n")
            return
        trial = try_walls(network=self._network is not Network.ON)
        if trial.why_not:
            raise Conflict(
                "A second person's jobs could read everything of this lab, your token and files too, and act as you: keeping "
                f"jobs apart does not work on this machine. {trial.why_not}",
                remedy=f"{trial.remedy or _OTHER_MACHINE} {_TRUST}: --without-isolation.",
            )
        self._walls, self._begun = self._make(), True
        self._home.trusted.unlink(missing_ok=True)

    def tell(self, running: Sequence[Job]) -> str:
        """What an administrator who adds a person should know; `running` are the jobs on this machine."""
        if not self.in_force:
            return "Nothing keeps jobs apart on this machine: what they run can read the whole lab, and act as everybody."
        said = "Isolation begins: jobs and sessions that start from now on are kept apart by the kernel."
        said = said if self._begun else "Jobs and sessions are kept apart by the kernel."
        self._begun = False
        if why_not := self._tried.why_not:
            said += f" {why_not} Sessions do not start. {self._tried.remedy}"
        before = ", ".join(str(job.id) for job in sorted(running, key=lambda job: job.id) if not self._is_apart(job))
        said += f" Not yet what runs already: until it ends it sees all that the lab sees (job {before})." if before else ""
        if self._network is Network.ON:
            said += " Jobs share this machine's network, and reach what listens here (job_network)."
        return said

    def _is_apart(self, job: Job) -> bool:
        try:
            launch = parse_json(read_regular(Spool(self._home.spool).attempt(job.id, job.attempt).launch, _LAUNCH))
        except (OSError, ValueError):  # it has not been written yet, or is no more as the lab wrote it
            return job.state is JobState.CONFIGURING
        return isinstance(launch, dict) and launch.get("walls") is not None

    def describe(self, people: int) -> tuple[str, str]:
        """What an administrator should know: a line, and what can be done ("": nothing)."""
        if self._trial is not None:
            self._trial.join()
        tried = self._tried
        if self.in_force:
            fact = f"jobs are kept apart by the kernel; their network: {_NETWORKS[self._network]}"
            return (fact, "") if not tried.why_not else (f"{fact}. {tried.why_not} Sessions do not start", tried.remedy)
        own = own_name()
        if people <= 1 and tried.why_not:
            fact = f"none; jobs run as {own}. A second person cannot have walls on this machine: {tried.why_not.rstrip('.')}"
            return fact, tried.remedy
        if people <= 1:
            return f"none; jobs run as {own}. It begins by itself when a second person is added", ""
        fact = f"none, for {people} people: what any of them runs can read the whole lab, and act as everybody"
        if self._setting == Isolation.NONE:
            return fact, "carrel.toml says so"
        return fact, 'an administrator said --without-isolation; isolation = "kernel" in carrel.toml and another start end it'


#: Paths without links, and directories.
_Where = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Covers:
    """What the jobs of some do not see."""

    #: From what it follows.
    where: _Where
    #: Without what lies in a directory that is hidden, too, unless it can be seen there again.
    hidden: tuple[str, ...]
    frozen: tuple[str, ...]


class LocalWalls:
    """Made once for a lab."""

    def __init__(
        self,
        home: LabHome,
        network: Network = Network.ON,
        processes: int = 0,
        preparing: PreparingLimits | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        """`secrets` are names of files and directories of the lab's own, wherever they are, and wherever they lead later."""
        self._network, self._processes, self._preparing = network, processes, preparing or PreparingLimits()
        self._homes = home.path / "homes"
        self._own = own_name()
        self._own_home = os.path.realpath(Path.home())
        closed = [home.path, home.run, *home.parts.values()]
        self._closed = (*(os.path.realpath(path) for path in closed), *_ALWAYS_HIDDEN)
        self._secrets = (*secrets, *(_OF_ROOT if os.geteuid() == 0 else ()))
        prefixes = (sys.prefix, sys.base_prefix, *_NEEDED)
        lab = [*map(Path, prefixes), Path(carrel.__file__).parent, *_residency(), *_pythons(), home.environments / "pythons"]
        self._readable = tuple(dict.fromkeys(os.path.realpath(path) for path in lab if os.path.exists(path)))  # noqa: PTH110 - or another user's
        #: What belongs to the person who runs the lab, and their own jobs may see: what is named, or a part of the system, and
        #: what lies among the data of the machine.
        self._named = tuple(closed_to_others(named_in(os.environ)))
        found = self._found()
        self._named += tuple(path for path in found if path.startswith("/etc/"))
        self._private = (*own_homes(), *found)
        #: What jobs of the lab's own user do not see (True), and others' (False), as of the last launch.
        self._known = {own: self._covers(self._where(own=own), own=own) for own in (True, False)}

    def _found(self) -> list[str]:
        found: list[str] = []

        def find() -> None:
            passed = [*self._closed, *own_homes(), *map(os.path.realpath, (*self._secrets, *self._named))]
            found.extend(_look(passed).private[:_MOST])

        thread = threading.Thread(target=find, daemon=True)
        thread.start()
        thread.join(_PATIENCE)
        return found

    def __call__(self, owner: str) -> LaunchWalls:
        """The lab's own user keeps their home; everybody else has one in the lab."""
        own = owner == self._own
        where = self._where(own=own)
        if self._known[own].where != where:
            self._known[own] = self._covers(where, own=own)
        return LaunchWalls(
            hidden=self._known[own].hidden,
            frozen=self._known[own].frozen,
            readable=self._readable,
            home=self._own_home if own else str(self._homes / (directory_name(owner) if owner else "@site")),
            network=self._network,
            processes=self._processes,
            preparing=self._preparing,
        )

    def _where(self, *, own: bool) -> _Where:
        """Where the names lead, and the directories in which that can change. Keys are renewed: it is asked at each launch."""
        names = self._secrets if own else (*self._secrets, *self._named)
        return tuple(map(os.path.realpath, names)), tuple(place for name in names for place in directories_of(name))

    def _covers(self, where: _Where, *, own: bool) -> _Covers:
        paths, directories = where
        every = dict.fromkeys((*self._closed, *paths, *(() if own else self._private)))
        hidden = tuple(path for path in every if is_below(path, self._readable) or not is_below(path, every))
        # In their home their own jobs write.
        never = (*_NEVER_FROZEN, *hidden, *([self._own_home] if own else ()))
        frozen = dict.fromkeys(path for path in directories if path != "/" and not is_below(f"{path}/", never))
        return _Covers(where, hidden, tuple(frozen))

    def try_python(self) -> Trial:
        """Try whether what others' jobs see is enough for the lab's own Python."""
        seen = self("")
        return try_python(Walls(hidden=seen.hidden, frozen=seen.frozen, binds=tuple(map(Bind, seen.readable)), temporary=""))

    def left(self) -> Sequence[str]:
        """What a longer look finds that others' jobs can read, and not all users of the machine."""
        hidden = self("").hidden
        found = _look_longer(hidden)
        return [path for path in (*found.private, *found.shared) if not is_below(path, hidden)]

    def loose(self) -> Sequence[str]:
        """Files of which others' jobs that run already see the next one, when it is renamed to the place of this one."""
        walls = self("")
        kept = {directory for directory in walls.frozen if is_small(directory)}
        return [path for path in walls.hidden if os.path.isfile(path) and str(Path(path).parent) not in kept]  # noqa: PTH113


def is_below(path: str, directories: Iterable[str]) -> bool:
    """True when a path lies in one of the directories."""
    return any(path.startswith(f"{directory}/") for directory in directories)


def _residency() -> list[Path]:
    try:
        import carrel_residency
    except ImportError:
        return []
    return [Path(carrel_residency.__file__).parent]


def _pythons() -> list[Path]:
    """Where uv puts the Pythons that it fetches, and pyenv those that it builds."""
    own = os.environ.get("UV_PYTHON_INSTALL_DIR")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    return [
        Path(own) if own else Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "uv" / "python",
        pyenv,
    ]
