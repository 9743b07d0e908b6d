"""Values of the lab as the wire has them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from carrel.core.control.launching import why_it_keeps_gpus
from carrel.core.control.ports import AttemptRow
from carrel.core.control.sessions import NodeReport, SessionStatus
from carrel.core.control.views import DeviceStatus, NodeStatus, ShareReport
from carrel.core.domain.account import Account
from carrel.core.domain.comparison import Verification
from carrel.core.domain.expectation import Coverage
from carrel.core.domain.fabric import FreeSlices
from carrel.core.domain.job import Job
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import Wait
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.session import SessionSpec
from carrel.core.domain.storage import LabDisk
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import User
from carrel.wire import v1

V = TypeVar("V", bound=BaseModel)
#: How the UUIDs of simulated devices start (`carrel.core.domain.node.Device.uuid`).
_SIMULATED = "SIM-"


def moment(seconds: float | None) -> datetime | None:
    """Unix seconds as a time in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def view_of(kind: type[V], *values: object, **more: Any) -> V:
    """Return one of the lab's answers: what is not in `more` is what the first of `values` has that has a field of its name."""
    return kind.model_validate({**_fields_of(kind, *values), **more}, from_attributes=True)


def _fields_of(kind: type[BaseModel], *values: object) -> dict[str, Any]:
    return {name: getattr(value, name) for value in reversed(values) for name in kind.model_fields if hasattr(value, name)}


def _job_fields(job: Job, hold: Wait | None, run_url: str | None) -> dict[str, Any]:
    """What of a `v1.JobView` is not called so in the job. A waiting job has the placement's reason, with the present numbers.

    One that only pauses has what it pauses for.
    """
    reason = hold.reason if hold is not None and hold.reason.code != "BeginTime" else job.reason
    return {
        "reason": reason.code,
        "message": reason.message,
        "simulated": any(uuid.startswith(_SIMULATED) for uuid in job.devices),
        "run_url": run_url,
        "queue": None if hold is None else view_of(v1.QueueView, hold),
        "ended": job.state.ended,
        "array_job_id": job.element.array_id if job.element is not None else None,
        "array_task_id": job.element.index if job.element is not None else None,
        "array": job.element.array if job.element is not None else "",
    }


def preview_view(resources: Resources, wait: Wait | None, notes: Sequence[str]) -> v1.PreviewView:
    """What would become of a task."""
    return v1.PreviewView(
        resources=view_of(v1.ResourceView, resources),
        queue=None if wait is None else view_of(v1.QueueView, wait),
        reason=wait.reason.code if wait is not None else "",
        message=wait.reason.message if wait is not None else "",
        notes=list(notes),
    )


def job_view(job: Job, hold: Wait | None = None, run_url: str | None = None) -> v1.JobView:
    """One job."""
    return view_of(v1.JobView, job, **_job_fields(job, hold, run_url))


def job_detail(
    job: Job,
    hold: Wait | None,
    run_url: str | None,
    task: TaskSpec,
    attempts: Sequence[AttemptRow],
    qos: QoS | None = None,
    *,
    reasons: Mapping[str, str],
    verified: Verification | None = None,
) -> v1.JobDetail:
    """One job with its description and attempts; `qos` is its class as it is now, and `reasons` says what reason codes mean."""
    tenant = job.kind is not JobKind.SESSION and job.resources.gpus > 0
    fields = _job_fields(job, hold, run_url)
    fields |= {
        "meaning": reasons.get(fields["reason"], ""),
        "git_commit": task.git.commit if task.git else None,
        "git_dirty": task.git.dirty if task.git else False,
        "verified": verified.words if verified is not None else "",
        "hint": attempts[-1].advice if attempts else "",
        "replay_of": "" if task.replay_of is None else f"job {task.replay_of.job} of the lab {task.replay_of.lab}",
        "slurm": list(task.slurm.describe()) if task.slurm else [],
        "engines": task.engines or {},
        "keeps_gpus": why_it_keeps_gpus(job, qos) if tenant else "",
        "attempts": [attempt_view(row) for row in attempts],
    }
    return view_of(v1.JobDetail, job, task, **fields)


def attempt_view(row: AttemptRow) -> v1.AttemptView:
    """One try at a job."""
    number = row.hardware.get("slurm_job", "")[:18]
    return view_of(
        v1.AttemptView,
        row,
        reason=row.reason.code,
        message=row.reason.message,
        slurm_job=int(number) if number.isdecimal() else None,
        slurm_nodes=row.hardware.get("slurm_nodes", ""),
    )


def output_view(file: StoredFile) -> v1.OutputView:
    """One stored output."""
    return view_of(v1.OutputView, file)


