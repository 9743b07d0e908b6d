"""Announcements: checked when they are made, shown while they hold, and forgotten after that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from carrel.core.control.keeper import Keeper
from carrel.core.domain.announcement import LONGEST, Announcement
from carrel.core.domain.control_characters import visible
from carrel.core.domain.errors import Invalid
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcements(Keeper[Announcement]):
    """Users see those that hold now; who may announce sees those to come as well."""

    def checked(self, caller: Caller, asked: Announcement) -> Announcement:
        """The text is plain from here on: terminals obey control characters. Raises `Invalid`."""
        text = visible(" ".join(asked.text.split()))
        if not 0 < len(text) <= LONGEST:
            raise Invalid(f"The announcement has {len(text)} characters.", remedy=f"Say it in 1 to {LONGEST}.")
        now = self.clock()
        made = replace(asked, text=text, begin=asked.begin or now, by=caller.user.subject)
        if made.until <= max(made.begin, now):
            raise Invalid("The announcement is over before anybody sees it.", remedy="Let it hold until later.")
        return made

    def seen(self, caller: Caller, value: Announcement) -> Announcement | None:
        """Nothing of one that is over, or of one to come for who may not announce."""
        now = self.clock()
        if value.until <= now or (value.begin > now and not allowed(caller, Action.ANNOUNCE)):
            return None
        return value

    def changed(self) -> None:
        """Those that are over go."""
        for one in self.records.all():
            if one.until <= self.clock():
                self.records.remove(one.id)
