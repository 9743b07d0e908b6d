"""When the site, and neither the job nor a person, kept a job of Slurm's from beginning.

A prolog that fails and a spool of slurmd's that is full look like a cancellation: slurmd asks for the job to be requeued, may not
(``--no-requeue``: two who start a job again would not know of each other), and cancels it as the user that it runs as, who is
usually root. An administrator who cancels a job looks the same, but for one thing: Slurm takes a node that failed out of use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import JobState
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.environ import MODULES
from carrel.engines.slurm.errors import SlurmDown, SlurmSlow
from carrel.engines.slurm.followed import Followed
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.states import SITES_FAULT, SlurmEnd

#: Slurm's word for a job that it started in vain, requeued, and holds until somebody looks at it. Some say it with "_".
_HELD = "launch failed requeued held"
_EXCLUDE = "--exclude="


@dataclass(frozen=True, slots=True)
class SiteFault:
    """What kept a job that never began from beginning."""

    #: A sentence without its full stop; "" when it was not the site.
    message: str
    #: Nodes that could not start it.
    nodes: tuple[str, ...] = ()
    #: True when it looks like a person's doing, and Slurm may yet say that it was a node.
    doubtful: bool = False


class SiteFaults:
    """Asks Slurm for what it takes to tell. Only the reconciler's thread calls it."""

    def __init__(self, slurm: SlurmCommands) -> None:
        self._slurm = slurm
        self._daemons: frozenset[str] | None = None

    def of(self, followed: Followed, job: SlurmJob, end: SlurmEnd, *, modules: bool) -> SiteFault:
        """Return what kept the job, which ended before its runner began, from beginning; `modules` when it names some."""
        if not job.nodes:
            return SiteFault("")
        out_of_use: Mapping[str, str] = {}
        doubtful = end.state is JobState.CANCELLED and may_be_the_sites(job, self._run_as())
        if doubtful or end.state is JobState.NODE_FAIL:
            out_of_use = self._out_of_use(job)
        modules_failed = modules and not (followed.directory.path / MODULES).exists()
        message = fault_of(job, end, out_of_use if doubtful else {}, modules_failed=modules_failed)
        one = () if re.search(r"[\[,]", job.nodes) else (job.nodes,)
        return SiteFault(message, tuple(sorted(out_of_use)) or one, doubtful and not message)

    def _out_of_use(self, job: SlurmJob) -> Mapping[str, str]:
        try:
            return self._slurm.out_of_use(job.nodes, job.starts_at)
        except (SlurmDown, SlurmSlow):
            raise  # asked again
        except CarrelError:
            return {}  # users may not see nodes here (slurm.conf(5), PrivateData)

    def _run_as(self) -> frozenset[str]:
        if self._daemons is None:
            self._daemons = self._slurm.daemons()
        return self._daemons


def was_held(job: SlurmJob) -> bool:
    """Return whether Slurm holds a job that it could not start: a site may have it requeued although the job did not ask for
    it."""
    return job.state in ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT") and job.reason.replace("_", " ") == _HELD


def may_be_the_sites(job: SlurmJob, daemons: Collection[str]) -> bool:
    """Return whether a node may have cancelled the job: nobody knows who did, or it is somebody that `daemons` run as."""
    return not job.cancelled_by or job.cancelled_by in daemons


def fault_of(job: SlurmJob, end: SlurmEnd, out_of_use: Mapping[str, str], *, modules_failed: bool = False) -> str:
    """Return what kept a job that never began from beginning, as a sentence without its full stop, or "": not the site.

    `out_of_use` says why nodes of the job take no jobs, that may have cancelled it; `modules_failed` that its script could not
    load the modules that the task has named, which is the task's own trouble.
    """
    where = f" on {job.nodes}" if job.nodes else ""
    if end.state is JobState.NODE_FAIL:
        return f"{end.reason.message.removesuffix('.')}"
    if end.state is JobState.CANCELLED and out_of_use:
        why = "; ".join(f"{node}: {reason}" for node, reason in sorted(out_of_use.items()))
        return f"Slurm could not start it and took the node out of use ({why}; Slurm job {job.shown})"
    if end.state is not JobState.FAILED or modules_failed or job.reason == "BadConstraints":
        return ""
    if job.reason in SITES_FAULT:
        return f"Slurm could not start it{where}: {job.reason} (job {job.shown})"
    if job.nodes and (end.exit_code or end.signal):
        return f"Its script did not get as far as Carrel{where} (Slurm job {job.shown})"
    return ""


def elsewhere(options: SlurmOptions, nodes: Sequence[str]) -> SlurmOptions:
    """Return `options` with `nodes` excluded, beside those that are excluded already."""
    if not nodes:
        return options
    there = [option.removeprefix(_EXCLUDE) for option in options.passed if option.startswith(_EXCLUDE)]
    others = tuple(option for option in options.passed if not option.startswith(_EXCLUDE))
    return replace(options, passed=(*others, f"{_EXCLUDE}{','.join([*there, *nodes])}"))
