"""``mlflow run PROJECT --backend carrel``: the unchanged MLflow command line, with the lab doing the work.

Loaded by MLflow in the user's own process (entry point ``mlflow.project_backend``). MLflow's command line does not wait for a
backend that comes from outside, so the waiting is done here: the log is shown, and a task that fails fails the command.
From Python, `mlflow.run(..., backend="carrel")` waits, or not, as its `synchronous` says.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import click
import mlflow
from mlflow.entities import RunStatus
from mlflow.exceptions import ExecutionException, MlflowException
from mlflow.projects.backend.abstract_backend import AbstractBackend
from mlflow.projects.submitted_run import SubmittedRun
from mlflow.projects.utils import MLFLOW_LOCAL_BACKEND_RUN_ID_CONFIG, fetch_and_validate_project, get_or_create_run
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import (
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_PROJECT_BACKEND,
    MLFLOW_PROJECT_ENTRY_POINT,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
    MLFLOW_USER,
)

from carrel.client import Client
from carrel.client.travelling import Travelling
from carrel.core.domain.control_characters import visible
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import JobState
from carrel.core.submission.own_name import own_name
from carrel.lab.tracking.cached_run import copy_values
from carrel.lab.tracking.new_store import forget_new_store
from carrel.lab.tracking.plugins import rivals
from carrel.lab.tracking.status import status_of
from carrel.wire import v1

#: What MLflow puts into every backend config, and what of it has a meaning here.
_MLFLOWS_OWN = ("ENV_MANAGER", "SYNCHRONOUS", "DOCKER_ARGS", "STORAGE_DIR", "build_image", "docker_auth")
#: In the backend config of the backend "local": the run that `mlflow.run(…, run_id=…)` names.
_RUN_ID = MLFLOW_LOCAL_BACKEND_RUN_ID_CONFIG
_NOT_STARTED = frozenset({JobState.PENDING, JobState.CONFIGURING})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Seconds for the lab to end the run in MLflow after the job has ended.
_AFTERGLOW = 15.0
#: Seconds that a job waits for its own run, which the tracking server may not have made yet.
_WAIT = 20


def carrel_backend() -> CarrelBackend:
    """What the entry point names."""
    return CarrelBackend()


def slurm_backend() -> AbstractBackend:
    """What the entry point ``slurm`` names: the lab, so that projects for a cluster run as they are written.

    Where another package has a backend of that name, it is that one, whichever of the two MLflow has found.
    """
    others = rivals("slurm")
    return others[0].load()() if others else CarrelBackend()


@dataclass(frozen=True, slots=True)
class _Run:
    """An MLflow run, and where it is."""

    run_id: str
    experiment_id: str
    #: None: with the lab.
    foreign_uri: str | None


class CarrelSubmittedRun(SubmittedRun):  # type: ignore[misc]
    """A job of the lab, as MLflow sees it."""

    def __init__(self, client: Client, job_id: int, run: _Run, *, is_array: bool = False) -> None:
        """Of an array `job_id` is the number, and `run` the parent of its jobs' runs."""
        super().__init__()
        self._is_array = is_array
        self._client = client
        self._run = run
        #: The lab's number for it.
        self.job_id = job_id

    @property
    def run_id(self) -> str:
        """The MLflow run."""
        return self._run.run_id

    def wait(self) -> bool:
        """Show the log until the task has ended; True when it succeeded. Ctrl-C cancels it, a second one leaves it behind."""
        return self.finish().state == JobState.COMPLETED

    def finish(self) -> v1.JobView:
        """`wait`, with the job as it ended; of an array the first that did not end well."""
        try:
            if self._is_array:
                return self._finish_array()
            for text in self._client.stream_log(self.job_id, waits=True):
                sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
                sys.stdout.flush()
            job = self._client.wait(self.job_id)
        except KeyboardInterrupt:
            _say(f"Cancelling job {self.job_id}; once more Ctrl-C leaves it to the lab.")
            self.cancel()
            raise
        self._settle(job)
        return job

    def _finish_array(self) -> v1.JobView:
        worst: v1.JobView | None = None
        for job in self._client.wait_array(self.job_id):
            _say(f"Job {_name(job)} ended {job.state}.")
            if worst is None or (worst.state == JobState.COMPLETED and job.state != JobState.COMPLETED):
                worst = job
        assert worst is not None
        # The lab ends the runs of the jobs; their parent was made here.
        self._mlflow().set_terminated(self.run_id, status_of(JobState(worst.state)))
        return worst

    def cancel(self) -> None:
        """Cancel the job, or all jobs of the array, and wait until their processes are gone."""
        if self._is_array:
            self._client.cancel_array(self.job_id)
            self._finish_array()
            return
        self._client.cancel(self.job_id)
        self._settle(self._client.wait(self.job_id))

    def leave(self) -> None:
        """Nobody waits here: the parent of an array's runs, which says nothing itself, is over."""
        if self._is_array:
            self._mlflow().set_terminated(self.run_id)

    def get_status(self) -> str:
        """MLflow's word for the state of the job."""
        jobs = self._client.array(self.job_id).jobs if self._is_array else [self._client.job(self.job_id)]
        states = [JobState(job.state) for job in jobs]
        if all(state.ended for state in states):
            return status_of(next((state for state in states if state is not JobState.COMPLETED), JobState.COMPLETED))
        state = next((state for state in states if state not in _NOT_STARTED), states[0])
        return str(RunStatus.to_string(RunStatus.SCHEDULED if state in _NOT_STARTED else RunStatus.RUNNING))

    def _mlflow(self) -> MlflowClient:
        """MLflow's client, after a wait that may have been long."""
        if self._run.foreign_uri is None:
            _sign_in_to_mlflow(self._client)
        return MlflowClient()

    def _settle(self, job: v1.JobView) -> None:
        """The run has ended too when this returns: a foreign server learns it from here, the lab's own from the lab."""
        client, until = self._mlflow(), time.monotonic() + _AFTERGLOW
        if self._run.foreign_uri is not None:
            client.set_terminated(self.run_id, status_of(JobState(job.state)))
            return
        while not RunStatus.is_terminated(RunStatus.from_string(client.get_run(self.run_id).info.status)):
            if time.monotonic() > until:
                _say(f"The lab has not yet told MLflow that run {self.run_id} is over; it will.")
                return
            time.sleep(0.1)


