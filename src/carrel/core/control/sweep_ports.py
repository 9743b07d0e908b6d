"""What sweeps need of the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.distribution import ParameterValue
from carrel.core.domain.sweep import Sweep, SweepSpec, Trial
from carrel.core.domain.user import Caller

#: What trials reported: values by step, by the trials' numbers.
Reported = Mapping[int, Mapping[int, float]]


class SweepStore(Protocol):
    """Remembers sweeps; `carrel.lab.store.sweeps.SweepTable` is one, and has the promises."""

    def add(self, owner: str, spec: SweepSpec, *, now: float) -> Sweep: ...
    def change(self, sweep: Sweep, *, job_id: int | None = None, told: Sequence[OutboxEntry] = (), now: float = 0.0) -> None: ...
    def get(self, sweep_id: int) -> Sweep | None: ...
    def list(self, *, owner: str | None, limit: int, before: int | None = None) -> Sequence[Sweep]: ...
    def unfinished(self) -> Sequence[Sweep]: ...
    def add_trial(self, sweep_id: int, trial: Trial) -> None: ...
    def change_trial(self, sweep_id: int, trial: Trial) -> None: ...
    def trials(self, sweep_id: int) -> Sequence[Trial]: ...
    def counts(self, sweep_ids: Sequence[int]) -> Mapping[int, Mapping[str, int]]: ...
    def add_values(self, sweep_id: int, number: int, values: Mapping[int, float]) -> None: ...
    def values(self, sweep_id: int) -> Reported: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What a study says of the next trial."""

    parameters: Mapping[str, ParameterValue]
    #: To be kept with that trial, as `Trial.attributes`.
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a study says of a trial that has reported."""

    pruned: bool
    #: To be kept with the trial from now on, as `Trial.attributes`.
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Study(Protocol):
    """Chooses parameters and says which trials are not worth going on; `carrel.lab.studies.OptunaStudy` is one.

    Without a memory: all that it goes by is what it is given, and what it wants to be told again it hands out as attributes.
    """

    def check(self, spec: SweepSpec) -> None: ...
    def suggest(self, sweep: Sweep, trials: Sequence[Trial], reported: Reported) -> Suggestion: ...
    def judge(self, sweep: Sweep, trials: Sequence[Trial], reported: Reported, number: int) -> Verdict: ...


class TrialJobs(Protocol):
    """Starts and ends the jobs that are trials. `carrel.lab.gateway.trial_jobs.TrialJobs` is one, and has the promises."""

    def check(self, caller: Caller, spec: SweepSpec) -> None: ...
    def start(self, sweep: Sweep, trial: Trial) -> int: ...
    def end(self, job_id: int, *, by: str) -> None: ...
    def describe(self, sweep: Sweep, job_id: int) -> Sequence[OutboxEntry]: ...
