"""How many jobs a session may have: its token submits as its owner, and whoever takes over a notebook has that token."""

from __future__ import annotations

from carrel.core.domain.errors import Denied, TooMany


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
