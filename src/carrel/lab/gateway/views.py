"""Values of the lab as the wire has them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from carrel.core.control.launching import why_it_keeps_gpus
from carrel.core.control.ports import AttemptRow
from carrel.core.control.sessions import NodeReport, SessionStatus
from carrel.core.control.views import DeviceStatus, NodeStatus, ShareReport
from carrel.core.domain.account import Account
from carrel.core.domain.comparison import Verification
from carrel.core.domain.expectation import Coverage
from carrel.core.domain.job import Job
from carrel.core.domain.launch import StoredFile, Usage
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import Wait
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.session import SessionSpec
from carrel.core.domain.storage import LabDisk
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import User
from carrel.lab.gateway.hints import hint_of
from carrel.wire import v1

#: How the UUIDs of simulated devices start (`carrel.core.domain.node.Device.uuid`).
_SIMULATED = "SIM-"


def moment(seconds: float | None) -> datetime | None:
    """Unix seconds as a time in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def job_fields(job: Job, hold: Wait | None, run_url: str | None) -> dict[str, object]:
    """The fields of a `v1.JobView`. A waiting job has the placement's reason, with the present numbers.

    One that only pauses has what it pauses for.
    """
    reason = hold.reason if hold is not None and hold.reason.code != "BeginTime" else job.reason
    resources = job.resources
    return {
        "id": job.id,
        "kind": job.kind.value,
        "owner": job.owner,
        "account": job.account,
        "name": job.name,
        "qos": job.qos,
        "partition": job.partition,
        "state": job.state.value,
        "reason": reason.code,
        "message": reason.message,
        "resources": v1.ResourceView(
            nodes=resources.nodes,
            cpus=resources.cpus,
            memory=resources.memory,
            gpus=resources.gpus,
            gpu_type=resources.gpu_type,
            gpu_memory=resources.gpu_memory,
            time=resources.time,
        ),
        "submitted_at": moment(job.submitted_at),
        "started_at": moment(job.started_at),
        "ended_at": moment(job.ended_at),
        "suspended_at": moment(job.suspended_at),
        "suspended_seconds": job.suspended_seconds,
        "pauses": job.pauses,
        "pause_people": job.pause_people,
        "attempt": job.attempt,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "node": job.node,
        "devices": list(job.devices),
        "simulated": any(uuid.startswith(_SIMULATED) for uuid in job.devices),
        "run_id": job.run_id,
        "run_url": run_url,
        "queue": queue_view(hold),
        "ended": job.state.ended,
        "preemptible": job.preemptible,
        "visible": job.visible.value,
        "requeues_left": job.requeues_left,
        "dependency": job.dependency,
        "parent": job.parent,
        "pipeline": job.pipeline,
        "array_job_id": job.element.array_id if job.element is not None else None,
        "array_task_id": job.element.index if job.element is not None else None,
        "array": job.element.array if job.element is not None else "",
    }


def queue_view(hold: Wait | None) -> v1.QueueView | None:
    """Where a waiting job stands."""
    if hold is None:
        return None
    between = None
    if hold.estimated_range is not None:
        low, high = hold.estimated_range
        between = (datetime.fromtimestamp(low, UTC), datetime.fromtimestamp(high, UTC))
    return v1.QueueView(position=hold.position, estimated_start=moment(hold.estimated_start), estimated_range=between)


