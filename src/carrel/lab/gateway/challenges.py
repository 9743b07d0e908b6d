"""Challenges: what organisers and teams do."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from carrel.core.challenges.board import board
from carrel.core.challenges.limits import Left, left
from carrel.core.control.keeper import RecordStore
from carrel.core.control.lab import Lab
from carrel.core.domain.challenge import (
    Board,
    BoardChange,
    Challenge,
    ChallengeLine,
    ChallengeLines,
    ChallengeSpec,
    ChallengeSubmission,
    ChallengeView,
    Fault,
    Phase,
    PhaseView,
    Place,
    Rescore,
    RescoredLine,
    SubmissionList,
    SubmissionState,
    SubmissionView,
    Team,
    TeamView,
)
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.noun import shown_fields
from carrel.core.domain.serial import to_plain
from carrel.core.domain.user import Caller, directory_name
from carrel.core.policy.access import Action, Resource, allowed
from carrel.lab.gateway.challenge_programs import INGESTION, SCORING, ChallengePrograms
from carrel.lab.gateway.challenge_rescoring import Rescoring
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
    rescoring: Rescoring
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

    def publish(self, caller: Caller, name: str, *, because: str = "", without_failed: bool = False) -> Challenge:
        """Show the draft to everybody. Raises `Conflict` unless all its baselines were scored.

        Where the draft scores otherwise, all that was scored before has to be scored by it first (`rescore`), and `because` tells
        participants why; `without_failed`: what could not be scored again loses its place.
        """
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
            spec, draft = self.programs.spec(name, challenge.draft), challenge.draft
            self.rescoring.check_inputs(challenge)
            changed = self.rescoring.check_done(challenge, without_failed=without_failed)
            if changed and not because:
                raise Conflict(
                    f"Participants are told why the boards of {', '.join(changed)} change.",
                    remedy=f'Say it: `carrel challenge publish {name} --because "…"`.',
                )
            now = dict.fromkeys(changed, BoardChange(at=self.lab.clock(), because=because))
            versions = tuple(dict.fromkeys((*challenge.versions, draft)))
            made = replace(challenge, version=draft, draft="", train=spec.train, versions=versions)
            made = self.challenges.put(replace(made, rescored={**challenge.rescored, **now}))
            self.rescoring.catch_up(name)
            return made

    def rescore(self, caller: Caller, name: str, *, ask: bool = False) -> Rescore:
        """Old scores and ranks beside those by the draft, for organisers; with `ask`, score what is missing, and what failed."""
        challenge = self._organised(caller, name)
        challenge = replace(challenge, draft=challenge.draft or challenge.version)  # or what failed, and was published so
        if not challenge.version:
            raise Conflict(f"The challenge {name} is not published: nothing was scored.")
        if ask:
            self._check_open(challenge)
            self.rescoring.check_inputs(challenge)
            self.rescoring.ask(name, challenge.draft, retry=True)
        lines: list[RescoredLine] = []
        for phase in self.programs.spec(name, challenge.draft).phases:
            before, after = (self._places(challenge, version, phase.name) for version in (challenge.version, challenge.draft))
            lines += self.rescoring.lines(challenge, phase.name, before, after)
        return Rescore(challenge=name, lines=tuple(lines))

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
        one = self._submission(challenge, number, again=True)
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
        )

    def board(self, caller: Caller, name: str, phase: str | None = None) -> Board:
        """The board of a phase; by default of that of now, else of the last that has begun."""
        challenge = self.find(caller, name)
        spec, now = self._spec(challenge), self.lab.clock()
        begun = [one for one in spec.phases if one.begin <= now] or list(spec.phases[:1])
        chosen = spec.phase(phase) if phase else begun[-1]
        if chosen is None:
            raise NotFound(f'There is no phase "{phase}".', remedy=f"There are: {', '.join(one.name for one in spec.phases)}.")
        opens = self._opens(challenge, chosen.name)
        hidden = opens is not None and not self._organises(caller, challenge)
        return Board(
            challenge=name,
            phase=chosen.name,
            columns=spec.board,
            places=() if hidden else tuple(self._places(challenge, challenge.version or challenge.draft, chosen.name)),
            rescored=challenge.rescored.get(chosen.name),
            opens=opens,
            intervals=spec.intervals,
        )

    def _places(self, challenge: Challenge, version: str, phase: str) -> Sequence[Place]:
        """The board of a phase, by the scoring program of a version."""
        spec = self.programs.spec(challenge.name, version)
        found = [one for one in self._sent_as_scored(challenge.name, version) if one.phase == phase]
        found = [one for one in found if one.team or one.version == version]
        return self._told_apart(challenge, spec, board(spec.board, found), found) if spec.phase(phase) else ()

    def _told_apart(
        self, challenge: Challenge, spec: ChallengeSpec, places: Sequence[Place], sent: Sequence[ChallengeSubmission]
    ) -> Sequence[Place]:
        """Places with their intervals, and whether each differs from the one above it."""
        if not spec.intervals:
            return places
        of = {one.id: one for one in sent}
        jobs = tuple(of[place.submission].scoring_job for place in places)
        differs = self.programs.differences(challenge.name, jobs, spec.board[0], spec.intervals)
        return [
            replace(place, intervals=of[place.submission].intervals, differs=differ)
            for place, differ in zip(places, differs, strict=True)
        ]

    def _opens(self, challenge: Challenge, phase: str, version: str = "") -> float | None:
        """When teams see the scores of a phase; None: they do."""
        spec = self._spec(challenge)
        if spec.phase(phase) is None and version:  # it was one of an earlier version
            spec = self.programs.spec(challenge.name, version)
        opens = spec.opens(phase)
        return opens if challenge.frozen_at is None and self.lab.clock() < opens else None

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
        return self._view(caller, challenge, made)

    def sent(self, caller: Caller, name: str) -> SubmissionList:
        """The submissions of the caller's team; for organisers those of all teams."""
        challenge = self.find(caller, name)
        if self._organises(caller, challenge):
            found = [one for one in self._sent(name) if one.team]
        else:
            found = list(self._sent(name, self._own_team(caller, challenge).name))
        return SubmissionList(submissions=tuple(self._view(caller, challenge, one) for one in reversed(found)))

    def submission(self, caller: Caller, name: str, number: int) -> SubmissionView:
        """One submission."""
        challenge = self.find(caller, name)
        one = self._submission(challenge, number)
        team = self.teams.get(name, one.team) if one.team else None
        organisers = {challenge.organiser, *self._spec(challenge).organisers}
        users = frozenset({*organisers, *(team.members if team else ())})
        allowed(caller, Action.SEE_SUBMISSIONS, Resource(users=users)).check(_no_submission(number))
        return self._view(caller, challenge, one)

    def _view(self, caller: Caller, challenge: Challenge, one: ChallengeSubmission) -> SubmissionView:
        """A submission as the caller may see it: teams see the number of the version, and no scores while these are hidden."""
        view = self.runs.view(one)
        if self._organises(caller, challenge):
            return view
        told = replace(one, version=str(challenge.versions.index(one.version) + 1) if one.version in challenge.versions else "")
        if self._opens(challenge, one.phase, one.version) is not None:
            said = (
                "It was scored. Scores are shown when the board opens." if one.state is SubmissionState.COMPLETED else one.message
            )
            told = replace(told, scores={}, intervals={}, message=said)
        return replace(view, submission=told)

    def record(self, caller: Caller, name: str, number: int) -> Mapping[str, Any]:
        """What explains a score. Teams get what tells nothing of the data: no digest of them, nothing that code has written."""
        view, challenge = self.submission(caller, name, number), self.find(caller, name)
        one = self._submission(challenge, number)
        jobs = {INGESTION: one.ingestion_job, SCORING: one.scoring_job}
        records = {stage: self.programs.record(challenge, job) for stage, job in jobs.items() if job}
        change = challenge.rescored.get(one.phase)
        shown = {key: item for key, item in to_plain(view.submission).items() if key in shown_fields(ChallengeSubmission)}
        locks = [attempt.get("environment_lock_text") for attempt in records.get(INGESTION, {}).get("attempts", ())]
        told: dict[str, Any] = {"submission": shown, "environment": next((one for one in reversed(locks) if one), "")}
        if change is not None:
            told["board_changed"] = to_plain(change)
        if not self._organises(caller, challenge):
            return told
        every = [each for each in self.submissions.all() if number in (each.id, each.again)]
        return {
            **told,
            "scorings": [
                {
                    "number": each.id,
                    "version": each.version,
                    "digests": self.programs.digests(name, each.version, one.phase),
                    "scoring": self.programs.scoring(name, each.version, one.phase),
                    "state": each.state,
                    "scores": each.scores,
                    "intervals": to_plain(each.intervals),
                    "job": each.scoring_job,
                }
                for each in every
            ],
            "jobs": records,
        }

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
        challenge = next(one for one in self.challenges.all() if one.name == name)
        found = self._sent_as_scored(name, challenge.version or challenge.draft)
        return found if team is None else [one for one in found if one.team == team]

    def _sent_as_scored(self, name: str, version: str) -> Sequence[ChallengeSubmission]:
        found = [one for one in self.submissions.all() if one.challenge == name and not one.again]
        return self.rescoring.as_scored(name, version, found) if version else found

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

    def _submission(self, challenge: Challenge, number: int, *, again: bool = False) -> ChallengeSubmission:
        found = self.submissions.get(number)
        if found is None or found.challenge != challenge.name or (found.again and not again):
            raise _no_submission(number)
        return self.rescoring.as_scored(challenge.name, challenge.version or challenge.draft, [found])[0]


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
