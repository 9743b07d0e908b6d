"""The engine is told of what is written down: each attempt once, and what it refuses is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from played import job, launch_of

from carrel.core.control.launching import job_token
from carrel.core.control.queue import Queue
from carrel.core.control.starting import Starting
from carrel.core.domain.array import ArrayElement
from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Node
from carrel.core.domain.task import TaskSpec

TASK = TaskSpec(entry_point="main", command="true", snapshot="")
NODES = (Node(name="n1", cpus=4, memory=1, devices=()),)
SECRET = b"secret"


def placed(number: int, node: str = "n1", element: ArrayElement | None = None, **fields: object) -> Job:
    one = replace(job(number), state=JobState.CONFIGURING, attempt=2, node=node, element=element)
    return replace(one, **fields)  # type: ignore[arg-type]


class Engine:
    """Remembers what it was told, and refuses what it is asked to refuse."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.tokens: list[str] = []
        self.cancelled: list[tuple[int, int, str]] = []
        self.refuses: dict[int, Exception] = {}
        #: What was not started: the job, its state now, why, and when.
        self.failed: list[tuple[int, JobState, Reason, float]] = []
        self.away = False
        self.queue = Queue()
        self.starting = Starting(self._port, self.queue, SECRET, build=self.build, failed=self.fail)

    @property
    def _port(self) -> Any:
        return self

    def nodes(self) -> tuple[Node, ...]:
        return NODES

    def build(self, one: Job, task: TaskSpec, nodes: Sequence[Node]) -> Launch:
        assert (task, nodes) == (TASK, NODES)
        return replace(launch_of(one, task), attempt=one.attempt, node=one.node or "", element=one.element)

    def start(self, launch: Launch, *, token: str) -> None:
        if launch.job_id in self.refuses:
            raise self.refuses[launch.job_id]
        self.launches.append(launch)
        self.tokens.append(token)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        self.cancelled.append((job_id, attempt, by))

    def fail(self, one: Job, state: JobState, reason: Reason, now: float) -> None:
        if self.away:
            raise Unavailable("The database does not answer.")
        self.failed.append((one.id, state, reason, now))

    def begin(self, *jobs: Job, now: float = 7.0) -> None:
        for one in jobs:
            self.queue.put(one, now=now)
        self.starting.add([(one, TASK) for one in jobs])
        self.starting.turn(now)

    @property
    def started(self) -> list[int]:
        return [launch.job_id for launch in self.launches]


def test_each_is_started_once_and_with_its_own_token() -> None:
    engine = Engine()
    assert not engine.starting
    engine.begin(placed(1), placed(2))
    assert not engine.starting
    engine.starting.turn(8.0)
    assert (engine.started, engine.cancelled) == ([1, 2], [])
    assert engine.tokens == [job_token(SECRET, 1, 2), job_token(SECRET, 2, 2)]


@pytest.mark.parametrize(
    ("error", "devices", "state", "code"),
    [
        (Unavailable("It is taken."), ("GPU-1",), JobState.PENDING, "DeviceBusy"),
        (Unavailable("It is taken."), (), JobState.PENDING, "ReqNodeNotAvail"),
        (StorageFull("It is taken."), ("GPU-1",), JobState.PENDING, "StorageFull"),
        (ValueError("It is taken."), ("GPU-1",), JobState.FAILED, "LaunchFailed"),
    ],
)
def test_what_the_engine_refuses_waits_again_and_what_breaks_has_failed(
    error: Exception, devices: tuple[str, ...], state: JobState, code: str
) -> None:
    engine = Engine()
    engine.refuses[1] = error
    engine.begin(placed(1, devices=devices), placed(2))
    assert engine.failed == [(1, state, Reason(code=code, message="It is taken."), 7.0)]
    assert (engine.started, bool(engine.starting)) == ([2], False)


def test_a_refusal_that_cannot_be_written_down_keeps_its_turn() -> None:
    engine = Engine()
    engine.refuses[1], engine.away = Unavailable("It is taken."), True
    with pytest.raises(Unavailable, match="database"):
        engine.begin(placed(1), placed(2))
    assert (engine.started, bool(engine.starting)) == ([], True)
    engine.away = False
    engine.starting.turn(9.0)
    assert ([one[0] for one in engine.failed], engine.started, bool(engine.starting)) == ([1], [2], False)


def test_an_end_that_was_wanted_before_the_engine_knew_the_job_is_passed_on() -> None:
    engine = Engine()
    engine.queue.put(placed(1, cancelled_by="ada"), now=6.0)
    engine.starting.add([(placed(1), TASK), (placed(3), TASK)])  # of job 3 the queue knows nothing any more
    engine.starting.turn(7.0)
    assert (engine.started, engine.cancelled) == ([1, 3], [(1, 2, "ada")])


def member(index: int, of: int = 1) -> ArrayElement:
    return ArrayElement(array_id=of, index=index, array="0-9")


def test_elements_of_one_array_that_go_to_one_node_are_told_as_those_that_belong_together() -> None:
    """An engine may hand them over as one array of its own."""
    engine = Engine()
    engine.begin(
        placed(1, element=member(0)),
        placed(2, element=member(1)),
        placed(3, node="n2", element=member(2)),
        placed(4, node="n2", element=member(0, of=4)),
        placed(5, node="n2", element=member(1, of=4)),
        placed(6, node="n2"),
        placed(7, element=member(3)),
        placed(8, element=member(4)),
    )
    assert [launch.more_elements for launch in engine.launches] == [True, False, False, True, False, False, True, False]
