"""`carrel ps`, `show`, `cancel` and `rerun`: looking at jobs and changing their fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli import words
from carrel.cli.endings import OK, exit_code, report
from carrel.cli.options import (
    AsJson,
    Home,
    JobId,
    JobName,
    argument,
    find_job,
    flag,
    job_name,
    open_client,
    option,
    simulated_jobs,
)
from carrel.cli.screen import STATE_STYLES, clean, paint, print_fields, print_json, print_table
from carrel.cli.words import array, gpu
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.job import ENDED, HOLDING, JobState
from carrel.core.domain.units import format_duration, format_size

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import AttemptView, JobDetail, JobView

#: Ended jobs that `carrel ps` shows below the active ones.
_RECENT = 5


def ps_command(
    all_users: Annotated[bool, flag("--all-users -u", "Everybody's jobs (administrators).")] = False,
    everything: Annotated[bool, flag("--all -a", "Ended jobs too, not only the last few.")] = False,
    states: Annotated[list[str] | None, option("--state -s", "STATE", "Only jobs in this state; may be repeated.")] = None,
    name: Annotated[str | None, option("--name", "NAME", "Only jobs of exactly this name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 50,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List jobs: the active ones and the last few that ended.

    Newest first. A waiting job shows why it waits, its place in line, and when it will probably start.
    """
    from carrel.cli.announce import tell_announcements

    wanted = [_state(text) for text in states or ()]
    with open_client(home) as client:
        jobs = _list(client, "all" if all_users else "me", wanted, name, limit, everything=everything)
        simulated = frozenset() if as_json else simulated_jobs(client, jobs)
        if not as_json:
            tell_announcements(client)
    if as_json:
        return print_json({"jobs": [job.model_dump(mode="json") for job in jobs]})
    _print_jobs(jobs, owners=all_users, simulated=simulated)
    return OK


def _list(client: Client, owner: str, states: Sequence[str], name: str | None, limit: int, *, everything: bool) -> list[JobView]:
    if states or everything:
        return list(client.jobs(owner, states=states, name=name, limit=limit))
    # What has a place is shown in any case: a large array that waits must not hide it.
    holding = list(client.jobs(owner, states=sorted(HOLDING), name=name, limit=limit))
    waiting = client.jobs(owner, states=[JobState.PENDING], name=name, limit=limit)
    ended = client.jobs(owner, states=sorted(ENDED), name=name, limit=min(_RECENT, limit))
    others = {job.id: job for job in [*waiting, *ended]}
    for job in holding:  # one may have started or ended between the questions
        others.pop(job.id, None)
    newest = sorted(others.values(), key=lambda job: -job.id)[: limit - len(holding)]
    return sorted([*holding, *newest], key=lambda job: -job.id)


def _state(text: str) -> str:
    known = {state.value: state.value for state in JobState}
    word = text.upper().replace("-", "_")
    if word not in known:
        from carrel.core.domain.suggest import suggest

        raise Invalid(f'There is no state "{text}".', remedy=suggest(word, list(known), what="States"))
    return known[word]


def _print_jobs(jobs: Sequence[JobView], *, owners: bool, simulated: frozenset[int]) -> None:
    if not jobs:
        print("No jobs. Run one: carrel run train.py")
        return
    now = words.now()
    rows = [
        (
            words.number(job),
            job.name,
            job.owner if owners else "",
            job.state,
            _gpus(job, simulated=job.id in simulated),
            words.spent(job, now),
            words.ago(job.submitted_at, now),
            words.reason(job, now),
        )
        for job in jobs
    ]
    heads = ("ID", "NAME", "OWNER", "STATE", "GPUS", "RAN", "SUBMITTED", "REASON")
    print_table(heads, rows, styles={0: "bold", 3: STATE_STYLES, 7: "dim"}, right=(0,))


def _gpus(job: JobView, *, simulated: bool) -> str:
    total = job.resources.gpus * job.resources.nodes
    return f"{total}{' simulated' if job.simulated or simulated else ''}" if total else ""


