"""`carrel.submitit.AutoExecutor`: functions as jobs of the lab, with submitit's methods."""

from __future__ import annotations

import contextlib
import secrets
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from carrel.client.submitit import parameters as asked
from carrel.client.submitit.batch import DelayedJob
from carrel.client.submitit.debug import DebugJob
from carrel.client.submitit.errors import FailedSubmissionError
from carrel.client.submitit.job import Job
from carrel.client.submitit.paths import JobPaths
from carrel.client.submitit.submission import DelayedSubmission, as_pickle, checkpoint_method

if TYPE_CHECKING:
    from carrel.client import Client

P = ParamSpec("P")
R = TypeVar("R")
#: Clusters by submitit's names. All but the last are the lab.
CLUSTERS = ("carrel", "slurm", "local", "debug")
#: Most elements of an array of the lab's; more jobs than that are several arrays.
_MOST = 1001
#: Arguments of executors that submitit has, by their names without the cluster.
_ARGUMENTS = ("max_num_timeout", "max_pickle_size_gb", "python")


class Executor(ABC):
    """What all executors do."""

    #: Prefix of parameters that are given without one.
    _prefix = ""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.parameters: dict[str, Any] = {}
        self._batch: list[tuple[DelayedJob[Any], DelayedSubmission]] | None = None

    def update_parameters(self, **kwargs: Any) -> None:
        """Change what is asked for jobs from now on. Raises `NameError` for an unknown name, `TypeError` for a wrong type."""
        if self._batch is not None:
            raise RuntimeError("All jobs of a batch have the same parameters. Change them before `with executor.batch():`.")
        bare = {name for name in kwargs if name not in asked.SHARED}
        named = {self._prefix + name if name in bare else name: value for name, value in kwargs.items()}
        try:
            asked.check(named)
        except NameError as error:
            raise (ValueError(str(error)) if self._prefix else error) from None
        self.parameters.update(named)

    def submit(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit ``fn(*args, **kwargs)`` as a job."""
        return self._take([DelayedSubmission(fn, *args, **kwargs)])[0]

    def map_array(self, fn: Callable[..., R], *iterable: Iterable[Any]) -> list[Job[R]]:
        """Submit a job for each element of the iterables, as `map` calls a function: all as one array."""
        return self._take([DelayedSubmission(fn, *args) for args in zip(*iterable, strict=False)])

    def submit_array(self, fns: Sequence[Callable[[], R]]) -> list[Job[R]]:
        """Submit a job for each function: all as one array."""
        return self._take([DelayedSubmission(fn) for fn in fns])

    @contextlib.contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:
        """Submit the jobs of a ``with`` block together, at its end, as one array. After an exception none is submitted.

        With `allow_implicit_submissions`, asking one of them for anything submits all so far.
        """
        if self._batch is not None:
            raise RuntimeError("A batch is open already. Close it before the next one.")
        self._batch, self._implicit, self._sent = [], allow_implicit_submissions, False
        try:
            yield
            if not self._batch and not self._sent:
                warnings.warn("The batch is empty: no job is submitted.", RuntimeWarning, stacklevel=3)
            self._send_batch()
        finally:
            self._batch = None

    def _take(self, submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        if self._batch is None:
            return self._submit(submissions) if submissions else []
        jobs: list[Job[Any]] = []
        for submission in submissions:
            job: DelayedJob[Any] = DelayedJob(self._send_batch if self._implicit else None)
            self._batch.append((job, submission))
            jobs.append(job)
        return jobs

    def _send_batch(self) -> None:
        waiting, self._sent = list(self._batch or ()), True
        if waiting:
            jobs = self._submit([submission for _, submission in waiting])
            for (delayed, _), job in zip(waiting, jobs, strict=True):
                delayed.become(job)
            if self._batch is not None:
                del self._batch[: len(waiting)]

    @abstractmethod
    def _submit(self, submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        """Submit all, as one array where there are several."""


class DebugExecutor(Executor):
    """Calls functions in this process, when their results are asked for."""

    cluster = "debug"

    def _submit(self, submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        return [DebugJob(self.folder, submission) for submission in submissions]


class AutoExecutor(Executor):
    """Submits functions as jobs of the lab. Each job has its own walltime, log and checkpoints, and may have several tasks.

    `cluster` None, "slurm" and "local" are all the lab (the last takes parameters ``local_…`` instead of ``slurm_…``); "debug"
    calls functions in this process. `folder` keeps, here, what was submitted and what came back.
    """

    job_class: type[Job[Any]] = Job
    #: Whether functions are those of programs that import submitit itself.
    for_submitit = False

    def __init__(
        self,
        folder: str | Path,
        cluster: str | None = None,
        *,
        requirements: str | Path | Sequence[str] | None = None,
        image: str | None = None,
        modules: Sequence[Any] | None = None,
        client: Client | None = None,
        **kwargs: Any,
    ) -> None:
        """`requirements`, `image` and `modules`: as those of `carrel.Executor`.

        `slurm_max_num_timeout` (3): how often a job goes on from its checkpoint after its walltime.
        `slurm_max_pickle_size_gb` (1): most of what is pickled for one submission.
        """
        super().__init__(folder)
        if cluster is not None and cluster not in CLUSTERS:
            raise ValueError(f"There is no cluster {cluster!r}. There are: {', '.join(CLUSTERS)}.")
        self.cluster = cluster or "carrel"
        given = _arguments(self.cluster, kwargs)
        self.max_num_timeout: int = given.get("max_num_timeout", 3)
        self.max_pickle_size_gb: float = given.get("max_pickle_size_gb", 1.0)
        self._requirements, self._image, self._modules = requirements, image, modules
        self._lines: list[str] | None = None
        self._client = client
        self._folders: dict[str, Path] = {}

    def register_dev_folders(self, folders: Sequence[str | Path]) -> None:
        """Have directories of packages travel with jobs although they are not imported here: each by its own name."""
        self._folders |= {Path(folder).resolve().name: Path(folder).resolve() for folder in folders}

    def _submit(self, submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        if self.cluster == "debug":
            return [DebugJob(self.folder, submission) for submission in submissions]
        found: list[Job[Any]] = []
        for start in range(0, len(submissions), _MOST):
            found += self._submit_array(submissions[start : start + _MOST])
        return found

    def _submit_array(self, submissions: Sequence[DelayedSubmission]) -> list[Job[Any]]:
        from carrel.core.domain.errors import CarrelError

        wanted = asked.wanted(self.parameters, self.cluster)
        pickled = self._pickle(submissions)
        goes_on = any(checkpoint_method(submission.function) is not None for submission in submissions)
        kept = self._keep(pickled)
        try:
            numbers = self._send(pickled, wanted, goes_on=goes_on)
        except CarrelError as error:
            for path in kept:
                path.unlink(missing_ok=True)
            raise FailedSubmissionError(str(error)) from error
        tasks, jobs = range(wanted.tasks), []
        for path, (name, number) in zip(kept, numbers.items(), strict=True):
            job = self.job_class(self.folder, name, tasks, client=self._client, number=number)
            target = job.paths.submitted_pickle
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            jobs.append(job)
        return jobs

    def _pickle(self, submissions: Sequence[DelayedSubmission]) -> list[bytes]:
        pickled = [as_pickle(submission) for submission in submissions]
        size = sum(map(len, pickled)) / 1e9
        if size > self.max_pickle_size_gb:
            raise RuntimeError(
                f"What is submitted has {size:.3g} GB as a pickle, and max_pickle_size_gb is {self.max_pickle_size_gb:g}. "
                "Have the function read large data itself."
            )
        return pickled

    def _keep(self, pickled: Sequence[bytes]) -> list[Path]:
        """Write submissions down before they are sent; their names have the job's number afterwards."""
        place = JobPaths.get_first_id_independent_folder(self.folder)
        place.mkdir(parents=True, exist_ok=True)
        kept = [place / f"{secrets.token_hex(8)}.pkl" for _ in pickled]
        for path, data in zip(kept, pickled, strict=True):
            path.write_bytes(data)
        return kept

    def _send(self, pickled: Sequence[bytes], wanted: asked.Wanted, *, goes_on: bool) -> dict[str, int]:
        """Submit; return names of jobs with their numbers, in their order."""
        from carrel.client.executor.environment import own_modules
        from carrel.client.submitit.sending import send

        if self._client is None:
            from carrel.client import Client

            self._client = Client()
        return send(
            self._client,
            pickled,
            wanted,
            cluster=self.cluster,
            requirements=self._packages(),
            image=self._image,
            modules={**own_modules(self._modules, whole=self._requirements is None and self._image is None), **self._folders},
            requeue=self.max_num_timeout if goes_on else 0,
            for_submitit=self.for_submitit,
        )

    def _packages(self) -> list[str] | None:
        """Requirement lines; None for an image. Those of this environment are looked up once."""
        from carrel.client.executor.environment import read_requirements
        from carrel.core.domain.errors import Invalid

        if self._image is not None:
            if self._requirements is not None:
                raise Invalid("requirements and image are both given.", remedy="An image has its own packages: leave one out.")
            return None
        if self._lines is None:
            self._lines = read_requirements(self._requirements)
        return self._lines


class SlurmExecutor(AutoExecutor):
    """An executor that takes Slurm's parameters without their prefix: ``time``, ``partition``, …"""

    _prefix = "slurm_"

    def __init__(self, folder: str | Path, **kwargs: Any) -> None:
        super().__init__(folder, "slurm", **_with_prefix("slurm_", kwargs))


class LocalExecutor(AutoExecutor):
    """An executor that takes parameters of the cluster "local" without their prefix."""

    _prefix = "local_"

    def __init__(self, folder: str | Path, **kwargs: Any) -> None:
        super().__init__(folder, "local", **_with_prefix("local_", kwargs))


def _with_prefix(prefix: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + name if name in _ARGUMENTS else name: value for name, value in given.items()}


def _arguments(cluster: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of this cluster. Raises `TypeError` for an unknown one; warns of one without a prefix."""
    found: dict[str, Any] = {}
    prefix = "local" if cluster == "local" else "slurm"
    for name, value in given.items():
        plain, where = name, prefix
        if name in _ARGUMENTS:
            warnings.warn(f"{name} is called {prefix}_{name}.", UserWarning, stacklevel=4)
        else:
            where, _, plain = name.partition("_")
        if plain not in _ARGUMENTS or where not in CLUSTERS:
            raise TypeError(f"There is no argument {name}. There are: {', '.join(f'{prefix}_{item}' for item in _ARGUMENTS)}.")
        if where in (prefix, cluster):
            found[plain] = value
    _check_python(found.get("python"))
    return found


def _check_python(python: str | None) -> None:
    if python is not None and python != sys.executable:
        raise ValueError(
            f"python is {python}. Jobs have the Python and the packages of this program ({sys.executable}); "
            "say requirements=[…] or image=… for other ones."
        )
