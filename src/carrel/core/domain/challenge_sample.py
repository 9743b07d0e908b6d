"""Training data that a team cannot copy: single files of them are shown, so many a day."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.noun import Moment, private, stamped
from carrel.core.domain.units import MIB, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How many files of the training data a team is shown, and which."""

    #: Of a team, on one day in the challenge's zone; one that it has seen before does not count.
    per_day: int = 20
    #: Bytes; a larger file is never shown.
    largest: int = MIB

    @property
    def words(self) -> str:
        """One phrase: "20 files a day, of up to 1M each"."""
        return f"{self.per_day} files a day, of up to {format_size(self.largest)} each"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeSample:
    """A file of the training data that a team was shown."""

    id: int = 0
    challenge: str
    team: str = stamped(default="")
    #: Its path in the training data.
    sample: str
    #: Of its content. The same file is shown to a team again without being counted.
    digest: str = private(default="")
    #: Subject of who asked.
    by: str = stamped(default="")
    #: Subjects of those who were in the team then. It counts against what is left to them, whichever team they go to.
    members: tuple[str, ...] = private(default=())
    #: The day in the challenge's zone: "2026-12-01".
    day: str = stamped(default="")
    made_at: Moment = stamped(default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleList:
    """The files of the training data that can be shown, and what was shown."""

    #: Paths in the training data, in order; of very many the first ones.
    names: tuple[str, ...]
    #: How many there are.
    total: int
    #: What the reader's team was shown on this day, or what organisers have to know: all that was shown; newest first.
    shown: tuple[ChallengeSample, ...]
    #: How many its team may still see on this day; None: the reader has no team.
    left: int | None
    next_day: Moment
