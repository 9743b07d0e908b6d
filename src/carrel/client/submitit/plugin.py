"""The cluster "carrel" of the package `submitit` itself, which finds this module by its entry points.

Both sides of a job load it: the program that submits, and in the job whoever asks for `submitit.JobEnvironment()`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typing_extensions
from submitit.core import core, utils
from submitit.core.job_environment import JobEnvironment as TheirEnvironment
from submitit.slurm.slurm import SlurmExecutor

import submitit
from carrel.client.submitit import parameters as asked
from carrel.client.submitit.errors import FailedSubmissionError
from carrel.client.submitit.executor import AutoExecutor
from carrel.client.submitit.job import Job
from carrel.client.submitit.job_environment import CLUSTER, JobEnvironment
from carrel.client.submitit.submission import DelayedSubmission

if TYPE_CHECKING:
    from carrel.client import Client


class CarrelJob(Job[Any], core.Job):  # type: ignore[misc] # submitit has its own types
    """A job of the lab that is a `submitit.Job`, and raises submitit's errors."""

    failed = utils.FailedJobError
    uncompleted = utils.UncompletedJobError

    def _register_in_watcher(self) -> None:
        """The lab is asked, job by job."""


class _Lab(AutoExecutor):
    """Submits what submitit's executor was given. submitit travels with it, so a job needs no package for it."""

    job_class = CarrelJob
    for_submitit = True

    def __init__(self, folder: str | Path, **more: Any) -> None:
        super().__init__(folder, "carrel", **more)
        for module in (submitit, typing_extensions):
            path = Path(str(module.__file__))
            self._folders[module.__name__] = path.parent if path.name == "__init__.py" else path

    def submit_all(self, submissions: list[DelayedSubmission], parameters: dict[str, Any]) -> list[Any]:
        self.parameters = parameters
        return self._submit(submissions)


class _Names(set[str]):
    """Names of parameters. All are known; of those that submitit's Slurm has, none is listed.

    submitit takes a name without a prefix for one of the last cluster that lists it: `partition` is still Slurm's.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(set(super().__iter__()) - SlurmExecutor._valid_parameters()))


class CarrelExecutor(core.Executor):  # type: ignore[misc]
    """``submitit.AutoExecutor(folder, cluster="carrel")``: functions as jobs of the lab."""

    job_class = CarrelJob

    def __init__(
        self,
        folder: str | Path,
        *,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        requirements: str | Path | Sequence[str] | None = None,
        image: str | None = None,
        modules: Sequence[Any] | None = None,
        client: Client | None = None,
    ) -> None:
        """All are as those of `carrel.submitit.AutoExecutor`; programs write `carrel_` before their names."""
        super().__init__(folder)
        more = {"requirements": requirements, "image": image, "modules": modules, "client": client}
        self._lab = _Lab(folder, slurm_max_num_timeout=max_num_timeout, slurm_max_pickle_size_gb=max_pickle_size_gb, **more)
        self.max_num_timeout, self.max_pickle_size_gb = max_num_timeout, max_pickle_size_gb

    def register_dev_folders(self, folders: Sequence[str | Path]) -> None:
        """Have directories of packages travel with jobs, each by its own name."""
        self._lab.register_dev_folders(folders)

    @classmethod
    def affinity(cls) -> int:
        """0: taken where a program names it. A program that names no cluster means Slurm, or this machine."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return _Names(name.partition("_")[2] for name in asked.known() if name.startswith(("slurm_", "carrel_")))

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        asked.check({_long(name): value for name, value in kwargs.items()})
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        ours = [DelayedSubmission(one.function, *one.args, **one.kwargs) for one in delayed_submissions]
        parameters = {_long(name): value for name, value in self.parameters.items()}
        self._lab.max_num_timeout, self._lab.max_pickle_size_gb = self.max_num_timeout, self.max_pickle_size_gb
        try:
            return self._lab.submit_all(ours, parameters)
        except FailedSubmissionError as error:
            raise utils.FailedSubmissionError(str(error)) from error


def _long(name: str) -> str:
    """The name of a parameter with its prefix, as `carrel.submitit` has it."""
    if name in asked.SHARED:
        return name
    return next(long for long in (f"carrel_{name}", f"slurm_{name}") if long in asked.known())


class CarrelJobEnvironment(JobEnvironment, TheirEnvironment):  # type: ignore[misc]
    """``submitit.JobEnvironment()`` in a job of the lab. submitit makes one everywhere, to ask whether this is its cluster."""

    def __init__(self) -> None:
        self.cluster = "carrel"

    def activated(self) -> bool:
        """Whether this is a job of the lab."""
        return os.environ.get(CLUSTER) == self.cluster

    def _requeue(self, countdown: int) -> None:
        """The lab does so by itself when a checkpoint was taken."""