def job_view(job: Job, hold: Wait | None = None, run_url: str | None = None) -> v1.JobView:
    """One job."""
    return v1.JobView.model_validate(job_fields(job, hold, run_url))


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
    fields = job_fields(job, hold, run_url)
    fields |= {
        "meaning": reasons.get(str(fields["reason"]), ""),
        "entry_point": task.entry_point,
        "command": task.command,
        "parameters": dict(task.parameters),
        "snapshot": task.snapshot,
        "experiment": task.experiment,
        "git_commit": task.git.commit if task.git else None,
        "git_dirty": task.git.dirty if task.git else False,
        "rerun_of": task.rerun_of,
        "verified": verified.words if verified is not None else "",
        "hint": hint_of(job, attempts),
        "replay_of": "" if task.replay_of is None else f"job {task.replay_of.job} of the lab {task.replay_of.lab}",
        "slurm": list(task.slurm.describe()) if task.slurm else [],
        "engines": task.engines or {},
        "notes": list(task.notes),
        "launcher": task.launcher.value,
        "tasks_per_node": task.tasks_per_node,
        "keeps_gpus": why_it_keeps_gpus(job, qos) if tenant else "",
        "attempts": [attempt_view(row) for row in attempts],
    }
    return v1.JobDetail.model_validate(fields)


def attempt_view(row: AttemptRow) -> v1.AttemptView:
    """One try at a job."""
    return v1.AttemptView(
        number=row.number,
        node=row.node,
        devices=list(row.devices),
        state=row.state.value,
        reason=row.reason.code,
        message=row.reason.message,
        exit_code=row.exit_code,
        signal=row.signal,
        started_at=moment(row.started_at),
        ended_at=moment(row.ended_at),
        suspended_seconds=row.suspended_seconds,
        slurm_job=int(number) if (number := row.hardware.get("slurm_job", "")[:18]).isdecimal() else None,
        slurm_nodes=row.hardware.get("slurm_nodes", ""),
        environment=row.environment,
        environment_built=row.environment_built,
        usage=usage_view(row.usage),
        uncollected=row.uncollected,
    )


def usage_view(usage: Usage) -> v1.UsageView:
    """What an attempt used."""
    return v1.UsageView(
        cpu_seconds=usage.cpu_seconds,
        memory=usage.memory,
        memory_peak=usage.memory_peak,
        gpu_utilization=dict(usage.gpu_utilization),
        gpu_memory=dict(usage.gpu_memory),
        gpu_mean=dict(usage.gpu_mean),
        gpu_samples=usage.gpu_samples,
    )


def output_view(file: StoredFile) -> v1.OutputView:
    """One stored output."""
    return v1.OutputView(path=file.path, size=file.size, digest=file.digest, removed_at=moment(file.removed_at))


def start_ranges_view(one: Coverage) -> v1.StartRangesView:
    """How often ranges of start times held."""
    return v1.StartRangesView(starts=one.of, held=one.held, early=one.early, late=one.late)


def disk_view(one: LabDisk) -> v1.DiskView:
    """One disk of the lab's."""
    disk = one.disk
    return v1.DiskView(
        path=disk.path,
        holds=one.holds,
        total=disk.total,
        free=disk.free,
        floor=one.floor,
        room=one.room.value,
        message=one.message,
    )


def node_view(status: NodeStatus) -> v1.NodeView:
    """One machine."""
    return v1.NodeView(
        name=status.node.name,
        cpus=status.node.cpus,
        cpus_free=status.cpus_free,
        memory=status.node.memory,
        memory_free=status.memory_free,
        drained=status.node.drained,
        devices=[device_view(device) for device in status.devices],
    )


def cluster_node_view(node: Node, partitions: Sequence[str]) -> v1.ClusterNodeView:
    """One machine of a cluster."""
    return v1.ClusterNodeView(
        name=node.name,
        partitions=list(partitions),
        cpus=node.cpus,
        memory=node.memory,
        gpus=dict(Counter(device.type for device in node.devices)),
        drained=node.drained,
    )


def device_view(status: DeviceStatus) -> v1.DeviceView:
    """One GPU; without the number, name and owner of other users' jobs."""
    device, job = status.device, status.holder
    state = "held" if job is not None else "withheld" if status.withheld else "free"
    holder = None
    if job is not None:
        holder = v1.HolderView(job_id=job.id, name=job.name, owner=job.owner) if job.owner else v1.HolderView()
    return v1.DeviceView(
        uuid=device.uuid,
        index=device.index,
        type=device.type,
        name=device.name,
        memory=device.memory,
        simulated=device.simulated,
        state=state,
        holder=holder,
    )


