"""What a hub's user reads: how far the session is, and what went wrong. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tornado.web import HTTPError

from carrel.core.domain import errors
from carrel.wire import v1

#: HTTP status for each class of error, the most special first. Below 500 a hub does not count it as a failure of its own.
_STATUS = (
    (errors.Invalid, 400),
    (errors.Unauthenticated, 401),
    (errors.Denied, 403),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.Unavailable, 503),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One line beside the hub's progress bar."""

    #: Per cent.
    progress: int
    message: str


class LabRefused(HTTPError):
    """The lab does not start the session; the hub shows `jupyterhub_message` to the user as it is."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(status, message)
        #: JupyterHub's name for the text that a user sees.
        self.jupyterhub_message = message

    def __str__(self) -> str:
        return self.jupyterhub_message


def refused(error: errors.CarrelError) -> LabRefused:
    """The lab's own words."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return LabRefused(str(error), status=status)


def ended(session: v1.SessionView) -> LabRefused:
    """A session that is over before it was ready."""
    job = session.job
    said = job.message if job.message.endswith((".", "!", "?")) else f"{job.message}."
    return LabRefused(f"Session {job.id} is {job.state}: {said} Its log: carrel logs {job.id}", status=409)


def step(session: v1.SessionView) -> Step:
    """How far a session is that does not listen yet."""
    job = session.job
    if job.state == "PENDING":
        place = job.queue.position if job.queue is not None else None
        return Step(10, f"#{place} in line: {job.message}" if place else job.message)
    if job.state == "CONFIGURING":
        return Step(30, job.message)
    if job.state == "SUSPENDED":
        return Step(30, f"Suspended: {job.message}")
    return Step(60, f"Session {job.id} starts on {job.node}." if job.node else f"Session {job.id} starts.")


def exit_code(session: v1.SessionView) -> int | None:
    """What a hub takes for the state of a server: None while it runs or waits, else a number."""
    job = session.job
    if not job.ended:
        return None
    if job.exit_code:
        return job.exit_code
    if job.signal:
        return 128 + job.signal
    return 0 if job.state == "COMPLETED" else 1