class CarrelBackend(AbstractBackend):  # type: ignore[misc]
    """Submits MLflow projects to the lab that CARREL_URL and CARREL_TOKEN, or CARREL_HOME, lead to."""

    def run(
        self,
        project_uri: str,
        entry_point: str,
        params: Mapping[str, Any] | None,
        version: str | None,
        backend_config: Mapping[str, Any],
        tracking_uri: str,
        experiment_id: str,
    ) -> CarrelSubmittedRun:
        """Submit; from the command line also wait, unless the backend config says ``"detach": true``."""
        detach, settings = _settings(backend_config)
        named = settings.pop(_RUN_ID, None)
        try:
            client = Client()
            where = _Where.find(client, tracking_uri)
            experiment = where.experiment(experiment_id)
            submitted = _submit(client, where, experiment, project_uri, entry_point, params or {}, version, settings, named)
            if detach:
                submitted.leave()
            if detach or _command_line() is None:
                return submitted
            job = submitted.finish()
        except CarrelError as error:
            raise ExecutionException(str(error)) from error
        if job.state != JobState.COMPLETED:
            raise ExecutionException(f"Job {_name(job)} ended {job.state}: {job.message}")
        return submitted


@dataclass(frozen=True, slots=True)
class _Where:
    """Which tracking server the run is on."""

    #: None: the lab's own.
    foreign_uri: str | None
    #: Where the experiment's id comes from, if not from there.
    local_uri: str | None = None

    @classmethod
    def find(cls, client: Client, tracking_uri: str) -> _Where:
        """The lab's, unless the user has said another server. From here on this process tracks there."""
        labs = client.lab().tracking_url
        given = tracking_uri.rstrip("/")
        is_server = given.startswith(("http://", "https://", "databricks"))
        if is_server and not _same_server(given, labs or ""):
            return cls(foreign_uri=given)
        if labs is None:
            raise ExecutionException(
                "This lab runs without tracking, and no other MLflow server is named: set MLFLOW_TRACKING_URI to one."
            )
        # MLflow itself sets more tags on the run after the backend is done.
        mlflow.set_tracking_uri(given if is_server else labs)
        for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
            os.environ.pop(name, None)
        _sign_in_to_mlflow(client)
        return cls(foreign_uri=None, local_uri=None if is_server else tracking_uri)

    def experiment(self, experiment_id: str) -> str:
        """Id of the experiment there: MLflow has looked for it in the user's own files when no server was named."""
        if self.local_uri is None:
            return experiment_id
        name = "Default"
        if experiment_id != "0":
            name = MlflowClient(tracking_uri=self.local_uri).get_experiment(experiment_id).name
        if _command_line() is not None:
            forget_new_store(self.local_uri)
        found = mlflow.get_experiment_by_name(name)
        return str(found.experiment_id if found else mlflow.create_experiment(name))


