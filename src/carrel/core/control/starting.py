"""The engine is told of attempts that are written down."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from carrel.core.control.launching import job_token
from carrel.core.control.queue import Queue
from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Node
from carrel.core.domain.ports import Engine
from carrel.core.domain.task import TaskSpec

_log = logging.getLogger(__name__)


class Starting:
    """Attempts that are written down and that the engine does not know yet."""

    def __init__(
        self,
        engine: Engine,
        queue: Queue,
        secret: bytes,
        *,
        build: Callable[[Job, TaskSpec, Sequence[Node]], Launch],
        failed: Callable[[Job, JobState, Reason, float], None],
    ) -> None:
        """`build` makes a launch; `failed` writes down that an attempt did not start, and in which state its job is now."""
        self._engine, self._queue, self._secret = engine, queue, secret
        self._build, self._failed = build, failed
        self._unstarted: deque[tuple[Job, TaskSpec]] = deque()

    def __bool__(self) -> bool:
        return bool(self._unstarted)

    def add(self, started: Sequence[tuple[Job, TaskSpec]]) -> None:
        """These are written down."""
        self._unstarted.extend(started)

    def turn(self, now: float) -> None:
        """Tell the engine; what is left when the database fails, the next turn tells it."""
        nodes = self._engine.nodes() if self._unstarted else ()
        while self._unstarted:
            job, task = self._unstarted[0]
            try:
                self._start(job, task, nodes)
            except Unavailable as error:
                self._failed(job, JobState.PENDING, _refusal(job, error), now)
            except Exception as error:  # noqa: BLE001 - after any error, this job must not stay half started
                _log.exception("Job %d could not be started.", job.id)
                self._failed(job, JobState.FAILED, Reason(code="LaunchFailed", message=str(error)), now)
            self._unstarted.popleft()

    def _start(self, job: Job, task: TaskSpec, nodes: Sequence[Node]) -> None:
        launch = self._build(job, task, nodes)
        if launch.element is not None and len(self._unstarted) > 1:
            following = self._unstarted[1][0]
            same = following.element is not None and following.element.array_id == launch.element.array_id
            launch = replace(launch, more_elements=same and following.node == job.node)
        self._engine.start(launch, token=job_token(self._secret, job.id, job.attempt))
        known = self._queue.job(job.id)
        if known is not None and known.cancelled_by is not None:  # asked for before the engine knew of it
            self._engine.cancel(job.id, job.attempt, by=known.cancelled_by)


def _refusal(job: Job, error: Unavailable) -> Reason:
    if isinstance(error, StorageFull):
        return Reason(code="StorageFull", message=str(error))
    return Reason(code="DeviceBusy" if job.devices else "ReqNodeNotAvail", message=str(error))
