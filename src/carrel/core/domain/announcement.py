"""Announcements: what an administrator tells all users."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.noun import Moment, stamped

#: Characters of one.
LONGEST = 500


class Level(StrEnum):
    """How much an announcement matters."""

    INFO = "info"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What an administrator tells all users, from `begin` until `until`."""

    id: int = 0
    #: Plain text on one line.
    text: str
    #: 0: it begins when it is made.
    begin: Moment = 0.0
    until: Moment
    level: Level = Level.INFO
    #: Subject of the administrator.
    by: str = stamped(default="")
