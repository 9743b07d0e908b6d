"""What is done with a home that is not where it was, once its administrator has said what it is
(`carrel.lab.server.home_location`)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.control.attempt_changes import Describe
from carrel.core.control.news import interpret
from carrel.core.control.ports import AttemptChange, OutboxEntry
from carrel.core.control.untracked import nothing_withdrawn
from carrel.core.domain.errors import Conflict
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Observation
from carrel.core.domain.task import TaskSpec
from carrel.core.spool import Spool, read_claim, read_entries
from carrel.core.spool.trees import remove_tree
from carrel.core.submission.own_name import own_name
from carrel.lab.server.home import NEXT_SIGNING_KEY, SIGNING_KEY, LabHome
from carrel.lab.server.home_location import Answer, HomeLocation, look
from carrel.lab.store import Store
from carrel.lab.tracking.describe import Describer
from carrel.node.environments.relocation import relocate

#: Jobs that a refusal names.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class MovedHome:
    """Where the home was, and what its administrator says that it is now. Each step may be done again after a crash."""

    known: HomeLocation
    answer: Answer

    def prepare(self, home: LabHome, store: Store) -> None:
        """Put right what would mislead the lab, before anything of it is wired."""
        if self.answer is Answer.MOVED:
            check_nothing_runs(home, self.known, store.jobs.active())
            take_over(home, self.known)
        else:
            drop_what_is_the_originals(home, self.known)
            store.new_lab_id()

    def end_jobs(self, home: LabHome, store: Store, describer: Describer | None) -> None:
        """End in a copy, on paper, what the original goes on with; `describer` says what MLflow is to hear of that."""
        if self.answer is Answer.COPY:
            end_on_paper(
                home,
                store,
                self.known,
                describe=describer.change if describer else _nothing_told,
                withdrawn=describer.withdrawn if describer else nothing_withdrawn,
                by=own_name(),
                now=time.time(),
            )


def _nothing_told(_job: Job, _task: TaskSpec, _change: AttemptChange, _told: Observation) -> Sequence[OutboxEntry]:
    return ()


def check_nothing_runs(home: LabHome, known: HomeLocation, jobs: Sequence[Job]) -> None:
    """Raise `Conflict` while one of `jobs`, which have not ended, knows only the old place of a home that was moved."""
    spool, moved = Spool(home.spool), known.path != str(home.path)
    running = []
    for job in jobs:
        if job.state.holds_resources:
            claim = read_claim(spool.attempt(job.id, job.attempt).claim)
            if (claim is not None and claim.held) or (claim is None and moved and job.handed_over):
                running.append(str(job.id))
    if not running:
        return
    named = ", ".join(running[:_NAMED]) + (", …" if len(running) > _NAMED else "")
    remedy = "Wait until they have ended, or end them there."
    if moved:
        remedy = (
            f"Link the old path to the new one (`ln -s {home.path} {known.path}`) and start again without --moved: they go on. "
            "The link may go when they have ended."
        )
    raise Conflict(f"Jobs of this lab still run, or wait in Slurm, and know only {known.words}: {named}.", remedy=remedy)


def take_over(home: LabHome, known: HomeLocation) -> None:
    """The home was moved: what it holds of its old place is put right. Jobs and queue go on."""
    if known.machine != look(home.path, "").machine:
        _empty(home.broker)  # it speaks of processes of the other machine
    _settle_environments(home, known)


def drop_what_is_the_originals(home: LabHome, known: HomeLocation) -> None:
    """The home is a copy: take out of it what would reach the original, or let the original's jobs in. Again is harmless."""
    for name in ("secret", SIGNING_KEY, NEXT_SIGNING_KEY, "port", "address.json"):
        (home.path / name).unlink(missing_ok=True)
    for directory in (home.broker, home.reports, home.run):
        _empty(directory)
    _settle_environments(home, known)


def check_database(home: LabHome) -> None:
    """Raise `Conflict` when the database was damaged on its way, as happens to one that is copied while a lab writes into it."""
    if not home.database.exists():
        return
    try:
        with closing(sqlite3.connect(home.database)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise Conflict(
            f"The database {home.database} is damaged ({found}): it was copied while a lab wrote into it.",
            remedy="Copy the home again while its lab is stopped (jobs go on meanwhile).",
        )


def end_on_paper(
    home: LabHome,
    store: Store,
    known: HomeLocation,
    *,
    describe: Describe,
    withdrawn: Callable[[Job, TaskSpec], Sequence[OutboxEntry]],
    by: str,
    now: float,
) -> None:
    """The home is a copy: its jobs that have not ended are the original's, and end here. No process hears of it.

    Ends that the copied journals tell are taken from there.
    """
    for job in store.jobs.active():
        if job.state.holds_resources:
            _read_what_was_copied(home, store, job, describe, now)
    for job in store.jobs.active():
        message = f"This lab is a copy of {known.words}, where job {job.id} goes on. Submit it again to run it here, too."
        reason = Reason(code="Copied", message=message)
        store.jobs.request_cancel(job.id, by=by, reason=reason, now=now, outbox=withdrawn)
        if job.state.holds_resources:
            change = AttemptChange(job_id=job.id, attempt=job.attempt, state=JobState.CANCELLED, reason=reason, ended_at=now)
            _apply(store, job, change, Observation(job_id=job.id, attempt=job.attempt), describe, now)


def _read_what_was_copied(home: LabHome, store: Store, job: Job, describe: Describe, now: float) -> None:
    row = store.jobs.attempt(job.id, job.attempt)
    if row is None:  # pragma: no cover - a foreign key forbids it
        return
    directory = Spool(home.spool).attempt(job.id, job.attempt)
    entries, offset = read_entries(directory.journal, row.journal_offset)
    told = Observation(job_id=job.id, attempt=job.attempt, entries=entries, offset=offset)
    _apply(store, job, interpret(job, told, log_size=row.log_size, now=now), told, describe, now)
    _forget_processes(directory.path)


def _apply(store: Store, job: Job, change: AttemptChange, told: Observation, describe: Describe, now: float) -> None:
    task = store.jobs.task(job.id)
    outbox = () if task is None else tuple(describe(job, task, change, told))
    store.jobs.change([replace(change, outbox=outbox)], now=now)


def _forget_processes(directory: Path) -> None:
    """Remove what points from an attempt's directory to what is the original's; the links, not what they lead to."""
    for name in ("token", "cgroup", "preempt", "session.json", "slurm"):
        (directory / name).unlink(missing_ok=True)
    if (directory / "tmp").is_symlink():
        (directory / "tmp").unlink()


def _settle_environments(home: LabHome, known: HomeLocation) -> None:
    if known.path != str(home.path):
        relocate(home.environments, Path(known.path) / home.environments.name)


def _empty(directory: Path) -> None:
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            with suppress(OSError):
                path.unlink()
