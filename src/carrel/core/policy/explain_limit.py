"""Why a limit of its QoS keeps a job waiting, in words with numbers."""

from __future__ import annotations

from carrel.core.domain.units import format_count
from carrel.core.policy.limits import ARRAY_JOBS, GROUP_GPUS, MAX_ACCOUNT_GPUS, MAX_ACCOUNT_JOBS, Submitted
from carrel.core.policy.situation import NotStarted


def over_limit(held: NotStarted, code: str) -> str:
    """Say which limit of its QoS keeps the job waiting, how much of it is used, and who is ahead."""
    limit = held.limit.of_code(code) if held.limit is not None else None
    if held.limit is None or limit is None:  # Cannot be: only a limit gives these codes.
        return "over a limit"
    if isinstance(limit, Submitted):
        return _not_submitted(limit)
    name, job = held.limit.qos.name, held.job
    if code == ARRAY_JOBS and job.array is not None:
        text = f"{limit.jobs} of at most {format_count(job.array.at_most, 'element')} of array {job.array.array_id} run"
        return text if held.ahead is None else f"{text}, and job {held.ahead} is ahead of it"
    wanted, whole = job.resources, code in (MAX_ACCOUNT_JOBS, MAX_ACCOUNT_GPUS, GROUP_GPUS)
    holder, per = (f'account "{job.account}" holds', " per account") if whole else ("its owner holds", " per user")
    if code == GROUP_GPUS:
        holder, per = "everybody together holds", " in all"
    of_gpus = code == limit.gpus_code
    gpus = wanted.total_gpus
    needs = (
        f"needs {wanted.describe_gpus()}" if wanted.nodes == 1 else f"needs {format_count(gpus, 'GPU')} on {wanted.nodes} nodes"
    )
    if gpus > limit.max_gpus and of_gpus:
        return f'{needs}; QoS "{name}" allows {int(limit.max_gpus)}{per}'
    if of_gpus:
        text = f"{needs}; {holder} {limit.gpus} of at most {format_count(int(limit.max_gpus), 'GPU')}"
    else:
        text = f"{holder} {limit.jobs} of at most {format_count(int(limit.max_jobs), 'job')}"
    text = f'{text} in QoS "{name}"'
    whose = "" if code == GROUP_GPUS else "its " if whole else "their "
    return text if held.ahead is None else f"{text}, and {whose}job {held.ahead} is ahead of it"


def _not_submitted(limit: Submitted) -> str:
    """Slurm takes no more: say how many it has, as far as the lab knows, and Slurm's words."""
    owner, account, qos = limit.scope
    whose = f"{limit.jobs} of its owner's jobs" if owner is not None else format_count(limit.jobs, "job")
    if owner is None:
        whose += " of the lab" if account is None else f' of account "{account}"'
    of = "" if qos is None else f' in QoS "{qos}"'
    return f"{whose}{of} {'is' if limit.jobs == 1 else 'are'} in Slurm, which takes no more for now: {limit.words}"
