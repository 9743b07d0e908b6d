"""The end of an attempt: its outputs are kept, its log is closed, its devices are free, and the journal has its last line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Ended, Launch, Usage
from carrel.core.spool import AttemptDirectory, LogWriter
from carrel.core.spool.checkpoint import wrote_checkpoint
from carrel.core.spool.trees import remove_tree
from carrel.node.runner.advice import advice
from carrel.node.runner.cgroups import JobCgroup
from carrel.node.runner.endings import Ending, disk_notes, without_outputs
from carrel.node.runner.outputs import StoredOutputs, StoringEnded, store_outputs
from carrel.node.runner.prepare import is_inside, remove_temporary
from carrel.node.runner.report import Reporter, keep_traceback
from carrel.node.runner.run_lease import RunLease
from carrel.node.runner.signals import Signals
from carrel.node.runner.walls import remove_private

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock

#: Seconds that storing may take after a cancellation that the command ended by, and between two looks for one.
_CANCELLED, _LOOK = 60.0, 0.1


class AttemptEnd:
    """What is left to do for an attempt of which nothing runs any more."""

    def __init__(
        self,
        directory: AttemptDirectory,
        launch: Launch,
        reporter: Reporter,
        *,
        signals: Signals,
        monotonic: Clock,
        log: LogWriter | None,
        cgroup: JobCgroup | None,
        lease: RunLease | None,
        device_locks: Sequence[int],
        temporary: Path | None,
    ) -> None:
        """`temporary`: where its temporary files are, if elsewhere. What an attempt did not get to is None."""
        self._directory = directory
        self._launch = launch
        self._reporter = reporter
        self._signals = signals
        self._monotonic = monotonic
        self._log = log
        self._cgroup = cgroup
        self._lease = lease
        self._device_locks = device_locks
        self._temporary = temporary

    def finish(self, ending: Ending, usage: Usage) -> None:
        """Keep the outputs, give everything back, and write how it ended, with what it used."""
        self._finish(ending, usage, self._store())

    def _store(self) -> StoredOutputs:
        launch = self._launch
        if launch.task.session is not None or launch.before_place:
            return StoredOutputs()
        cwd = self._directory.work / launch.task.directory
        # The job may have put a link in the place of its directory.
        if not cwd.is_dir() or not is_inside(self._directory.path / "work", cwd):
            return StoredOutputs()
        try:
            check = storing_check(self._signals, self._monotonic, float(launch.limits.prepare))
            return store_outputs(cwd, launch.task.outputs, Path(launch.paths.blobs), launch.limits.outputs, check)
        except Exception as error:  # noqa: BLE001 - the ending must be reported, with any error of the outputs
            keep_traceback(self._directory)
            reason = Reason(code="OutputFailed", message=f"The outputs could not be kept: {error}.")
            return StoredOutputs(notes=[reason.message], failure=reason, left=True)

    def _finish(self, ending: Ending, usage: Usage, outputs: StoredOutputs) -> None:
        if outputs.failure is not None:
            ending = without_outputs(ending, outputs.failure, self._launch.job_id)
        notes = [note for note in outputs.notes if note not in ending.reason.message] + disk_notes(ending, self._directory.path)
        notes += advice(ending, self._launch.task.environment, self._directory.log)
        with suppress(OSError):
            notes += self._close_log(ending, outputs)
        if self._cgroup is not None:
            self._cgroup.remove()
        for fd in self._device_locks:
            os.close(fd)
        if self._lease is not None:
            self._lease.give_back()
        ended = Ended(
            state=ending.state,
            reason=replace(ending.reason, message=" ".join([ending.reason.message, *notes])),
            exit_code=ending.exit_code,
            signal=ending.signal,
            usage=usage,
            outputs=tuple(outputs.files),
            retryable=ending.retryable,
            checkpointed=self._has_checkpoint(),
            uncollected=outputs.left,
        )
        self._reporter.end(ended, make_room=partial(self._clear, outputs))
        self._clear(outputs)

    def _has_checkpoint(self) -> bool:
        return self._launch.task.requeue > 0 and wrote_checkpoint(self._directory)

    def _close_log(self, ending: Ending, outputs: StoredOutputs) -> list[str]:
        """Write the last lines of the log; return what has to be said about output that a full disk did not take."""
        if self._log is None:
            return []
        if ending.state is not JobState.COMPLETED:
            self._log.note(ending.reason.message)
        for note in outputs.notes:
            if note not in ending.reason.message:
                self._log.note(note)
        self._log.settle()
        if self._log.stuck:
            self._clear(outputs)
            self._log.settle()
        stuck = self._log.stuck
        self._log.close()
        return [f"{stuck} bytes of its log were lost, the disk was full."] if stuck else []

    def _clear(self, outputs: StoredOutputs) -> None:
        """Remove what nobody needs after the end. What was not stored stays where it is."""
        remove_temporary(self._directory)
        remove_private(self._directory)
        if self._temporary is not None:  # the job may have removed the link to it
            remove_tree(self._temporary)
        if not outputs.notes:
            remove_tree(self._directory.work)


def storing_check(signals: Signals, monotonic: Clock, seconds: float) -> Callable[[], None]:
    """Return what raises `StoringEnded` when outputs have been stored for so long, or a cancellation comes meanwhile.

    Of a job that was cancelled before, the outputs are kept as far as that takes a minute.
    """
    begun = look_at = monotonic()
    before = signals.cancelled_by() is not None
    most = min(_CANCELLED, seconds) if before else seconds
    allowed = "a cancelled job has for that" if before else "the lab allows (prepare_time)"
    late = f"Storing its outputs took longer than the {most:.0f} s that {allowed}; not all of them are stored."

    def check() -> None:
        nonlocal look_at
        now = monotonic()
        if now < look_at:
            return
        look_at = now + _LOOK
        if not before and (by := signals.cancelled_by()) is not None:
            message = f"Cancelled by {by} while its outputs were stored; not all of them are."
            raise StoringEnded(Reason(code="Cancelled", message=message))
        if now > begun + most:
            raise StoringEnded(Reason(code="OutputFailed", message=late))

    return check
