"""The course of submissions to challenges: their jobs are made, and what these wrote becomes scores.

A submission is written down before its job is made, and each of its jobs is made under a key of its own: whenever the lab is
killed, the next one finds the submission, and the same job for it.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from carrel.core.challenges.cost import taken
from carrel.core.challenges.intervals import intervals
from carrel.core.challenges.report import failure_kind
from carrel.core.challenges.scores import read_scores
from carrel.core.challenges.seen import readable
from carrel.core.control.held_users import NO_ROOM
from carrel.core.control.keeper import RecordStore
from carrel.core.control.lab import Lab
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, Fault, Phase, SubmissionState, SubmissionView, Team
from carrel.core.domain.errors import CarrelError, Invalid, NotFound, StorageFull, Unavailable
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.units import format_size
from carrel.core.spool.log import NOTE
from carrel.lab.gateway.challenge_programs import INGESTION, SCORING, ChallengePrograms

_log = logging.getLogger(__name__)
#: With this exit code the programs say that it is the team's code, or its predictions, that are wrong.
REFUSED = 3
#: Bytes of a log in which its last line is looked for.
_LINE = 4096
#: Why a submission waits that has no job which goes on, by what it has come to.
_BETWEEN = {
    "": "Its job is being made.",
    "ingestion": "Its code has ended; what it left is about to be scored.",
    "scoring": "Scoring has ended; its scores are being read.",
}
#: Why it waits although its job has a place.
_HELD = {
    JobState.CONFIGURING: "The environment of the challenge's program is being prepared.",
    JobState.SUSPENDED: "It stands aside for other jobs, and goes on by itself.",
}
#: What teams read where the lab has trouble. What the lab itself says has paths, and names of jobs that they do not see.
_FULL = "There is no room on the lab's disk for the challenge. Its organisers see this too; it goes on when there is room."
_AGAIN = "The lab cannot take it further now, and tries again by itself."
#: Ends for which nobody's code is to blame.
_LABS = frozenset({JobState.NODE_FAIL, JobState.PREEMPTED, JobState.CANCELLED})
#: Reasons of ends before the team's code has begun.
_PREPARING = frozenset({"EnvironmentFailed", "InputFailed", "LaunchFailed", "StorageFull", "DependencyNeverSatisfied"})


class ChallengeRuns:
    """Takes each submission from step to step. Thread-safe; `PoolLoop` looks after it."""

    def __init__(
        self,
        lab: Lab,
        programs: ChallengePrograms,
        challenges: RecordStore[Challenge],
        submissions: RecordStore[ChallengeSubmission],
    ) -> None:
        self._lab, self._programs = lab, programs
        self._challenges, self._submissions = challenges, submissions
        self._guard = threading.Lock()
        #: Submissions by the jobs that have not ended, and those that are to be looked at.
        self._of_job: dict[int, int] = {}
        self._due: set[int] = set()
        #: Why those could not be taken further that are tried again, for teams and for organisers.
        self._trouble: dict[int, tuple[str, str]] = {}
        #: Wakes the loop.
        self.changed: Callable[[], None] = lambda: None
        #: Told of the challenges whose submissions were scored.
        self.scored: Callable[[str], None] = lambda _name: None

    def send(
        self,
        challenge: Challenge,
        version: str,
        phase: Phase,
        by: str,
        code: str,
        *,
        team: Team | None = None,
        baseline: str = "",
        most: float = 0.0,
    ) -> ChallengeSubmission:
        """Send code to a phase: a team's, or a baseline."""
        return self.add(
            ChallengeSubmission(
                challenge=challenge.name,
                version=version,
                phase=phase.name,
                team=team.name if team else "",
                baseline=baseline,
                by=by,
                snapshot=code,
                made_at=self._lab.clock(),
                members=team.members if team else (),
                gpu_hours=most,
            )
        )

    def add(self, asked: ChallengeSubmission) -> ChallengeSubmission:
        """Write a submission down; its job is made soon."""
        made = self._submissions.put(asked)
        with self._guard:
            self._due.add(made.id)
        self.changed()
        return made

    def view(self, one: ChallengeSubmission, *, organiser: bool = False, quiet: bool = False) -> SubmissionView:
        """A submission, with what it waits for. Each that has not ended and does not run has a reason.

        Teams read words of the lab's own, organisers also what the lab said of its disk. `quiet`: how far it is, is not told.
        """
        job = self._lab.jobs_store.get(one.job) if one.job else None
        if one.state.ended or (quiet and job is not None and job.state is not JobState.PENDING):
            return SubmissionView(submission=one)
        if job is None or job.state.ended:
            trouble = self._trouble.get(one.id)
            return SubmissionView(submission=one, waits=trouble[organiser] if trouble else _BETWEEN[one.stage])
        if job.state is not JobState.PENDING:
            return SubmissionView(submission=one, waits=_HELD.get(job.state, ""))
        reason, wait = self._lab.as_told(job).reason, self._lab.waiting(job.id)
        reason = wait.reason if wait else reason
        words = reason.message if reason else ""
        if reason is not None and reason.code == NO_ROOM and not organiser:
            words = _FULL
        return SubmissionView(
            submission=one,
            waits=words or "The lab looks for a place for it.",
            position=wait.position if wait else None,
            estimated_start=wait.estimated_start if wait else None,
        )

    def load(self) -> None:
        """Take up what an earlier server left."""
        for state in (SubmissionState.PENDING, SubmissionState.RUNNING):
            for one in self._submissions.select(state=state):
                self._due.add(one.id)
                if one.job:
                    self._of_job[one.job] = one.id
        for challenge in self._challenges.all():
            self.scored(challenge.name)

    def jobs(self) -> Sequence[int]:
        """Jobs whose ends matter."""
        with self._guard:
            return list(self._of_job)

    def job_changed(self, job_id: int) -> None:
        """Something happened to a job: if it is of a submission, that is looked at."""
        with self._guard:
            found = self._of_job.get(job_id)
            if found is not None:
                self._due.add(found)

    def start_missing(self) -> bool:
        """Take each submission that is due one step further. Returns False when one could not be, and has to be tried again."""
        with self._guard:
            due = sorted(self._due)
        well = True
        for number in due:
            try:
                with self._guard:
                    self._due.discard(number)
                self._advance(number)
                self._trouble.pop(number, None)
            except Exception as error:  # noqa: BLE001 - one submission's trouble must not stop the others
                well = False
                full = isinstance(error, StorageFull) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
                teams = _FULL if full else _AGAIN
                told = (teams, f"The programs of the challenge were told: {error}" if isinstance(error, CarrelError) else teams)
                if self._trouble.get(number) != told:
                    foreseen = isinstance(error, (CarrelError, OSError))
                    _log.warning("Submission %d waits: %s", number, error, exc_info=not foreseen)
                self._trouble[number] = told
                with self._guard:
                    self._due.add(number)
        return well

    def _advance(self, number: int) -> None:
        one = self._submissions.get(number)
        challenge = None if one is None else self._challenges.get(one.challenge)
        if one is None or challenge is None or one.state.ended:
            return
        job = self._lab.jobs_store.get(one.job) if one.job else None
        if job is not None and not job.state.ended:
            return
        if job is not None:
            with self._guard:
                self._of_job.pop(job.id, None)
        if job is None:
            self._start(challenge, one, INGESTION)
        elif job.state is not JobState.COMPLETED:
            fault, message = blame(job, scoring=bool(one.scoring_job))
            told = f"{message} {self._feedback(challenge, one, job)}".strip()
            self._fail(one, fault, told, self._kind(challenge, one, job, fault))
            self._programs.thin(challenge, job)
        elif not one.scoring_job:
            most = self._programs.spec(challenge.name, one.version).predictions
            if self._programs.stored(challenge, job.id) <= most:
                self._start(challenge, one, SCORING)
            else:
                told = f"It left more than {format_size(most)} for the scoring program."
                self._fail(one, Fault.TEAM, told, "predictions: too many bytes")
                self._programs.thin(challenge, job)
        else:
            self._score(challenge, one)
            if not self._programs.spec(challenge.name, one.version).intervals:  # those compare what the programs have resampled
                self._programs.thin(challenge, job)

    def _start(self, challenge: Challenge, one: ChallengeSubmission, stage: str) -> None:
        try:
            job_id = self._programs.start(challenge, one, stage)
        except Unavailable:
            raise
        except CarrelError as error:
            # What is wrong with the team's code itself cannot be told from what is wrong with the programs: it costs nothing.
            _log.warning("The %s of submission %d cannot be started: %s", stage, one.id, error)
            self._fail(
                one, Fault.ORGANISER, f"Its {stage} could not be started. The organisers can see why.", "programs: not started"
            )
            return
        started: dict[str, Any] = {"ingestion_job" if stage == INGESTION else "scoring_job": job_id}
        self._submissions.put(replace(one, state=SubmissionState.RUNNING, **started))
        with self._guard:
            self._of_job[job_id] = one.id
            self._due.add(one.id)  # it may have ended in this moment
        self.changed()

    def _feedback(self, challenge: Challenge, one: ChallengeSubmission, job: Job) -> str:
        """The last line of the ingestion program, where it refused the code and the challenge lets teams read that."""
        most = self._programs.spec(challenge.name, one.version).feedback
        if not most or one.scoring_job or job.exit_code != REFUSED:
            return ""
        lines = self.own_log(challenge, job.id, _LINE).splitlines()
        return lines[-1].encode()[:most].decode(errors="ignore") if lines else ""

    def own_log(self, challenge: Challenge, job_id: int, most: int) -> str:
        """The end of what the ingestion program and the team's code printed, without what the lab says of the job."""
        try:
            found = self._programs.log(challenge, job_id, 2 * most + _LINE)
        except NotFound:  # the lab was down for longer than it keeps logs
            return ""
        return readable(b"\n".join(line for line in found.splitlines() if not line.startswith(NOTE)), most)

    def _score(self, challenge: Challenge, one: ChallengeSubmission) -> None:
        spec = self._programs.spec(challenge.name, one.version)
        try:
            scores = read_scores(self._programs.scores(challenge, one.scoring_job), spec.board)
            resampled = self._programs.replicates(challenge, one.scoring_job, spec.board) if spec.intervals else {}
        except (Invalid, NotFound) as error:
            _log.warning("Submission %d has no scores: %s", one.id, error)
            self._fail(one, Fault.ORGANISER, "The scoring program wrote no scores.", "programs: no scores")
            return
        ended = replace(one, state=SubmissionState.COMPLETED, scores=scores, ended_at=self._lab.clock())
        shown = intervals(resampled, spec.board, spec.intervals)
        self._submissions.put(replace(ended, intervals=shown, gpu_hours=self._gpu_hours(one)))
        # Another version may have been published since this was begun.
        self.scored(challenge.name)

    def _kind(self, challenge: Challenge, one: ChallengeSubmission, job: Job, fault: Fault) -> str:
        """How it failed, for organisers."""
        if fault is Fault.TEAM and one.scoring_job:
            return "refused predictions"
        return failure_kind(job, fault, self.own_log(challenge, job.id, _LINE).encode() if fault is Fault.TEAM else b"")

    def _fail(self, one: ChallengeSubmission, fault: Fault, message: str, kind: str) -> None:
        hours, ended = 0.0 if fault is Fault.LAB else self._gpu_hours(one), self._lab.clock()
        failed = replace(one, state=SubmissionState.FAILED, fault=fault, message=message, kind=kind, ended_at=ended)
        self._submissions.put(replace(failed, gpu_hours=hours))

    def _gpu_hours(self, one: ChallengeSubmission) -> float:
        """What its programs took, of that which was announced; all of that where it is not told for how long they ran."""
        if self._programs.spec(one.challenge, one.version).step:
            return one.gpu_hours
        jobs = [job for number in (one.ingestion_job, one.scoring_job) if (job := self._lab.jobs_store.get(number)) is not None]
        attempts = [(job.resources.total_gpus, row) for job in jobs for row in self._lab.jobs_store.attempts(job.id)]
        return taken(attempts, most=one.gpu_hours)


def blame(job: Job, *, scoring: bool) -> tuple[Fault, str]:
    """By whom a submission failed, and words that tell its team nothing of the data."""
    code = job.reason.code if job.reason else ""
    if job.state in _LABS:
        return Fault.LAB, "The lab could not carry it out to its end; it costs nothing. Send it again."
    if code in _PREPARING:
        return Fault.ORGANISER, "The programs of the challenge could not be prepared. The organisers can see why."
    if scoring:
        if job.exit_code == REFUSED:
            return Fault.TEAM, "The scoring program refused the predictions."
        return Fault.ORGANISER, "The scoring program failed. The organisers can see why."
    ended = {
        JobState.TIMEOUT: "It took longer than a submission may.",
        JobState.OUT_OF_MEMORY: "It took more memory than a submission may.",
    }
    return Fault.TEAM, ended.get(job.state, "Its code ended with an error.")
