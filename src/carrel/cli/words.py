"""Jobs in words: times, resources, reasons. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from carrel.core.domain.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from carrel.wire import v1


def ago(moment: datetime | float | None, now: datetime) -> str:
    """ "12 min ago"; "" for None."""
    if moment is None:
        return ""
    moment = datetime.fromtimestamp(moment, UTC) if isinstance(moment, int | float) else moment
    seconds = (now - moment).total_seconds()
    return f"{format_duration(seconds if seconds < 60 else round(seconds / 60) * 60)} ago"


def local(moment: datetime | float | None) -> str:
    """Date and time on the reader's clock; a number is Unix seconds."""
    moment = datetime.fromtimestamp(moment, UTC) if isinstance(moment, int | float) else moment
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def until(moment: datetime | float | None) -> str:
    """Until when something holds."""
    return "without an end" if moment is None else f"until {local(moment)}"


def spent(job: v1.JobView | v1.AttemptView, now: datetime) -> str:
    """How long it ran, or has been running; "" when it has not started."""
    if job.started_at is None:
        return ""
    stopped = getattr(job, "suspended_at", None)
    return format_duration(((job.ended_at or stopped or now) - job.started_at).total_seconds() - job.suspended_seconds)


def paused(job: v1.JobView, now: datetime) -> str:
    """For how long others had its GPUs or its place while it stood still; "" where they had not."""
    seconds = job.suspended_seconds + ((now - job.suspended_at).total_seconds() if job.suspended_at else 0.0)
    if seconds <= 0:
        return ""
    times = job.pauses + (job.suspended_at is not None)
    often = {0: "", 1: "once, "}.get(times, f"{times} times, ")
    people = f", for {format_count(job.pause_people, 'person').replace('persons', 'people')}" if job.pause_people else ""
    return f"{often}{format_duration(seconds)} in all{people}, while others had its GPUs or its place"


def size(number: int) -> str:
    """ "2 B", "1.5M"."""
    return f"{number} B" if number < 1024 else format_size(number)


def gpu(uuid: str) -> str:
    """A device's name, short enough for a line: "GPU-5a2f81c0"."""
    return uuid[:12] if uuid.startswith("GPU-") else uuid


def resources(job: v1.JobView, *, simulated: bool = False) -> str:
    """ "2 simulated GPUs (a100), 4 CPUs, 8G, at most 2 h"; `simulated`: the lab's GPUs are."""
    return asked_for(job.resources, simulated=job.simulated or simulated)


def asked_for(asked: v1.ResourceView, *, simulated: bool = False) -> str:
    """The same of what is asked for."""
    gpus = format_count(asked.gpus, "simulated GPU" if simulated else "GPU") if asked.gpus else ""
    if gpus and asked.gpu_type:
        gpus += f" ({asked.gpu_type})"
    if gpus and asked.gpu_memory:
        gpus += f" with {format_size(asked.gpu_memory)}"
    nodes = f"{asked.nodes} nodes with {gpus or format_count(asked.cpus, 'CPU')}" if asked.nodes > 1 else gpus
    cpus = "" if asked.nodes > 1 and not gpus else format_count(asked.cpus, "CPU")
    made = f"on a machine that is made for it ({asked.compose})" if asked.compose else ""
    parts = [nodes, cpus, format_size(asked.memory), made, f"at most {format_duration(asked.time)}"]
    return ", ".join(part for part in parts if part)


def number(job: v1.JobView) -> str:
    """What a job is called: its number, or "12_3" in an array."""
    return str(job.id) if job.array_job_id is None else f"{job.array_job_id}_{job.array_task_id}"


def array(array_id: int, jobs: Sequence[v1.JobView]) -> str:
    """How far the jobs of an array are: "12 (0-9%2): 2 RUNNING, 8 PENDING"."""
    states = Counter(job.state for job in jobs)
    return f"{array_id} ({jobs[0].array}): {', '.join(f'{many} {state}' for state, many in states.most_common())}"


def processes(job: v1.JobDetail) -> str:
    """ "2 nodes × 4, torchrun"; "" for a single process that the lab starts."""
    nodes, each = job.resources.nodes, job.tasks_per_node
    if nodes * each == 1 and job.launcher == "none":
        return ""
    shape = f"{nodes} nodes × {each}" if nodes > 1 else str(each)
    return shape if job.launcher == "none" else f"{shape}, {job.launcher}"


def queue(position: int | None, message: str, estimated_start: datetime | str | None, now: datetime) -> str:
    """Why a job waits: "#2 in line: needs 2 GPUs, 1 is free; starts in about 4 min"."""
    text = f"#{position} in line: {message}" if position else message
    start = datetime.fromisoformat(estimated_start) if isinstance(estimated_start, str) else estimated_start
    # The policy's sentence often holds the estimate already.
    if start is not None and not any(words in message for words in ("about", "at the latest", "any moment", "probably")):
        left = (start - now).total_seconds()
        text = f"{text.rstrip('.')}; starts {'soon' if left < 1 else 'in about ' + format_duration(left)}"
    return text


def alternative(one: v1.AlternativeView, now: datetime) -> str:
    """What would make a job start sooner: "with 1 GPU instead of 2 GPUs: now", "with 4 h instead of 1 d: in 25 min"."""
    when = "now" if one.start is None else f"in {format_duration(max(1.0, (one.start - now).total_seconds()))}"
    return f"{'on' if one.option == 'gpu_type' else 'with'} {one.value} instead of {one.instead_of}: {when}"


def reason(job: v1.JobView, now: datetime) -> str:
    """The sentence of a job's reason, with its place in the queue while it waits, and what would make it start sooner."""
    if job.queue is not None and job.state == "PENDING":
        text = queue(job.queue.position, job.message, job.queue.estimated_start, now)
        return "; ".join([text.rstrip("."), *(alternative(one, now) for one in job.queue.alternatives[:1])])
    return "" if job.state == "COMPLETED" or job.reason == "Running" else job.message


#: What a job does that stays in its state, by reason code. A code of an engine's own stands for itself.
_PROGRESS = {
    "": "preparing",
    "Preparing": "preparing",
    "BuildEnvironment": "preparing",
    "StageIn": "preparing",
    "Preempting": "giving way",
    "Resuming": "going on",
    "Running": "running",
    "Tracked": "tracked",
    "WaitsForJob": "waiting",
}


def short_digest(text: str) -> str:
    """The first digits of the digest that a text begins with; any other text as it is."""
    if not text.startswith("sha256:"):
        return text
    digest, space, rest = text.removeprefix("sha256:").partition(" ")
    return f"{digest[:12]}{space}{rest}"


def event(kind: str, data: Mapping[str, Any], now: datetime) -> str:
    """One line about an event that is not log."""
    if kind == "queue":
        return "waiting: " + queue(data.get("position"), str(data.get("message", "")), data.get("estimated_start"), now)
    if kind == "progress":
        code = str(data.get("reason") or "")
        return f"{_PROGRESS.get(code, code)}: {data.get('message', '')}"
    words = {"PENDING": "waiting", "CONFIGURING": "preparing", "RUNNING": "running", "SUSPENDED": "suspended"}
    return f"{words.get(str(data.get('state')), data.get('state'))}: {data.get('message', '')}"


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)