def show_command(job_id: JobId, home: Home = None, as_json: AsJson = False) -> int:
    """Show one job and its attempts."""
    with open_client(home) as client:
        job = client.job(find_job(client, job_id))
        simulated = not as_json and job.id in simulated_jobs(client, [job])
        of_array = not as_json and job_id == JobName(job.array_job_id or 0)
        others = client.array(job_id.number).jobs if of_array else []
    if as_json:
        return print_json(job)
    _print_job(job, others, simulated=simulated)
    return OK


def _node(job: JobDetail) -> str:
    """The node, or what Slurm chose where the lab did not."""
    last = job.attempts[-1] if job.attempts else None
    if last is None or last.slurm_job is None or last.number != job.attempt:
        return job.node or ""
    return f"{last.slurm_nodes} (job {last.slurm_job} of Slurm)"


def _requeues(job: JobDetail) -> str:
    left = job.requeues_left
    return f"up to {left} more time{'' if left == 1 else 's'} after its walltime" if left and not job.ended else ""


def _array(job: JobDetail, others: Sequence[JobView]) -> str:
    if job.array_job_id is None:
        return ""
    return array(job.array_job_id, others) if others else f"element {job.array_task_id} of {job.array_job_id} ({job.array})"


def _print_job(job: JobDetail, others: Sequence[JobView], *, simulated: bool) -> None:
    now = words.now()
    why = words.reason(job, now) if job.state == "PENDING" else job.message
    git = f"{job.git_commit}{' with uncommitted changes' if job.git_dirty else ''}" if job.git_commit else ""
    print_fields(
        [
            ("job", f"{paint(words.number(job), 'bold')} {job.name}"),
            ("number", str(job.id) if job.array_job_id is not None else ""),
            ("array", _array(job, others)),
            ("state", f"{paint(job.state, STATE_STYLES.get(job.state, ''))}  {clean(why)}"),
            ("or", "\n".join(words.alternative(one, now) for one in job.queue.alternatives[1:]) if job.queue else ""),
            ("reason", clean(f"{job.reason}: {job.meaning}" if job.meaning else job.reason)),
            ("owner", f"{job.owner} (account {job.account})"),
            ("visible", f"to the members of account {job.account}" if job.visible == "account" else ""),
            ("qos", job.qos if job.preemptible else f"{job.qos}, never interrupted"),
            ("partition", job.partition),
            ("resources", words.resources(job, simulated=simulated)),
            ("processes", words.processes(job)),
            ("slurm", clean(" ".join(job.slurm))),
            *(
                (engine, clean(" ".join(f"{name}={value}" for name, value in asked.items())))
                for engine, asked in job.engines.items()
            ),
            ("for cells", clean(f"none of its GPUs: {job.keeps_gpus}") if job.keeps_gpus else ""),
            ("node", f"{clean(_node(job))}{_devices(job.devices, simulated=job.simulated)}"),
            ("submitted", words.local(job.submitted_at)),
            ("started", words.local(job.started_at)),
            ("ended", words.local(job.ended_at)),
            ("ran", words.spent(job, now)),
            ("paused", words.paused(job, now)),
            ("command", "\n".join(clean(line) for line in job.command.splitlines())),
            ("entry point", job.entry_point),
            ("parameters", "\n".join(clean(f"{name}={value}") for name, value in job.parameters.items())),
            ("experiment", job.experiment or ""),
            ("code", job.snapshot[:19]),
            ("git", git),
            ("rerun of", str(job.rerun_of or "")),
            ("verified", job.verified),
            ("hint", job.hint),
            ("replays", job.replay_of),
            ("parent", f"job {job.parent}" if job.parent else ""),
            ("starts after", job.dependency),
            ("goes on", _requeues(job)),
            ("cells", _cells(job)),
            ("note", "\n".join(clean(note) for note in job.notes)),
            ("run", job.run_url or job.run_id or ""),
        ]
    )
    if job.attempts:
        print()
        _print_attempts(job.attempts, now)


