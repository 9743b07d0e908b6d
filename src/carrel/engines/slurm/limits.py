"""Why a job waits in Slurm, in words, and how much a QoS of Slurm's allows (squeue(1), JOB REASON CODES; sacctmgr(1))."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.ports import Clock

#: What sacctmgr is asked for of each QoS, and what it is a limit of.
FIELDS: Mapping[str, str] = {
    "Name": "",
    "MaxJobsPU": "running jobs per user",
    "MaxSubmitPU": "submitted jobs per user",
    "MaxTRESPU": "resources per user",
    "MaxJobsPA": "running jobs per account",
    "MaxSubmitPA": "submitted jobs per account",
    "MaxTRESPA": "resources per account",
    "MaxTRES": "resources per job",
    "MaxWall": "walltime per job",
    "GrpJobs": "running jobs in all",
    "GrpSubmit": "submitted jobs in all",
    "GrpTRES": "resources in all",
}
#: Trackable resources by the words that reasons have for them.
_RESOURCES = {"Cpu": "cpu", "GRES": "gres/", "Mem": "mem", "Memory": "mem", "Node": "node", "BB": "bb/", "License": "license/"}
_OF_RESOURCE = re.compile(r"QOS(Max|Grp)(Cpu|GRES|Memory|Mem|Node|BB|License)(?:Limit|(PerUser|PerAccount|PerJob)(?:Limit)?)?")
_TRES = {"PerUser": "MaxTRESPU", "PerAccount": "MaxTRESPA", "PerJob": "MaxTRES", None: "MaxTRES"}
#: Limits of a QoS that are no resources.
_COUNTS = {
    "QOSMaxJobsPerUserLimit": "MaxJobsPU",
    "QOSMaxSubmitJobPerUserLimit": "MaxSubmitPU",
    "MaxJobsPerAccount": "MaxJobsPA",
    "MaxSubmitJobsPerAccount": "MaxSubmitPA",
    "QOSMaxWallDurationPerJobLimit": "MaxWall",
    "QOSGrpJobsLimit": "GrpJobs",
    "QOSJobLimit": "GrpJobs",
    "QOSGrpSubmitJobsLimit": "GrpSubmit",
}
#: Other reasons for which jobs wait, in words.
_WORDS = {
    "Priority": "others are ahead of it",
    "Resources": "it is the next one, and what it needs is not free yet",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "BeginTime": "its earliest start has not come yet",
    "Licenses": "it waits for a license",
    "PartitionTimeLimit": "its walltime is longer than the partition allows",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "JobHeldUser": "somebody holds it back; scontrol release lets it go",
    "JobHeldAdmin": "an administrator of the cluster holds it back",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has what it asks for",
    "JobArrayTaskLimit": "as many of its array run as may",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QoS may not be used in the partition or by the account",
    "InvalidAccount": "Slurm does not know its account",
    "InvalidQOS": "Slurm does not know its QoS",
    "AssociationJobLimit": "its owner's account holds as many jobs as it may",
    "AssocMaxJobsLimit": "its owner's account holds as many jobs as it may",
    "AssocMaxSubmitJobLimit": "its owner has as many jobs in Slurm as they may",
    "AssocGrpSubmitJobsLimit": "its account has as many jobs in Slurm as it may",
    "AssocGrpGRES": "its account holds as many GPUs as it may",
    "AssocGrpCpuLimit": "its account holds as many processors as it may",
    "AssocGrpMemLimit": "its account holds as much memory as it may",
    "AssocGrpCPUMinutesLimit": "its account has used up its processor time",
    "AssocGrpGRESMinutes": "its account has used up its GPU time",
    "QOSGrpCPUMinutesLimit": "everybody together has used up the processor time of the QoS",
    "QOSGrpGRESMinutes": "everybody together has used up the GPU time of the QoS",
    "MaxJobCount": "the controller keeps no more jobs than it has now",
}


def in_words(reason: str) -> str:
    """Return what a reason of Slurm's means, or "" for one that says it by itself or that nobody knows."""
    plain = re.split(r"[,\s(]", reason, maxsplit=1)[0]  # "ReqNodeNotAvail, UnavailableNodes:node1"
    if plain in _WORDS:
        return _WORDS[plain]
    limit = limit_of(plain)
    if limit is None:
        return ""
    name, resource = limit
    what = FIELDS[name].replace("resources", resource.rstrip("/") or "resources")
    return f"a limit of its QoS in Slurm: {what}"


