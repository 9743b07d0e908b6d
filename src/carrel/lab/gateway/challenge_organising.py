"""The work of organisers while a challenge runs: notices, questions, quotas of teams, what failed, likeness, the report."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import fsum
from pathlib import Path

from carrel.core.challenges import report as reports
from carrel.core.challenges.board import board
from carrel.core.challenges.likeness import MOST_LINES, Submitted, alike, fingerprints, lines, program
from carrel.core.challenges.notices import seen
from carrel.core.challenges.teams import renamed
from carrel.core.control.keeper import RecordStore
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, Team
from carrel.core.domain.challenge_notice import ChallengeNotice, NoticeKind, NoticeList, one_line
from carrel.core.domain.challenge_report import ChallengeReport, Likeness, TeamLine
from carrel.core.domain.errors import Conflict, Invalid, NotFound
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed
from carrel.core.snapshots import Kind, SnapshotStore
from carrel.lab.gateway.challenges import Challenges

#: Questions of a person that wait for an answer.
_MOST_QUESTIONS = 10
#: Bytes of a file that is read, files of a submission, and characters of their programs that are compared.
_LARGEST, _FILES, _PROGRAM = 4 * 1024**2, 100, 64 * 1024
#: Teams that are compared: the first ones of the board.
_TEAMS = 100
#: Files of programs.
_PROGRAMS = (".py", ".ipynb")


@dataclass(slots=True, kw_only=True)
class Organising:
    """Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    challenges: Challenges
    notices: RecordStore[ChallengeNotice]
    snapshots: SnapshotStore
    _guard: threading.Lock = field(default_factory=threading.Lock)
    #: One comparison at a time: it reads the code of all teams.
    _comparing: threading.Lock = field(default_factory=threading.Lock)

    # ---- notices

    def list(self, caller: Caller, name: str) -> NoticeList:
        """Those that the caller may see, newest first."""
        challenge = self.challenges.find(caller, name)
        me, organises = caller.user.subject, self.challenges.organises(caller, challenge)
        team = self.challenges.team_of(challenge, me)
        told = reversed([one for one in self.notices.all() if one.challenge == name])
        mine = team.names if team else ()
        found = (seen(one, me, mine, organises=organises, versions=challenge.versions) for one in told)
        return NoticeList(notices=tuple(one for one in found if one is not None))

    def announce(self, caller: Caller, name: str, text: str) -> ChallengeNotice:
        """Tell everybody something."""
        self.challenges.organised(caller, name)
        return self._put(caller, ChallengeNotice(challenge=name, kind=NoticeKind.ANNOUNCEMENT, text=one_line(text)))

    def grant(self, caller: Caller, name: str, team: str, *, today: int, total: int, reason: str) -> ChallengeNotice:
        """Give a team submissions more in the phase of now, today or in all, or take some away; its members read why."""
        challenge = self.challenges.organised(caller, name)
        self.challenges.check_open(challenge)
        found = next((one for one in self.challenges.present(name) if team in one.names), None)
        if found is None:
            raise NotFound(f'There is no team "{team[:60]}".', remedy=f"`carrel challenge report {name}` lists them.")
        phase = self.challenges.spec(challenge).phase_at(self.challenges.lab.clock())
        if phase is None or phase.final is not None:
            raise Conflict(
                f"The challenge {name} has no phase now to which teams send.", remedy="Submissions are given in such a phase."
            )
        if not (today or total):
            raise Invalid("Nothing is given, and nothing taken away.", remedy="Say how many: --today 1, or --total 5.")
        more = [f"{count:+d} {words}" for count, words in ((today, "today"), (total, f"in {phase.name}")) if count]
        text = f"Submissions of {found.name}: {', '.join(more)}. {one_line(reason)}"
        asked = ChallengeNotice(challenge=name, kind=NoticeKind.QUOTA, text=text, team=found.name, members=found.members)
        return self._put(caller, replace(asked, phase=phase.name, today=today, total=total))

    def ask(self, caller: Caller, name: str, text: str) -> ChallengeNotice:
        """Ask the organisers something; for those who take part."""
        allowed(caller, Action.TAKE_PART).check()
        challenge = self.challenges.find(caller, name)
        self.challenges.check_open(challenge)
        self.challenges.own_team(caller, challenge)
        with self._guard:
            mine = [one for one in self.notices.select(challenge=name) if one.by == caller.user.subject and not one.answer]
            if sum(one.kind is NoticeKind.QUESTION for one in mine) >= _MOST_QUESTIONS:
                raise Conflict(f"{_MOST_QUESTIONS} of your questions have no answer yet.", remedy="Ask again when they have one.")
            return self._put(caller, ChallengeNotice(challenge=name, kind=NoticeKind.QUESTION, text=one_line(text)))

    def answer(self, caller: Caller, name: str, number: int, text: str, *, publish: bool) -> ChallengeNotice:
        """Answer a question, to its asker or to everybody; again changes the answer."""
        self.challenges.organised(caller, name)
        with self._guard:
            found = self.notices.get(number)
            if found is None or (found.challenge, found.kind) != (name, NoticeKind.QUESTION):
                raise NotFound(f"There is no question {number}.", remedy=f"`carrel challenge notices {name}` lists them.")
            by, now = caller.user.subject, self.challenges.lab.clock()
            return self.notices.put(replace(found, answer=one_line(text), answered_by=by, answered_at=now, published=publish))

    def _put(self, caller: Caller, notice: ChallengeNotice) -> ChallengeNotice:
        return self.notices.put(replace(notice, by=caller.user.subject, made_at=self.challenges.lab.clock()))

    # ---- report

    def report(self, caller: Caller, name: str) -> ChallengeReport:
        """What became of it until now."""
        challenge = self.challenges.organised(caller, name)
        spec, now = self.challenges.spec(challenge), self.challenges.lab.clock()
        sent = self._sent(name)
        teams = self.challenges.present(name)
        phases = [one.name for one in spec.phases if one.begin <= now]
        return ChallengeReport(
            challenge=name,
            title=spec.title,
            made_at=now,
            gpu_hours=fsum(one.gpu_hours for one in sent),
            days=reports.days(sent, spec.zone),
            teams=tuple(self._team(challenge, team, [one for one in sent if one.team == team.name]) for team in teams),
            failures=reports.failures(sent, spec.zone),
            answers=reports.answers(spec.asks, teams),
            boards=tuple(self.challenges.board(caller, name, phase) for phase in phases),
        )

    def _team(self, challenge: Challenge, team: Team, sent: Sequence[ChallengeSubmission]) -> TeamLine:
        phase = self.challenges.spec(challenge).phase_at(self.challenges.lab.clock())
        left = None if phase is None or phase.final else self.challenges.left(challenge, team, phase)
        return reports.team_line(team, sent, fsum(one.gpu_hours for one in sent), left)

    def _sent(self, name: str) -> Sequence[ChallengeSubmission]:
        """What was sent and what went on to finals, under the names of the teams whose it is now."""
        return [one for one in renamed(self.challenges.of(name), self.challenges.teams.select(challenge=name)) if one.team]

    # ---- likeness

    def likeness(self, caller: Caller, name: str, phase: str | None = None) -> Likeness:
        """Pairs of teams whose best submissions in a phase, by default that of now, are alike.

        What the challenge itself gives away, in what one begins with and in baselines, does not count.
        """
        challenge = self.challenges.organised(caller, name)
        spec, chosen = self.challenges.spec(challenge), self.challenges.board(caller, name, phase).phase
        sent = {one.id: one for one in self._sent(name) if one.phase == chosen}
        with self._comparing:
            given = _given(self.challenges, challenge)
            best = [sent[place.submission] for place in board(spec.board, sent.values())[:_TEAMS]]
            return alike(chosen, [self._submitted(challenge, one, given) for one in best])

    def _submitted(self, challenge: Challenge, one: ChallengeSubmission, given: frozenset[int]) -> Submitted:
        job = one.ingestion_job
        stored = tuple(self.challenges.programs.outputs(challenge, job)[:_FILES]) if job else ()
        return Submitted(
            team=one.team,
            number=one.id,
            code=_code(self.snapshots, one.snapshot) - given,
            predictions=_predictions(stored),
        )


