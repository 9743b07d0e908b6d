"""How the lab's jobs are submitted, found and ended in Slurm: by its commands, or by slurmrestd where a site has one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from carrel.engines.slurm.listing import SlurmJob


class Transport(Protocol):
    """What the reconciler asks of Slurm, as one user. `carrel.engines.slurm.commands` says what each promises and raises.

    Of the errors, `SlurmRefused` alone proves that no job will run.
    """

    def submit(self, arguments: Sequence[str], script: str) -> int:
        """Submit `script` with these arguments of sbatch(1), and return the job's number."""

    def listing(self) -> tuple[SlurmJob, ...]:
        """Return all jobs in the controller's memory."""

    def history(self, numbers: Iterable[int]) -> tuple[SlurmJob, ...]:
        """Return what the accounting database knows of the user's jobs with these numbers."""

    def cancel(self, number: int, *, name: str, task: int | None = None) -> None:
        """End a job with this identity, or that element of an array, in any state."""

    def cancel_waiting(self, number: int, *, name: str, task: int | None = None) -> None:
        """End the job if it has not started."""

    def signal(self, number: int, signal_name: str, *, name: str, task: int | None = None) -> None:
        """Send a signal to the batch script of a job that runs."""

    def wake(self, number: int, *, name: str) -> None:
        """Send all processes in an allocation SIGURG."""

    def limits(self) -> Mapping[str, Mapping[str, str]]:
        """Return how much each class of service allows."""

    def max_submit(self) -> Mapping[str, str]:
        """Return how many jobs the user may have in Slurm, by account, where there is a limit."""

    def qos_of(self, number: int) -> str:
        """Return the class of service of a job."""

    def array_size(self) -> int:
        """Return what the indices of arrays are less than."""

    def out_of_use(self, nodes: str, since: int | None) -> Mapping[str, str]:
        """Return which nodes take no jobs, or took none soon after `since`, and why."""

    def daemons(self) -> frozenset[str]:
        """Return the names of the users that Slurm's own daemons run as."""
