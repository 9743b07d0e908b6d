"""How many jobs jobs may submit.

The token of a session submits as its owner, and whoever takes over a notebook has that token. A task that submits itself by
mistake would do so without end.
"""

from __future__ import annotations

from carrel.core.domain.errors import Denied, TooMany


def check_jobs_of_jobs(session: int | None, has: int, more: int, *, session_jobs: int, task_jobs: int) -> None:
    """Raise `TooMany` when a session would have too many jobs, or, where `session` is None, all tasks of a user together."""
    if session is not None:
        check_session_jobs(session, has, more, most=session_jobs)
    elif has + more > task_jobs:
        raise TooMany(
            f"Tasks of yours have submitted {has} jobs that wait or run, and the lab lets them have {task_jobs} at once "
            "(task_jobs).",
            remedy="Wait until some have ended, cancel some with `carrel cancel`, or submit with your own token.",
        )


def check_session_jobs(session: int, has: int, more: int, *, most: int) -> None:
    """Raise `TooMany` when a session that has so many jobs would have more than `most` at once.

    Its jobs are those that its token submits, those that they submit in their turn, workers of its pools, trials of its sweeps.
    """
    if not most:
        raise Denied(
            f"Session {session} cannot submit jobs: the lab lets sessions have none (session_jobs).",
            remedy="Submit with your own token, or ask an administrator of the lab.",
        )
    if has + more > most:
        raise TooMany(
            f"Session {session} has {has} jobs that wait or run, and the lab lets a session have {most} at once (session_jobs).",
            remedy="Wait until some have ended, cancel some with `carrel cancel`, or submit with your own token.",
        )