def _sign_in_to_mlflow(client: Client) -> None:
    """Let MLflow's client in this process go on: a token of `carrel login` holds for an hour, and a task may take days."""
    os.environ["MLFLOW_TRACKING_TOKEN"] = client.token


def _same_server(one: str, other: str) -> bool:
    """True for two spellings of one address: this machine has several names for itself."""
    parts = [urlsplit(address) for address in (one, other)]
    keys = [("this" if part.hostname in _LOOPBACK else part.hostname, part.port, part.path.rstrip("/")) for part in parts]
    return keys[0] == keys[1]


def _submit(
    client: Client,
    where: _Where,
    experiment_id: str,
    uri: str,
    entry_point: str,
    params: Mapping[str, Any],
    version: str | None,
    settings: Mapping[str, Any],
    named: str | None,
) -> CarrelSubmittedRun:
    values = {str(key): str(value) for key, value in params.items()}
    run, made = _named(named, where), False
    if run is None:
        run, made = _run(client, where, experiment_id, uri, entry_point, values, version)
    try:
        job = client.submit_project(
            uri.removeprefix("file://") if uri.startswith("file:///") and "#" not in uri and not uri.endswith(".git") else uri,
            entry_point=entry_point,
            parameters=values,
            version=version,
            name=_run_name(),
            backend_config=settings,
            packed=_say_travelling,
            tracking=v1.TrackingRequest(run_id=run.run_id, experiment_id=run.experiment_id, uri=run.foreign_uri),
        )
    except BaseException:
        if made:  # it would stay RUNNING for ever
            MlflowClient().set_terminated(run.run_id, "FAILED")
        raise
    if job.cached:
        return _taken_again(client, run, job, made=made)
    if made and _run_name() is None:  # MLflow has invented one
        MlflowClient().update_run(run.run_id, name=job.name)
    is_array = job.array_job_id is not None
    what = f"Array {job.id} ({job.name}, {job.array}), parent run" if is_array else f"Job {job.id} ({job.name}), run"
    _say(f"{what} {run.run_id}")
    return CarrelSubmittedRun(client, job.id, run, is_array=is_array)


def _taken_again(client: Client, run: _Run, job: v1.JobView, *, made: bool) -> CarrelSubmittedRun:
    """An earlier job did the same: its run stands for this one, and what was made for a new job is taken back."""
    for note in job.notes:
        _say(note)
    if made:
        MlflowClient().delete_run(run.run_id)
    if job.run_id is not None and run.foreign_uri is None:
        if not made:
            copy_values(job.run_id, run.run_id)
        run = _Run(job.run_id, run.experiment_id, None)
    return CarrelSubmittedRun(client, job.id, run)


def _named(run_id: str | None, where: _Where) -> _Run | None:
    """The run that the caller has made for this."""
    if run_id is None:
        return None
    info = MlflowClient().get_run(run_id).info
    return _Run(info.run_id, info.experiment_id, where.foreign_uri)


