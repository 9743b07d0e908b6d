"""Whatever is killed between the request for an allocation and its end, and whoever comes after: the allocation comes back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from carrel.core.domain.ports import Attempt
from carrel.core.domain.resources import Resources
from carrel.core.spool import take_claim
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.waiting import wait_until
from support.slurm_faults import SlurmFaults
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

SHORT = Resources(cpus=1, memory=256 * 1024**2, time=60)
HOLD = {"held": 60.0, "immediate": 0.0}
#: Seconds of Slurm's limit, far below which all of this has to be over.
LIMIT = 60.0
ENGINE = f"""
import os, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_slurm_returned import engine_of, launches_of
from carrel.testing.builders import EngineListener, LabHome
home = LabHome(Path(sys.argv[1]))
engine = engine_of(home, sys.argv[2], os.environ)
EngineListener(engine)
for launch in launches_of(home, int(sys.argv[3])):
    engine.start(launch, token="token")
print("asked", flush=True)
threading.Event().wait()
"""


def engine_of(home: LabHome, path: str, environ: Mapping[str, str]) -> SlurmEngine:
    return SlurmEngine(
        spool=home.spool,
        run_dir=home.run,
        lab=lab_of(home),
        environ=environ,
        commands=SlurmCommands(environ=environ, json=False, timeout=60),
        interval=0.5,
        immediate=lambda _launch: True,
        hold=lambda _launch: HOLD[path],
    )


def lab_of(home: LabHome) -> str:
    return f"returned-{home.root.name}"


def launches_of(home: LabHome, many: int) -> list:  # type: ignore[type-arg]
    """So many tasks that take a moment; -1: one that waits for the file `go`."""
    if many < 0:
        wait = f"until [ -e {home.root}/go ]; do sleep 0.1; done"
        return [make_launch(home, f"echo 1 >> {home.root}/ran; {wait}; touch {home.root}/ended", resources=SHORT)]
    return [
        make_launch(home, f"echo {number} >> {home.root}/ran; sleep 0.3", job_id=number, resources=SHORT)
        for number in range(1, many + 1)
    ]


def engine_process(home: LabHome, path: str, environ: Mapping[str, str], many: int = 1) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(home.root), path, str(many)],
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )


def allocations(site: SlurmSite, home: LabHome) -> list[str]:
    """Identities of those for which Slurm keeps resources."""
    names = site.run("squeue", "-h", "-t", "PD,R,S,CF", "-o", "%k").out.split()
    return [name for name in names if name.startswith(f"carrel.{lab_of(home)}.")]


def take_over(site: SlurmSite, home: LabHome, path: str, many: int) -> None:
    """The next engine: each job ends, and nothing of the first one is left."""
    left = allocations(site, home)
    engine = engine_of(home, path, site.environ)
    try:
        listener, launches = EngineListener(engine), launches_of(home, many)
        engine.adopt((Attempt(job_id=launch.job_id, number=1), launch, TOKEN) for launch in launches)
        for launch in launches:
            assert listener.wait(launch, lambda story: story.ended or story.gone, timeout=LIMIT)
        wait_until(lambda: not set(left) & set(allocations(site, home)), lambda: _remains(site, home), timeout=LIMIT)
    finally:
        engine.close()
    wait_until(lambda: not allocations(site, home), timeout=LIMIT)


def _remains(site: SlurmSite, home: LabHome) -> str:
    """What Slurm and the spool know of the allocations that are left."""
    listed = site.run("squeue", "-o", "%A %T %k %L").out
    steps = site.run("squeue", "-s").out
    files = sorted(str(path.relative_to(home.root)) for path in home.spool.root.rglob("*"))
    alive = [words.replace(b"\0", b" ")[:200] for _, words in command_lines() if lab_of(home).encode() in words]
    return f"{listed}\n{steps}\n{files}\n{alive}"


@pytest.mark.parametrize("path", list(HOLD))
def test_a_server_that_dies_before_srun_has_asked_leaves_nothing(site: SlurmSite, tmp_path: Path, path: str) -> None:
    """Nobody comes after it."""
    home, faults = LabHome(tmp_path), SlurmFaults(tmp_path / "bin", site.environ)
    faults.set("orphaned", "srun")
    with engine_process(home, path, faults.environ) as process:
        assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not running_sruns(home) and not allocations(site, home), timeout=LIMIT)


@pytest.mark.parametrize("path", list(HOLD))
def test_srun_and_server_die_as_soon_as_there_is_an_allocation(site: SlurmSite, tmp_path: Path, path: str) -> None:
    """Nobody comes after them: srun's keeper cancels."""
    home, faults = LabHome(tmp_path), SlurmFaults(tmp_path / "bin", site.environ)
    faults.set("dies", "srun", text=f"carrel.{lab_of(home)}.")
    with engine_process(home, path, faults.environ) as process:
        assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not allocations(site, home), lambda: _remains(site, home), timeout=LIMIT)
    take_over(site, home, path, 1)
    assert (home.root / "ran").read_text() == "1\n"


