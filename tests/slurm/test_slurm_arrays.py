"""Arrays in a partition of a Slurm cluster: elements that come together are one array of Slurm's, within the lab's limit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from slurm_lab import Lab, go_on

from carrel.core.domain.array import ArrayElement, read_array
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Launch, Preparing
from carrel.core.domain.ports import Attempt
from carrel.engines.attempts import Watched
from carrel.engines.slurm.arrays import Gathering, Pieces
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.engines.slurm.followed import Followed
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.waiting import PATIENCE, wait_until
from support.slurm_faults import SlurmFaults
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]


class Elements:
    """An array of a lab's, and engines that may be killed."""

    def __init__(self, home: LabHome, environ: dict[str, str]) -> None:
        self.home = home
        self.environ = environ
        self.lab = f"a{abs(hash(str(home.root))):x}"
        self.engines: list[SlurmEngine] = []

    def engine(self, **options: Any) -> tuple[SlurmEngine, EngineListener]:
        commands = SlurmCommands(environ=self.environ, json=options.pop("json", False), timeout=60)
        place: dict[str, Any] = {"spool": self.home.spool, "run_dir": self.home.run, "lab": self.lab, "environ": self.environ}
        engine = SlurmEngine(commands=commands, interval=0.3, **place, **options)
        self.engines.append(engine)
        return engine, EngineListener(engine)

    def launches(self, command: str, array: str, *, first: int = 1, **fields: Any) -> list[Launch]:
        indices = read_array(array).indices
        made = []
        for at, index in enumerate(indices):
            element = ArrayElement(array_id=first, index=index, array=array)
            follows = at + 1 < len(indices)
            launch = make_launch(self.home, command, job_id=first + at, element=element, more_elements=follows, **fields)
            made.append(replace(launch, name="sweep"))
        return made

    def start(self, engine: SlurmEngine, launches: list[Launch]) -> None:
        for launch in launches:
            engine.start(launch, token=TOKEN)

    def note(self, launch: Launch) -> str:
        """What is written down of its job in Slurm."""
        path = self.home.attempt(launch).path / "slurm"
        return path.read_text() if path.exists() else ""

    def number(self, launch: Launch) -> str:
        return next((word for word in self.note(launch).split() if word.isdigit()), "")

    def ran(self) -> list[str]:
        path = self.home.root / "ran"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def elements(tmp_path: Any, faults: SlurmFaults) -> Iterator[Elements]:
    made = Elements(LabHome(tmp_path), faults.environ)
    yield made
    for engine in made.engines:
        engine.close()


def says(listener: EngineListener, launch: Launch, words: str) -> Callable[[], bool]:
    return lambda: any(isinstance(one, Preparing) and words in one.message for one in listener.story(launch).records)


ECHO = 'echo "$SLURM_ARRAY_TASK_ID" >> {root}/ran'


@pytest.mark.gate
def test_elements_reach_slurm_with_their_variables_and_no_more_of_them_than_may(lab: Lab, site: SlurmSite) -> None:
    wait, go = go_on(lab)
    first = lab.submit(f"env | grep SLURM_ARRAY_ | sort; {wait}", array="1-7:2%2")
    after = lab.submit("echo after", dependency=f"afterok:{first}")
    lab.until(lab.client.element(first, 3).id, lambda job: job.state == "RUNNING")
    lab.until(first, lambda job: job.state == "RUNNING")
    held = lab.until(lab.client.element(first, 5).id, lambda job: job.reason == "JobArrayTaskLimit")
    assert (held.state, held.attempt) == ("PENDING", 0)
    # The two that may run are one array, with the lab's indices.
    shown = dict(line.split() for line in site.run("squeue", "-h", "--array", "-o", "%i %k").out.splitlines())
    assert [name.partition("_")[2] for name in sorted(shown)] == ["1", "3"]
    assert len({name.partition("_")[0] for name in shown}) == 1
    (comment,) = set(shown.values())
    assert re.fullmatch(r"carrel\.[^.]+\.array\.[0-9a-f]+", comment)
    lab.kill()
    lab.start()
    wait_until(lambda: Counter(job.state for job in lab.client.array(first).jobs) == {"RUNNING": 2, "PENDING": 2})
    lab.client.cancel(lab.client.element(first, 7).id)
    go.touch()
    assert [job.state for job in lab.client.wait_array(first, timeout=PATIENCE)] == ["COMPLETED"] * 3 + ["CANCELLED"]
    assert lab.log(lab.client.element(first, 5).id).split() == [
        f"SLURM_ARRAY_JOB_ID={first}", "SLURM_ARRAY_TASK_COUNT=4", "SLURM_ARRAY_TASK_ID=5", "SLURM_ARRAY_TASK_MAX=7",
        "SLURM_ARRAY_TASK_MIN=1", "SLURM_ARRAY_TASK_STEP=2",
    ]  # fmt: skip
    # One of them was cancelled, so all of them have not ended well.
    assert lab.ended(after).reason == "DependencyNeverSatisfied"


