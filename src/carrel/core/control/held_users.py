"""Users of whom nothing starts, because an administrator has suspended or removed them, or who have no more room on the disk."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from carrel.core.control.user_port import UserStore
from carrel.core.domain.job import Job, Reason
from carrel.core.domain.qos import JobKind
from carrel.core.domain.user import User, UserState

#: The code of who has no more room.
NO_ROOM = "StorageFull"


class HeldUsers:
    """What the store knows, in memory. Thread-safe: the answer is replaced as a whole."""

    def __init__(self, people: UserStore) -> None:
        self._people = people
        self._lock = threading.Lock()
        self._full: Mapping[str, Reason] = {}
        #: Why nothing of a user's starts, by their subjects.
        self.reasons: Mapping[str, Reason] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look again: somebody's state has changed."""
        with self._lock:
            suspended = {user.subject: _reason(user) for user in self._people.list() if user.state is not UserState.ACTIVE}
            self.reasons = {**self._full, **suspended}

    def fill(self, reasons: Mapping[str, Reason]) -> bool:
        """These users, and no others, have no more room; return whether that is news."""
        if reasons == self._full:
            return False
        self._full = reasons
        self.refresh()
        return True

    def current(self) -> Mapping[str, Reason]:
        """Why nothing of a user's starts, by their subjects; the very same answer while nothing has changed."""
        return self.reasons


def held_by(reasons: Mapping[str, Reason], job: Job) -> Reason | None:
    """Why such a job does not start; None where its owner is not held. A session stores nothing, and needs no room."""
    reason = reasons.get(job.owner)
    if reason is not None and reason.code == NO_ROOM and job.kind is JobKind.SESSION:
        return None
    return reason


def _reason(user: User) -> Reason:
    why = f": {user.state_reason.rstrip('.')}" if user.state_reason else ""
    message = f"{user.name} is {user.state.value}{why}. `carrel user resume {user.subject}` (administrators) lets it go on."
    return Reason(code="JobHeldAdmin", message=message)
