"""Many small batch jobs through a whole lab on a cluster, against sbatch by hand on the same one, in turns.

The lab is as a site runs it: jobs are submitted over REST, each user has a deputy that submits them as that user, and every
task is a run in MLflow, whose process shares the machine. The rate is that of jobs, from the first submission until the lab's
event stream has told the end of the last; MLflow takes what it is told in its own time, which is measured beside it. The
processor's time of each process is what the kernel says at the end less what it said before (proc_pid_stat(5)); that of the
batch scripts, which are Slurm's children, is measured apart, without Slurm, until their runners could begin. Only as root: nobody
else may start deputies.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel import Client
from carrel.wire.v1 import ResourceRequest
from figure import Figure, median
from support.lab_process import LabProcess, start_lab
from support.slurm_site import PACKAGES, USERS, SlurmSite, missing_programs
from support.unix_users import common_ground, python_for_all

_MANY = 200
_ROUNDS = 3
#: How often a batch script is started for its processor time.
_STARTS = 25
_PATIENCE = 600
_TICKS = os.sysconf("SC_CLK_TCK")
_RULES = """
[partitions.cluster]
engine = "slurm"
slurm_partition = "main"
"""
#: Whose processor time is told, by what is in their command lines; the first that fits counts.
_KINDS = (
    ("deputies", re.compile(r"carrel\.engines\.deputy|carrel-deputy")),
    ("MLflow", re.compile(r"mlflow|carrel\.tracking")),
    ("the lab", re.compile(r"carrel\.cli\.main up")),
    ("slurmctld", re.compile(r"slurmctld")),
)


@dataclass(frozen=True, slots=True)
class Round:
    """What one turn of the lab's has shown."""

    rate: float
    #: Seconds that the client was busy with submitting.
    submitting: float
    #: Seconds from the last end until MLflow had been told everything.
    telling: float
    #: Seconds of processor time by kind of process, and of the client.
    spent: dict[str, float]


def measure(scratch: Path) -> list[Figure]:
    missing = missing_programs()
    if missing or os.geteuid() != 0:
        why = f"{', '.join(missing)} not found. Debian: apt-get install {PACKAGES}" if missing else "only root can start deputies"
        print(f"  left out: {why}", file=sys.stderr)
        return []
    with SlurmSite(nodes=2, accounting=False) as site, common_ground() as ground, _lab(site, ground) as lab:
        with lab.user() as client:
            _one(client, scratch)  # the deputy and MLflow are up, the code is there
        hand, ours = [], []
        for _ in range(_ROUNDS):
            hand.append(_by_hand(site))
            site.clear()
            ours.append(_round(lab, scratch))
            site.clear()
            print(f"  by hand {hand[-1]:.1f}/s, ours {ours[-1]}", file=sys.stderr)
    return [*_figures(hand, ours), *_starts(scratch)]


def _starts(scratch: Path) -> list[Figure]:
    """What a batch script spends until its runner can begin: its attempt is claimed, so it ends there."""
    attempt = scratch / "claimed"
    attempt.mkdir()
    (attempt / "claim").write_text("1")
    python = [sys.executable, "-I"]
    commands = {
        "of the batch script until its runner can begin": [*python, "-m", "carrel.engines.slurm.batch", str(attempt)],
        "of that, Python's own": [*python, "-c", "pass"],
    }
    spent: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(_STARTS):
        for name, command in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[name].append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return [median(f"processor time {name}", values, "ms") for name, values in spent.items()]


