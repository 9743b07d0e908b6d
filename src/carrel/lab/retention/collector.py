"""Carrying out the rules, one kind after the other."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.ports import Clock
from carrel.core.domain.retention import Collected, Kind, RetentionRules
from carrel.core.spool import AttemptDirectory, trees
from carrel.core.spool.trees import room_of
from carrel.lab.audit import AuditLog
from carrel.lab.retention.removal import leftovers, remove_tree, remove_unused
from carrel.lab.store.calls import CallTable
from carrel.lab.store.retention import RetentionTable
from carrel.lab.store.sweeps import SweepTable
from carrel.lab.tracking.artifacts import ArtifactStore

T = TypeVar("T")
_log = logging.getLogger(__name__)
#: Names that a report gives of each kind.
_EXAMPLES = 10
_BLOB = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where what lies."""

    spool: Path
    snapshots: Path
    blobs: Path
    #: Large arguments and results of calls.
    calls: Path | None = None


@dataclass(slots=True, kw_only=True)
class _Tally:
    kind: Kind
    count: int = 0
    size: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, what: str, size: int, count: int = 1) -> None:
        self.count += count
        self.size += size
        if len(self.examples) < _EXAMPLES:
            self.examples.append(what)

    def result(self, trouble: str = "") -> Collected:
        return Collected(kind=self.kind, count=self.count, size=self.size, examples=tuple(self.examples), trouble=trouble)