def start_ranges_view(one: Coverage) -> v1.StartRangesView:
    """How often ranges of start times held."""
    return view_of(v1.StartRangesView, one, starts=one.of)


def disk_view(one: LabDisk) -> v1.DiskView:
    """One disk of the lab's."""
    return view_of(v1.DiskView, one, one.disk)


def node_view(status: NodeStatus) -> v1.NodeView:
    """One machine."""
    return view_of(v1.NodeView, status, status.node, devices=[device_view(device) for device in status.devices])


def cluster_node_view(node: Node, partitions: Sequence[str]) -> v1.ClusterNodeView:
    """One machine of a cluster."""
    gpus = Counter(device.type for device in node.devices)
    return view_of(v1.ClusterNodeView, node, partitions=partitions, gpus=gpus)


def device_view(status: DeviceStatus) -> v1.DeviceView:
    """One GPU; without the number, name and owner of other users' jobs."""
    device, job = status.device, status.holder
    out = "drained" if device.drained is not None else "withheld" if status.withheld else "free"
    state = "held" if job is not None else out
    holder = None
    if job is not None:
        holder = v1.HolderView(job_id=job.id, name=job.name, owner=job.owner) if job.owner else v1.HolderView()
    kept_for = status.kept_for if state == "free" else None
    return view_of(v1.DeviceView, device, state=state, holder=holder, kept_for=kept_for, unknown=status.unknown)


def user_view(user: User, account: str) -> v1.UserView:
    """A user, whose work is charged to `account`."""
    return view_of(v1.UserView, user, account=account)


def share_view(report: ShareReport) -> v1.ShareView:
    """Fair share."""
    standings = [
        view_of(v1.StandingView, one, place=report.places[one.account, one.user], hours=one.seconds / 3600)
        for one in report.standings
    ]
    kept, released = report.kept, report.released
    return view_of(v1.ShareView, report, standings=standings, in_an_hour_kept=kept, in_an_hour_released=released)


def qos_view(qos: QoS, *, default: bool) -> v1.QoSView:
    """One class of service."""
    return view_of(v1.QoSView, qos, default=default, kinds=sorted(qos.kinds), preempts=sorted(qos.preempts))


def account_view(account: Account, *, yours: bool) -> v1.AccountView:
    """One account; `yours`: the caller may charge it."""
    return view_of(v1.AccountView, account, yours=yours)


def partition_view(partition: Partition, qos: Iterable[str], nodes: Iterable[str]) -> v1.PartitionView:
    """One part of the lab, of which `qos` and `nodes` are all there are."""
    fields: dict[str, Any] = {} if partition.settings is None else dict(partition.settings.shown())
    fields |= {"name": partition.name, "engine": partition.engine, "qos": [name for name in qos if partition.takes(name)]}
    return v1.PartitionView.model_validate({**fields, "nodes": [node for node in nodes if partition.has(node)]})


def session_view(job: v1.JobView, spec: SessionSpec, status: SessionStatus, address: str = "") -> v1.SessionView:
    """One session."""
    return view_of(
        v1.SessionView,
        spec,
        status,
        job=job,
        image=spec.image or None,
        hub=spec.hub or None,
        note=_gpu_note(job, spec),
        address=address,
    )


def _gpu_note(job: v1.JobView, spec: SessionSpec) -> str:
    """What the owner of a session should know about GPUs that are not lent to its cells one by one."""
    if spec.shards:
        return (
            "It has a share of a GPU of a Slurm cluster from start to end. Where its node has a broker, its cells take "
            "turns on it with those of others; else all use it at the same time."
        )
    if job.resources.gpus and not spec.reserve:
        gpus = "a whole GPU" if job.resources.gpus == 1 else f"{job.resources.gpus} whole GPUs"
        return f'It holds {gpus} from start to end: partition "{job.partition}" has no shards that sessions could share.'
    return ""


def lending_view(
    status: Mapping[str, Any], nodes: Sequence[NodeReport], kept: Mapping[str, int], slices: Sequence[FreeSlices] = ()
) -> v1.LendingView:
    """The status of the broker of the lab's own machine, and what those of a cluster's nodes have said.

    `kept` has the waiting job for which a free device is kept.
    """
    far = [
        v1.NodeLendingView.model_validate(
            {**news.status, "node": news.node, "age": news.age, "current": news.current, "ended": news.ended}
        )
        for news in nodes
    ]
    devices = [{**device, "kept_for": kept.get(device["uuid"])} for device in status.get("devices", ())]
    return v1.LendingView.model_validate(
        {"available": bool(status), **status, "devices": devices, "nodes": far, "slices": slices}
    )
