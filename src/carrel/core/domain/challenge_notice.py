"""Notices of challenges: what organisers and those who take part tell one another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.control_characters import visible
from carrel.core.domain.errors import Invalid
from carrel.core.domain.noun import Moment, private, stamped

#: Characters of a text.
LONGEST = 1000
#: Submissions that a team is given, or that are taken from it, at a time.
MOST_MORE = 10_000


class NoticeKind(StrEnum):
    """The kind of a notice."""

    #: By an organiser, for everybody.
    ANNOUNCEMENT = "announcement"
    #: By the lab, for everybody, where a new version changes dates, limits or rules.
    CHANGE = "change"
    #: Submissions more or fewer for a team, which reads it.
    QUOTA = "quota"
    #: By one who takes part, for the organisers; these may publish it with its answer.
    QUESTION = "question"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeNotice:
    """An announcement, a change of dates, limits or rules, submissions more for a team, or a question and its answer."""

    id: int = 0
    challenge: str
    kind: NoticeKind
    #: Plain text on one line.
    text: str
    #: Subject of who wrote it; "" for readers of a question of somebody else's.
    by: str = stamped(default="")
    made_at: Moment = stamped(default=0.0)
    #: Of a change: the version that it comes with. Teams see its number.
    version: str = stamped(default="")
    #: Of a quota: the team, the phase, and how many submissions more it has on that day, or in the whole phase.
    team: str = stamped(default="")
    phase: str = stamped(default="")
    today: int = stamped(default=0)
    total: int = stamped(default=0)
    #: Subjects of those who were in the team then. What was taken away counts for them in whichever team they go to.
    members: tuple[str, ...] = private(default=())
    #: Of a question: what the organisers say, who of them, and whether everybody reads both.
    answer: str = stamped(default="")
    answered_by: str = stamped(default="")
    answered_at: Moment | None = stamped(default=None)
    published: bool = stamped(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeList:
    """Notices that their reader may see, newest first."""

    notices: tuple[ChallengeNotice, ...]


def one_line(text: str) -> str:
    """Return text of a user's on one line. Raises `Invalid` where there is none, or too much."""
    found = visible(" ".join(text.split()))
    if not 0 < len(found) <= LONGEST:
        raise Invalid(f"The text has {len(found)} characters.", remedy=f"Write 1 to {LONGEST}.")
    return found
