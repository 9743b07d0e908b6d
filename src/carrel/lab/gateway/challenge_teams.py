"""Teams of challenges: what their members do with them, and what is theirs."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from carrel.core.challenges import teams
from carrel.core.control.keeper import RecordStore
from carrel.core.control.lab import Lab
from carrel.core.domain.challenge import (
    Challenge,
    ChallengeSpec,
    ChallengeSubmission,
    Choice,
    Cost,
    SubmissionState,
    Team,
    TeamView,
)
from carrel.core.domain.challenge_notice import ChallengeNotice
from carrel.core.domain.challenge_sample import ChallengeSample
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, NotFound
from carrel.core.domain.user import Caller
from carrel.lab.gateway.challenge_programs import ChallengePrograms


class ChallengeTeams(ABC):
    """The part of `carrel.lab.gateway.challenges.Challenges` that is about teams."""

    __slots__ = ()
    lab: Lab
    programs: ChallengePrograms
    teams: RecordStore[Team]
    notices: RecordStore[ChallengeNotice]
    samples: RecordStore[ChallengeSample]
    _guard: threading.RLock

    def invite(self, caller: Caller, name: str) -> TeamView:
        """Give the caller's team a new code; the one before is void."""
        with self._guard:
            return self.team_view(self.teams.put(replace(self.own_team(caller, self.find(caller, name)), code=new_code())))

    def leave(self, caller: Caller, name: str) -> None:
        """Leave one's team. What it has sent stays its own, and counts against the limits of who has sent it with it."""
        me = caller.user.subject
        with self._guard:
            self.own_team(caller, self.find(caller, name))
            there = [one for one in self._teams(name) if me in one.members]
            # Those that merged into another one come first: killed in between, one is still in that one, and leaves again.
            for team in sorted(there, key=lambda one: one in self.present(name)):
                after = teams.without(team, me, new_code())
                if after.members or team not in self.present(name) or self._has_something(after):
                    self.teams.put(after)
                else:  # its name is free: whoever takes it next gets nothing of what others wanted of this one
                    for other in self._teams(name):
                        if other.asked == team.name:
                            self.teams.put(replace(other, asked=""))
                    self.teams.remove(name, team.name)

    def _has_something(self, team: Team) -> bool:
        """True where something is written down under the names of a team, which has to count for those who were in it."""
        seen, told = self.samples.select(challenge=team.challenge), self.notices.select(challenge=team.challenge)
        there: set[str] = {one.team for one in seen} | {one.team for one in told}
        return bool(self.own(team.challenge, team)) or not there.isdisjoint(team.names)

    def merge(self, caller: Caller, name: str, *, code: str = "", team: str = "") -> TeamView:
        """Ask the team with this code to merge; or agree with the team of this name, which then is a part of one's own."""
        with self._guard:
            challenge = self.find(caller, name)
            self.check_open(challenge)
            mine, spec, now = self.own_team(caller, challenge), self.spec(challenge), self.lab.clock()
            others = [one for one in self.present(name) if one.name != mine.name]
            if code:
                other = with_code(others, code)
            else:
                found = next((one for one in others if one.name == team and one.asked == mine.name), None)
                if found is None:
                    raise NotFound(f'No team "{team[:60]}" asks to merge with yours.', remedy="Ask it, with its code.")
                other = found
            teams.check_merging(spec, now)
            teams.check_size(spec, mine, len(other.members))
            both = teams.together(mine, other)
            teams.check_sum(spec, self.counted(challenge, both), now)
            return self.team_view(self.teams.put(both if other.asked == mine.name else replace(mine, asked=other.name)))

    def choose(self, caller: Caller, name: str, numbers: Sequence[int]) -> TeamView:
        """Choose which submissions go on to the next final, in the place of what was chosen before."""
        with self._guard:
            challenge = self.find(caller, name)
            self.check_open(challenge)
            mine, now = self.own_team(caller, challenge), self.lab.clock()
            coming = [one for one in self.spec(challenge).phases if one.final and one.begin > now]
            final = coming[0].final if coming else None
            if final is None or final.choose is not Choice.TEAM:
                raise Conflict("There is nothing to choose now.", remedy=f"`carrel challenge show {name}` says what goes on.")
            if len(set(numbers)) > final.number:
                raise Invalid(f"{len(set(numbers))} submissions are too many.", remedy=f"Choose up to {final.number}.")
            there = {one.id: one for one in self.own_as_seen(challenge, mine) if one.phase == final.source}
            for number in numbers:
                if number not in there:
                    raise no_submission(number)
                if there[number].state is SubmissionState.FAILED:
                    raise Conflict(f"The submission {number} has failed.", remedy="Choose one that was scored.")
            return self.team_view(self.teams.put(replace(mine, chosen=tuple(sorted(set(numbers))))))

    def team_view(self, team: Team) -> TeamView:
        """A team, as its members see it."""
        asking = [one.name for one in self.present(team.challenge) if one.asked == team.name]
        return TeamView(
            name=team.name,
            members=team.members,
            code=team.code,
            asked_by=tuple(asking),
            asked=team.asked if team.asked not in team.merged else "",
            chosen=team.chosen,
        )

    # ---- parts

    @property
    def guard(self) -> threading.RLock:
        """Held while it is decided what a team may do."""
        return self._guard

    def cost(self, name: str, version: str) -> Cost | None:
        """The most that a submission takes; None: its programs cannot be submitted now."""
        try:
            return self.programs.cost(name, version)
        except (CarrelError, OSError):
            return None

    def present(self, name: str) -> Sequence[Team]:
        """The teams of a challenge that are no part of another one."""
        return teams.present(self._teams(name))

    def own(self, name: str, team: Team) -> Sequence[ChallengeSubmission]:
        """What is a team's own, in the order in which it was sent."""
        return self._named(name, team.names)

    def own_as_seen(self, challenge: Challenge, team: Team) -> Sequence[ChallengeSubmission]:
        """The same as the team sees it: by a ladder, and in steps."""
        return self._seen(challenge, self.own(challenge.name, team))

    def counted(self, challenge: Challenge, team: Team) -> Sequence[ChallengeSubmission]:
        """What counts against the limits of a team, as it sees that."""
        return teams.counted(team, self._seen(challenge, self._named(challenge.name, self.names(team))))

    def names(self, team: Team) -> frozenset[str]:
        """The names under which something may have been sent that counts for a team."""
        return team.names | teams.others_of(team, self._teams(team.challenge))

    def _named(self, name: str, names: Collection[str]) -> Sequence[ChallengeSubmission]:
        return sorted((one for team in names for one in self.of(name, team)), key=lambda one: one.id)

    @abstractmethod
    def find(self, caller: Caller, name: str) -> Challenge:
        """The challenge, if the caller may see it. Raises `NotFound`."""

    @abstractmethod
    def own_team(self, caller: Caller, challenge: Challenge) -> Team:
        """The caller's team. Raises `Conflict` for those who do not take part."""

    @abstractmethod
    def spec(self, challenge: Challenge) -> ChallengeSpec:
        """The description of what is published, or of the draft of what is not."""

    @abstractmethod
    def check_open(self, challenge: Challenge) -> None:
        """Raise `Conflict` where it takes nothing any more."""

    @abstractmethod
    def of(self, name: str, team: str | None = None) -> Sequence[ChallengeSubmission]:
        """All submissions to a challenge, or those of a team ("": the baselines), in the order in which they were sent."""

    @abstractmethod
    def _seen(self, challenge: Challenge, sent: Sequence[ChallengeSubmission]) -> Sequence[ChallengeSubmission]: ...

    @abstractmethod
    def _teams(self, name: str) -> Sequence[Team]: ...


def no_submission(number: int) -> NotFound:
    """The error for a submission that the caller may not see."""
    return NotFound(f"There is no submission {number}.", remedy="`carrel challenge submissions NAME` lists those of your team.")


def new_code() -> str:
    """A code with which others join a team."""
    return secrets.token_urlsafe(9)


def with_code(there: Sequence[Team], code: str) -> Team:
    """The team that has this code. Raises `NotFound`."""
    found = next((one for one in there if secrets.compare_digest(one.code.encode(), code.encode())), None)
    if found is None:
        raise NotFound("No team has this code.", remedy="Ask a member of the team for it.")
    return found
