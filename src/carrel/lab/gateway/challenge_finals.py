"""The beginning of finals: what goes on from an earlier phase is sent again, once each.

Each is written down as a submission that names the one whose code it is. Whenever the lab is killed, the next one finds those
that are there, and sends the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from carrel.core.challenges.finals import chosen, to_send
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, Final, Phase, Team
from carrel.core.domain.errors import CarrelError
from carrel.lab.gateway.challenges import Challenges

_log = logging.getLogger(__name__)
#: Seconds before a final begins from which on it is waited for. More than those after which the loop looks by itself.
_SOON = 700.0


class ChallengeFinals:
    """Sends what goes on to finals. `PoolLoop` looks after it."""

    def __init__(self, challenges: Challenges) -> None:
        self._challenges = challenges
        #: Finals of which all has ended: challenge, version, phase.
        self._over: set[tuple[str, str, str]] = set()
        #: Wakes the loop.
        self.changed: Callable[[], None] = lambda: None
        challenges.finals_changed = lambda: self.changed()

    def load(self) -> None:
        """Take up nothing: all that was sent is written down."""

    def jobs(self) -> Sequence[int]:
        """Jobs whose ends matter: none by itself."""
        return ()

    def job_changed(self, job_id: int) -> None:
        """Do nothing."""

    def start_missing(self) -> bool:
        """Send what goes on to each final that has begun. Returns False where there will be more to do soon."""
        well = True
        for challenge in self._challenges.challenges.all():
            try:
                well &= not challenge.version or challenge.frozen_at is not None or self._look(challenge)
            except (CarrelError, OSError) as error:  # a disk is full, or does not answer; others are looked after
                _log.warning("The finals of the challenge %s cannot be looked after now: %s", challenge.name, error)
                well = False
        return well

    def _look(self, challenge: Challenge) -> bool:
        """Send what goes on to finals of a challenge. Returns False where there will be more to do soon."""
        well, now = True, self._challenges.lab.clock()
        for phase in self._challenges.programs.spec(challenge.name, challenge.version).phases:
            key = (challenge.name, challenge.version, phase.name)
            if phase.final is None or key in self._over:
                continue
            if now < phase.begin:
                well &= phase.begin - now > _SOON
                continue
            there = self._challenges.present(challenge.name)
            again = self._challenges.rescoring.waiting(challenge.name, challenge.version)
            if any(one.phase == phase.final.source for one in again):
                well = False  # it has no score now, and may go on
            elif sum(self._send(challenge, phase, phase.final, team) for team in there) == len(there):
                self._over.add(key)
            else:
                well = False
        return well

    def _send(self, challenge: Challenge, phase: Phase, final: Final, team: Team) -> bool:
        """Send what goes on of one team. Returns True where nothing is left to do."""
        with self._challenges.guard:
            # As it was shown: what goes on must not tell which of them a ladder holds back.
            before = [one for one in self._challenges.own_as_seen(challenge, team) if one.phase == final.source]
            there = [one for one in self._challenges.own(challenge.name, team) if one.phase == phase.name]
            if not all(one.state.ended for one in before):
                return False  # what has not ended may go on, too
            columns = self._challenges.programs.spec(challenge.name, challenge.version).board
            going_on = chosen(final, columns, before, team.chosen)
            numbers = to_send(final, challenge.version, going_on, [one for one in there if one.origin])
            for one in before:
                if one.id in numbers:
                    self._again(challenge, phase, team, one)
            return not numbers and all(one.state.ended for one in there)

    def _again(self, challenge: Challenge, phase: Phase, team: Team, origin: ChallengeSubmission) -> None:
        cost = self._challenges.cost(challenge.name, challenge.version)
        self._challenges.runs.add(
            ChallengeSubmission(
                challenge=challenge.name,
                version=challenge.version,
                phase=phase.name,
                team=team.name,
                by=origin.by,
                snapshot=origin.snapshot,
                made_at=origin.made_at,
                origin=origin.id,
                gpu_hours=cost.gpu_hours if cost else 0.0,
            )
        )