@pytest.mark.parametrize("json", [False, True])
def test_one_call_of_sbatch_makes_all_of_them_and_squeue_shows_one_array(
    elements: Elements, faults: SlurmFaults, site: SlurmSite, json: bool
) -> None:
    engine, listener = elements.engine(json=json)
    block = site.submit("sleep 600", "--nodes=4", "--exclusive")
    site.wait_for(block, "RUNNING")
    launches = elements.launches(ECHO.format(root=elements.home.root), "0,2-40:2")
    elements.start(engine, launches)
    wait_until(lambda: all(says(listener, launch, "waits in Slurm")() for launch in launches))
    (number,) = {elements.number(launch) for launch in launches}
    assert len(faults.calls("sbatch")) == 1
    assert site.run("squeue", "-h", "-o", "%i", f"--jobs={number}").out.split() == [f"{number}_[0-40:2]"]
    assert says(listener, launches[1], f"as job {number}_2,")()
    # Some are cancelled while they wait: one by the lab, one by somebody in Slurm, who leaves no trace of it there.
    engine.cancel(launches[3].job_id, 1, by="alice")
    assert "alice" in listener.ended(launches[3]).reason.message
    site.run("scancel", f"{number}_10")
    assert listener.ended(launches[5]).state is JobState.CANCELLED
    site.run("scancel", str(block))
    for launch in launches:
        if launch not in (launches[3], launches[5]):
            assert listener.ended(launch).state is JobState.COMPLETED
        engine.forget(launch.job_id, 1)
    assert Counter(elements.ran()) == Counter(str(index) for index in range(0, 41, 2) if index not in (6, 10))
    assert not list(elements.home.spool.root.glob("carrel.*")), "what was written down of the array is left behind"


def test_one_that_runs_is_cancelled_and_the_others_go_on(elements: Elements) -> None:
    engine, listener = elements.engine()
    root = elements.home.root
    launches = elements.launches(f"echo ready; while [ ! -e {root}/go ]; do sleep 0.1; done", "5-7")
    elements.start(engine, launches)
    for launch in launches:
        listener.wrote(launch, elements.home.attempt(launch).log, b"ready")
    engine.cancel(launches[1].job_id, 1, by="bob")
    assert "bob" in listener.ended(launches[1]).reason.message
    (root / "go").touch()
    assert [listener.ended(launch).state for launch in launches] == [JobState.COMPLETED, JobState.CANCELLED, JobState.COMPLETED]


def test_elements_that_ask_for_something_else_go_by_themselves(elements: Elements) -> None:
    engine, listener = elements.engine()
    launches = elements.launches("true", "1-4", attempt=2)  # Slurm had no room for the first attempts
    launches[3] = replace(launches[3], resources=replace(launches[3].resources, time=1200))
    elements.start(engine, launches)
    for launch in launches:
        assert listener.ended(launch).state is JobState.COMPLETED
    numbers = [elements.number(launch) for launch in launches]
    assert numbers[0] == numbers[1] == numbers[2] != numbers[3]
    assert ["array=" in elements.note(launch) for launch in launches] == [True, True, True, False]


@pytest.mark.parametrize("fault", ["swallowed", "down", "garbage"])
def test_an_engine_after_another_finds_the_array_of_which_nobody_has_heard(
    elements: Elements, faults: SlurmFaults, fault: str
) -> None:
    """sbatch has made it and could not say so, or has not got that far."""
    first, listener = elements.engine()
    launches = elements.launches(ECHO.format(root=elements.home.root), "1-12")
    faults.set(fault, "sbatch")
    elements.start(first, launches)
    wait_until(lambda: all(says(listener, launch, "not submitted to Slurm yet")() for launch in launches))
    assert not any(elements.number(launch) for launch in launches)
    first.close()
    asked = len(faults.calls("sbatch"))
    faults.clear()
    second, listener = elements.engine()
    second.adopt([(Attempt(job_id=launch.job_id, number=1), launch, TOKEN) for launch in launches])
    for launch in launches:
        assert listener.ended(launch).state is JobState.COMPLETED
    assert Counter(elements.ran()) == Counter(str(index) for index in range(1, 13))
    assert len(faults.calls("sbatch")) == asked + (fault != "swallowed")
    # One that had ended before the listing showed its number is not looked for.
    assert len({elements.number(launch) for launch in launches} - {""}) == 1


