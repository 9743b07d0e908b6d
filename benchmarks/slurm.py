"""The engine for Slurm against what a lab would use otherwise, on one real cluster, in one run and in turns.

By hand (sbatch, and sbatch --wait for the end), submitit, psij-python, and Carrel: as batch jobs, in allocations of their
own that are there at once, in allocations that are held for the next short task.
All begin at the same moments of the controller's timer, one after the other. The two libraries are installed into an
environment that is made for this run; one that cannot be had is left out. The cluster is that of the tests: it schedules every
second. Real ones take longer, so the first line is measured once more on one with Slurm's own defaults.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.launch import Observation
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.testing.builders import LabHome, make_launch
from figure import Figure, median, percentile
from support.slurm_site import PACKAGES, SlurmSite, missing_programs

_ROUNDS = 16
_USUAL_ROUNDS = 8
_MANY = 300
_SOME = 20
#: How the part of a second at which a round begins goes on from round to round: so they spread evenly (golden ratio).
_STEP = 0.618033988749895
#: Seconds for anything.
_PATIENCE = 300
_LIBRARIES = {"submitit": "submitit", "psij": "psij-python"}

#: Submits so many jobs, waits until all are done, and tells for each: began, first line, end known.
Turn = Callable[[int], list[tuple[float, float, float]]]


@dataclass(slots=True)
class Contestant:
    """One way of submitting."""

    name: str
    turn: Turn
    first: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)


def measure(scratch: Path) -> list[Figure]:
    missing = missing_programs()
    if missing:
        print(f"  left out: {', '.join(missing)} not found. Debian: apt-get install {PACKAGES}", file=sys.stderr)
        return []
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(SlurmSite(nodes=2, accounting=False))
        contestants = [Contestant("sbatch by hand", _by_hand(site))]
        for library in _LIBRARIES:
            turn = _peer(stack, site, library, scratch / library)
            if turn is not None:
                contestants.append(Contestant(library, turn))
        for path, immediate, hold in (("batch path", False, 0), ("immediate path", True, 0), ("held allocations", True, 60)):
            ours = stack.enter_context(_ours(site, scratch / path.split()[0], immediate=immediate, hold=hold))
            contestants.append(Contestant(f"Carrel, {path}", ours))
        _in_turns(contestants, _ROUNDS)
        figures = [*_latencies(contestants), *_crowds(site, contestants)]
    return [*figures, *_usual(scratch)]


def _usual(scratch: Path) -> list[Figure]:
    """By hand and our batch path where Slurm has its own timers: submitted together, so that the same timer starts both."""
    hand, batch = Contestant("sbatch by hand", lambda _many: []), Contestant("Carrel, batch path", lambda _many: [])
    with SlurmSite(nodes=2, accounting=False, lines=("SchedulerParameters=bf_interval=30",)) as site:
        with _ours(site, scratch / "usual", immediate=False) as ours:
            for number in range(_USUAL_ROUNDS):
                out = site.shared / f"{number}.out"
                time.sleep((number * _STEP) % 1.0 * 3)
                began = time.time()
                site.run("sbatch", f"--output={out}", stdin="#!/bin/bash\necho $EPOCHREALTIME\n")
                start, first, _ = ours(1)[0]
                _until(lambda out=out: out.exists() and bool(out.read_text().strip()))  # type: ignore[misc]
                hand.first.append(1000 * (float(out.read_text()) - began))
                batch.first.append(1000 * (first - start))
    title = "submit → first line of user code, Slurm's own timers"
    figures = [median(f"{contestant.name}: {title}, median", contestant.first, "ms") for contestant in (hand, batch)]
    ratio = figures[1].value / figures[0].value
    return [*figures, Figure(name="the same: Carrel, batch path ÷ by hand", value=ratio, unit="×", at_most=1.1)]


def _in_turns(contestants: list[Contestant], rounds: int) -> None:
    for number in range(rounds + 1):
        for contestant in contestants:
            time.sleep((number * _STEP - time.time()) % 1.0)
            began, first, seen = contestant.turn(1)[0]
            if number:  # the first one warms up
                contestant.first.append(1000 * (first - began))
                contestant.seen.append(1000 * (seen - first))


def _latencies(contestants: list[Contestant]) -> list[Figure]:
    figures = []
    for contestant in contestants:
        title = f"{contestant.name}: submit → first line of user code"
        target = {"at_most": 200} if contestant.name.endswith(("immediate path", "held allocations")) else {}
        figures += [median(f"{title}, median", contestant.first, "ms", **target)]
        figures += [percentile(f"{title}, p95", contestant.first, "ms", 95)]
        target = {"at_most": 1000} if contestant.name.startswith("Carrel") else {}
        figures += [median(f"{contestant.name}: end → seen, median", contestant.seen, "ms", **target)]
    middle = {contestant.name: figure.value for contestant, figure in zip(contestants, figures[::3], strict=True)}
    hand = middle["sbatch by hand"]
    for name, value in middle.items():
        if value is not hand:
            target = {"at_most": 1.1} if name == "Carrel, batch path" else {}
            figures.append(Figure(name=f"first line: {name} ÷ by hand", value=value / hand, unit="×", **target))
    return figures


def _crowds(site: SlurmSite, contestants: list[Contestant]) -> list[Figure]:
    """Many jobs at once: how many a second, and how many questions the controller had to answer for each."""
    figures = []
    rates: dict[str, float] = {}
    for contestant in contestants:
        many = _SOME if contestant.name in _LIBRARIES else _MANY
        site.clear()
        before, began = _questions(site), time.monotonic()
        contestant.turn(many)
        seconds = time.monotonic() - began
        site.clear()
        asked = (_questions(site) - before) / many
        if many == _MANY:
            rates[contestant.name] = many / seconds
            figures.append(
                Figure(name=f"{contestant.name}: {many} jobs, submitted to all done", value=many / seconds, unit="jobs/s")
            )
        figures.append(
            Figure(name=f"{contestant.name}: messages to the controller for each of {many} jobs", value=asked, unit="")
        )
    hand = rates.pop("sbatch by hand")
    for name, rate in rates.items():
        target = {"at_least": 0.9} if name in ("Carrel, batch path", "Carrel, held allocations") else {}
        figures.append(Figure(name=f"rate: {name} ÷ by hand", value=rate / hand, unit="×", **target))
    return figures


def _questions(site: SlurmSite) -> int:
    """How many messages the controller has had so far (sdiag(1)), without the nodes' own and what this benchmark asks itself."""
    text = site.run("sdiag").out
    by_type = text.split("Remote Procedure Call statistics by message type")[1].split("Remote Procedure Call statistics by user")[
        0
    ]
    found = re.findall(r"^\s*(\w+)\s+\(\s*\d+\)\s+count:(\d+)", by_type, re.MULTILINE)
    ours = ("REQUEST_STATS_INFO", "REQUEST_PING", "REQUEST_NODE_INFO", "REQUEST_PARTITION_INFO")
    return sum(int(count) for name, count in found if name not in ours and not name.startswith("MESSAGE_NODE_REGISTRATION"))


