"""Errors of Slurm's commands, by what may be concluded from them, and which of them a sentence of Slurm's means."""

from __future__ import annotations

import re

from carrel.core.domain.errors import Invalid, Unavailable

_DOWN = re.compile(
    r"Unable to contact slurm controller|Unable to contact|connect failure|Connection refused|Zero Bytes were transmitted"
    r"|standby mode|Problem talking to the database|slurm_persist_conn_open|Protocol authentication error|[Mm]unge"
    r"|Unable to connect to database|Database connection"
)
_SLOW = re.compile(r"Socket timed out|Resource temporarily unavailable|temporarily unable to accept job|[Tt]imed out")
_REFUSED = re.compile(r"Batch job submission failed: [^\n]*|error: Invalid [^\n]*|Access/permission denied")
_NO_OPTION = re.compile(r"unrecognized option[^\n]*|unrecognized arguments[^\n]*|invalid option[^\n]*")
_NO_ALLOCATION = re.compile(r"(?:Unable to allocate resources|Job submit/allocate failed): ([^\n]*)")
#: What Slurm says (slurm_strerror(3)) of the way to its controller, or of the controller's own troubles, and not of the job: then
#: it may have taken the job all the same.
_TROUBLE = re.compile(
    r"socket|connect|communicat|message|transport|bytes were|broken pipe|reset by peer|timed? ?out|i/o error|input/output"
    r"|credential|authenticat|internal error|try again|standby|database|memory management|job record",
    re.IGNORECASE,
)
#: Limits of jobs that are submitted, by the names that Slurm has for them (job_reason_string() of its source). They pass.
_FULL = re.compile(
    r"\b(AssocMaxSubmitJobLimit|AssocGrpSubmitJobsLimit|QOSMaxSubmitJobPerUserLimit|QOSGrpSubmitJobsLimit|MaxSubmitJobsPerAccount)\b"
)


class SlurmDown(Unavailable):
    """The controller, the accounting daemon or munge cannot be reached."""


class SlurmSlow(Unavailable):
    """No answer came in time. What was asked may have been done."""


class SlurmEmpty(Unavailable):
    """The command ended well and said nothing, where it always says something."""


class SlurmFailed(Unavailable):
    """The command is missing, or failed for a reason that is none of the others."""


class SlurmMissing(SlurmFailed):
    """The command is not on this machine: nothing was asked of Slurm."""


class SlurmRefused(Invalid):
    """Slurm understood and said no; `reason` is its own sentence. This alone proves that no job will run."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message, remedy="Change what is asked for, or ask the cluster's administrator.")
        self.reason = reason


class SlurmFull(Unavailable):
    """Slurm takes no more jobs of this user for now; `reason` is its own word. It may have taken this one where `perhaps`."""

    def __init__(self, message: str, *, reason: str, perhaps: bool = False) -> None:
        super().__init__(message, remedy="It is tried again when there may be room.")
        self.reason = reason
        self.perhaps = perhaps


def failure(program: str, code: int, said: str) -> Unavailable | SlurmRefused:
    """Return what it means that a command has failed with an exit code and said this."""
    if program == "srun" and (refusal := _NO_ALLOCATION.search(said)) and not _TROUBLE.search(refusal[1]):
        return SlurmRefused(f"srun failed: {refusal[0]}", reason=refusal[1].strip())
    said = said or f"exit code {code}"
    message = f"{program} failed: {said}"
    if program == "sbatch" and (full := _FULL.search(said)):
        return SlurmFull(message, reason=full[0])
    error = trouble(message, said)
    refusal = _NO_OPTION.search(said) or _REFUSED.search(said)
    if isinstance(error, SlurmFailed) and refusal and (refusal.re is _NO_OPTION or not _TROUBLE.search(refusal[0])):
        return SlurmRefused(message, reason=refusal[0].removeprefix("Batch job submission failed: ").strip())
    return error


def trouble(message: str, said: str) -> SlurmDown | SlurmSlow | SlurmFailed:
    """Return what a sentence of Slurm's means that is no refusal; it says nothing about what was done."""
    if _DOWN.search(said):
        return SlurmDown(message, remedy="Slurm cannot be reached; nothing is concluded from this.")
    if _SLOW.search(said):
        return SlurmSlow(message, remedy="Slurm is too busy to answer; nothing is concluded from this.")
    return SlurmFailed(message, remedy="Nothing is concluded from this.")
