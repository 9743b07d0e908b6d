"""One trace through the lab's own scheduler."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil

from carrel.core.control.inbox import News
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.rules import RuleBook
from carrel.core.control.scheduler import Scheduler
from carrel.core.domain.errors import CarrelError, Impossible
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Ended, LaunchLimits, LaunchPaths
from carrel.core.domain.node import Node
from carrel.core.domain.placement import Wait
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.rules import LabRules
from carrel.core.policy.feasible import feasible
from carrel.simulate.lab.machines import VirtualMachines
from carrel.simulate.lab.memory import MemoryStore
from carrel.simulate.lab.walltime import usual_walltime
from carrel.simulate.trace import Outcome, Run, Trace, TraceJob

#: Seconds of virtual time for which standings are used again: the server's five seconds would be at every event here.
RANK_SECONDS = 600.0
#: How often `progress` is called.
STEPS = 100
_PATHS = LaunchPaths(environments="", snapshots="", blobs="")
_SUBMITTED = Reason(code="Submitted", message="")


def simulate_lab(
    rules: LabRules,
    trace: Trace,
    nodes: tuple[Node, ...],
    *,
    policy: str = "carrel",
    progress: Callable[[float], None] | None = None,
    note: Callable[[str], None] | None = None,
    answer: Callable[[Wait, float], None] | None = None,
    asks: Callable[[int], bool] = lambda _job_id: True,
    move: float = 0.0,
) -> Outcome:
    """Run `trace` on `nodes` under `rules`, and name what comes out `policy`.

    The scheduler is the server's (`carrel.core.control.scheduler`), one cycle for each moment at which something is submitted or
    ends. Nothing takes time but the jobs: no environments, no signals. A job that names no walltime asks for the next one that
    people write (`usual_walltime`) and is ended by it; one that the class of service for its kind of work does not let in goes
    to the first that does, as the lab's own refusal would have told its user, and to `Outcome.refused` when there is none.

    `progress` gets the part of jobs that are over, some hundred times; `note` gets who went to another class; `answer`
    what the lab would answer at its submission to the owner of each job that has to wait, with the moment (this takes time); or
    of those whose number `asks` says yes to. A job that was stopped has its GPUs for `move` seconds before it goes on.
    """
    admission = _Admission(rules, nodes)
    jobs, refused = [], []
    for traced in trace.jobs:
        try:
            jobs.append(admission.admit(traced))
        except CarrelError as error:
            refused.append((traced.id, error.message))
    for (wanted, given), many in admission.moved.items():
        if note is not None:
            note(f'{policy}: jobs that QoS "{wanted}" does not let in and "{given}" does: {many:,}.')
    replay = _Replay(rules, nodes, jobs, {job.id: job for job in trace.jobs}, progress, answer, asks, move)
    with uncollected():
        runs = replay.run()
    return Outcome(
        policy=policy,
        trace=trace.name,
        gpus=sum(len(node.devices) for node in nodes),
        runs=[runs[job.id] for job in jobs],
        refused=refused,
    )


class _Admission:
    """What the lab lets in."""

    def __init__(self, rules: LabRules, nodes: tuple[Node, ...]) -> None:
        self.rules = rules
        self.nodes = nodes
        #: Jobs that went to the second class because the first does not let them in.
        self.moved: Counter[tuple[str, str]] = Counter()
        types = [Counter(device.type for device in node.devices) for node in nodes]
        #: GPUs of one node, by their type; of any type by None.
        self._per_node: dict[str | None, int] = {None: max((each.total() for each in types), default=0)}
        for each in types:
            for name, count in each.items():
                self._per_node[name] = max(count, self._per_node.get(name, 0))
        self._known: dict[tuple[JobKind, str, Resources], Impossible | None] = {}

    def admit(self, traced: TraceJob) -> Job:
        """The job as the lab writes it down. Raises what the lab would answer."""
        resources, qos = self._choose(traced)
        return Job(
            id=traced.id,
            kind=traced.kind,
            owner=traced.user,
            account=traced.account,
            name=traced.name,
            qos=qos,
            resources=resources,
            state=JobState.PENDING,
            reason=_SUBMITTED,
            submitted_at=traced.submitted,
        )

    def _choose(self, traced: TraceJob) -> tuple[Resources, str]:
        kind = JobKind.SESSION if traced.kind is JobKind.SESSION else JobKind.TASK
        nodes = nodes_for(traced.gpus, self._per_node.get(traced.gpu_type, 0))
        resources = Resources(
            nodes=nodes,
            gpus=traced.gpus // nodes,
            gpu_type=traced.gpu_type,
            cpus=ceil(traced.cpus / nodes),
            memory=max(ceil(traced.memory / nodes), 1024**2),
            time=max(1, traced.time if traced.time is not None else usual_walltime(traced.duration)),
        )
        named = traced.qos is not None and traced.qos in self.rules.qos
        first = traced.qos if named and traced.qos is not None else self.rules.default_for(kind)
        refusal: Impossible | None = None
        for name in (first, *(other for other in self.rules.qos if other != first)):
            found = self._refusal(kind, name, resources)
            if found is None:
                if name != first:
                    self.moved[first, name] += 1
                return resources, name
            refusal = refusal or found
        assert refusal is not None
        raise refusal

    def _refusal(self, kind: JobKind, qos: str, resources: Resources) -> Impossible | None:
        """What the lab answers, worked out once for all jobs that ask for the same."""
        key = (kind, qos, resources)
        if key not in self._known:
            try:
                # A trace that does not speak of processors asks for none; a lab wants one at least.
                feasible(replace(resources, cpus=max(resources.cpus, 1)), kind, self.rules.qos[qos], self.nodes)
            except Impossible as error:
                self._known[key] = error
            else:
                self._known[key] = None
        return self._known[key]


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the search for garbage in cycles: there is next to none, and it takes longer the more jobs are over."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def nodes_for(gpus: int, gpus_per_node: int) -> int:
    """Return the smallest number of nodes on which so many GPUs can be had, the same number on each."""
    if gpus_per_node == 0:
        return 1
    fewest = max(1, ceil(gpus / gpus_per_node))
    return next(nodes for nodes in range(fewest, max(gpus, 1) + 1) if gpus % nodes == 0)


class _Replay:
    """One simulation."""

    def __init__(
        self,
        rules: LabRules,
        nodes: tuple[Node, ...],
        jobs: list[Job],
        traced: Mapping[int, TraceJob],
        progress: Callable[[float], None] | None,
        answer: Callable[[Wait, float], None] | None,
        asks: Callable[[int], bool],
        move: float,
    ) -> None:
        self._jobs = jobs
        self._answer = answer
        self._asks = asks
        self._progress = progress
        self._store = MemoryStore()
        self._machines = VirtualMachines(nodes, {job.id: job.duration for job in traced.values()}, move=move)
        self._scheduler = Scheduler(
            jobs=self._store,
            events=self._store,
            engine=self._machines,
            settings=LoopSettings(
                rules=RuleBook(rules),
                # What reaches its walltime is over at that moment.
                launch=LaunchSettings(paths=_PATHS, limits=LaunchLimits(grace=0)),
                secret=b"",
                rank_seconds=RANK_SECONDS,
                tells=False,
            ),
        )
        self._runs: dict[int, Run] = {}

    def run(self) -> Mapping[int, Run]:
        """How it went, by job."""
        jobs, machines, scheduler = self._jobs, self._machines, self._scheduler
        by_id = {job.id: job for job in jobs}
        step = max(1, len(jobs) // STEPS)
        arrived = 0
        while len(self._runs) < len(jobs):
            moments = [moment for moment in (machines.next_end, scheduler.next_at()) if moment is not None]
            if arrived < len(jobs):
                moments.append(jobs[arrived].submitted_at)
            machines.now = now = max(machines.now, min(moments))
            news = News(jobs=[], observations=machines.ended())
            for observation in news.observations:
                last = observation.entries[-1]
                if not isinstance(last.record, Ended) or last.record.state is JobState.PREEMPTED:
                    continue
                job, story = by_id[observation.job_id], machines.stories.pop(observation.job_id)
                gpus = job.resources.total_gpus
                self._runs[job.id] = Run(
                    job.id, job.owner, gpus, job.submitted_at, story.start, last.at, story.ran, story.preemptions
                )
                if self._progress is not None and len(self._runs) % step == 0:
                    self._progress(len(self._runs) / len(jobs))
            while arrived < len(jobs) and jobs[arrived].submitted_at <= now:
                self._store.add(jobs[arrived])
                news.jobs.append(jobs[arrived])
                arrived += 1
            fresh = tuple(job for job in news.jobs if self._asks(job.id))
            scheduler.cycle(news, now)
            if self._answer is not None and fresh:
                self._tell(fresh, now, self._answer)
        return self._runs

    def _tell(self, fresh: Sequence[Job], now: float, answer: Callable[[Wait, float], None]) -> None:
        queue_report = self._scheduler.look(now)
        for job in fresh:
            hold = queue_report.wait_of(job.id)
            if hold is not None:
                self._scheduler.start_ranges.told(hold, now)
                answer(hold, now)