def _figures(hand: list[float], ours: list[Round]) -> list[Figure]:
    ratios = [round_.rate / rate for rate, round_ in zip(hand, ours, strict=True)]
    title = f"{_MANY} batch jobs"
    submitting = [1000 * round_.submitting / _MANY for round_ in ours]
    return [
        median(f"{title}, sbatch by hand", hand, "jobs/s"),
        median(f"{title}, a lab with deputies and MLflow", [round_.rate for round_ in ours], "jobs/s"),
        median(f"{title}, the lab ÷ by hand", ratios, "×", at_least=0.6),
        median("the same, one submission over REST", submitting, "ms"),
        median("the same, from the last end until MLflow has been told all", [round_.telling for round_ in ours], "s"),
        *(
            median(f"processor time of each job: {kind}", [1000 * round_.spent[kind] / _MANY for round_ in ours], "ms")
            for kind in (*(kind for kind, _ in _KINDS), "the client")
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Lab:
    process: LabProcess
    token: str

    def user(self) -> Client:
        return Client(url=self.process.url, token=self.token)


@contextlib.contextmanager
def _lab(site: SlurmSite, ground: Path) -> Iterator[_Lab]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        python = python_for_all(Path(directory) / "python")
        (ground / "users").mkdir()
        (ground / "users").chmod(0o1777)
        file = ground / "deputy.toml"
        file.write_text(
            f'directory = "{ground}/users/{{user}}"\n'
            f'[environment]\nPATH = "{site.environ["PATH"]}"\nSLURM_CONF = "{site.layout.conf}"\n'
        )
        people = ground / "people.toml"
        people.write_text(f'alice = "{USERS["alice"]}"\n')
        for readable in (file, people):
            readable.chmod(0o644)
        command = f"setpriv --reuid={{user}} --regid={{user}} --init-groups {python.parent}/carrel-deputy --config {file}"
        home = ground / "lab"
        home.mkdir(mode=0o700)
        (home / "carrel.toml").write_text(f'slurm_identity = "map:{people}"\nslurm_deputy = "{command}"\n{_RULES}')
        process = start_lab(home, simulate_gpus=0, tracking=True, variables={"SLURM_CONF": str(site.layout.conf)})
        try:
            with Client(url=process.url, token=process.token) as admin:
                token = str(admin.add_user("alice").token)
            yield _Lab(process, token)
        finally:
            process.end_jobs()
            process.stop()


def _one(client: Client, scratch: Path) -> None:
    project = scratch / "trivial"
    project.mkdir()
    (project / "MLproject").write_text("name: trivial\nentry_points:\n  main:\n    command: 'true'\n")
    job = _submit(client, scratch)
    assert client.wait(job, timeout=_PATIENCE).state == "COMPLETED", client.job(job).reason


def _submit(client: Client, scratch: Path) -> int:
    resources = ResourceRequest(cpus=1, memory="64M", time="5m")
    return int(client.submit_project(scratch / "trivial", partition="cluster", resources=resources).id)


def _round(lab: _Lab, scratch: Path) -> Round:
    before = _spent()
    with lab.user() as client:
        own = time.process_time()
        began = time.monotonic()
        left = {_submit(client, scratch) for _ in range(_MANY)}
        submitting = time.monotonic() - began
        for event in client.events(after=0):
            if event.type == "state" and event.data["state"] == "COMPLETED":
                left.discard(event.job_id)
                if not left:
                    break
        took = time.monotonic() - began
        own = time.process_time() - own
    ended = time.monotonic()
    _until(lambda: _untold(lab.process.home) == 0)
    telling = time.monotonic() - ended
    after = _spent()
    spent = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
    return Round(_MANY / took, submitting, telling, spent | {"the client": own})


def _untold(home: Path) -> int:
    """How much MLflow has not been told yet."""
    with contextlib.closing(sqlite3.connect(f"file:{home}/lab.db?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM outbox WHERE error IS NULL").fetchone()[0])


def _by_hand(site: SlurmSite) -> float:
    with tempfile.TemporaryDirectory(dir=site.shared) as place:
        Path(place).chmod(0o777)
        loop = f"for i in $(seq {_MANY}); do sbatch --mem=64 -o /dev/null --wrap 'echo > {place}/$SLURM_JOB_ID' >/dev/null; done"
        began = time.monotonic()
        site.run("sh", "-c", loop)
        _until(lambda: len(list(Path(place).iterdir())) == _MANY)
        return _MANY / (time.monotonic() - began)


def _spent() -> dict[str, float]:
    """Seconds of processor time of our processes of each kind, and of those of their children that have ended."""
    found: dict[int, tuple[int, str, float]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(fields[1]), words, sum(map(int, fields[11:15])) / _TICKS
    spent = dict.fromkeys((kind for kind, _ in _KINDS), 0.0)
    for pid, (_, words, seconds) in found.items():
        kind = next((kind for kind, pattern in _KINDS if pattern.search(words)), None)
        if kind is not None and _is_ours(pid, found):
            spent[kind] += seconds
    return spent


def _is_ours(pid: int, found: Mapping[int, tuple[int, str, float]]) -> bool:
    """True for descendants of this process: there may be other labs on the machine."""
    while pid in found and pid != os.getpid():
        pid = found[pid][0]
    return pid == os.getpid()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_PATIENCE} s")
        time.sleep(0.02)
