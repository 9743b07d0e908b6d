"""What every route works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, FastAPI, Path, Request
from starlette.responses import Response

from carrel.core.control.lab import Lab
from carrel.core.control.pools import Pools
from carrel.core.control.sessions import Sessions
from carrel.core.control.sweeps import Sweeps
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.fabric import FreeSlices
from carrel.core.domain.job import Job
from carrel.core.domain.nouns import BLOCKS
from carrel.core.domain.user import Caller
from carrel.core.policy.slices import free_slices
from carrel.lab.audit import AuditLog
from carrel.lab.gateway.body_files import BodyFiles
from carrel.lab.gateway.call_bodies import CallBodies
from carrel.lab.gateway.challenge_organising import Organising
from carrel.lab.gateway.challenge_participating import Participating
from carrel.lab.gateway.challenge_publishing import Publishing
from carrel.lab.gateway.challenge_samples import ChallengeSamples
from carrel.lab.gateway.challenges import Challenges
from carrel.lab.gateway.comparing import Comparing
from carrel.lab.gateway.drift import Drifts
from carrel.lab.gateway.environments import Environments
from carrel.lab.gateway.explaining import Explaining
from carrel.lab.gateway.gate import Grant, SignedIn
from carrel.lab.gateway.matrices import Matrices
from carrel.lab.gateway.new_code import Incoming
from carrel.lab.gateway.rule_previews import RulePreviews
from carrel.lab.gateway.settings import GatewaySettings
from carrel.lab.gateway.ssh import SshAccess
from carrel.lab.gateway.streams import Streams
from carrel.lab.gateway.submission import Submissions
from carrel.lab.gateway.trial_jobs import TrialJobs
from carrel.lab.gateway.views import job_view
from carrel.lab.signin import Issuer
from carrel.wire.v1 import JobView, Problem

#: Largest number that every database takes as an id.
LARGEST = 2**63 - 1
#: Text without zero bytes, which PostgreSQL does not take.
NO_ZERO = r"^[^\x00]*$"
JobId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the job.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingStatus:
    """How the tracking server is."""

    #: "starting", "ready", "failed", "stopped" or "off".
    state: str
    #: Why.
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of a running gateway; made once by `create_app`."""

    lab: Lab
    settings: GatewaySettings
    streams: Streams
    submissions: Submissions
    #: Code that comes through the pages.
    incoming: Incoming
    #: Files of calls.
    bodies: CallBodies
    comparing: Comparing
    explaining: Explaining
    matrices: Matrices
    rule_previews: RulePreviews
    #: The same for programs on this machine, as descriptors.
    files: BodyFiles
    ssh: SshAccess
    #: Run id and experiment id of a job's run, or None while there is none.
    run_of: Callable[[int], tuple[str, str] | None]
    tracking_status: Callable[[], TrackingStatus]
    pools: Pools
    sweeps: Sweeps
    drifts: Drifts
    challenges: Challenges
    participating: Participating
    publishing: Publishing
    organising: Organising
    samples: ChallengeSamples
    environments: Environments
    #: None in a lab without sessions.
    sessions: Sessions | None = None
    #: None in a lab that keeps no audit log (tests).
    audit: AuditLog | None = None
    #: None in a lab in which no program can sign in (tests).
    issuer: Issuer | None = None
    #: None in a lab without pages (tests).
    pages: Pages | None = None

    def free_slices(self, caller: Caller) -> Sequence[FreeSlices]:
        """Slices of GPUs that can be had now, by size; none where there is no fabric, or where it does not answer."""
        with suppress(CarrelError):
            return free_slices(self.lab.keeper(BLOCKS).list(caller))
        return ()

    @property
    def trial_jobs(self) -> TrialJobs:
        """What makes sweeps of requests."""
        return TrialJobs(lab=self.lab, submissions=self.submissions)

    def hear_metrics(self, caller: Caller, run_id: str, metrics: Sequence[tuple[str, int, float]]) -> None:
        """A job logs metrics (name, step, value) to a run; those of a trial's own run are what it reports."""
        job_id = caller.job_id
        if job_id is None:
            return
        # MLflow can sample the machine by itself, long before a program has computed anything.
        if not all(name.startswith("system/") for name, _, _ in metrics):
            self.lab.gpu_use.hear_metric(caller)
        if not self.sweeps.is_trial(job_id):
            return
        run = self.run_of(job_id)
        if run is not None and run[0] == run_id:
            self.sweeps.hear_metrics(job_id, metrics)

    def close(self) -> None:
        """End all streams, and what is built for them; any thread may call it."""
        self.streams.doorbell.close()
        self.pools.wake()
        self.environments.close()

    def own_url(self, base: str) -> str:
        """The address by which people reach the lab; `base` is the one by which the caller does."""
        return (self.settings.public_url or base).rstrip("/")

    def tracking_url(self, base: str) -> str | None:
        """Address of the tracking server under the lab's own address `base`, or None in a lab without one."""
        return None if self.tracking_status().state == "off" else base.rstrip("/") + self.settings.tracking_path

    def run_url(self, base: str, run_id: str | None) -> str | None:
        """Address of a run in the tracking pages; `base` is the lab's own address, or "" for a link on its pages."""
        if run_id is None or self.tracking_status().state == "off":
            return None
        return f"{base.rstrip('/')}{self.settings.tracking_path}/#/runs/{run_id}"

    def run_page(self, job: Job) -> str | None:
        """Path of the page of the job's run, in the view for training, with its curves; None where there is none."""
        found = self.run_of(job.id)
        if found is None or self.tracking_status().state == "off":
            return None
        run_id, experiment_id = found
        # MLflow 3 opens its pages for language models, unless the address says otherwise.
        return f"{self.settings.tracking_path}/#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"

    def show(self, job: Job, base: str, *, alternatives: bool = False) -> JobView:
        """The job as the wire has it, with its place in the queue, and with `alternatives` that would start it sooner."""
        hold = None if job.state.ended else self.lab.waiting(job.id, alternatives=alternatives)
        return job_view(self.lab.as_told(job), hold, self.run_url(base, job.run_id))


class Pages(SignedIn, Protocol):
    """The web pages, as the gateway needs them; `carrel.lab.portal.Portal` is them."""

    #: Paths, and directories with a final slash, that need no sign-in.
    public: frozenset[str]
    public_under: tuple[str, ...]
    #: Public paths at which a GET request may change something; the audit log has them.
    changing: frozenset[str]

    def link(self, caller: Caller) -> str:
        """The path of a link that signs one browser in as the caller, once, for as long as the token is good."""

    def install(self, app: FastAPI, gateway: Gateway) -> None:
        """Add the routes of the pages."""

    def problem_page(self, request: Request, problem: Problem) -> Response:
        """`problem` for a person; when it is 401, the page that says how to sign in."""


async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _grant(request: Request) -> Grant:
    grant: Grant = request.state.grant
    return grant


async def _caller(request: Request) -> Caller:
    grant: Grant = request.state.grant
    return grant.caller


async def _base(request: Request) -> str:
    return str(request.base_url)


Ctx = Annotated[Gateway, Depends(_gateway)]
Granted = Annotated[Grant, Depends(_grant)]
Who = Annotated[Caller, Depends(_caller)]
#: The address under which the caller reached the lab.
Base = Annotated[str, Depends(_base)]
