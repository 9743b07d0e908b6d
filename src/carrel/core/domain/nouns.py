"""The nouns that are kept, listed, taken and given by the same few lines. A new one is a line here."""

from __future__ import annotations

from typing import Any

from carrel.core.domain.announcement import Announcement
from carrel.core.domain.call import WorkerPool
from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, Team
from carrel.core.domain.challenge_notice import ChallengeNotice
from carrel.core.domain.composition import Composition
from carrel.core.domain.fabric import Block
from carrel.core.domain.node import Drain
from carrel.core.domain.noun import Noun
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.secret import Secret
from carrel.core.domain.token import Token

ANNOUNCEMENTS = Noun(type=Announcement, name="announcement", plural="announcements", key="id", order="begin")
CELLS = Noun(type=RecordedCell, name="cell", plural="cells", key="id")
CHALLENGES = Noun(type=Challenge, name="challenge", plural="challenges")
CHALLENGE_NOTICES = Noun(type=ChallengeNotice, name="challenge_notice", plural="challenge_notices", key="id")
COMPOSITIONS = Noun(type=Composition, name="composition", plural="compositions", key="id")
DRAINS = Noun(type=Drain, name="drain", plural="drains", key="node")
POOLS = Noun(type=WorkerPool, name="pool", plural="pools", key="id")
RESERVATIONS = Noun(type=Reservation, name="reservation", plural="reservations", order="begin")
SECRETS = Noun(type=Secret, name="secret", plural="secrets")
SUBMISSIONS = Noun(type=ChallengeSubmission, name="challenge_submission", plural="challenge_submissions", key="id")
TEAMS = Noun(type=Team, name="team", plural="teams")
TOKENS = Noun(type=Token, name="token", plural="tokens", key="id")
#: Kept by the fabric itself; the lab has no table of them.
BLOCKS = Noun(type=Block, name="block", plural="blocks")

NOUNS: tuple[Noun[Any], ...] = (
    *(ANNOUNCEMENTS, CELLS, CHALLENGES, CHALLENGE_NOTICES, COMPOSITIONS, DRAINS, POOLS, RESERVATIONS, SECRETS, SUBMISSIONS),
    *(TEAMS, TOKENS),
)
