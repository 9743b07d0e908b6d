"""Challenges: what organisers and teams do."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from carrel.core.challenges.board import board
from carrel.core.challenges.limits import Left, left
from carrel.core.control.keeper import RecordStore
from carrel.core.control.lab import Lab
from carrel.core.domain.challenge import (
    Board,
    Challenge,
    ChallengeLine,
    ChallengeLines,
    ChallengeSpec,
    ChallengeSubmission,
    ChallengeView,
    Fault,
    Phase,
    PhaseView,
    SubmissionList,
    SubmissionState,
    SubmissionView,
    Team,
    TeamView,
)
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.user import Caller, directory_name
from carrel.core.policy.access import Action, Resource, allowed
from carrel.lab.gateway.challenge_programs import ChallengePrograms
from carrel.lab.gateway.challenge_runs import ChallengeRuns

_TEAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")
#: Bytes of a log that organisers are shown.
_LOG = 256 * 1024


@dataclass(slots=True, kw_only=True)
class Challenges:
    """Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    lab: Lab
    programs: ChallengePrograms
    runs: ChallengeRuns
    challenges: RecordStore[Challenge]
    teams: RecordStore[Team]
    submissions: RecordStore[ChallengeSubmission]
    #: What jobs of a user do not see of the machine; None: nothing keeps jobs apart.
    walls: Callable[[str], LaunchWalls | None]
    #: Where the files of sessions lie, a directory for each user.
    files: Path
    _guard: threading.RLock = field(default_factory=threading.RLock)

    # ---- organisers

    def keep(self, caller: Caller, snapshot: str) -> Challenge:
        """Keep a directory as the draft of the challenge that it describes; a challenge that there is not is made."""
        spec = self.programs.read(caller, snapshot)
        for subject in spec.organisers:
            self.lab.users.find(subject)
        with self._guard:
            known = self.challenges.get(spec.name)
            if known is None:
                allowed(caller, Action.ORGANISE).check()
            else:
                self._check_organiser(caller, known)
                self._check_open(known)
            made = known or Challenge(name=spec.name, organiser=caller.user.subject, made_at=self.lab.clock())
            self.lab.users.enroll_programs(made.programs)
            if self.walls(made.programs) is None:
                raise Conflict(
                    "Nothing keeps jobs apart in this lab: every submission could read the references.",
                    remedy='Write isolation = "kernel" into carrel.toml, and start the lab again.',
                )
            self.programs.keep(spec.name, snapshot)
            self.programs.check(made, snapshot)
            self.challenges.put(replace(made, draft=snapshot))
            self._begin_baselines(made, snapshot, spec, caller)
        return replace(made, draft=snapshot)

    def _begin_baselines(self, challenge: Challenge, version: str, spec: ChallengeSpec, caller: Caller) -> None:
        """Send each baseline to each phase, once for each version."""
        there = {
            (one.phase, one.baseline)
            for one in self._sent(challenge.name, "")
            if one.version == version and one.fault is not Fault.LAB
        }
        for phase in spec.phases:
            for name in spec.baselines:
                if (phase.name, name) not in there:
                    code = self.programs.baseline(challenge, version, name)
                    self._send(challenge, version, phase, caller, code, baseline=name)

    def checks(self, caller: Caller, name: str) -> SubmissionList:
        """The baselines of the draft, or of what is published where there is no draft; for organisers."""
        challenge = self._organised(caller, name)
        version = challenge.draft or challenge.version
        found = [one for one in self._sent(name, "") if one.version == version]
        return SubmissionList(submissions=tuple(self.runs.view(one) for one in reversed(found)))

    def publish(self, caller: Caller, name: str) -> Challenge:
        """Show the draft to everybody. Raises `Conflict` unless all its baselines were scored."""
        with self._guard:
            challenge = self._organised(caller, name)
            self._check_open(challenge)
            if not challenge.draft:
                raise Conflict(f"The challenge {name} has no draft.", remedy=f"Send one: `carrel challenge check {name}/`.")
            for one in self.checks(caller, name).submissions:
                baseline = one.submission
                if baseline.state is not SubmissionState.COMPLETED:
                    raise Conflict(
                        f'The baseline "{baseline.baseline}" is {baseline.state} in the phase "{baseline.phase}".',
                        remedy="Wait for it." if not baseline.state.ended else f"`carrel challenge log {name} {baseline.id}`.",
                    )
            spec = self.programs.spec(name, challenge.draft)
            return self.challenges.put(replace(challenge, version=challenge.draft, draft="", train=spec.train))

    def freeze(self, caller: Caller, name: str) -> Challenge:
        """End a challenge: it takes nothing any more, and its boards stay. Again changes nothing."""
        with self._guard:
            challenge = self._organised(caller, name)
            if challenge.frozen_at is not None:
                return challenge
            return self.challenges.put(replace(challenge, frozen_at=self.lab.clock()))

    def log(self, caller: Caller, name: str, number: int) -> str:
        """The end of the log of the last job of a submission; for organisers, because it may show what the programs saw."""
        challenge = self._organised(caller, name)
        one = self._submission(challenge, number)
        return self.programs.log(challenge, one.job, _LOG).decode(errors="replace") if one.job else ""

    # ---- everybody

    def list(self, caller: Caller) -> ChallengeLines:
        """Those that are published, and one's own drafts."""
        allowed(caller, Action.LOOK).check()
        found = [one for one in self.challenges.all() if one.version or self._organises(caller, one)]
        return ChallengeLines(challenges=tuple(self._line(caller, one) for one in found))

    def _line(self, caller: Caller, challenge: Challenge) -> ChallengeLine:
        spec = self._spec(challenge)
        phase = spec.phase_at(self.lab.clock()) if challenge.frozen_at is None else None
        mine = self._team_of(challenge, caller.user.subject)
        return ChallengeLine(
            name=challenge.name,
            title=spec.title,
            state=_state(challenge),
            phase=phase.name if phase else "",
            end=phase.end if phase else None,
            teams=len(self._teams(challenge.name)),
            team=mine.name if mine else "",
        )

    def view(self, caller: Caller, name: str) -> ChallengeView:
        """The challenge, with what is left to the caller's team."""
        challenge = self.find(caller, name)
        spec, version = self._spec(challenge), challenge.version or challenge.draft
        team, now = self._team_of(challenge, caller.user.subject), self.lab.clock()
        sent = self._sent(name, team.name) if team else ()
        phase = spec.phase_at(now) if challenge.frozen_at is None else None
        train = self.programs.directory(name, version, challenge.train) if team and challenge.train else ""
        return ChallengeView(
            name=name,
            title=spec.title,
            state=_state(challenge),
            pages={title: self.programs.text(name, version, path) for title, path in spec.pages.items()},
            rules=self.programs.text(name, version, spec.rules) if spec.rules else "",
            phases=tuple(_phase(one, left(one, sent, now=now, zone=spec.zone) if team else None) for one in spec.phases),
            phase=phase.name if phase else "",
            board=spec.board,
            largest_team=spec.largest_team,
            zone=spec.zone,
            teams=len(self._teams(name)),
            train=str(train),
            baselines=tuple(spec.baselines),
            starter=bool(spec.starter),
            feedback=spec.feedback,
            team=TeamView(name=team.name, members=team.members, code=team.code) if team else None,
            organised=self._organises(caller, challenge),
            dry_run=spec.dry_run is not None,
        )

    def board(self, caller: Caller, name: str, phase: str | None = None) -> Board:
        """The board of a phase; by default of that of now, else of the last that has begun."""
        challenge = self.find(caller, name)
        spec, now = self._spec(challenge), self.lab.clock()
        begun = [one for one in spec.phases if one.begin <= now] or list(spec.phases[:1])
        chosen = spec.phase(phase) if phase else begun[-1]
        if chosen is None:
            raise NotFound(f'There is no phase "{phase}".', remedy=f"There are: {', '.join(one.name for one in spec.phases)}.")
        version = challenge.version or challenge.draft
        sent = [one for one in self._sent(name) if one.phase == chosen.name and (one.team or one.version == version)]
        places = tuple(board(spec.board, sent))
        return Board(challenge=name, phase=chosen.name, columns=spec.board, places=places)

    # ---- teams

    def join(self, caller: Caller, name: str, *, team: str, code: str, accepts: bool) -> TeamView:
        """Take part: make a team (by default of one's own name), or join one with its code. Again changes nothing."""
        allowed(caller, Action.TAKE_PART).check()
        me = caller.user.subject
        with self._guard:
            challenge = self.find(caller, name)
            self._check_open(challenge)
            if not challenge.version:
                raise Conflict(f"The challenge {name} is not published yet.", remedy=f"`carrel challenge publish {name}`.")
            spec = self._spec(challenge)
            mine = self._team_of(challenge, me)
            if mine is None:
                if spec.rules and not accepts:
                    raise Denied("The rules have to be accepted first.", remedy="Read them, and say --accept-rules.")
                mine = self._joined(challenge, spec, me, team, code)
            elif team not in ("", mine.name) or code not in ("", mine.code):
                raise Conflict(f'You are in the team "{mine.name}".', remedy="A person is in one team of a challenge.")
            return TeamView(name=mine.name, members=mine.members, code=mine.code)

    def _joined(self, challenge: Challenge, spec: ChallengeSpec, me: str, name: str, code: str) -> Team:
        there = self._teams(challenge.name)
        if code:
            found = next((one for one in there if secrets.compare_digest(one.code.encode(), code.encode())), None)
            if found is None:
                raise NotFound("No team has this code.", remedy="Ask a member of the team for it.")
            if len(found.members) >= spec.largest_team:
                raise Conflict(f'The team "{found.name}" has {len(found.members)} members, as many as a team may have.')
            return self.teams.put(replace(found, members=(*found.members, me)))
        name = " ".join((name or me[:40]).split())
        if not _TEAM.fullmatch(name):
            raise Invalid(f'"{name[:60]}" cannot be the name of a team.', remedy="Use up to 40 letters, digits, blanks, . _ -")
        if any(one.name.casefold() == name.casefold() for one in there):
            raise Conflict(f'There is a team "{name}".', remedy="Choose another name, or join it with the code of a member.")
        made = Team(challenge=challenge.name, name=name, members=(me,), code=secrets.token_urlsafe(9), made_at=self.lab.clock())
        return self.teams.put(made)

    def starter(self, caller: Caller, name: str) -> BinaryIO:
        """The files that participants begin with, as an archive. Raises `NotFound`."""
        challenge = self.find(caller, name)
        self._own_team(caller, challenge)
        return self.programs.starter(challenge)

    def begin(self, caller: Caller, name: str) -> str:
        """Put what participants begin with among the files of the caller's sessions, unless it is there; return its directory."""
        challenge = self.find(caller, name)
        self._own_team(caller, challenge)
        own = self.files / directory_name(caller.user.subject)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.programs.put_starter(challenge, own)
        return name

    def notebook(self, caller: Caller, name: str) -> str:
        """The notebook that the caller begins with, below the files of their sessions; its directory where there is not one."""
        found = self.programs.notebook(self.find(caller, name))
        there = found and os.path.lexists(self.files / directory_name(caller.user.subject) / name / found)
        return f"{name}/{found}" if there else name

    # ---- submissions

    def submit(self, caller: Caller, name: str, snapshot: str) -> SubmissionView:
        """Take code of the caller's for the phase of now. Raises `Conflict` where no phase takes any, or nothing is left."""
        allowed(caller, Action.TAKE_PART).check()
        with self._guard:
            challenge = self.find(caller, name)
            self._check_open(challenge)
            team, spec, now = self._own_team(caller, challenge), self._spec(challenge), self.lab.clock()
            phase = spec.phase_at(now)
            if phase is None:
                raise Conflict(f"The challenge {name} takes no submissions now.", remedy=f"`carrel challenge show {name}`.")
            if not self.lab.has_snapshot(caller, snapshot):
                raise NotFound("That code is not here.", remedy="Send it again.")
            left(phase, self._sent(name, team.name), now=now, zone=spec.zone).check()
            made = self._send(challenge, challenge.version, phase, caller, snapshot, team=team.name)
        return self.runs.view(made)

    def try_out(self, caller: Caller, name: str, snapshot: str) -> tuple[int, int]:
        """Run code of the caller's on training data, as tasks of the caller's own; return the numbers of both jobs.

        It counts for no limit of the challenge.
        """
        allowed(caller, Action.TAKE_PART).check()
        challenge = self.find(caller, name)
        self._check_open(challenge)
        self._own_team(caller, challenge)
        if not self.lab.has_snapshot(caller, snapshot):
            raise NotFound("That code is not here.", remedy="Send it again.")
        return self.programs.try_out(caller, challenge, snapshot)

    def sent(self, caller: Caller, name: str) -> SubmissionList:
        """The submissions of the caller's team; for organisers those of all teams."""
        challenge = self.find(caller, name)
        if self._organises(caller, challenge):
            found = [one for one in self._sent(name) if one.team]
        else:
            found = list(self._sent(name, self._own_team(caller, challenge).name))
        return SubmissionList(submissions=tuple(self.runs.view(one) for one in reversed(found)))

    def submission(self, caller: Caller, name: str, number: int) -> SubmissionView:
        """One submission."""
        challenge = self.find(caller, name)
        one = self._submission(challenge, number)
        team = self.teams.get(name, one.team) if one.team else None
        organisers = {challenge.organiser, *self._spec(challenge).organisers}
        users = frozenset({*organisers, *(team.members if team else ())})
        allowed(caller, Action.SEE_SUBMISSIONS, Resource(users=users)).check(_no_submission(number))
        return self.runs.view(one)

    def _send(
        self, challenge: Challenge, version: str, phase: Phase, caller: Caller, code: str, *, team: str = "", baseline: str = ""
    ) -> ChallengeSubmission:
        return self.runs.add(
            ChallengeSubmission(
                challenge=challenge.name,
                version=version,
                phase=phase.name,
                team=team,
                baseline=baseline,
                by=caller.user.subject,
                snapshot=code,
                made_at=self.lab.clock(),
            )
        )

    # ---- parts

    def find(self, caller: Caller, name: str) -> Challenge:
        """The challenge, if the caller may see it. Raises `NotFound`."""
        allowed(caller, Action.LOOK).check()
        found = self.challenges.get(name)
        if found is None or not (found.version or self._organises(caller, found)):
            raise NotFound(f'There is no challenge "{name[:60]}".', remedy="`carrel challenge list` lists them.")
        return found

    def _organised(self, caller: Caller, name: str) -> Challenge:
        found = self.find(caller, name)
        self._check_organiser(caller, found)
        return found

    def _check_organiser(self, caller: Caller, challenge: Challenge) -> None:
        allowed(caller, Action.ORGANISE, self._resource(challenge)).check()

    def _organises(self, caller: Caller, challenge: Challenge) -> bool:
        return bool(allowed(caller, Action.ORGANISE, self._resource(challenge)))

    def _resource(self, challenge: Challenge) -> Resource:
        return Resource(owner=challenge.organiser, users=frozenset(self._spec(challenge).organisers))

    def _spec(self, challenge: Challenge) -> ChallengeSpec:
        """The description of what is published, or of the draft of what is not."""
        return self.programs.spec(challenge.name, challenge.version or challenge.draft)

    def _check_open(self, challenge: Challenge) -> None:
        if challenge.frozen_at is not None:
            raise Conflict(f"The challenge {challenge.name} is frozen: it takes nothing any more.")

    # Pages ask again and again: what nobody has written to since is not read again.

    def _sent(self, name: str, team: str | None = None) -> Sequence[ChallengeSubmission]:
        """All submissions to a challenge, or those of a team ("": the baselines), in the order in which they were sent."""
        return [one for one in self.submissions.all() if one.challenge == name and team in (None, one.team)]

    def _teams(self, name: str) -> Sequence[Team]:
        return [one for one in self.teams.all() if one.challenge == name]

    def _team_of(self, challenge: Challenge, subject: str) -> Team | None:
        return next((one for one in self._teams(challenge.name) if subject in one.members), None)

    def _own_team(self, caller: Caller, challenge: Challenge) -> Team:
        found = self._team_of(challenge, caller.user.subject)
        if found is None:
            raise Conflict(
                f"You do not take part in the challenge {challenge.name}.", remedy=f"`carrel challenge join {challenge.name}`."
            )
        return found

    def _submission(self, challenge: Challenge, number: int) -> ChallengeSubmission:
        found = self.submissions.get(number)
        if found is None or found.challenge != challenge.name:
            raise _no_submission(number)
        return found


def _no_submission(number: int) -> NotFound:
    return NotFound(f"There is no submission {number}.", remedy="`carrel challenge submissions NAME` lists those of your team.")


def _state(challenge: Challenge) -> str:
    return "frozen" if challenge.frozen_at is not None else "published" if challenge.version else "draft"


def _phase(phase: Phase, found: Left | None) -> PhaseView:
    more: Mapping[str, float] = (
        {}
        if found is None
        else {"today": found.today, "total": found.total, "at_once": found.at_once, "next_day": found.next_day}
    )
    return PhaseView(name=phase.name, begin=phase.begin, end=phase.end, limits=phase.limits, **more)  # type: ignore[arg-type]
