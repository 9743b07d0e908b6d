"""Jobs that never were, like those of a trace: seeded, so that everybody gets the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, fsum, inf
from random import Random

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Trace, TraceJob
from generator.fit import FittedJobs, Size
from generator.fitted_philly import FITTED
from generator.quantiles import Quantiles
from generator.walltimes import asked

#: How many of a user's latest jobs one that is not new repeats one of.
LATEST = 50


def generate_jobs(
    seed: int, *, jobs: int, like: FittedJobs = FITTED, gpus: int | None = None, load: float | None = None
) -> Trace:
    """Return a trace of `jobs` jobs; the first is submitted at 0.

    A user submits new experiments and repeats of their latest `LATEST` jobs. An experiment is a name: its jobs ask for the same
    GPUs, run about as long (a log-normal distribution around its median), and its owner wishes for one walltime, which is
    only exceeded where a job would not end in time. The medians are those of the trace's jobs, so that all jobs together are
    distributed about as they were, and never beyond the shortest and longest of their size.

    `gpus` is how many there are, by default as where the trace was recorded; jobs that need more are not generated, and a note
    says so. With a `load` the times of submission are drawn together or apart until the GPU-seconds of all jobs are `load` x
    `gpus` x the time from the first submission to the last. Without one, jobs come at about the rate of the trace. The same
    arguments give the same jobs.

    Raises `Invalid` when there is nothing to generate, and for a load that cannot be reached.
    """
    if jobs < 1:
        raise Invalid(f"{jobs} jobs are to be generated.", remedy="Ask for 1 or more.")
    cluster = _cluster(like, gpus)
    sizes, notes = _fitting(like, cluster)
    random = Random(seed)
    drawn = _draw(random, jobs, like, sizes)
    span = None if load is None else _span([one.duration * one.gpus for one in drawn], cluster, load)
    times = like.arrivals.draw(random, jobs, span)
    of_load = "" if load is None else f", load {load:g}"
    return Trace(
        name=f"{jobs:,} jobs like {like.name}, seed {seed}{of_load}",
        jobs=tuple(
            TraceJob(
                id=number,
                submitted=round(at, 3),
                duration=one.duration,
                gpus=one.gpus,
                time=one.time,
                user=one.user,
                name=one.name,
            )
            for number, (at, one) in enumerate(zip(times, drawn, strict=True))
        ),
        cluster=cluster,
        notes=("Generated from summary statistics; users, names and what is alike among jobs of one name are a model.", *notes),
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A job without its time of submission."""

    user: str
    name: str
    gpus: int
    duration: float
    time: int


@dataclass(frozen=True, slots=True)
class _Experiment:
    name: str
    gpus: int
    durations: Quantiles
    median: float
    #: Seconds that its owner wishes for.
    wish: float


@dataclass(slots=True)
class _User:
    """Mutable, and known only inside one generation."""

    name: str
    begun: int = 0
    #: The experiments of their latest jobs, as a ring.
    latest: list[_Experiment] = field(default_factory=list)
    at: int = 0

    def repeat(self, experiment: _Experiment) -> None:
        if len(self.latest) < LATEST:
            self.latest.append(experiment)
        else:
            self.latest[self.at] = experiment
            self.at = (self.at + 1) % LATEST


def _draw(random: Random, jobs: int, like: FittedJobs, sizes: Sequence[Size]) -> Sequence[_Drawn]:
    """Return who submits what, in order."""
    users = [_User(f"user-{rank}") for rank in range(1, like.people.users + 1)]
    shares = [size.share for size in sizes]
    found = []
    for user in random.choices(users, cum_weights=like.people.weights(), k=jobs):
        if not user.latest or random.random() < like.people.novelty:
            size = random.choices(sizes, shares)[0]
            experiment = _begin(random, user, size, like)
        else:
            experiment = user.latest[int(random.random() * len(user.latest))]
        user.repeat(experiment)
        limits = experiment.durations.values
        duration = experiment.median * exp(random.gauss(0, like.spread))
        duration = round(min(max(duration, limits[0]), limits[-1]), 3)
        found.append(_Drawn(user.name, experiment.name, experiment.gpus, duration, asked(duration, experiment.wish)))
    return found


def _begin(random: Random, user: _User, size: Size, like: FittedJobs) -> _Experiment:
    user.begun += 1
    median = size.durations.draw(random)
    return _Experiment(f"experiment-{user.begun}", size.gpus, size.durations, median, median * like.factors.draw(random))


def _cluster(like: FittedJobs, gpus: int | None) -> Cluster | None:
    """Return where jobs are to run: nodes as the trace's, where they make `gpus`, else one node."""
    if gpus is None:
        return like.cluster
    if gpus < 1:
        raise Invalid(f"There are {gpus} GPUs.", remedy="Give 1 or more.")
    if like.cluster is not None and gpus % like.cluster.gpus_per_node == 0:
        return Cluster(nodes=gpus // like.cluster.gpus_per_node, gpus_per_node=like.cluster.gpus_per_node)
    return Cluster(nodes=1, gpus_per_node=gpus)


def _fitting(like: FittedJobs, cluster: Cluster | None) -> tuple[Sequence[Size], Sequence[str]]:
    """Return the sizes that can ever run, and what to say about the others."""
    if cluster is None:
        return like.sizes, ()
    fitting = [size for size in like.sizes if size.gpus <= cluster.gpus]
    if not fitting:
        least = min(size.gpus for size in like.sizes)
        raise Invalid(f"All jobs of {like.name} need more than {cluster.gpus} GPUs.", remedy=f"Give {least} GPUs or more.")
    left = fsum(size.share for size in like.sizes if size.gpus > cluster.gpus)
    return fitting, [f"Jobs of more than {cluster.gpus} GPUs, {left:.1%} of {like.name}, are left out."] if left else []


def _span(gpu_seconds: Sequence[float], cluster: Cluster | None, load: float) -> float:
    """Return the seconds from the first submission to the last with which the load is `load`."""
    if not 0 < load < inf:
        raise Invalid(f"The load is {load:g}.", remedy="Give a number above 0; 1 is as much as all GPUs can do.")
    if cluster is None:
        raise Invalid("A load is a share of GPUs, and the trace does not say where it was recorded.", remedy="Give gpus too.")
    if len(gpu_seconds) < 2 or not any(gpu_seconds):
        raise Invalid(
            f"{len(gpu_seconds)} jobs of {fsum(gpu_seconds):g} GPU-seconds make no load.",
            remedy="Ask for two jobs or more, of a trace whose jobs use GPUs.",
        )
    return fsum(gpu_seconds) / (load * cluster.gpus)
