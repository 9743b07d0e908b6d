"""A job that was submitted, by submitit's methods."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from carrel.client.submitit.errors import FailedJobError, UncompletedJobError
from carrel.client.submitit.paths import JobPaths
from carrel.client.submitit.submission import DelayedSubmission

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire import v1

R = TypeVar("R")
#: Where a job's own files are among its outputs, unless its task sets another place.
_OUTPUTS = "outputs/submitit"


class Job(Generic[R]):
    """A job of the lab, and what its function returns. `job_id` is its number there: 12, or 12_3 in an array.

    From another process, tomorrow: ``Job(folder, "12")``. `tasks` are the numbers of the processes that are looked at.
    """

    #: What it raises when its function raised, and when it has no result.
    failed: type[Exception] = FailedJobError
    uncompleted: type[Exception] = UncompletedJobError
    _cancel_at_deletion = False

    def __init__(
        self,
        folder: str | Path,
        job_id: str,
        tasks: Sequence[int] = (0,),
        *,
        client: Client | None = None,
        number: int | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._job_id = job_id
        self._tasks = tuple(tasks)
        self._client = client
        #: In the lab; that of an element of an array is asked for.
        self._number = number
        #: False for one that was found by its number: whose it is has to be asked.
        self._own = number is not None
        self._ended: v1.JobDetail | None = None
        self._outputs: dict[str, v1.OutputView] = {}
        self._parts: dict[int, Job[R]] = {}

    # ---- what it is

    @property
    def job_id(self) -> str:
        """Its number, as `carrel show` takes it."""
        return self._job_id

    @property
    def paths(self) -> JobPaths:
        """Its files here."""
        return JobPaths(self._folder, self.job_id, self._tasks[0])

    @property
    def num_tasks(self) -> int:
        """How many processes it has."""
        return len(self._tasks)

    @property
    def task_id(self) -> int | None:
        """Number of the one process that is looked at; None for all of several."""
        return self._tasks[0] if len(self._tasks) == 1 else None

    def task(self, task_id: int) -> Job[R]:
        """One of its processes. Raises `ValueError` for a number that it has not."""
        if task_id not in self._tasks:
            raise ValueError(f"task_id is {task_id}. It must be between 0 and {self.num_tasks - 1}.")
        if self.num_tasks == 1:
            return self
        if task_id not in self._parts:
            part: Job[R] = type(self)(self._folder, self.job_id, (task_id,), client=self._client, number=self._lab_number())
            part._own = self._own
            self._parts[task_id] = part
        return self._parts[task_id]

    def submission(self) -> DelayedSubmission:
        """What was submitted, from its file in the folder."""
        return DelayedSubmission.load(self.paths.submitted_pickle)

    # ---- its end

    @property
    def state(self) -> str:
        """As the lab has it, in Slurm's words; UNKNOWN for a job that the lab does not know."""
        return self.get_info()["State"]

    def get_info(self, mode: str = "force") -> dict[str, str]:  # noqa: ARG002 - the lab always knows
        """Number, state and reason."""
        from carrel.core.domain.errors import NotFound

        try:
            seen = self._look()
        except NotFound:
            return {"JobID": self.job_id, "State": "UNKNOWN"}
        return {"JobID": self.job_id, "State": seen.state, "Reason": seen.reason, "Message": seen.message}

    def done(self, force_check: bool = False) -> bool:  # noqa: ARG002 - the lab always knows
        """Whether it has ended, well or not."""
        return self._look().ended

    def wait(self) -> None:
        """Return when it has ended."""
        if self._ended is None:
            self._ended = self._lab().wait(self._lab_number())

    def cancel(self, check: bool = True) -> None:
        """Ask for its end. Without `check`, what keeps the lab from that is no error."""
        from carrel.core.domain.errors import CarrelError

        with contextlib.nullcontext() if check else contextlib.suppress(CarrelError):
            self._lab().cancel(self._lab_number())

    def cancel_at_deletion(self, value: bool = True) -> Job[R]:
        """Cancel it when this object is thrown away."""
        self._cancel_at_deletion = value
        return self

    # ---- what it gave

    def result(self) -> R:
        """What the function returned. Waits. Raises `FailedJobError` and `UncompletedJobError`."""
        if self.num_tasks > 1:
            raise RuntimeError(f"Job {self.job_id} has {self.num_tasks} tasks. Use results(), or task(N).result().")
        return self.results()[0]

    def results(self) -> list[R]:
        """What the function returned in each process. Waits. Raises the error of the first that has one."""
        self.wait()
        outcomes = [self._outcome(task) for task in self._tasks]
        for task, (outcome, value) in zip(self._tasks, outcomes, strict=True):
            if outcome == "error":
                raise self.failed(f"Job {self.job_id} (task {task}) failed:\n{value}")
        for task, (outcome, _) in zip(self._tasks, outcomes, strict=True):
            if outcome == "nothing":
                raise self.uncompleted(self._without_result(task))
        return [value for _, value in outcomes]

    def exception(self) -> Exception | None:
        """Why there is no result, or None. Waits."""
        try:
            self.results()
        except self.uncompleted as error:
            return error
        return None

    def stdout(self) -> str | None:
        """What its processes have written to their standard output; None as long as there is nothing.

        While it runs, this is the job's log: the standard error is in it, too. It is told apart when the job has ended.
        """
        return self._printed("out")

    def stderr(self) -> str | None:
        """What its processes wrote to their standard error, once the job has ended; None where there is nothing."""
        return self._printed("err")

    def awaitable(self) -> AsyncJobProxy[R]:
        """The same for asyncio."""
        return AsyncJobProxy(self)

    # ---- inside

    def _lab(self) -> Client:
        if self._client is None:
            from carrel.client import Client

            self._client = Client()
        return self._client

    def _lab_number(self) -> int:
        if self._number is None:
            array, _, index = self.job_id.partition("_")
            self._number = self._lab().element(int(array), int(index)).id if index else int(array)
        return self._number

    def _look(self) -> v1.JobDetail:
        if self._ended is None:
            seen = self._lab().job(self._lab_number())
            if not seen.ended:
                return seen
            self._ended = seen
        return self._ended

    def _outcome(self, task: int) -> tuple[str, Any]:
        path = self._fetched(f"{task}_result.pkl", JobPaths(self._folder, self.job_id, task).result_pickle)
        if path is None:
            return "nothing", None
        self._check_owner()
        outcome, value = pickle.loads(path.read_bytes())
        return outcome, value

    def _check_owner(self) -> None:
        """Raise `Denied` for a job of somebody else: to read a pickle is to run what its writer wants."""
        from carrel.core.domain.errors import Denied

        if not self._own:
            owner, caller = self._look().owner, self._lab().lab().caller
            if owner != caller.subject:
                raise Denied(
                    f"Job {self.job_id} is of {owner}, and its result is a pickle, which could do anything here.",
                    remedy=f"`carrel outputs {self.job_id}` fetches it as a file.",
                )
            self._own = True

    def _fetched(self, name: str, path: Path) -> Path | None:
        """Fetch a file of the outputs of a job that has ended; None when it has none of that name.

        A file that is there is compared: another lab may have had a job of this number.
        """
        if not self._outputs:
            self._outputs = {output.path: output for output in self._lab().outputs(self._lab_number())}
        output = self._outputs.get(f"{_OUTPUTS}/{name}")
        if output is None:
            return None
        self._lab().download_output(self._lab_number(), output, path)
        return path

    def _without_result(self, task: int) -> str:
        ended = self._look()
        if ended.state == "CANCELLED":
            said = f"Job {self.job_id} was cancelled: {ended.message}"
        else:
            said = f"Job {self.job_id} (task {task}) has no result. It ended as {ended.state}: {ended.message}"
        printed = self.task(task).stderr() or self.task(task).stdout() or ""
        return f"{said}\nIts output ends so:\n{printed[-4000:]}" if printed else said

    def _printed(self, stream: str) -> str | None:
        found = []
        if self._look().ended:
            for task in self._tasks:
                paths = JobPaths(self._folder, self.job_id, task)
                path = self._fetched(f"{task}_log.{stream}", paths.stdout if stream == "out" else paths.stderr)
                if path is not None:
                    found.append(path.read_bytes().decode("utf-8", "replace"))
        if not found and stream == "out":
            from carrel.core.domain.errors import NotFound

            with contextlib.suppress(NotFound):  # it has not begun
                found.append(b"".join(self._lab().log(self._lab_number())).decode("utf-8", "replace"))
        return "".join(found) or None

    def __repr__(self) -> str:
        # Nothing is asked of the lab for it.
        return f"{type(self).__name__}(job_id={self._job_id}, task_id={self.task_id})"

    def __del__(self) -> None:
        if self._cancel_at_deletion and self._ended is None:
            self.cancel(check=False)

    def __getstate__(self) -> dict[str, Any]:
        # A connection does not travel; the other process finds the lab by itself.
        return {**self.__dict__, "_client": None, "_parts": {}, "_cancel_at_deletion": False}


class AsyncJobProxy(Generic[R]):
    """A job for asyncio."""

    def __init__(self, job: Job[R]) -> None:
        self.job = job

    async def wait(self, poll_interval: float = 1) -> None:
        """Return when the job has ended; look every `poll_interval` seconds."""
        while not await asyncio.to_thread(self.job.done):
            await asyncio.sleep(poll_interval)

    async def result(self, poll_interval: float = 1) -> R:
        """As `Job.result`."""
        await self.wait(poll_interval)
        return await asyncio.to_thread(self.job.result)

    async def results(self, poll_interval: float = 1) -> list[R]:
        """As `Job.results`."""
        await self.wait(poll_interval)
        return await asyncio.to_thread(self.job.results)

    def results_as_completed(self, poll_interval: float = 1) -> Iterator[asyncio.Future[R]]:
        """An awaitable for each process, the first that ends first."""
        tasks = [self.job.task(task) for task in self.job._tasks]
        yield from asyncio.as_completed([AsyncJobProxy(task).result(poll_interval) for task in tasks])
