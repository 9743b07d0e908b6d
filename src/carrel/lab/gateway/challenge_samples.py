"""Training data that teams cannot copy: the lab shows them single files, and writes each of them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo

from carrel.core.challenges.limits import day_begins, told
from carrel.core.challenges.teams import counted
from carrel.core.control.keeper import RecordStore
from carrel.core.domain.challenge import Challenge, ChallengeSpec, Team
from carrel.core.domain.challenge_sample import ChallengeSample, SampleList, Sampling
from carrel.core.domain.control_characters import visible
from carrel.core.domain.errors import Conflict, NotFound
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed
from carrel.lab.gateway.challenges import Challenges

#: Names that are listed.
_NAMES = 10_000


@dataclass(slots=True, kw_only=True)
class ChallengeSamples:
    """Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    challenges: Challenges
    samples: RecordStore[ChallengeSample]

    def list(self, caller: Caller, name: str) -> SampleList:
        """The files that can be shown, and what is left to the caller's team on this day; for teams, and organisers."""
        challenge, spec, sampling = self._shared(caller, name)
        organises = self.challenges.organises(caller, challenge)
        team = self.challenges.team_of(challenge, caller.user.subject)
        if team is None and not organises:
            team = self.challenges.own_team(caller, challenge)
        today = () if team is None else self._counted(team, day=self._today(spec)[0])
        shown = self.samples.select(challenge=name) if organises else today
        there = self.challenges.programs.samples(name, challenge.version)
        return SampleList(
            names=tuple(there)[:_NAMES],
            total=len(there),
            shown=tuple(sorted(shown, key=lambda one: -one.id)),
            left=None if team is None else max(0, sampling.per_day - len(today)),
            next_day=self._today(spec)[1],
        )

    def show(self, caller: Caller, name: str, sample: str) -> bytes:
        """The content of a file. It is written down before, once for each team and content, and counts on this day."""
        allowed(caller, Action.TAKE_PART).check()
        challenge, spec, sampling = self._shared(caller, name)
        self.challenges.own_team(caller, challenge)
        # A name is looked up and never becomes a path: there is no way out of the training data.
        file = self.challenges.programs.samples(name, challenge.version).get(sample)
        if file is None:
            raise NotFound(
                f'There is no sample "{visible(sample)[:60]}".',
                remedy=f"`carrel challenge sample {name}` lists those that there are.",
            )
        content = file.read_bytes()
        digest = sha256(content).hexdigest()
        with self.challenges.guard:
            challenge = self.challenges.find(caller, name)
            self.challenges.check_open(challenge)
            team = self.challenges.own_team(caller, challenge)
            self.challenges.check_accepted(challenge, team, caller.user.subject)
            now, (day, next_day) = self.challenges.lab.clock(), self._today(spec)
            if now >= spec.phases[-1].end:
                raise Conflict(f"The challenge {name} has ended.", remedy="Samples are shown until its last phase ends.")
            if any(one.digest == digest for one in self._counted(team, sample=sample)):
                return content
            if len(self._counted(team, day=day)) >= sampling.per_day:
                raise Conflict(
                    f"Your team has seen the {sampling.per_day} samples of today.",
                    remedy=f"The next day begins at {told(next_day, spec.zone)}. What it has seen it may see again.",
                )
            seen = ChallengeSample(challenge=name, team=team.name, sample=sample, digest=digest, by=caller.user.subject)
            self.samples.put(replace(seen, members=team.members, day=day, made_at=now))
        return content

    def _shared(self, caller: Caller, name: str) -> tuple[Challenge, ChallengeSpec, Sampling]:
        challenge = self.challenges.find(caller, name)
        spec = self.challenges.spec(challenge)
        if spec.sampling is None or not challenge.version:
            raise NotFound(
                f"The challenge {name} shows no single samples.",
                remedy="Those who take part have its training data, if there are any, in their sessions and tasks.",
            )
        return challenge, spec, spec.sampling

    def _counted(self, team: Team, **equal: Any) -> Sequence[ChallengeSample]:
        """What counts for a team, of a day or of a file."""
        names = self.challenges.names(team)
        return counted(team, [one for each in names for one in self.samples.select(challenge=team.challenge, team=each, **equal)])

    def _today(self, spec: ChallengeSpec) -> tuple[str, float]:
        """The day of now in the challenge's zone, and when the next one begins."""
        zone = ZoneInfo(spec.zone)
        today = datetime.fromtimestamp(self.challenges.lab.clock(), zone).date()
        return today.isoformat(), day_begins(today + timedelta(days=1), zone)
