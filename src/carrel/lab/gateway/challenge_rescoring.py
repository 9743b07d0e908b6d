"""Scoring again by a changed program: from the predictions that the lab has kept, before anybody sees the new board.

What scores a submission again is a submission of its own with `again`, written down before its job is made as any other is
(`challenge_runs`). Boards go by the published version, so that publishing another one is the moment at which all change.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carrel.core.control.keeper import RecordStore
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, Place, RescoredLine, SubmissionState
from carrel.core.domain.errors import Conflict
from carrel.lab.gateway.challenge_programs import INPUT, TRAIN, ChallengePrograms
from carrel.lab.gateway.challenge_runs import ChallengeRuns
from carrel.lab.gateway.challenge_sent import SentSubmissions

_GOING_ON = "It is being scored again, by a new scoring program."
_FAILED = "The scoring program that the board goes by now could not score it. The organisers can see why."


@dataclass(slots=True, kw_only=True)
class Rescoring:
    """Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    programs: ChallengePrograms
    runs: ChallengeRuns
    challenges: RecordStore[Challenge]
    submissions: SentSubmissions
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def as_scored(self, name: str, version: str, sent: Sequence[ChallengeSubmission]) -> Sequence[ChallengeSubmission]:
        """Submissions with the scores by `version`; what this has not scored has none: no board has scores of two programs."""
        again = self._again(name, version)
        return [self._as_scored(one, again.get(one.id)) if self._by_another(one, version) else one for one in sent]

    def _as_scored(self, one: ChallengeSubmission, made: ChallengeSubmission | None) -> ChallengeSubmission:
        if made is not None and made.state is SubmissionState.COMPLETED:
            return replace(one, scores=made.scores, intervals=made.intervals, scoring_job=made.scoring_job)
        failed = made is not None and made.state is SubmissionState.FAILED
        return replace(one, scores={}, intervals={}, message=_FAILED if failed else _GOING_ON)

    def lines(self, challenge: Challenge, phase: str, before: Sequence[Place], after: Sequence[Place]) -> Iterator[RescoredLine]:
        """Yield what the draft scores otherwise in a phase, with the places on both boards, and its baselines; the best first."""
        old, new = ({one.submission: one.rank for one in places} for places in (before, after))
        pairs = [pair for pair in self._behind(challenge.name, challenge.draft) if pair[0].phase == phase]
        shown = self.as_scored(challenge.name, challenge.version, [one for one, _ in pairs])
        lines = [(was, made) for was, (_, made) in zip(shown, pairs, strict=True)]
        was_there = {one.baseline: one.submission for one in before if one.baseline}
        baselines = [one for one in after if lines and one.baseline in was_there]
        lines += [(self._get(was_there[one.baseline]), self._get(one.submission)) for one in baselines]
        for one, made in lines:
            new_rank = new.get(made.id if made and one.baseline else one.id)
            yield RescoredLine(before=one, after=made, rank=old.get(one.id), new_rank=new_rank)

    def ask(self, name: str, version: str, *, retry: bool = False) -> None:
        """Score by the program of `version` what another one has scored: each once; with `retry`, what failed once more."""
        with self._guard:
            for one, made in self._behind(name, version):
                if made is None or (retry and made.state is SubmissionState.FAILED):
                    fresh = replace(one, id=0, again=one.id, version=version, state=SubmissionState.PENDING, scoring_job=0)
                    self.runs.add(replace(fresh, scores={}, intervals={}, message="", ended_at=None))

    def catch_up(self, name: str) -> None:
        """Score again what was scored by another program than the published one while that was being published."""
        challenge = self.challenges.get(name)
        if challenge is not None and challenge.version:
            self.ask(name, challenge.version)

    def check_inputs(self, challenge: Challenge) -> None:
        """Raise `Conflict` where the draft has other inputs in a phase than submissions on its board have seen."""
        name, draft = challenge.name, challenge.draft
        spec = self.programs.spec(name, draft)
        sent = [one for one in self._sent(name) if one.state is not SubmissionState.FAILED]
        for version, phase in {(one.version, one.phase) for one in sent}:
            if spec.phase(phase) is None:
                continue
            now, then = (self.programs.digests(name, each, phase) for each in (draft, version))
            if now[INPUT] != then[INPUT] or now.get(TRAIN) != then.get(TRAIN):
                raise Conflict(
                    f'Submissions to the phase "{phase}" would see other data than those that were sent before.',
                    remedy="Give the phase another name: its board begins anew.",
                )

    def check_done(self, challenge: Challenge, *, without_failed: bool) -> Sequence[str]:
        """Return the phases whose boards the draft changes. Raises `Conflict` where it has not scored all that was scored."""
        found = list(self._behind(challenge.name, challenge.draft))
        waiting = self.waiting(challenge.name, challenge.draft)
        failed = [one.id for one, made in found if made is not None and made.state is SubmissionState.FAILED]
        if waiting:
            raise Conflict(
                f"The draft scores otherwise, and {len(waiting)} submissions were not scored again yet.",
                remedy=f"`carrel challenge rescore {challenge.name}` does, and shows old and new scores.",
            )
        if failed and not without_failed:
            raise Conflict(
                f"{len(failed)} submissions could not be scored again: {', '.join(map(str, failed[:20]))}.",
                remedy=f"`carrel challenge rescore {challenge.name}` tries again; --without-failed takes their places away.",
            )
        return sorted({one.phase for one, _ in found})

    def waiting(self, name: str, version: str) -> Sequence[ChallengeSubmission]:
        """What another program has scored, and that of `version` not yet."""
        return [one for one, made in self._behind(name, version) if made is None or not made.state.ended]

    def _behind(self, name: str, version: str) -> Iterator[tuple[ChallengeSubmission, ChallengeSubmission | None]]:
        """What another program than that of `version` has scored, each with the last attempt of this one."""
        again = self._again(name, version)
        return ((one, again.get(one.id)) for one in self._sent(name) if self._by_another(one, version))

    def _by_another(self, one: ChallengeSubmission, version: str) -> bool:
        if one.version == version or not one.team or one.state is not SubmissionState.COMPLETED:
            return False  # baselines are sent anew with each version
        there = self.programs.spec(one.challenge, version).phase(one.phase) is not None
        return there and self._scoring(one) != self.programs.scoring(one.challenge, version, one.phase)

    def _again(self, name: str, version: str) -> Mapping[int, ChallengeSubmission]:
        found = [one for one in self.submissions.of(name) if one.again]
        spec = self.programs.spec(name, version) if found else None
        return {
            one.again: one
            for one in found
            if spec and spec.phase(one.phase) and self._scoring(one) == self.programs.scoring(name, version, one.phase)
        }

    def _scoring(self, one: ChallengeSubmission) -> str:
        return self.programs.scoring(one.challenge, one.version, one.phase)

    def _sent(self, name: str) -> Sequence[ChallengeSubmission]:
        return [one for one in self.submissions.of(name) if one.team and not one.again]

    def _get(self, number: int) -> ChallengeSubmission:
        found = self.submissions.get(number)
        assert found is not None
        return found
