"""Jobs, rules and a scheduler on a virtual clock, as the tests of this room have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carrel.core.control.inbox import News
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.rules import RuleBook
from carrel.core.control.scheduler import Scheduler
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import LaunchPaths
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab.machines import VirtualMachines, nodes_of
from carrel.simulate.lab.memory import MemoryStore
from carrel.simulate.trace import Cluster


def job(number: int, owner: str = "ada", **fields: Any) -> Job:
    """A task that waits; what a resource is called is asked for, anything else is a field of the job."""
    asked = {name: fields.pop(name) for name in ("nodes", "gpus", "gpu_type", "cpus", "time") if name in fields}
    usual: dict[str, Any] = {
        "kind": JobKind.TASK, "account": owner, "name": "", "qos": "all", "state": JobState.PENDING,
        "reason": Reason(code="", message=""), "submitted_at": 0.0,
    }  # fmt: skip
    return Job(id=number, owner=owner, **{**usual, "resources": Resources(**{"gpus": 1, "time": 100, **asked}), **fields})


def rules(**fields: Any) -> LabRules:
    return LabRules(**{"qos": {"all": QoS(name="all")}, "default_qos": "all", "session_qos": "all", **fields})


def settings(book: RuleBook | LabRules, **more: Any) -> LoopSettings:
    book = RuleBook(book) if isinstance(book, LabRules) else book
    places = LaunchPaths(environments="", snapshots="", blobs="")
    return LoopSettings(**{"rules": book, "launch": LaunchSettings(paths=places), "secret": b"", **more})


def machines(gpus: int, durations: Mapping[int, float]) -> VirtualMachines:
    return VirtualMachines(nodes_of(Cluster(nodes=1, gpus_per_node=gpus)), durations)


class Scheduled:
    """A lab without a database: jobs in memory, on machines that know how long each of them runs."""

    def __init__(self, engine: VirtualMachines, with_settings: LoopSettings, store: MemoryStore | None = None) -> None:
        self.engine = engine
        self.store = MemoryStore() if store is None else store
        self.scheduler = Scheduler(jobs=self.store, events=self.store, engine=engine, settings=with_settings)

    def cycle(self, now: float, *submitted: Job, changed: tuple[Job, ...] = ()) -> None:
        """Submit these, tell of what was changed, and decide."""
        for one in submitted:
            self.store.add(one)
        self.engine.now = now
        self.scheduler.cycle(News(jobs=[*submitted, *changed], observations=self.engine.ended()), now)

    def runs(self, now: float, *submitted: Job) -> set[int]:
        """Return who runs then."""
        self.cycle(now, *submitted)
        return {held.id for held in self.scheduler.holding()}