class Collector:
    """Removes what the rules do not keep. Thread-safe: one collection at a time."""

    def __init__(
        self,
        places: Places,
        references: RetentionTable,
        *,
        rules: Callable[[], RetentionRules],
        clock: Clock,
        artifacts: ArtifactStore | None = None,
        audit: AuditLog | None = None,
        calls: CallTable | None = None,
        sweeps: SweepTable | None = None,
    ) -> None:
        self._places = places
        self._references = references
        self._rules = rules
        self._clock = clock
        self._artifacts = artifacts
        self._audit = audit
        self._calls = calls
        self._sweeps = sweeps
        self._turn = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Let a collection that is under way end with what it is doing just now; any thread may call it."""
        self._closed = True

    def collect(self, kinds: Collection[Kind] = tuple(Kind), *, dry_run: bool = False) -> list[Collected]:
        """Remove what the rules do not keep of these kinds; return what went. With `dry_run` nothing goes.

        An error in one kind is reported there, and the other kinds are still done.
        """
        work = {
            Kind.WORK: self._work,
            Kind.LOGS: self._logs,
            Kind.CODE: self._code,
            Kind.OUTPUTS: self._outputs,
            Kind.ARTIFACTS: self._artifacts_,
            Kind.AUDIT: self._audit_,
            Kind.CELLS: self._cells,
            Kind.CALLS: self._calls_,
        }
        found = []
        with self._turn:
            for kind in Kind:
                if kind not in kinds:
                    continue
                tally, trouble = _Tally(kind=kind), ""
                try:
                    work[kind](tally, self._rules(), self._clock(), dry_run)
                except (CarrelError, OSError) as error:
                    _log.warning("%s could not be looked through: %s", kind, error)
                    trouble = str(error)
                found.append(tally.result(trouble))
        return found

    def _work(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        if rules.work is None:
            return
        over = self._references.ended_attempts(now - rules.work)
        for job, attempt, path in self._each(self._attempts()):
            if (job, attempt) in over:
                self._left_of(AttemptDirectory(path), f"job {job}, attempt {attempt}", tally, dry_run)
        # What attempts keep for each other goes with the end of their job, unless that was interrupted.
        ended = self._references.ended_jobs(now - rules.work)
        for path in self._each(self._directories(self._places.spool)):
            checkpoint = path / "checkpoint"
            if int(path.name) in ended and checkpoint.is_dir() and not checkpoint.is_symlink():
                tally.add(f"job {path.name}: checkpoint", room_of(checkpoint))
                if not dry_run:
                    trees.remove_tree(checkpoint)

    def _left_of(self, directory: AttemptDirectory, what: str, tally: _Tally, dry_run: bool) -> None:
        beside = (directory.temporary_place, *directory.private_places, *leftovers(directory.path))
        for place in (directory.work, *beside):
            if place.is_dir() and not place.is_symlink():
                tally.add(f"{what}: {place.name.strip('.')}", room_of(place))
                if not dry_run:
                    (remove_tree if place == directory.work else trees.remove_tree)(place)

    def _logs(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        over = self._references.ended_jobs(now - rules.logs) if rules.logs is not None else frozenset()
        for path in self._each(self._directories(self._places.spool)):
            if int(path.name) in over:
                tally.add(f"job {path.name}", room_of(path))
                if not dry_run:
                    remove_tree(path)
        for path in leftovers(self._places.spool) if not dry_run else ():
            remove_tree(path)
        if self._sweeps is not None and rules.logs is not None and not self._closed:
            for number in self._sweeps.old(now - rules.logs):
                tally.add(f"sweep {number}", 0)
            if not dry_run:
                self._sweeps.drop_old(now - rules.logs)

    def _code(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        if rules.unused is None:
            return
        before, named = now - rules.unused, self._references.named()
        for path in self._each(sorted(self._places.snapshots.glob("*.tar"))):
            digest = f"sha256:{path.stem}"
            if digest not in named and self._goes(path, before, f"code {path.stem[:12]}", tally, dry_run) and not dry_run:
                self._references.drop_code(digest)

    def _outputs(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        if rules.outputs is not None:
            count, size = self._references.outputs_of_ended(now - rules.outputs)
            if count and dry_run:
                # What other jobs have stored too stays, so this is the most that it can be.
                tally.add(f"{count} outputs of jobs that ended before", size, count)
            elif count:
                self._references.drop_outputs(before=now - rules.outputs, now=now)
        if rules.unused is None:
            return
        # A runner has stored what its journal will say: nothing that is as new as an attempt that is not over is looked at.
        before = min(now - rules.unused, self._references.oldest_start() or now)
        named = self._references.named()
        for path in self._each(self._blobs()):
            if f"sha256:{path.name}" not in named:
                self._goes(path, before, f"content {path.name[:12]}", tally, dry_run)
        for path in sorted((self._places.blobs / "incoming").glob("*")):
            self._goes(path, before, f"unfinished {path.name}", tally, dry_run)

    def _artifacts_(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        if self._artifacts is None or rules.unused is None:
            return
        deleted = None if rules.deleted_runs is None else now - rules.deleted_runs
        for path in self._each(self._artifacts.unused(unused_before=now - rules.unused, deleted_before=deleted)):
            tally.add(f"artifacts of {path.parent.name}", room_of(path))
            if not dry_run:
                remove_tree(path)

    def _audit_(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        if self._audit is None or rules.audit is None:
            return
        for path in self._each(self._audit.old(now - rules.audit)):
            tally.add(path.name, room_of(path))
            if not dry_run:
                self._audit.remove(path)

    def _cells(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        if rules.cells is None:
            return
        count = self._references.cells_before(now - rules.cells)
        if count:
            # Rows of the database, which goes on to use their room.
            tally.add(f"{count} cells and machines that were over before", 0, count)
            if not dry_run:
                self._references.drop_cells(now - rules.cells)

    def _calls_(self, tally: _Tally, rules: RetentionRules, now: float, dry_run: bool) -> None:
        if self._calls is None:
            return
        if rules.calls is not None:
            count, paths = self._calls.old(now - rules.calls)
            if count or paths:
                tally.add(f"{count} calls that ended before", sum(room_of(path) for path in paths), count)
            if not dry_run:
                self._calls.drop_old(now - rules.calls)
                for path in paths:
                    path.unlink(missing_ok=True)
        look = self._calls.old_cached if dry_run else self._calls.drop_old_cached
        count, paths = look(None if rules.cached is None else now - rules.cached, rules.cached_size)
        if count:
            tally.add(f"{count} results for equal calls", sum(room_of(path) for path in paths), count)
        if not dry_run:
            for path in paths:
                path.unlink(missing_ok=True)
        if rules.unused is not None and self._places.calls is not None:
            # What a request that was cut off left when the lab was killed.
            named = self._calls.files()
            for path in self._each(sorted(self._places.calls.glob("*"))):
                if path not in named:
                    self._goes(path, now - rules.unused, f"unfinished {path.name[:12]}", tally, dry_run)

    def _goes(self, path: Path, before: float, what: str, tally: _Tally, dry_run: bool) -> bool:
        size = room_of(path)
        if dry_run:
            try:
                going = path.stat().st_mtime < before
            except FileNotFoundError:
                going = False
        else:
            going = remove_unused(path, before)
        if going:
            tally.add(what, size)
        return going

    def _each(self, found: Iterable[T]) -> Iterator[T]:
        """What is found, until somebody wants the end."""
        for one in found:
            if self._closed:
                return
            yield one

    def _attempts(self) -> Iterator[tuple[int, int, Path]]:
        for job in self._directories(self._places.spool):
            for attempt in self._directories(job):
                yield int(job.name), int(attempt.name), attempt

    def _blobs(self) -> Iterator[Path]:
        for place in sorted(self._places.blobs.glob("??")):
            for path in sorted(place.iterdir()):
                if _BLOB.fullmatch(path.name):
                    yield path
                elif path.name.endswith(".removed"):  # an interrupted removal: nobody names it by this name
                    path.unlink(missing_ok=True)

    @staticmethod
    def _directories(place: Path) -> list[Path]:
        try:
            found = [path for path in place.iterdir() if path.name.isdecimal() and path.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda path: int(path.name))
