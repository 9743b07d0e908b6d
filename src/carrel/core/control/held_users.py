"""Users of whom nothing starts, because an administrator has suspended or removed them."""

from __future__ import annotations

from collections.abc import Mapping

from carrel.core.control.user_port import UserStore
from carrel.core.domain.job import Reason
from carrel.core.domain.user import User, UserState


class HeldUsers:
    """What the store knows, in memory. Thread-safe: the answer is replaced as a whole."""

    def __init__(self, people: UserStore) -> None:
        self._people = people
        #: Why nothing of a user's starts, by their subjects.
        self.reasons: Mapping[str, Reason] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look again: somebody's state has changed."""
        self.reasons = {user.subject: _reason(user) for user in self._people.list() if user.state is not UserState.ACTIVE}

    def current(self) -> Mapping[str, Reason]:
        """Why nothing of a user's starts, by their subjects; the very same answer while nothing has changed."""
        return self.reasons


def _reason(user: User) -> Reason:
    why = f": {user.state_reason.rstrip('.')}" if user.state_reason else ""
    message = f"{user.name} is {user.state.value}{why}. `carrel user resume {user.subject}` (administrators) lets it go on."
    return Reason(code="JobHeldAdmin", message=message)