def _cells(job: JobDetail) -> str:
    from carrel.core.gpu_use import SessionTime, told

    if job.cells is None:
        return ""
    busy = 100 * job.cells.busy / job.cells.measured if job.cells.measured else None
    return told(job.cells.cells, job.cells.gpu_seconds, busy, {name: getattr(job.cells, name) for name in SessionTime})


def _devices(devices: Sequence[str], *, simulated: bool) -> str:
    if not devices:
        return ""
    kind = "simulated GPU" if simulated else "GPU"
    return f", {kind}{'' if len(devices) == 1 else 's'} {', '.join(gpu(uuid) for uuid in devices)}"


def _gpu_use(attempt: AttemptView) -> Iterator[str]:
    """How busy each GPU was on average; how busy it is now, where it is too early for that."""
    usage = attempt.usage
    for name in usage.gpu_mean or usage.gpu_utilization:
        percent = usage.gpu_mean.get(name, usage.gpu_utilization.get(name, 0.0))
        sm = usage.gpu_sm_mean.get(name)
        yield f"{percent:.0f} %" if sm is None else f"{percent:.0f} % (SM {sm:.0f} %)"


def _print_attempts(attempts: Sequence[AttemptView], now: datetime) -> None:
    rows = [
        (
            str(attempt.number),
            attempt.state,
            words.spent(attempt, now),
            format_duration(attempt.usage.cpu_seconds) if attempt.usage.cpu_seconds else "",
            format_size(attempt.usage.memory_peak) if attempt.usage.memory_peak else "",
            " ".join(_gpu_use(attempt)),
            {None: "", True: "built", False: "ready"}[attempt.environment_built],
            attempt.message,
        )
        for attempt in attempts
    ]
    heads = ("ATTEMPT", "STATE", "RAN", "CPU TIME", "MEMORY", "GPU USE", "ENVIRONMENT", "REASON")
    print_table(heads, rows, styles={1: STATE_STYLES, 7: "dim"}, right=(0,))


def cancel_command(
    job_ids: Annotated[list[JobName], argument("ID", 'Numbers of jobs and arrays; "12_3" in an array.', parser=job_name)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Ask for the end of jobs.

    A waiting one ends at once, a running one when its processes are gone. The number of an array stands for all of its jobs.
    """
    code = OK
    asked: list[JobView] = []
    with open_client(home) as client:
        for job_id in dict.fromkeys(job_ids):
            try:
                jobs = _cancel(client, job_id)
            except CarrelError as error:
                if len(job_ids) == 1:
                    raise
                # The others are still to be cancelled.
                report(error, as_json=as_json)
                code = code or exit_code(error)
                continue
            asked += jobs
            if not as_json:
                print(_cancelled(job_id, jobs))
    if as_json:
        print_json({"jobs": [job.model_dump(mode="json") for job in asked]})
    return code


def _cancel(client: Client, name: JobName) -> Sequence[JobView]:
    job_id = find_job(client, name)
    if name.index is None and client.job(job_id).array_job_id == job_id:
        return client.cancel_array(job_id).jobs
    return [client.cancel(job_id)]


def _cancelled(name: JobName, jobs: Sequence[JobView]) -> str:
    if len(jobs) > 1:
        return (
            f"Array {array(name.number, jobs)}{'' if all(job.ended for job in jobs) else '; those that run are being cancelled'}."
        )
    (job,) = jobs
    if job.state == "CANCELLED":
        return f"Job {name} is cancelled."
    return f"Job {name} had ended already: {job.state}." if job.ended else f"Job {name} is being cancelled."


def rerun_command(job_id: JobId, home: Home = None, as_json: AsJson = False) -> int:
    """Run the same task again, as a new job.

    Same code, parameters, environment and resources; nothing is read from this machine.
    """
    with open_client(home) as client:
        job = client.rerun(find_job(client, job_id))
    if as_json:
        return print_json(job)
    print(f"Submitted job {paint(str(job.id), 'bold')}: {job.name}, which repeats job {job_id}")
    print(paint(f"  follow it: carrel logs -f {job.id}", "dim"))
    return OK