@pytest.mark.parametrize("path", list(HOLD))
def test_srun_its_keeper_and_the_server_die_as_soon_as_there_is_an_allocation(site: SlurmSite, tmp_path: Path, path: str) -> None:
    home, faults = LabHome(tmp_path), SlurmFaults(tmp_path / "bin", site.environ)
    faults.set("dies with its keeper", "srun", text=f"carrel.{lab_of(home)}.")
    with engine_process(home, path, faults.environ) as process:
        assert process.wait() == -signal.SIGKILL
    take_over(site, home, path, 1)


def test_a_runner_that_has_lost_all_who_would_end_its_allocation_ends_it(site: SlurmSite, tmp_path: Path) -> None:
    """srun, its helper and the server are killed at once. The task goes on, and nobody comes after them."""
    home = LabHome(tmp_path)
    with engine_process(home, "immediate", site.environ, many=-1) as process:
        wait_until(lambda: (home.root / "ran").exists(), timeout=LIMIT)
        for pid in [process.pid, *reversed(running_sruns(home))]:
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not running_sruns(home), timeout=LIMIT)
    (home.root / "go").touch()
    wait_until(lambda: not allocations(site, home), lambda: _remains(site, home), timeout=LIMIT)
    assert (home.root / "ended").exists()


def test_the_next_engine_gives_back_what_was_left_by_attempts_that_are_over(site: SlurmSite, tmp_path: Path) -> None:
    """It follows nothing, and looks once."""
    home = LabHome(tmp_path)
    (launch,) = launches_of(home, 1)
    take_claim_and_let_go(home.attempt(launch).path)
    name = f"carrel.{lab_of(home)}.1.1.now"
    site.run("salloc", "--no-shell", "--time=15", f"--job-name={name}", f"--comment={name}")
    assert allocations(site, home) == [name]
    engine = engine_of(home, "immediate", site.environ)
    try:
        EngineListener(engine)
        wait_until(lambda: not allocations(site, home), lambda: _remains(site, home), timeout=LIMIT)
    finally:
        engine.close()


def take_claim_and_let_go(attempt: Path) -> None:
    """Leave what an attempt leaves whose runner has ended."""
    attempt.mkdir(parents=True, exist_ok=True)
    claim = take_claim(attempt / "claim", os.getpid())
    assert claim is not None
    os.close(claim)


def test_an_allocation_whose_pilot_never_came_is_found_by_what_was_written_down(site: SlurmSite, tmp_path: Path) -> None:
    """srun was killed before it had a step, and the server with it; the next one has nothing else to do."""
    home = LabHome(tmp_path)
    name = f"carrel.{lab_of(home)}.hold.0123abcd"
    home.spool.root.mkdir(parents=True, exist_ok=True)
    (home.spool.root / f"{name}.sh").write_text("true\n")
    site.run("salloc", "--no-shell", "--time=15", f"--job-name={name}", f"--comment={name}")
    assert allocations(site, home) == [name]
    engine = engine_of(home, "held", site.environ)
    try:
        EngineListener(engine)
        wait_until(lambda: not allocations(site, home), timeout=LIMIT)
    finally:
        engine.close()


def test_a_pilot_to_whom_nobody_speaks_gives_its_allocation_back(site: SlurmSite, tmp_path: Path) -> None:
    """srun, its helper and the server are killed at once, and nobody comes after them."""
    home = LabHome(tmp_path)
    with engine_process(home, "held", site.environ) as process:
        wait_until(lambda: (home.root / "ran").exists(), timeout=LIMIT)
        for pid in [process.pid, *reversed(running_sruns(home))]:
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not allocations(site, home), timeout=LIMIT)