def test_where_slurm_has_no_room_for_all_an_array_goes_in_pieces_and_in_order(limited: SlurmSite, elements: Elements) -> None:
    engine, listener = elements.engine()
    root = elements.home.root
    command = f"while [ ! -e {root}/go ]; do sleep 0.1; done; {ECHO.format(root=root)}"
    launches = elements.launches(command, "1-9")
    elements.start(engine, launches)
    for launch in launches[3:]:
        assert (listener.ended(launch).state, listener.ended(launch).reason.code) == (
            JobState.PREEMPTED,
            "AssocMaxSubmitJobLimit",
        )
        engine.forget(launch.job_id, 1, over=False)
    assert all(elements.number(launch) for launch in launches[:3])
    assert elements.number(launches[0]) == elements.number(launches[1])
    (root / "go").touch()
    for launch in launches[:3]:
        assert listener.ended(launch).state is JobState.COMPLETED
        engine.forget(launch.job_id, 1)
    again = elements.launches(command, "1-9", attempt=2)[3:6]
    again[-1] = replace(again[-1], more_elements=False)
    elements.start(engine, again)
    for launch in again:
        assert listener.ended(launch).state is JobState.COMPLETED
    assert len({elements.number(launch) for launch in again}) == 1, "what there is room for together goes together"
    assert Counter(elements.ran()) == Counter(str(index) for index in range(1, 7))


def test_an_index_that_slurm_does_not_take_is_a_job_of_its_own(elements: Elements) -> None:
    engine, listener = elements.engine()
    launches = elements.launches(ECHO.format(root=elements.home.root), "3,4,70000,80000")
    elements.start(engine, launches)
    for launch in launches:
        assert listener.ended(launch).state is JobState.COMPLETED
    assert sorted(elements.ran()) == ["3", "4", "70000", "80000"]
    assert ["array=" in elements.note(launch) for launch in launches] == [True, True, False, False]


def test_an_element_that_was_announced_and_never_comes_is_not_waited_for_long(tmp_path: Any) -> None:
    elements = Elements(LabHome(tmp_path), {})
    now = [100.0]
    gathering = Gathering(lambda: now[0])
    waiting = [
        Followed(watched=Watched(launch=launch, token="", directory=elements.home.attempt(launch)), name="")
        for launch in elements.launches("true", "1-9")[:2]
    ]
    for followed in waiting:
        gathering.add(followed)
    assert gathering.take() == []
    while not (found := gathering.take()):
        assert now[0] < 110
        now[0] += 0.5
        for followed in waiting:  # looked at again
            gathering.add(followed)
    assert found == waiting
    assert gathering.next_at() is None


@pytest.mark.parametrize(("size", "room"), [(20, 3), (20, 0), (20, 20), (1, 0), (7, 6), (1000, 1)])
def test_pieces_find_out_how_much_room_there_is(size: int, room: int) -> None:
    pieces, taken, asked = Pieces(size), 0, 0
    while piece := pieces.next():
        asked += 1
        if taken + piece <= room:
            pieces.taken(piece)
            taken += piece
        else:
            pieces.refused(piece)
    assert taken == min(size, room)
    assert asked <= 2 * size.bit_length() + 1


def test_a_controller_that_keeps_no_more_jobs_has_an_array_in_pieces(slurm_programs: None, tmp_path: Any) -> None:
    """MaxJobCount: sbatch would wait by itself, and keep everybody else waiting."""
    with SlurmSite(nodes=1, accounting=False, lines=("MaxJobCount=6", "MinJobAge=2")) as site:
        faults = SlurmFaults(tmp_path / "bin", site.environ)
        elements = Elements(LabHome(tmp_path), faults.environ)
        engine, listener = elements.engine()
        try:
            root = elements.home.root
            command = f"while [ ! -e {root}/go ]; do sleep 0.1; done; {ECHO.format(root=root)}"
            launches = elements.launches(command, "1-8")
            elements.start(engine, launches)
            for launch in launches[-3:]:
                assert (listener.ended(launch).state, listener.ended(launch).reason.code) == (JobState.PREEMPTED, "MaxJobCount")
            assert elements.number(launches[0]) == elements.number(launches[3])
            (root / "go").touch()
            taken = [launch for launch in launches if elements.number(launch)]
            for launch in taken:
                assert listener.ended(launch).state is JobState.COMPLETED
        finally:
            engine.close()
        assert Counter(elements.ran()) == Counter(str(launch.job_id) for launch in taken)
