"""What the lab asks of a cluster's controller: messages a minute while jobs only run, and for each job on each path.

Messages are counted by the controller itself (sdiag(1)), on the cluster of the tests: those of the lab and of its deputies,
without those that Slurm's own daemons send when a job ends, which are the same for everybody. Counts do not depend on how busy
the machine is. As root, users' jobs run as those users, through deputies; otherwise there is the lab's own user alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrel.core.domain.array import ArrayElement
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.resources import Resources
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine, options_for
from carrel.engines.slurm.shared import SharedListing
from carrel.testing.builders import LabHome, make_launch
from figure import Figure
from support.slurm_site import PACKAGES, USERS, SlurmSite, missing_programs
from support.unix_users import common_ground, python_for_all, run_as

_SECONDS = 60.0
_MANY = 20
_ELEMENTS = 200
_PATIENCE = 300
_SHORT = Resources(cpus=1, memory=64 * 1024**2, time=60)
#: What this benchmark asks itself, and what Slurm's own daemons say of nodes and of jobs that end.
_NOT_COUNTED = re.compile(
    r"REQUEST_(STATS_INFO|PING|NODE_INFO.*|COMPLETE_BATCH_SCRIPT|STEP_COMPLETE)|MESSAGE_(NODE_REGISTRATION.*|EPILOG_COMPLETE)"
)


def measure(scratch: Path) -> list[Figure]:
    missing = missing_programs()
    if missing:
        print(f"  left out: {', '.join(missing)} not found. Debian: apt-get install {PACKAGES}", file=sys.stderr)
        return []
    with SlurmSite(nodes=2) as site, common_ground() as ground:
        return [*_at_rest(site, ground), *_for_each_job(site, scratch), *_for_each_element(site, scratch)]


def _messages(site: SlurmSite) -> dict[str, int]:
    text = site.run("sdiag").out.split("statistics by message type")[1].split("Remote Procedure Call")[0]
    found = re.findall(r"^\s*(\w+)\s+\(\s*\d+\)\s+count:(\d+)", text, re.MULTILINE)
    return {name: int(count) for name, count in found if not _NOT_COUNTED.fullmatch(name)}


def _more(site: SlurmSite, before: dict[str, int]) -> tuple[int, str]:
    """How many messages since, and of which kinds."""
    more = {name: count - before.get(name, 0) for name, count in _messages(site).items() if count > before.get(name, 0)}
    return sum(more.values()), ", ".join(f"{name} {count}" for name, count in sorted(more.items()))


# --- at rest ----------------------------------------------------------------------------------------------------------------


def _at_rest(site: SlurmSite, ground: Path) -> list[Figure]:
    """A job that runs for each user, and nothing else for a minute."""
    figures = []
    with contextlib.ExitStack() as stack:
        python = stack.enter_context(_python()) if os.geteuid() == 0 else None
        listing = SharedListing(SlurmCommands(environ=site.environ).listing)
        users = ["", *(USERS.values() if python is not None else ())]
        for number, user in enumerate(users, 1):
            home = LabHome(ground / f"lab{number}")
            home.root.mkdir()
            home.root.chmod(0o1777)
            if user:
                engine: Any = _deputy(site, home, user, python, listing)
            else:
                engine = SlurmEngine(
                    spool=home.spool, run_dir=home.run, lab="guest", environ=site.environ, listing=listing, user="root"
                )
            stack.callback(engine.close)
            ears = _Ears()
            engine.observe(ears.hear)
            engine.start(make_launch(home, "sleep 3600", resources=Resources(cpus=1, memory=64 * 1024**2, time=7200)), token="")
            ears.wait("Started", 1)
            if 1 < number < len(users):
                continue
            time.sleep(70)  # for a minute after a submission something new is expected
            before = _messages(site)
            time.sleep(_SECONDS)
            count, kinds = _more(site, before)
            name = f"messages a minute while jobs of {number} user{'s' if number > 1 else ''} run"
            figures.append(Figure(name=name, value=count * 60 / _SECONDS, unit="", spread=kinds, at_most=6))
    site.clear()
    return figures


@contextlib.contextmanager
def _python() -> Iterator[Path | None]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield python_for_all(Path(directory) / "python")


def _deputy(site: SlurmSite, home: LabHome, user: str, python: Path | None, listing: SharedListing) -> DeputyEngine:
    file = home.root / "deputy.toml"
    file.write_text(
        f'directory = "{home.root}/jobs"\n[environment]\nPATH = "{site.environ["PATH"]}"\nSLURM_CONF = "{site.layout.conf}"\n'
    )
    file.chmod(0o644)
    command = [*run_as(user), str(python), "-P", "-m", "carrel.engines.deputy.process", "--config", str(file)]
    home.run.mkdir(exist_ok=True)
    return DeputyEngine(
        user=user,
        command=command,
        lab="guest",
        spool=home.spool,
        snapshots=home.snapshots,
        blobs=home.blobs,
        log=home.run / "deputy.log",
        options=options_for,
        immediate=lambda _launch: False,
        listing=listing,
        environ=os.environ,
    )


# --- for each job -----------------------------------------------------------------------------------------------------------


def _for_each_job(site: SlurmSite, scratch: Path) -> list[Figure]:
    figures = []
    before = _messages(site)
    for _ in range(_MANY):
        site.submit("true", "--mem=64")
    count, kinds = _more(site, before)
    site.clear()
    figures.append(Figure(name=f"messages for each of {_MANY} jobs, sbatch by hand", value=count / _MANY, unit="", spread=kinds))
    before = _messages(site)
    for _ in range(_MANY):
        site.run("srun", "--mem=64", "true")
    count, kinds = _more(site, before)
    figures.append(Figure(name=f"messages for each of {_MANY} jobs, srun by hand", value=count / _MANY, unit="", spread=kinds))
    paths = (("batch path", False, 0.0), ("immediate path", True, 0.0), ("held allocations", True, 5.0))
    for path, immediate, hold in paths:
        for together in (True, False):
            value, kinds = _jobs(site, scratch / f"{path.split()[0]}{together}", immediate, hold, together=together)
            how = "at once" if together else "one after the other"
            name = f"messages for each of {_MANY} jobs {how}, {path}"
            figures.append(Figure(name=name, value=value, unit="", spread=kinds, at_most=2))
    return figures


def _jobs(site: SlurmSite, place: Path, immediate: bool, hold: float, *, together: bool) -> tuple[float, str]:
    place.mkdir()
    home = LabHome(place)
    engine = SlurmEngine(
        spool=home.spool,
        run_dir=home.run,
        lab=f"guest-{place.name}",
        environ=site.environ,
        immediate=lambda _launch: immediate,
        hold=lambda _launch: hold,
        user="root",
    )
    ears = _Ears()
    before = _messages(site)
    engine.observe(ears.hear)
    try:
        for number in range(1, _MANY + 1):
            engine.start(make_launch(home, "true", job_id=number, resources=_SHORT), token="")
            if not together:
                ears.wait("Ended", number)
        ears.wait("Ended", _MANY)
        time.sleep(hold + 5)
    finally:
        engine.close()
    count, kinds = _more(site, before)
    site.clear()
    return count / _MANY, kinds


def _for_each_element(site: SlurmSite, scratch: Path) -> list[Figure]:
    """An array by hand, by the lab, and as so many jobs: messages for each element, and elements a second."""
    figures = []
    before, began = _messages(site), time.monotonic()
    site.run("sbatch", f"--array=0-{_ELEMENTS - 1}", "--output=/dev/null", "--mem=64M", "--wrap", "true")
    until = began + _PATIENCE
    while site.run("squeue", "-h").out.strip() and time.monotonic() < until:
        time.sleep(0.2)
    more = _more(site, before)[1]
    figures += _elements("sbatch --array by hand", 1 / _ELEMENTS, more, time.monotonic() - began)
    for name, array in (("one array of Slurm's", True), ("a job for each", False)):
        place = scratch / f"elements{array}"
        place.mkdir()
        home = LabHome(place)
        engine = SlurmEngine(spool=home.spool, run_dir=home.run, lab=f"guest-{array}", environ=site.environ, user="root")
        ears = _Ears()
        engine.observe(ears.hear)
        before, began = _messages(site), time.monotonic()
        try:
            for launch in _array(home, array=array):
                engine.start(launch, token="")
            ears.wait("Ended", _ELEMENTS)
            seconds = time.monotonic() - began
        finally:
            engine.close()
        count, kinds = _more(site, before)
        figures += _elements(name, count / _ELEMENTS, kinds, seconds)
        site.clear()
    return figures


def _array(home: LabHome, *, array: bool) -> Iterator[Launch]:
    for index in range(_ELEMENTS):
        launch = make_launch(home, "true", job_id=index + 1, resources=_SHORT)
        element = ArrayElement(array_id=1, index=index, array=f"0-{_ELEMENTS - 1}") if array else None
        yield replace(launch, name="sweep", element=element, more_elements=array and index + 1 < _ELEMENTS)


def _elements(name: str, messages: float, kinds: str, seconds: float) -> list[Figure]:
    which = f"{_ELEMENTS} elements, {name}"
    return [
        Figure(name=f"{which}: messages for each", value=messages, unit="", spread=kinds, at_most=2),
        Figure(name=f"{which}: submitted to all done", value=_ELEMENTS / seconds, unit="jobs/s"),
    ]


class _Ears:
    """Counts what an engine tells."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heard: list[str] = []

    def hear(self, news: Sequence[Observation]) -> None:
        with self._changed:
            self._heard += [type(entry.record).__name__ for observation in news for entry in observation.entries]
            self._changed.notify_all()

    def wait(self, kind: str, many: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._heard.count(kind) >= many, _PATIENCE):
                raise TimeoutError(f"no {kind} within {_PATIENCE} s")