def limit_of(reason: str) -> tuple[str, str] | None:
    """Return which field of a QoS holds a job for this reason, and the resource that it limits, or None: it is no such reason."""
    if reason in _COUNTS:
        return _COUNTS[reason], ""
    match = _OF_RESOURCE.fullmatch(reason)
    if match is None:
        return None
    return ("GrpTRES" if match[1] == "Grp" else _TRES[match[3]]), _RESOURCES[match[2]]


def parse_limits(text: str) -> dict[str, dict[str, str]]:
    """Return the limits of each QoS, by name, from `sacctmgr --noheader --parsable2 show qos format=<FIELDS>`."""
    rows = (line.split("|") for line in text.splitlines())
    found = (dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS))
    return {limits["Name"]: {name: value for name, value in limits.items() if value and name != "Name"} for limits in found}


def value_of(limits: Mapping[str, str], reason: str) -> str:
    """Return the value of the limit that holds a job for this reason ("1", "gres/gpu=2"), or ""."""
    limit = limit_of(reason)
    if limit is None:
        return ""
    value = limits.get(limit[0], "")
    return ",".join(part for part in value.split(",") if part.startswith(limit[1])) if limit[1] else value


def allows(limits: Mapping[str, str]) -> str:
    """Return all limits of a QoS in one line: "running jobs per user: 1, resources per user: gres/gpu=2"."""
    return ", ".join(f"{FIELDS[name]}: {value}" for name, value in limits.items())


@dataclass(slots=True)
class QosLimits:
    """Asks Slurm for limits when a job is held by one, and remembers the answers for a while. One thread uses it."""

    #: QoS of a job in Slurm by its number.
    qos_of: Callable[[int], str]
    #: `parse_limits` of what the accounting database says.
    limits: Callable[[], Mapping[str, Mapping[str, str]]]
    monotonic: Clock
    #: How many jobs the user may have in Slurm, by account.
    max_submit: Callable[[], Mapping[str, str]] = dict
    #: Seconds for which an answer, or that there was none, is believed.
    fresh: float = 300.0
    _known: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    _asked_at: float | None = None
    _qos: dict[int, str] = field(default_factory=dict)
    _submit: Mapping[str, str] = field(default_factory=dict)
    _submit_asked_at: float | None = None

    def of_job(self, number: int, reason: str) -> str:
        """Return a sentence with the limit that holds the job, or "" where there is none or nobody says."""
        limit = limit_of(reason)
        if limit is None:
            return ""
        try:
            if number not in self._qos:
                if len(self._qos) > 10_000:
                    self._qos.clear()
                self._qos[number] = self.qos_of(number)
        except CarrelError:
            self._qos[number] = ""
        name = self._qos[number]
        value = value_of(self._of(name), reason) if name else ""
        return f'QoS "{name}" of Slurm has the limit {FIELDS[limit[0]]}: {value}.' if value else ""

    def of_submitted(self, reason: str, *, account: str, qos: str) -> str:
        """Return how many jobs a limit of submitted jobs allows ("MaxSubmitJobs is 3"), or "" where nobody says.

        `account` and `qos` are those that Slurm was asked for, "" for its own choice.
        """
        if reason == "AssocMaxSubmitJobLimit":
            found = {number for name, number in self._max_submit().items() if account in ("", name)}
            return f"MaxSubmitJobs is {found.pop()}" if len(found) == 1 else ""
        value = value_of(self._of(qos), reason) if qos and limit_of(reason) is not None else ""
        return f"the limit is {value}" if value else ""

    def of_qos(self, name: str) -> str:
        """Return a sentence with all limits of a QoS, or "" where it has none or nobody says."""
        found = allows(self._of(name)) if name else ""
        return f'QoS "{name}" of Slurm has limits. {found[0].upper()}{found[1:]}.' if found else ""

    def behind(self, reason: str, qos: Callable[[], str]) -> str:
        """Return what the QoS allows where a limit may be the `reason`, of which Slurm does not say which one; else ""."""
        if "QOS" not in reason and "policy" not in reason:
            return ""
        found = self.of_qos(qos())
        return f" {found}" if found else ""

    def _max_submit(self) -> Mapping[str, str]:
        now = self.monotonic()
        if self._submit_asked_at is None or now - self._submit_asked_at > self.fresh:
            self._submit_asked_at = now
            try:
                self._submit = self.max_submit()
            except CarrelError:
                self._submit = {}
        return self._submit

    def _of(self, name: str) -> Mapping[str, str]:
        now = self.monotonic()
        if self._asked_at is None or now - self._asked_at > self.fresh:
            self._asked_at = now
            try:
                self._known = self.limits()
            except CarrelError:
                self._known = {}
        return self._known.get(name, {})