def user_view(user: User, account: str) -> v1.UserView:
    """A user, whose work is charged to `account`."""
    return v1.UserView(
        subject=user.subject,
        name=user.name,
        role=user.role.value,
        account=account,
        state=user.state.value,
        state_reason=user.state_reason,
        state_since=moment(user.state_since),
        linked_to=user.linked_to,
    )


def share_view(report: ShareReport) -> v1.ShareView:
    """Fair share."""
    return v1.ShareView(
        standings=[
            v1.StandingView(
                account=standing.account,
                user=standing.user,
                factor=standing.factor,
                place=report.places[standing.account, standing.user],
                share=standing.share,
                used=standing.used,
                hours=standing.seconds / 3600,
            )
            for standing in report.standings
        ],
        of=report.of,
        half_life=report.half_life,
        weight=report.weight,
        held=report.held,
        in_an_hour_kept=dict(report.kept),
        in_an_hour_released=dict(report.released),
    )


def qos_view(qos: QoS, *, default: bool) -> v1.QoSView:
    """One class of service."""
    return v1.QoSView(
        name=qos.name,
        default=default,
        kinds=sorted(kind.value for kind in qos.kinds),
        default_time=qos.default_time,
        max_time=qos.max_time,
        max_jobs_per_user=qos.max_jobs_per_user,
        max_gpus_per_user=qos.max_gpus_per_user,
        max_jobs_per_account=qos.max_jobs_per_account,
        max_gpus_per_account=qos.max_gpus_per_account,
        max_gpus=qos.max_gpus,
        idle_time=qos.idle_time,
        priority=qos.priority,
        preempts=sorted(qos.preempts),
        preempt_mode=qos.preempt_mode.value,
        preempt_exempt_time=qos.preempt_exempt_time,
        preempt_grace=qos.preempt_grace,
        lends=qos.lends.value,
    )


def account_view(account: Account, *, yours: bool) -> v1.AccountView:
    """One account; `yours`: the caller may charge it."""
    return v1.AccountView(name=account.name, parent=account.parent, shares=account.shares, yours=yours)


def partition_view(partition: Partition, qos: Iterable[str], nodes: Iterable[str]) -> v1.PartitionView:
    """One part of the lab, of which `qos` and `nodes` are all there are."""
    fields: dict[str, Any] = {} if partition.settings is None else dict(partition.settings.shown())
    fields |= {"name": partition.name, "engine": partition.engine, "qos": [name for name in qos if partition.takes(name)]}
    return v1.PartitionView.model_validate({**fields, "nodes": [node for node in nodes if partition.has(node)]})


def session_view(job: v1.JobView, spec: SessionSpec, status: SessionStatus, address: str = "") -> v1.SessionView:
    """One session."""
    return v1.SessionView(
        job=job,
        kind=spec.kind.value,
        directory=spec.directory,
        environment=spec.environment,
        image=spec.image or None,
        gpus=spec.gpus,
        reserve=spec.reserve,
        ready=status.ready,
        connections=status.connections,
        idle_since=moment(status.idle_since),
        idle_end=moment(status.idle_end),
        hub=spec.hub or None,
        note=_gpu_note(job, spec),
        trouble=status.trouble,
        host=status.host,
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


def lending_view(status: Mapping[str, Any], nodes: Sequence[NodeReport] = ()) -> v1.LendingView:
    """The status of the broker of the lab's own machine, and what those of a cluster's nodes have said."""
    far = [
        v1.NodeLendingView.model_validate(
            {**news.status, "node": news.node, "age": news.age, "current": news.current, "ended": news.ended}
        )
        for news in nodes
    ]
    return v1.LendingView.model_validate({"available": bool(status), **status, "nodes": far})
