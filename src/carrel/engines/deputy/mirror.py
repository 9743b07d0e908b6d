"""What the lab takes from a deputy: a copy of each log, and what jobs stored. Nothing that a deputy says is believed untested."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Ended, EnvironmentReady, Journaled, Launch, Observation
from carrel.core.spool import Spool
from carrel.core.spool.foreign import is_digest
from carrel.engines.attempts import Key
from carrel.node.runner.outputs import BlobDraft

#: Bytes beyond the limits of logs and outputs: for notes, and for the lock of an environment.
BEYOND = 16 * 1024**2
#: Digests of what was handed over that are remembered, beyond those of the offer at hand.
_REMEMBERED = 100_000


class Mirror:
    """Takes them into the lab's own spool and blob store, for one deputy, in one thread."""

    def __init__(self, *, user: str, spool: Spool, blobs: Path) -> None:
        self._user = user
        self._spool = spool
        self._blobs = blobs
        self._draft: BlobDraft | None = None
        #: True when the last piece of it is written.
        self._whole = False
        self._expected: list[str] = []
        #: What this deputy has handed over, byte for byte. The lab may have other contents, which are other users'.
        self._handed_over: set[str] = set()
        #: Whose offer is at hand, and bytes that may still come for it.
        self._offered: Key = (0, 0)
        self._left = 0
        #: Bytes that are kept of each attempt: however often it offers something, it has its limit once.
        self._kept: Counter[Key] = Counter()

    def log_size(self, job_id: int, attempt: int) -> int:
        """Return how many bytes of the log the lab has."""
        try:
            return self._spool.attempt(job_id, attempt).log.stat().st_size
        except OSError:
            return 0

    def take_log(self, launch: Launch, at: int, data: bytes) -> None:
        """Add to the copy of a log what follows upon it. Raises `OSError` when the lab's disk is full; again is harmless."""
        directory = self._spool.attempt(launch.job_id, launch.attempt)
        directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory.log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(fd).st_size
            if not at <= size <= at + len(data) or size > launch.limits.log + BEYOND:
                return
            view = memoryview(data)[size - at :]
            while view:
                view = view[os.pwrite(fd, view, os.fstat(fd).st_size) :]
        finally:
            os.close(fd)

    def want(self, key: Key, limit: int, digests: Sequence[str]) -> list[str]:
        """Return which of what a deputy offers it has not handed over yet; of one attempt the lab keeps `limit` bytes."""
        self._close_draft()
        self._offered, self._left = key, limit + BEYOND - self._kept[key]
        if len(self._handed_over) > _REMEMBERED:
            self._handed_over.intersection_update(digests)
        self._expected = [digest for digest in digests if is_digest(digest) and not self.has(digest)]
        return list(self._expected)

    def take_blob(self, digest: str, data: bytes, *, last: bool) -> None:
        """Take a piece of something that is wanted; what is not what its digest says is thrown away.

        Raises `OSError` when the lab's disk is full; then the same piece may be given again.
        """
        if digest not in self._expected or len(data) > self._left:
            self._close_draft()
            return
        if self._draft is None:
            self._draft = BlobDraft(self._blobs).__enter__()
            self._whole = False
        if not self._whole:
            self._draft.write(data)
            self._whole = last
        if last and self._draft.digest == digest:
            self._draft.keep()
            self._handed_over.add(digest)
            self._kept[self._offered] += self._draft.size
        self._left -= len(data)
        if last:
            self._expected.remove(digest)
            self._close_draft()

    def told(self, observation: Observation, lost: Sequence[str]) -> Observation:
        """Return the news without outputs and locks that the lab does not have, and with a word on the outputs."""
        observation = replace(observation, entries=tuple(map(self._with_own_lock, observation.entries)))
        if not observation.entries or not isinstance(ended := observation.entries[-1].record, Ended):
            return observation
        kept = tuple(file for file in ended.outputs if self.has(file.digest))
        gone = [file.path for file in ended.outputs if file not in kept]
        if not gone:
            return observation
        why = "they were removed" if set(lost) else "they did not arrive whole"
        names = ", ".join(gone[:3]) + (", …" if len(gone) > 3 else "")
        message = f"{ended.reason.message} {len(gone)} outputs could not be taken into the lab's store, {why}: {names}."
        reason = replace(ended.reason, message=message)
        if ended.state is JobState.COMPLETED:  # a job that waits for its success waits for what it made
            ended = replace(ended, state=JobState.FAILED, reason=replace(reason, code="OutputFailed"))
        else:
            ended = replace(ended, reason=reason)
        ended = replace(ended, outputs=kept)
        return replace(observation, entries=(*observation.entries[:-1], replace(observation.entries[-1], record=ended)))

    def _with_own_lock(self, entry: Journaled) -> Journaled:
        record = entry.record
        if isinstance(record, EnvironmentReady) and record.lock and not self.has(record.lock):
            return replace(entry, record=replace(record, lock=""))
        return entry

    def has(self, digest: str) -> bool:
        """True when the lab has what was offered, from this deputy."""
        return digest in self._handed_over and self._file(digest).exists()

    def close(self) -> None:
        """The deputy is gone: what is half done goes."""
        self._expected = []
        self._close_draft()

    def _close_draft(self) -> None:
        if self._draft is not None:
            with suppress(OSError):
                self._draft.__exit__(None, None, None)
            self._draft = None

    def _file(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        return self._blobs / name[:2] / name