def _say_travelling(travelling: Travelling) -> None:
    for line in travelling.warnings():
        _say(line)


def _run(
    client: Client, where: _Where, experiment_id: str, uri: str, entry_point: str, params: Mapping[str, str], version: str | None
) -> tuple[_Run, bool]:
    """The run to use, and whether it was made here: MLFLOW_RUN_ID names one, except inside a job, whose own run that is."""
    inside = "CARREL_JOB_ID" in os.environ
    named = os.environ.get("MLFLOW_RUN_ID")
    if named and not inside and (run := _named(named, where)) is not None:
        return run, False
    active = mlflow.active_run()
    parent = active.info.run_id if active else named or (_own_run(client) if inside else None)
    if where.foreign_uri is not None:  # nobody but this process will ever describe it
        directory = fetch_and_validate_project(uri, version, entry_point, dict(params))
        info = get_or_create_run(None, uri, experiment_id, directory, version, entry_point, dict(params)).info
        tags = {MLFLOW_PROJECT_BACKEND: "carrel"}
        if parent:
            tags[MLFLOW_PARENT_RUN_ID] = parent
        for key, value in tags.items():
            MlflowClient().set_tag(info.run_id, key, value)
        return _Run(info.run_id, info.experiment_id, where.foreign_uri), True
    tags = {
        MLFLOW_PROJECT_BACKEND: "carrel",
        MLFLOW_PROJECT_ENTRY_POINT: entry_point,
        MLFLOW_SOURCE_NAME: uri,
        MLFLOW_SOURCE_TYPE: "PROJECT",
        MLFLOW_USER: _user(),
    }
    if parent:
        tags[MLFLOW_PARENT_RUN_ID] = parent
    info = MlflowClient().create_run(experiment_id, tags=tags, run_name=_run_name()).info
    return _Run(info.run_id, info.experiment_id, None), True


def _own_run(client: Client) -> str | None:
    """The run of the job that this is, which it was not told where its environment was not known to use MLflow."""
    found = client.run_of(int(os.environ["CARREL_JOB_ID"]), wait=_WAIT)
    return found.run_id if found is not None else None


def _settings(backend_config: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether to come back at once, and what of the backend config is for the lab. What has no meaning here is refused."""
    for option, key in (("--docker-args", "DOCKER_ARGS"), ("--storage-dir", "STORAGE_DIR"), ("--build-image", "build_image")):
        if backend_config.get(key):
            raise ExecutionException(f"{option} means nothing to the carrel backend: leave it out.")
    # Inside a task it is what says "the same environment as mine", and a project's files say that too.
    if backend_config.get("ENV_MANAGER") == "local" and "CARREL_JOB_ID" not in os.environ:
        raise ExecutionException("--env-manager local means nothing in a lab: leave it out, and the project's files decide.")
    settings = {key: value for key, value in backend_config.items() if key not in _MLFLOWS_OWN}
    detach = settings.pop("detach", False)
    if not isinstance(detach, bool):
        raise ExecutionException(f'"detach" in the backend config is {detach!r}: it must be true or false.')
    return detach, settings


def _command_line() -> click.Context | None:
    """The command that is running, or None when MLflow is used from Python."""
    context = click.get_current_context(silent=True)
    return context if context is not None and context.info_name == "run" else None


def _run_name() -> str | None:
    # MLflow names the run only after the backend is done, and does not tell the name before.
    context = _command_line()
    name = context.params.get("run_name") if context is not None else None
    return str(name) if name else None


def _name(job: v1.JobView) -> str:
    return str(job.id) if job.array_job_id is None else f"{job.array_job_id}_{job.array_task_id}"


def _user() -> str:
    try:
        return str(mlflow.tracking.context.default_context._get_user())
    except (AttributeError, MlflowException, KeyError, OSError):
        return own_name()


def _say(text: str) -> None:
    print(f"carrel: {text}", file=sys.stderr, flush=True)