def running_sruns(home: LabHome) -> list[int]:
    """The processes of srun for this lab, helpers after those whom they help."""
    return sorted(processes(home, b"srun\0"))


def keepers(home: LabHome) -> list[int]:
    """Those who watch over srun, and those of them that look for an allocation."""
    mark = f"carrel.{lab_of(home)}.".encode()
    return [pid for pid, words in command_lines() if b"\0carrel-keeper\0" in words and mark in words]


def processes(home: LabHome, word: bytes) -> list[int]:
    marks = (f"carrel.{lab_of(home)}.".encode(), f"{home.root}/".encode())
    return [
        pid
        for pid, words in command_lines()
        if word in words and any(mark in words for mark in marks) and not words.startswith(b"/bin/bash\0")
    ]


def command_lines() -> Iterator[tuple[int, bytes]]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(process.name), (process / "cmdline").read_bytes()


def guards(home: LabHome) -> list[int]:
    """Pilots, and guardians of runners."""
    return processes(home, b"-P\0-c\0import gc")


def kill_at_random(site: SlurmSite, home: LabHome, chance: random.Random, path: str) -> tuple[str, bool]:
    """Ask for some jobs, and kill something at some moment; return what, and whether an srun and its keeper were among it."""
    many = chance.randint(1, 3)
    with engine_process(home, path, site.environ, many) as process:
        assert process.stdout is not None
        process.stdout.readline()
        kind = chance.choices(["server", "srun", "guardian", "keeper", "all but keepers", "all"], [3, 2, 2, 1, 3, 1])[0]
        pause = chance.uniform(0, 0.25)
        time.sleep(pause)
        victims = {
            "server": [],
            "srun": running_sruns(home)[:1],
            "guardian": guards(home),
            "keeper": keepers(home),
            "all but keepers": [*reversed(running_sruns(home)), *guards(home)],
            "all": [*keepers(home), *reversed(running_sruns(home)), *guards(home)],
        }[kind]
        first = [process.pid] if chance.random() < 0.5 else []
        for pid in [*first, *victims]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
    return f"{kind} at {pause:.3f} s{' with' if first else ' before'} the server, {many} jobs, {path}", kind == "all"


def many_kills(site: SlurmSite, tmp_path: Path, seed: int, rounds: int) -> None:
    """Nobody comes after them; only where keepers died with all that they watch over, the next engine has to."""
    chance = random.Random(seed)
    times, by_the_next = [], []
    for number in range(rounds):
        home = LabHome(tmp_path / f"{number}")
        home.root.mkdir()
        path = chance.choice(list(HOLD))
        what, everything = kill_at_random(site, home, chance, path)
        began = time.monotonic()
        try:
            wait_until(lambda home=home: not allocations(site, home), timeout=LIMIT)  # type: ignore[misc]
        except AssertionError as error:
            if not everything:
                raise AssertionError(f"round {number}: {what}: {_remains(site, home)}") from error
            by_the_next.append(what)
            began = time.monotonic()
            take_over(site, home, path, 3)
        times.append((time.monotonic() - began, what))
    print(f"by the next engine: {by_the_next}")
    print(f"{rounds} kills; the allocation was back after at most {max(times)[0]:.1f} s ({max(times)[1]})")
    print(sorted(round(seconds, 1) for seconds, _ in times))


def test_kills_at_some_moments_leave_no_allocation(site: SlurmSite, tmp_path: Path) -> None:
    """Nobody comes after them."""
    many_kills(site, tmp_path, seed=20, rounds=4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kills_at_many_moments_leave_no_allocation(site: SlurmSite, tmp_path: Path) -> None:
    many_kills(site, tmp_path, seed=int(os.environ.get("SEED", "1")), rounds=150)


def test_jobs_end_once_for_the_next_engine(site: SlurmSite, tmp_path: Path) -> None:
    chance = random.Random(7)
    for path in HOLD:
        home = LabHome(tmp_path / path)
        home.root.mkdir()
        with engine_process(home, path, site.environ, 3) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0, 0.2))
            process.kill()
        take_over(site, home, path, 3)
        assert sorted((home.root / "ran").read_text().split()) == ["1", "2", "3"]
