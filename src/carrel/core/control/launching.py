"""From a decision to what the runner is told."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carrel.core.domain.job import Job
from carrel.core.domain.launch import Launch, LaunchLimits, LaunchPaths, LaunchRucio, LaunchTracking, LaunchWalls
from carrel.core.domain.network import least
from carrel.core.domain.node import Device, Node
from carrel.core.domain.partition import read_cluster
from carrel.core.domain.qos import JobKind, Lends, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import directory_name

_PREFIX = "carrel-job"
_LONGEST = 128
#: Bytes of memory for a runner that only fetches, and the most for one that builds.
_FETCHING, _BUILDING = 512 * 1024**2, 4 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """What is the same for every job of this lab."""

    paths: LaunchPaths
    limits: LaunchLimits = field(default_factory=LaunchLimits)
    gateway: str = ""
    #: As in `Launch`.
    authority: str = ""
    #: Address of the lab's tracking server for jobs, or None when there is none.
    tracking_uri: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    #: True where GPU state of sessions can be moved to host memory, which then counts as theirs.
    suspends: bool = False
    #: As in `Launch`.
    download_python: bool = False
    remote: bool = False
    session_ports: str = ""
    #: How many shares of its GPU a task that gives it to cells asks of Slurm; 0: all of the GPU, of which cells have nothing.
    shards: Callable[[Job, TaskSpec], int] = field(default=lambda _job, _task: 0)
    #: As in `Launch`.
    rucio: LaunchRucio | None = None
    #: What jobs of an owner do not see of the machine.
    walls: Callable[[str], LaunchWalls | None] = field(default=lambda _owner: None)
    #: The same for jobs of the engine of that name, which chooses their nodes.
    of_engine: Callable[[str], LaunchSettings] | None = None


def build_launch(job: Job, task: TaskSpec, nodes: Sequence[Node], settings: LaunchSettings, qos: QoS | None = None) -> Launch:
    """The launch of the job's present attempt, on the node and devices that it has leased; `qos` is its class as it is now."""
    if settings.of_engine is not None and job.handed_over:
        settings = settings.of_engine(read_cluster(job.node)[0])
    here = next((node for node in nodes if node.name == job.node), None)
    known = {device.uuid: device for device in here.devices} if here is not None else {}
    return Launch(
        job_id=job.id,
        attempt=job.attempt,
        kind=job.kind,
        owner=job.owner,
        name=job.name,
        account=job.account,
        qos=job.qos,
        node=job.node or "",
        task=task,
        resources=job.resources,
        devices=tuple(known.get(uuid) or _vanished(uuid) for uuid in job.devices),
        paths=_paths(settings.paths, job.owner),
        limits=_limits(task, nodes, settings, job.resources.total_gpus if lends(job, qos) else 0),
        gateway=settings.gateway,
        authority=settings.authority,
        tracking=_tracking(job, task, settings),
        walls=_walls(settings.walls(job.owner), task),
        remote=settings.remote,
        download_python=settings.download_python,
        rucio=settings.rucio,
        session_ports=settings.session_ports,
        lends=lends(job, qos),
        shards=settings.shards(job, task) if lends(job, qos) else 0,
        element=job.element,
        variables=settings.variables,
        parts=here.parts if here is not None else {},
    )


def asking_little(launch: Launch) -> Launch:
    """What builds and fetches where others compute: a processor and no GPU, for as long as the job itself may run.

    Who compiles has as much memory as the job, within bounds: that is known to be there.
    """
    memory = max(_FETCHING, min(launch.resources.memory, _BUILDING)) if launch.task.environment.wanted else _FETCHING
    wanted = Resources(cpus=1, memory=memory, time=launch.resources.time)
    return replace(launch, resources=wanted, element=None, lends=False, shards=0)


def _walls(walls: LaunchWalls | None, task: TaskSpec) -> LaunchWalls | None:
    if walls is None:
        return None
    walls = replace(walls, network=least(walls.network, task.network))
    if task.challenge is not None:
        # A home would outlive the job, and the next submission's code would find in it what this one left.
        walls = replace(walls, home="", data=task.challenge.readable)
    return walls


def _paths(paths: LaunchPaths, owner: str) -> LaunchPaths:
    name = directory_name(owner)
    files, inputs = (f"{place}/{name}" if place else "" for place in (paths.files, paths.inputs))
    return replace(paths, files=files, inputs=inputs)


def lends(job: Job, qos: QoS | None) -> bool:
    """True when the running job gives its devices to cells for a while, where it has some."""
    return job.kind is not JobKind.SESSION and not why_it_keeps_gpus(job, qos)


def why_it_keeps_gpus(job: Job, qos: QoS | None) -> str:
    """Why a task gives its GPUs to no cell, as far as its description says; "" where that says nothing of the kind."""
    if job.resources.nodes > 1:
        return "its processes are on several nodes, and cannot be paused as one"
    if not job.preemptible:
        return "it was submitted with --no-preempt"
    if qos is None or qos.lends is not Lends.CELLS:
        return f'work of the class of service "{job.qos}" lends to nobody'
    if job.handed_over and job.resources.gpus > 1:
        return "on a cluster only tasks of one GPU give way"
    return ""


def _limits(task: TaskSpec, nodes: Sequence[Node], settings: LaunchSettings, lent: int) -> LaunchLimits:
    """`lent`: GPUs that the task gives to cells for a while."""
    limits = replace(settings.limits, warning=_warning(task, settings))
    moving = task.session.gpus if task.session is not None else task.borrows or lent
    if not settings.suspends or not moving:
        return limits
    largest = max((device.memory for node in nodes for device in node.devices if not device.simulated), default=0)
    return replace(limits, suspended=moving * largest)


def _warning(task: TaskSpec, settings: LaunchSettings) -> int:
    """Seconds before its walltime at which a task is told: if it asks for that, or has to write a checkpoint by then."""
    if task.session is not None:
        return 0
    if task.warning is not None:
        return task.warning
    return settings.limits.warning if task.requeue else 0


def _tracking(job: Job, task: TaskSpec, settings: LaunchSettings) -> LaunchTracking | None:
    given = task.tracking
    if given is not None and given.uri is not None:
        return LaunchTracking(uri=given.uri, run_id=given.run_id, experiment_id=given.experiment_id)
    if settings.tracking_uri is None:
        return None
    experiment = given.experiment_id if given is not None else None
    return LaunchTracking(uri=settings.tracking_uri, run_id=job.run_id, experiment_id=experiment)


def _vanished(uuid: str) -> Device:
    # The device was there when the lease was written; a runner that has it already goes on using it.
    return Device(uuid=uuid, index=-1, type="unknown", name="not seen any more", memory=0)


def job_token(secret: bytes, job_id: int, attempt: int) -> str:
    """The token of one attempt: derived, so that it need not be stored, and worth nothing once the attempt is over."""
    mac = hmac.new(secret, f"{_PREFIX}:{job_id}:{attempt}".encode(), hashlib.sha256).hexdigest()
    return f"{_PREFIX}.{job_id}.{attempt}.{mac}"


def read_job_token(secret: bytes, token: str) -> tuple[int, int] | None:
    """Job and attempt that `token` was made for, or None when it is no job token of this lab."""
    # Checked before anything is computed with it: it comes from outside.
    parts = token.split(".") if token.isascii() and len(token) <= _LONGEST else ()
    if len(parts) != 4 or parts[0] != _PREFIX or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    job_id, attempt = int(parts[1]), int(parts[2])
    return (job_id, attempt) if hmac.compare_digest(token.encode(), job_token(secret, job_id, attempt).encode()) else None
