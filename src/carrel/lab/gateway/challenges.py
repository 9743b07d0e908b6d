"""Challenges, by who asks: pages, boards, submissions, and what is left to teams."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.challenges import teams
from carrel.core.challenges.board import board
from carrel.core.challenges.bound import bound
from carrel.core.challenges.limits import Extra, Left, left, phase_view
from carrel.core.challenges.notices import extra
from carrel.core.challenges.seen import seen, withheld
from carrel.core.control.keeper import RecordStore
from carrel.core.control.lab import Lab
from carrel.core.domain.challenge import (
    Board,
    Bound,
    Challenge,
    ChallengeLine,
    ChallengeLines,
    ChallengeSpec,
    ChallengeSubmission,
    ChallengeView,
    Cost,
    Fault,
    Phase,
    PhaseView,
    Place,
    SubmissionList,
    SubmissionState,
    SubmissionView,
    Team,
    TeamView,
)
from carrel.core.domain.challenge_notice import ChallengeNotice
from carrel.core.domain.errors import CarrelError, Conflict, Denied, NotFound
from carrel.core.domain.noun import shown_fields
from carrel.core.domain.serial import to_plain
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.lab.gateway.challenge_programs import INGESTION, SCORING, ChallengePrograms
from carrel.lab.gateway.challenge_rescoring import Rescoring
from carrel.lab.gateway.challenge_runs import ChallengeRuns
from carrel.lab.gateway.challenge_sent import Remembered, SentSubmissions

#: Bytes of a log that organisers are shown.
_LOG = 256 * 1024


@dataclass(slots=True, kw_only=True)
class Challenges:
    """Tells what is known of challenges. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    lab: Lab
    programs: ChallengePrograms
    runs: ChallengeRuns
    rescoring: Rescoring
    challenges: RecordStore[Challenge]
    teams: RecordStore[Team]
    submissions: SentSubmissions
    notices: RecordStore[ChallengeNotice]
    #: Called when finals may begin at another time than before.
    finals_changed: Callable[[], None] = lambda: None
    #: Held while it is decided what a team may do.
    guard: threading.RLock = field(default_factory=threading.RLock)
    _remembered: Remembered = field(default_factory=Remembered)

    def list(self, caller: Caller) -> ChallengeLines:
        """Those that are published, and one's own drafts."""
        allowed(caller, Action.LOOK).check()
        found = [one for one in self.challenges.all() if one.version or self.organises(caller, one)]
        return ChallengeLines(challenges=tuple(self._line(caller, one) for one in found))

    def _line(self, caller: Caller, challenge: Challenge) -> ChallengeLine:
        spec = self.spec(challenge)
        phase = spec.phase_at(self.lab.clock()) if challenge.frozen_at is None else None
        mine = self.team_of(challenge, caller.user.subject)
        return ChallengeLine(
            name=challenge.name,
            title=spec.title,
            state=_state(challenge),
            phase=phase.name if phase else "",
            end=phase.end if phase else None,
            teams=len(self.present(challenge.name)),
            team=mine.name if mine else "",
        )

    def view(self, caller: Caller, name: str, *, draft: bool = False) -> ChallengeView:
        """The challenge, with what is left to the caller's team; `draft`: as its draft will be, for organisers."""
        challenge = self.organised(caller, name) if draft else self.find(caller, name)
        if draft:
            challenge = replace(challenge, version=challenge.draft or challenge.version)
        spec, version = self.spec(challenge), challenge.version or challenge.draft
        team, now = self.team_of(challenge, caller.user.subject), self.lab.clock()
        phase = spec.phase_at(now) if challenge.frozen_at is None else None
        train = self.programs.directory(name, version, challenge.train) if team and challenge.train else ""
        return ChallengeView(
            name=name,
            title=spec.title,
            state="draft" if draft else _state(challenge),
            pages={title: self.programs.text(name, version, path) for title, path in spec.pages.items()},
            rules=self.programs.text(name, version, spec.rules) if spec.rules else "",
            phases=self._phases(challenge, spec, team, version),
            phase=phase.name if phase else "",
            board=spec.board,
            largest_team=spec.largest_team,
            zone=spec.zone,
            teams=len(self.present(name)),
            train=str(train),
            baselines=tuple(spec.baselines),
            starter=bool(spec.starter),
            feedback=spec.feedback,
            team=self.team_view(team) if team else None,
            organised=self.organises(caller, challenge),
            cost=self.cost(name, version),
            merge_until=spec.merge_until,
            withheld=withheld(spec),
            bounds=self._bounds(challenge, spec, version) if self.organises(caller, challenge) else (),
            asks=spec.asks,
            rules_accepted=team is None or self._accepted(challenge, team, caller.user.subject),
            dry_run=spec.dry_run is not None,
            sampling=spec.sampling,
        )

    def _bounds(self, challenge: Challenge, spec: ChallengeSpec, version: str) -> tuple[Bound, ...]:
        cost = self.cost(challenge.name, version)

        def of(phase: Phase) -> Bound:
            longest = cost.seconds if cost else phase.end - phase.begin
            size = self.programs.size(challenge.name, version, spec.splits[phase.split].reference)
            train = self.programs.size(challenge.name, version, spec.train) if spec.sampling else 0
            numbers = 3 if spec.intervals else 1
            return bound(spec, phase, longest=longest, reference_bytes=size, numbers=numbers, train_bytes=train)

        return tuple(map(of, spec.phases))

    def _phases(self, challenge: Challenge, spec: ChallengeSpec, team: Team | None, version: str) -> tuple[PhaseView, ...]:
        """Each with what is left of it to a team."""
        cost, sent = self.cost(challenge.name, version), self.counted(challenge, team) if team else None
        most, now = cost.gpu_hours if cost else 0.0, self.lab.clock()

        def view(phase: Phase) -> PhaseView:
            more = self._extra(challenge, team, phase) if team else Extra()
            return phase_view(phase, sent, most=most, now=now, zone=spec.zone, extra=more)

        return tuple(map(view, spec.phases))

    def phase_now(self, challenge: Challenge, team: Team) -> PhaseView | None:
        """The phase of now, with what is left of it to a team; None: there is none, or nothing is taken any more."""
        spec, now = self.spec(challenge), self.lab.clock()
        found = self._phases(challenge, spec, team, challenge.version)
        return next((one for one in found if one.begin <= now < one.end), None) if challenge.frozen_at is None else None

    def board(self, caller: Caller, name: str, phase: str | None = None) -> Board:
        """The board of a phase; by default of that of now, else of the last that has begun."""
        challenge = self.find(caller, name)
        spec, now = self.spec(challenge), self.lab.clock()
        begun = [one for one in spec.phases if one.begin <= now] or list(spec.phases[:1])
        chosen = spec.phase(phase) if phase else begun[-1]
        if chosen is None:
            raise NotFound(f'There is no phase "{phase}".', remedy=f"There are: {', '.join(one.name for one in spec.phases)}.")
        opens = self._opens(challenge, chosen.name)
        hidden = opens is not None and not self.organises(caller, challenge)
        return Board(
            challenge=name,
            phase=chosen.name,
            columns=spec.board,
            places=() if hidden else tuple(self.places(challenge, challenge.version or challenge.draft, chosen.name)),
            rescored=challenge.rescored.get(chosen.name),
            opens=opens,
            intervals=spec.intervals,
        )

    def places(self, challenge: Challenge, version: str, phase: str) -> Sequence[Place]:
        """The board of a phase, by the scoring program of a version.

        Nothing of it depends on who asks, nor on the moment where ends are not shown in steps: it holds until something is sent,
        scored, or merged.
        """
        spec, name = self.programs.spec(challenge.name, version), challenge.name
        made_of = (self.submissions.of(name), spec, self.teams_of(name), object() if spec.step else None)
        return self._remembered(("board", name, version, phase), made_of, lambda: self._ranked(challenge, version, phase))

    def _ranked(self, challenge: Challenge, version: str, phase: str) -> Sequence[Place]:
        spec = self.programs.spec(challenge.name, version)
        sent = self.as_seen(challenge, self._sent_as_scored(challenge.name, version), spec)
        found = [one for one in sent if one.phase == phase and (one.team or one.version == version)]
        return self._told_apart(challenge, spec, board(spec.board, found), found) if spec.phase(phase) else ()

    def _told_apart(
        self, challenge: Challenge, spec: ChallengeSpec, places: Sequence[Place], sent: Sequence[ChallengeSubmission]
    ) -> Sequence[Place]:
        """Places with their intervals, and whether each differs from the one above it."""
        if not spec.intervals or (spec.ladder is not None and sent and spec.ladder.holds(sent[0].phase)):
            return places  # of what a ladder holds back an interval would tell
        of = {one.id: one for one in sent}
        jobs = tuple(of[place.submission].scoring_job for place in places)
        differs = self.programs.differences(challenge.name, jobs, spec.board[0], spec.intervals)
        return [
            replace(place, intervals=of[place.submission].intervals, differs=differ)
            for place, differ in zip(places, differs, strict=True)
        ]

    def _opens(self, challenge: Challenge, phase: str, version: str = "") -> float | None:
        """When teams see the scores of a phase; None: they do."""
        spec = self.spec(challenge)
        if spec.phase(phase) is None and version:  # it was one of an earlier version
            spec = self.programs.spec(challenge.name, version)
        opens = spec.opens(phase)
        return opens if challenge.frozen_at is None and self.lab.clock() < opens else None

    # ---- what is left, and what was accepted

    def left(self, challenge: Challenge, team: Team, phase: Phase) -> Left:
        """What is left to a team in a phase, with what organisers have given it."""
        zone = self.spec(challenge).zone
        return left(
            phase, self.counted(challenge, team), now=self.lab.clock(), zone=zone, extra=self._extra(challenge, team, phase)
        )

    def _extra(self, challenge: Challenge, team: Team, phase: Phase) -> Extra:
        zone = self.spec(challenge).zone
        return extra(self.notices_of(challenge.name), team, phase.name, now=self.lab.clock(), zone=zone)

    def rules_digest(self, challenge: Challenge, version: str = "") -> str:
        """Digest of the text of the rules; "": there are none."""
        version = version or challenge.version or challenge.draft
        spec = self.programs.spec(challenge.name, version)
        text = self.programs.text(challenge.name, version, spec.rules) if spec.rules else ""
        return hashlib.sha256(text.encode()).hexdigest() if text else ""

    def _accepted(self, challenge: Challenge, team: Team, subject: str) -> bool:
        digest = self.rules_digest(challenge)
        return not digest or team.accepted.get(subject) == digest

    def check_accepted(self, challenge: Challenge, team: Team, subject: str) -> None:
        """Raise `Denied` where the rules are others than those that a member has accepted."""
        if not self._accepted(challenge, team, subject):
            show, join = f"carrel challenge show {challenge.name}", f"carrel challenge join {challenge.name} --accept-rules"
            raise Denied("The rules have changed, and have to be accepted again.", remedy=f"Read them (`{show}`), then `{join}`.")

    # ---- submissions

    def checks(self, caller: Caller, name: str) -> SubmissionList:
        """The baselines of the draft, or of what is published where there is no draft; for organisers."""
        challenge = self.organised(caller, name)
        version = challenge.draft or challenge.version
        newest_first = sorted(self.baselines(challenge, version).values(), key=lambda one: -one.id)
        return SubmissionList(submissions=tuple(self.runs.view(one, organiser=True) for one in newest_first))

    def baselines(self, challenge: Challenge, version: str) -> Mapping[tuple[str, str], ChallengeSubmission]:
        """The last try of each baseline of a version, by phase and name."""
        return {(one.phase, one.baseline): one for one in self.of(challenge.name, "") if one.version == version}

    def sent(self, caller: Caller, name: str, *, before: int | None = None, limit: int | None = None) -> SubmissionList:
        """The submissions of the caller's team, newest first; for organisers those of all teams.

        `before`: those with smaller numbers; `limit`: so many at most. None: all.
        """
        challenge = self.find(caller, name)
        team = self.team_of(challenge, caller.user.subject)
        if self.organises(caller, challenge):
            shown = {one.id: one.scores for one in self.as_seen(challenge, self.of(name))}
            there = [one for one in teams.renamed(self.of(name), self.teams_of(name)) if one.team]
            page, after = _page(there, before, limit)
            views = [self._with_shown(self.runs.view(one, organiser=True), shown[one.id]) for one in page]
        else:
            own = self.own_as_seen(challenge, team or self.own_team(caller, challenge))
            page, after = _page(own, before, limit)
            views = [self.as_shown(caller, challenge, one) for one in page]
        phase = self.phase_now(challenge, team) if team else None
        return SubmissionList(submissions=tuple(views), phase=phase, next=after)

    def submission(self, caller: Caller, name: str, number: int) -> SubmissionView:
        """One submission."""
        challenge = self.find(caller, name)
        one = self._submission(challenge, number)
        team = next((team for team in self.present(name) if one.team in team.names), None)
        organisers = {challenge.organiser, *self.spec(challenge).organisers}
        users = frozenset({*organisers, *(team.members if team else ())})
        allowed(caller, Action.SEE_SUBMISSIONS, Resource(users=users)).check(no_submission(number))
        beside = self.own(name, team) if team else self.of(name, one.team)
        shown = next(it for it in self.as_seen(challenge, beside) if it.id == number)
        if not self.organises(caller, challenge):
            return self.as_shown(caller, challenge, shown)
        return self._with_shown(self.runs.view(replace(one, team=shown.team), organiser=True), shown.scores)

    def _with_shown(self, view: SubmissionView, shown: Mapping[str, float]) -> SubmissionView:
        return replace(view, shown={} if shown == view.submission.scores else shown)

    def as_shown(self, caller: Caller, challenge: Challenge, one: ChallengeSubmission) -> SubmissionView:
        """A submission as the caller may see it: teams see the number of the version, and no scores while these are hidden."""
        if self.organises(caller, challenge):
            return self.runs.view(one, organiser=True)
        spec = self.spec(challenge)
        view = self.runs.view(one, quiet=bool(spec.step) or spec.one_end)
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
        if not self.organises(caller, challenge):
            return told
        every = [each for each in self.submissions.of(name) if number in (each.id, each.again)]
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

    def log(self, caller: Caller, name: str, number: int) -> str:
        """The end of the log of the last job of a submission; for organisers, because it may show what the programs saw.

        Its team gets the end of what its code printed, where the challenge lets it.
        """
        challenge = self.find(caller, name)
        if not self.organises(caller, challenge):
            return self._own_log(caller, challenge, number)
        one = self._submission(challenge, number, again=True)
        return self.programs.log(challenge, one.job, _LOG).decode(errors="replace") if one.job else ""

    def _own_log(self, caller: Caller, challenge: Challenge, number: int) -> str:
        if self.spec(challenge).log is None:
            self.check_organiser(caller, challenge)
        shown = self.submission(caller, challenge.name, number).submission
        spec = self.programs.spec(challenge.name, self._submission(challenge, number).version)
        phase = spec.phase(shown.phase)
        # By what the challenge said then, and by what it says now: neither shows more.
        logs = [one for one in (self.spec(challenge).log, spec.log) if one and phase and one.holds(phase.split)]
        if len(logs) < 2:
            raise Denied("Logs are not shown in this phase.", remedy=f"`carrel challenge show {challenge.name}`.")
        # What the lab could not carry out costs nothing: as often as a team likes, it would tell something.
        if not shown.state.ended or shown.fault is Fault.LAB or not shown.ingestion_job:
            raise Conflict("There is no log of it for its team.", remedy="Read it when the submission was scored or has failed.")
        return self.runs.own_log(challenge, shown.ingestion_job, min(one.bytes for one in logs))

    # ---- parts

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

    def cost(self, name: str, version: str) -> Cost | None:
        """The most that a submission takes; None: its programs cannot be submitted now."""
        try:
            return self.programs.cost(name, version)
        except (CarrelError, OSError):
            return None

    def present(self, name: str) -> Sequence[Team]:
        """The teams of a challenge that are no part of another one."""
        return teams.present(self.teams_of(name))

    def own(self, name: str, team: Team) -> Sequence[ChallengeSubmission]:
        """What is a team's own, in the order in which it was sent."""
        return self._named(name, team.names)

    def own_as_seen(self, challenge: Challenge, team: Team) -> Sequence[ChallengeSubmission]:
        """The same as the team sees it: by a ladder, and in steps."""
        return self.as_seen(challenge, self.own(challenge.name, team))

    def counted(self, challenge: Challenge, team: Team) -> Sequence[ChallengeSubmission]:
        """What counts against the limits of a team, as it sees that."""
        return teams.counted(team, self.as_seen(challenge, self._named(challenge.name, self.names(team))))

    def names(self, team: Team) -> frozenset[str]:
        """The names under which something may have been sent that counts for a team."""
        return team.names | teams.others_of(team, self.teams_of(team.challenge))

    def _named(self, name: str, names: Collection[str]) -> Sequence[ChallengeSubmission]:
        return sorted((one for team in names for one in self.of(name, team)), key=lambda one: one.id)

    def find(self, caller: Caller, name: str) -> Challenge:
        """The challenge, if the caller may see it. Raises `NotFound`."""
        allowed(caller, Action.LOOK).check()
        found = self.challenges.get(name)
        if found is None or not (found.version or self.organises(caller, found)):
            raise NotFound(f'There is no challenge "{name[:60]}".', remedy="`carrel challenge list` lists them.")
        return found

    def organised(self, caller: Caller, name: str) -> Challenge:
        """The challenge, for its organisers alone. Raises `Denied` for others, and as `find` does."""
        found = self.find(caller, name)
        self.check_organiser(caller, found)
        return found

    def check_organiser(self, caller: Caller, challenge: Challenge) -> None:
        """Raise `Denied` unless the caller is an organiser."""
        allowed(caller, Action.ORGANISE, self._resource(challenge)).check()

    def organises(self, caller: Caller, challenge: Challenge) -> bool:
        """True for organisers."""
        return bool(allowed(caller, Action.ORGANISE, self._resource(challenge)))

    def _resource(self, challenge: Challenge) -> Resource:
        return Resource(owner=challenge.organiser, users=frozenset(self.spec(challenge).organisers))

    def spec(self, challenge: Challenge) -> ChallengeSpec:
        """The description of what is published, or of the draft of what is not."""
        return self.programs.spec(challenge.name, challenge.version or challenge.draft)

    def check_open(self, challenge: Challenge) -> None:
        """Raise `Conflict` where it takes nothing any more."""
        if challenge.frozen_at is not None:
            raise Conflict(f"The challenge {challenge.name} is frozen: it takes nothing any more.")

    def of(self, name: str, team: str | None = None) -> Sequence[ChallengeSubmission]:
        """All submissions to a challenge, or those of a team ("": the baselines), in the order in which they were sent."""
        challenge = next(one for one in self.challenges.all() if one.name == name)
        return self._sent_as_scored(name, challenge.version or challenge.draft, team)

    def _sent_as_scored(self, name: str, version: str, team: str | None = None) -> Sequence[ChallengeSubmission]:
        found = [one for one in self.submissions.of(name, team) if not one.again]
        return self.rescoring.as_scored(name, version, found) if version else found

    def as_seen(
        self, challenge: Challenge, sent: Sequence[ChallengeSubmission], spec: ChallengeSpec | None = None
    ) -> Sequence[ChallengeSubmission]:
        """These, all or those of a team, as teams see them: all that leaves the lab but to organisers goes by it."""
        # Under the names of those who sent them: what a team was shown stays when it merges.
        shown = seen(spec or self.spec(challenge), sent, self.lab.clock())
        return [*teams.renamed(shown, self.teams_of(challenge.name))]

    def teams_of(self, name: str) -> Sequence[Team]:
        """The teams of a challenge, also those that are a part of another one."""
        there = self.teams.all()
        return self._remembered(("teams", name), (there,), lambda: [one for one in there if one.challenge == name])

    def notices_of(self, name: str) -> Sequence[ChallengeNotice]:
        """The notices of a challenge, in their order."""
        return [one for one in self.notices.all() if one.challenge == name]

    def team_of(self, challenge: Challenge, subject: str) -> Team | None:
        """The team of a user, or None."""
        there = self.teams_of(challenge.name)
        by_member = self._remembered(
            ("members", challenge.name), (there,), lambda: {one: team for team in teams.present(there) for one in team.members}
        )
        return by_member.get(subject)

    def own_team(self, caller: Caller, challenge: Challenge) -> Team:
        """The caller's team. Raises `Conflict` for those who do not take part."""
        found = self.team_of(challenge, caller.user.subject)
        if found is None:
            raise Conflict(
                f"You do not take part in the challenge {challenge.name}.", remedy=f"`carrel challenge join {challenge.name}`."
            )
        return found

    def _submission(self, challenge: Challenge, number: int, *, again: bool = False) -> ChallengeSubmission:
        found = self.submissions.get(number)
        if found is None or found.challenge != challenge.name or (found.again and not again):
            raise no_submission(number)
        return self.rescoring.as_scored(challenge.name, challenge.version or challenge.draft, [found])[0]


def _page(
    sent: Sequence[ChallengeSubmission], before: int | None, limit: int | None
) -> tuple[Sequence[ChallengeSubmission], int | None]:
    """The newest of these first, so many of those with smaller numbers; and the `before` of the page after them."""
    there = [one for one in reversed(sent) if before is None or one.id < before]
    page = there[:limit]
    return page, page[-1].id if len(there) > len(page) else None


def no_submission(number: int) -> NotFound:
    """The error for a submission that the caller may not see."""
    return NotFound(f"There is no submission {number}.", remedy="`carrel challenge submissions NAME` lists those of your team.")


def _state(challenge: Challenge) -> str:
    return "frozen" if challenge.frozen_at is not None else "published" if challenge.version else "draft"
