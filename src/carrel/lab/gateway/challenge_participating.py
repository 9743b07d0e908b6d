"""What those who take part do: teams, and what they send."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from carrel.core.challenges import teams
from carrel.core.control.keeper import RecordStore
from carrel.core.domain.challenge import Challenge, ChallengeSpec, Choice, SubmissionState, SubmissionView, Team, TeamView
from carrel.core.domain.challenge_sample import ChallengeSample
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound
from carrel.core.domain.user import Caller, directory_name
from carrel.core.policy.access import Action, allowed
from carrel.lab.gateway.challenges import Challenges, no_submission

_TEAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")


@dataclass(slots=True, kw_only=True)
class Participating:
    """Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    challenges: Challenges
    samples: RecordStore[ChallengeSample]
    #: Where the files of sessions lie, a directory for each user.
    files: Path

    def join(
        self, caller: Caller, name: str, *, team: str, code: str, accepts: bool, answers: Mapping[str, str] | None = None
    ) -> TeamView:
        """Take part: make a team (by default of one's own name), or join one with its code. Again changes nothing."""
        allowed(caller, Action.TAKE_PART).check()
        me = caller.user.subject
        with self.challenges.guard:
            challenge = self.challenges.find(caller, name)
            self.challenges.check_open(challenge)
            if not challenge.version:
                raise Conflict(f"The challenge {name} is not published yet.", remedy=f"`carrel challenge publish {name}`.")
            spec = self.challenges.spec(challenge)
            mine = self.challenges.team_of(challenge, me)
            _check_answers(spec, answers or {})
            if mine is None:
                if spec.rules and not accepts:
                    raise Denied("The rules have to be accepted first.", remedy="Read them, and say --accept-rules.")
                mine = self._joined(challenge, spec, me, team, code)
            elif team not in ("", mine.name) or code not in ("", mine.code):
                raise Conflict(f'You are in the team "{mine.name}".', remedy="A person is in one team of a challenge.")
            mine = self._agreed(challenge, spec, mine, me, accepts=accepts, answers=answers or {})
            return self.challenges.team_view(mine)

    def _joined(self, challenge: Challenge, spec: ChallengeSpec, me: str, name: str, code: str) -> Team:
        there, now = self.challenges.teams_of(challenge.name), self.challenges.lab.clock()
        found = with_code(teams.present(there), code) if code else self._named_team(challenge, me, name)
        teams.check_size(spec, found, 1)
        joined = replace(found, members=(*found.members, me))
        own = {one.id for one in self.challenges.counted(challenge, found)}
        sent = self.challenges.counted(challenge, joined)
        if brought := [one for one in sent if one.id not in own]:  # by teams that they were in before
            teams.check_ladder(spec, brought, now)
            if found in there:
                teams.check_merging(spec, now)
                teams.check_sum(spec, sent, now)
        return self.challenges.teams.put(joined)

    def _named_team(self, challenge: Challenge, me: str, name: str) -> Team:
        """A new team of this name; or the one of it that the user was in and nobody is."""
        there = self.challenges.teams_of(challenge.name)
        name = " ".join((name or me[:40]).split())
        if not _TEAM.fullmatch(name):
            raise Invalid(f'"{name[:60]}" cannot be the name of a team.', remedy="Use up to 40 letters, digits, blanks, . _ -")
        taken = next((one for one in there if one.name.casefold() == name.casefold()), None)
        if taken is not None and taken in teams.present(there) and me in taken.former and not taken.members:
            return taken
        if taken is not None:
            raise Conflict(f'There is a team "{name}".', remedy="Choose another name, or join it with the code of a member.")
        return Team(challenge=challenge.name, name=name, code=new_code(), made_at=self.challenges.lab.clock())

    def _agreed(
        self, challenge: Challenge, spec: ChallengeSpec, team: Team, me: str, *, accepts: bool, answers: Mapping[str, str]
    ) -> Team:
        """The team, with what a member has accepted and answered now."""
        accepted = {**team.accepted, me: self.challenges.rules_digest(challenge)} if accepts and spec.rules else team.accepted
        answered = {**team.answers, me: {**team.answers.get(me, {}), **answers}} if answers else team.answers
        changed = replace(team, accepted=accepted, answers=answered)
        return team if changed == team else self.challenges.teams.put(changed)

    def invite(self, caller: Caller, name: str) -> TeamView:
        """Give the caller's team a new code; the one before is void."""
        with self.challenges.guard:
            team = self.challenges.own_team(caller, self.challenges.find(caller, name))
            return self.challenges.team_view(self.challenges.teams.put(replace(team, code=new_code())))

    def leave(self, caller: Caller, name: str) -> None:
        """Leave one's team. What it has sent stays its own, and counts against the limits of who has sent it with it."""
        me = caller.user.subject
        with self.challenges.guard:
            self.challenges.own_team(caller, self.challenges.find(caller, name))
            there = [one for one in self.challenges.teams_of(name) if me in one.members]
            # Those that merged into another one come first: killed in between, one is still in that one, and leaves again.
            for team in sorted(there, key=lambda one: one in self.challenges.present(name)):
                after = teams.without(team, me, new_code())
                if after.members or team not in self.challenges.present(name) or self._has_something(after):
                    self.challenges.teams.put(after)
                else:  # its name is free: whoever takes it next gets nothing of what others wanted of this one
                    for other in self.challenges.teams_of(name):
                        if other.asked == team.name:
                            self.challenges.teams.put(replace(other, asked=""))
                    self.challenges.teams.remove(name, team.name)

    def _has_something(self, team: Team) -> bool:
        """True where something is written down under the names of a team, which has to count for those who were in it."""
        name = team.challenge
        there: set[str] = {one.team for one in self.samples.select(challenge=name)}
        there |= {one.team for one in self.challenges.notices_of(name)}
        return bool(self.challenges.own(name, team)) or not there.isdisjoint(team.names)

    def merge(self, caller: Caller, name: str, *, code: str = "", team: str = "") -> TeamView:
        """Ask the team with this code to merge; or agree with the team of this name, which then is a part of one's own."""
        with self.challenges.guard:
            challenge = self.challenges.find(caller, name)
            self.challenges.check_open(challenge)
            mine = self.challenges.own_team(caller, challenge)
            spec = self.challenges.spec(challenge)
            now = self.challenges.lab.clock()
            others = [one for one in self.challenges.present(name) if one.name != mine.name]
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
            teams.check_sum(spec, self.challenges.counted(challenge, both), now)
            return self.challenges.team_view(
                self.challenges.teams.put(both if other.asked == mine.name else replace(mine, asked=other.name))
            )

    def choose(self, caller: Caller, name: str, numbers: Sequence[int]) -> TeamView:
        """Choose which submissions go on to the next final, in the place of what was chosen before."""
        with self.challenges.guard:
            challenge = self.challenges.find(caller, name)
            self.challenges.check_open(challenge)
            mine, now = self.challenges.own_team(caller, challenge), self.challenges.lab.clock()
            coming = [one for one in self.challenges.spec(challenge).phases if one.final and one.begin > now]
            final = coming[0].final if coming else None
            if final is None or final.choose is not Choice.TEAM:
                raise Conflict("There is nothing to choose now.", remedy=f"`carrel challenge show {name}` says what goes on.")
            if len(set(numbers)) > final.number:
                raise Invalid(f"{len(set(numbers))} submissions are too many.", remedy=f"Choose up to {final.number}.")
            there = {one.id: one for one in self.challenges.own_as_seen(challenge, mine) if one.phase == final.source}
            for number in numbers:
                if number not in there:
                    raise no_submission(number)
                if there[number].state is SubmissionState.FAILED:
                    raise Conflict(f"The submission {number} has failed.", remedy="Choose one that was scored.")
            return self.challenges.team_view(self.challenges.teams.put(replace(mine, chosen=tuple(sorted(set(numbers))))))

    def starter(self, caller: Caller, name: str) -> BinaryIO:
        """The files that participants begin with, as an archive. Raises `NotFound`."""
        challenge = self.challenges.find(caller, name)
        self.challenges.own_team(caller, challenge)
        return self.challenges.programs.starter(challenge)

    def begin(self, caller: Caller, name: str) -> str:
        """Put what participants begin with among the files of the caller's sessions, unless it is there; return its directory."""
        challenge = self.challenges.find(caller, name)
        self.challenges.own_team(caller, challenge)
        own = self.files / directory_name(caller.user.subject)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.challenges.programs.put_starter(challenge, own)
        return name

    def notebook(self, caller: Caller, name: str) -> str:
        """The notebook that the caller begins with, below the files of their sessions; its directory where there is not one."""
        found = self.challenges.programs.notebook(self.challenges.find(caller, name))
        there = found and os.path.lexists(self.files / directory_name(caller.user.subject) / name / found)
        return f"{name}/{found}" if there else name

    def submit(self, caller: Caller, name: str, snapshot: str) -> SubmissionView:
        """Take code of the caller's for the phase of now. Raises `Conflict` where no phase takes any, or nothing is left."""
        allowed(caller, Action.TAKE_PART).check()
        with self.challenges.guard:
            challenge = self.challenges.find(caller, name)
            self.challenges.check_open(challenge)
            team = self.challenges.own_team(caller, challenge)
            spec = self.challenges.spec(challenge)
            now = self.challenges.lab.clock()
            phase = spec.phase_at(now)
            if phase is None:
                raise Conflict(f"The challenge {name} takes no submissions now.", remedy=f"`carrel challenge show {name}`.")
            if not self.challenges.lab.has_snapshot(caller, snapshot):
                raise NotFound("That code is not here.", remedy="Send it again.")
            self.challenges.check_accepted(challenge, team, caller.user.subject)
            if phase.final is not None:
                raise Conflict(
                    f'The phase "{phase.name}" takes no submissions: it scores those of "{phase.final.source}" again.',
                    remedy=f"`carrel challenge board {name}`.",
                )
            # Whoever got no answer sends the same again: while it is under way, that is the same submission.
            there = self.challenges.own_as_seen(challenge, team)
            under_way = (one for one in there if not one.state.ended and one.phase == phase.name)
            again = next((one for one in under_way if one.snapshot == snapshot), None)
            if again is not None:
                return self.challenges.submission(caller, name, again.id)
            cost = self.challenges.cost(name, challenge.version)
            if cost is None and phase.limits.gpu_hours is not None:
                self.challenges.programs.cost(name, challenge.version)  # raises why it cannot be said
            most = cost.gpu_hours if cost else 0.0
            self.challenges.left(challenge, team, phase).check(most)
            made = self.challenges.runs.send(
                challenge, challenge.version, phase, caller.user.subject, snapshot, team=team, most=most
            )
            after = self.challenges.phase_now(challenge, team)
        return replace(self.challenges.as_shown(caller, challenge, made), phase=after)

    def try_out(self, caller: Caller, name: str, snapshot: str) -> tuple[int, int]:
        """Run code of the caller's on training data, as tasks of the caller's own; return the numbers of both jobs.

        It counts for no limit of the challenge.
        """
        allowed(caller, Action.TAKE_PART).check()
        challenge = self.challenges.find(caller, name)
        self.challenges.check_open(challenge)
        self.challenges.own_team(caller, challenge)
        if not self.challenges.lab.has_snapshot(caller, snapshot):
            raise NotFound("That code is not here.", remedy="Send it again.")
        return self.challenges.programs.try_out(caller, challenge, snapshot)


def _check_answers(spec: ChallengeSpec, answers: Mapping[str, str]) -> None:
    """Raise `Invalid` for an answer to what the challenge does not ask, or that it does not have."""
    for name, answer in answers.items():
        if answer not in spec.asks.get(name, ()):
            raise Invalid(
                f'"{name[:60]}" cannot be answered with "{answer[:60]}".',
                remedy="; ".join(f"{one}: {', '.join(choices)}" for one, choices in spec.asks.items()) or "Nothing is asked.",
            )


def new_code() -> str:
    """A code with which others join a team."""
    return secrets.token_urlsafe(9)


def with_code(there: Sequence[Team], code: str) -> Team:
    """The team that has this code. Raises `NotFound`."""
    found = next((one for one in there if secrets.compare_digest(one.code.encode(), code.encode())), None)
    if found is None:
        raise NotFound("No team has this code.", remedy="Ask a member of the team for it.")
    return found