# What is known is as much as two phases of the most teams have, and of each a few MB at most, whatever they have sent.


@lru_cache(maxsize=2 * _TEAMS)
def _code(snapshots: SnapshotStore, digest: str) -> frozenset[int]:
    """Fingerprints of code that was sent; of code that is kept no longer, none."""
    if not snapshots.has(digest):
        return frozenset()
    files, entries = snapshots.files(digest), [one for one in snapshots.entries(digest) if one.kind is Kind.FILE]
    chosen = sorted(one.path for one in entries if one.path.endswith(_PROGRAMS) and one.size <= _LARGEST)
    return _fingerprints((path, files.read(path, _LARGEST)) for path in chosen[:_FILES])


@lru_cache(maxsize=16)
def _of_directory(place: Path) -> frozenset[int]:
    found = sorted(one for one in place.rglob("*") if one.name.endswith(_PROGRAMS) and one.is_file() and not one.is_symlink())
    return _fingerprints((path.name, path.read_bytes()) for path in found[:_FILES] if path.stat().st_size <= _LARGEST)


def _fingerprints(files: Iterator[tuple[str, bytes]]) -> frozenset[int]:
    found, left = frozenset[int](), _PROGRAM
    for path, data in files:
        text = program(path, data)[:left]
        found, left = found | fingerprints(text), left - len(text)
        if left <= 0:
            break
    return found


def _given(challenges: Challenges, challenge: Challenge) -> frozenset[int]:
    """Fingerprints of what the challenge begins with, and of its baselines."""
    spec, version = challenges.spec(challenge), challenge.version or challenge.draft
    parts = [*filter(None, (spec.starter,)), *spec.baselines.values()]
    found = (_of_directory(challenges.programs.directory(challenge.name, version, part)) for part in parts)
    return frozenset().union(*found)


@lru_cache(maxsize=2 * _TEAMS)
def _predictions(stored: tuple[tuple[str, Path], ...]) -> Mapping[str, Sequence[int]]:
    """Lines of predictions, as many as are compared, by their paths; a file has its name by its content."""
    found: dict[str, Sequence[int]] = {}
    left = MOST_LINES
    for path, place in stored:
        with place.open("rb") as file:
            found[path] = lines(file.read(_LARGEST), left)
        left -= len(found[path])
    return found