def _by_hand(site: SlurmSite) -> Turn:
    place = site.shared / "by-hand"
    place.mkdir()
    numbers = iter(range(1, 10**6))

    def turn(many: int) -> list[tuple[float, float, float]]:
        if many == 1:
            out, began = place / f"{next(numbers)}.out", time.time()
            site.run("sbatch", "--wait", f"--output={out}", stdin="#!/bin/bash\necho $EPOCHREALTIME\n")
            return [(began, float(out.read_text()), time.time())]
        here = place / f"crowd-{next(numbers)}"
        here.mkdir()
        loop = f"for i in $(seq {many}); do sbatch -o /dev/null --wrap 'echo > {here}/$SLURM_JOB_ID' >/dev/null; done"
        began = time.time()
        site.run("sh", "-c", loop)
        _until(lambda: len(list(here.iterdir())) == many)
        return [(began, began, time.time())] * many

    return turn


def _peer(stack: contextlib.ExitStack, site: SlurmSite, library: str, place: Path) -> Turn | None:
    """Install a library and start the program that uses it; None where that is not possible."""
    uv = Path(sys.executable).with_name("uv")
    place.mkdir()
    python = place / "environment" / "bin" / "python"
    for words in (("venv", "--quiet", "--python", sys.executable, str(python.parent.parent)), ("pip", "install", "--quiet")):
        extra = ("--python", str(python), _LIBRARIES[library]) if words[0] == "pip" else ()
        try:
            subprocess.run([str(uv), *words, *extra], check=True, capture_output=True, text=True, timeout=_PATIENCE)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            print(f"  {library} is left out: {said.strip().splitlines()[-1]}", file=sys.stderr)
            return None
    (place / "jobs").mkdir()
    process = stack.enter_context(
        subprocess.Popen(
            [str(python), str(Path(__file__).with_name("slurm_peers.py")), library, str(place / "jobs")],
            env={**site.environ, "HOME": str(place)},
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stack.enter_context((place / "log").open("wb")),
            text=True,
        )
    )
    stack.callback(process.kill)
    assert process.stdin is not None
    assert process.stdout is not None
    asks, answers = process.stdin, process.stdout

    def turn(many: int) -> list[tuple[float, float, float]]:
        asks.write(f"{many}\n")
        asks.flush()
        line = answers.readline()
        if not line:
            raise EOFError((place / "log").read_text().strip().splitlines()[-1:])
        answer = json.loads(line)
        return list(zip(answer["began"], answer["first"], answer["seen"], strict=True))

    try:
        turn(1)
    except (EOFError, BrokenPipeError) as error:
        print(f"  {library} is left out: it does not work here: {error}", file=sys.stderr)
        return None
    return turn


@contextlib.contextmanager
def _ours(site: SlurmSite, place: Path, *, immediate: bool, hold: float = 0.0) -> Iterator[Turn]:
    place.mkdir()
    commands = SlurmCommands(environ=site.environ)
    home = LabHome(place)
    engine = SlurmEngine(
        spool=home.spool,
        run_dir=home.run,
        lab=f"bench-{place.name}",
        environ=site.environ,
        commands=commands,
        immediate=lambda _launch: immediate,
        hold=lambda _launch: hold,
    )
    numbers = iter(range(1, 10**6))
    changed = threading.Condition()
    ended: dict[int, float] = {}

    def hear(news: list[Observation]) -> None:
        with changed:
            for observation in news:
                if observation.gone or any(type(entry.record).__name__ == "Ended" for entry in observation.entries):
                    ended[observation.job_id] = time.time()
            changed.notify_all()

    def turn(many: int) -> list[tuple[float, float, float]]:
        launches = [make_launch(home, "echo $EPOCHREALTIME", job_id=next(numbers)) for _ in range(many)]
        began = []
        for launch in launches:
            began.append(time.time())
            engine.start(launch, token="")
        with changed:
            if not changed.wait_for(lambda: all(launch.job_id in ended for launch in launches), _PATIENCE):
                raise TimeoutError(f"not all of {many} jobs ended within {_PATIENCE} s")
        return [
            (start, float(home.attempt(launch).log.read_text()), ended[launch.job_id])
            for start, launch in zip(began, launches, strict=True)
        ]

    engine.observe(hear)  # type: ignore[arg-type]
    try:
        yield turn
    finally:
        engine.close()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_PATIENCE} s")
        time.sleep(0.02)
