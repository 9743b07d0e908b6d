"""What the lab remembers of an attempt that it has given to a deputy, in memory and on its own disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.job import JobState, Preemption, Reason
from carrel.core.domain.launch import Ended, Journaled, Launch, Observation, Preparing
from carrel.core.domain.serial import to_plain
from carrel.core.spool import Spool
from carrel.engines.attempts import Key

#: What sudo (sudo(8)) and `carrel-deputy` say to who is not, or who has not been, let in.
_REFUSAL = re.compile(
    r"sudo: .*(?:password is required|unknown user|not in the sudoers|terminal is required|no tty present)"
    r"|is not allowed to execute|is not in the sudoers file|may not run sudo|carrel-deputy: .* is not in the group "
)


@dataclass(slots=True)
class Followed:
    """An attempt that a deputy looks after."""

    launch: Launch
    token: str
    #: Bytes of its journal whose news were delivered.
    offset: int
    cancelled_by: str | None = None
    #: How it is preempted, once somebody has said so.
    preemption: Preemption | None = None
    preempted: bool = False
    #: The last thing that was said of it beside its journal.
    said: str = ""

    def cancel_frame(self) -> dict[str, Any]:
        """The message to a deputy about its cancellation."""
        return {"is": "cancel", "job": self.launch.job_id, "attempt": self.launch.attempt, "by": self.cancelled_by}

    def preempt_frame(self) -> dict[str, Any]:
        """The message to a deputy about its preemption."""
        plain = None if self.preemption is None else to_plain(self.preemption)
        return {"is": "preempt", "job": self.launch.job_id, "attempt": self.launch.attempt, "preemption": plain}

    def beside(self, message: str, at: float) -> Observation:
        """Return the news of what stands in no journal: why its runner has not begun."""
        return Observation(
            job_id=self.launch.job_id,
            attempt=self.launch.attempt,
            entries=(Journaled(at=at, record=Preparing(message=message)),),
            offset=self.offset,
            beside=True,
        )


class FollowedAttempts(dict[Key, Followed]):
    """The attempts that the deputy of one user looks after. The caller's lock guards it."""

    def __init__(self, user: str, spool: Spool) -> None:
        super().__init__()
        self._user = user
        self._spool = spool

    def explain(self, why: str, at: float) -> list[Observation]:
        """Return the news that there is no deputy, and why, for everybody who does not know it."""
        message = f"The lab cannot act as the Unix user {self._user} at the moment: {why}"
        waiting = [followed for followed in self.values() if followed.said != message]
        for followed in waiting:
            followed.said = message
        return [followed.beside(message, at) for followed in waiting]

    def unheard(self) -> list[tuple[Key, str]]:
        """Return what was cancelled before any deputy heard of it, and by whom: it has no runner and never will."""
        return [
            (key, followed.cancelled_by)
            for key, followed in self.items()
            if followed.cancelled_by is not None and not user_file(self._spool, *key).exists()
        ]

    def end_unheard(self, refusal: str, at: float) -> list[Observation]:
        """End what was cancelled, and everything else, too, where there is a `refusal`, of what no deputy ever heard of."""
        news = [_ended_before_start(key, by, at) for key, by in self.unheard()]
        over = {(one.job_id, one.attempt) for one in news}
        if refusal:
            keys = [key for key in self if key not in over and not user_file(self._spool, *key).exists()]
            news += [_refused_before_start(key, self._user, refusal, at) for key in keys]
        for one in news:
            del self[one.job_id, one.attempt]
        return news


def _ended_before_start(key: Key, by: str, at: float) -> Observation:
    """Return the news that an attempt was cancelled of which no deputy has ever heard."""
    reason = Reason(code="Cancelled", message=f"Cancelled by {by} before it started.")
    ended = Journaled(at=at, record=Ended(state=JobState.CANCELLED, reason=reason))
    return Observation(job_id=key[0], attempt=key[1], entries=(ended,), offset=1)


def _refused_before_start(key: Key, user: str, why: str, at: float) -> Observation:
    """Return the news that an attempt has failed because the lab may not have a deputy of its owner."""
    said = why.rstrip(".")
    message = f"The lab may not act as the Unix user {user}: {said}. It was not started. Ask the lab's administrator."
    ended = Ended(state=JobState.FAILED, reason=Reason(code="LaunchFailed", message=message), retryable=True)
    return Observation(job_id=key[0], attempt=key[1], entries=(Journaled(at=at, record=ended),), offset=1)


def is_refusal(said: str) -> bool:
    """Return whether these last words of a deputy's command are a no, and not a trouble that passes by itself."""
    return _REFUSAL.search(said) is not None


def user_file(spool: Spool, job_id: int, attempt: int) -> Path:
    """Where the lab writes down which Unix user's deputy an attempt was given to."""
    return spool.attempt(job_id, attempt).path / "user"


def note_user(spool: Spool, launch: Launch, user: str) -> None:
    """Write that down, before the deputy hears of it: the mapping may be another tomorrow. Raises `OSError` on a full disk."""
    path = user_file(spool, launch.job_id, launch.attempt)
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.write_text(f"{user}\n")
        draft.rename(path)
