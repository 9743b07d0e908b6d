"""What the lab has to write to a deputy: its questions, and everything about the attempts that the deputy follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch
from carrel.core.domain.serial import to_plain
from carrel.core.spool import Spool
from carrel.core.spool.seal import order_of
from carrel.engines.deputy.conversation import Conversation
from carrel.engines.deputy.followed import Followed, note_user
from carrel.engines.deputy.frames import CHUNK, Signer, frame
from carrel.engines.slurm.options import SlurmOptions


class Outgoing:
    """Frames for the deputy of one user, in order. The caller's lock guards it."""

    def __init__(
        self,
        *,
        user: str,
        spool: Spool,
        snapshots: Path,
        log_size: Callable[[int, int], int],
        options: Callable[[Launch], SlurmOptions],
        immediate: Callable[[Launch], bool],
        hold: Callable[[Launch], float],
        signer: Signer | None,
    ) -> None:
        """`log_size` says how many bytes of an attempt's log the lab has."""
        self._user = user
        self._spool = spool
        self._snapshots = snapshots
        self._log_size = log_size
        self._options = options
        self._immediate = immediate
        self._hold = hold
        self._signer = signer
        self._frames: deque[Iterator[bytes]] = deque()
        #: The code that the deputy has, by digest.
        self._code: set[str] = set()
        #: Bytes of answers that the deputy has not read: it asks as often as it likes, and they are in memory until then.
        self.unread = 0
        #: Whether there is a deputy that follows attempts.
        self.ready = False
        self.conversation: Conversation | None = None

    def __bool__(self) -> bool:
        return bool(self._frames)

    def open(self, opening: Mapping[str, Any]) -> None:
        """Say this to a new deputy, and nothing that was meant for an earlier one."""
        self._frames = deque([iter((frame(opening),))])
        self.unread = 0
        self.wake()

    def begin(self, code: set[str], attempts: Iterable[Followed]) -> None:
        """The deputy is ready, and has this code: tell it of the attempts that it follows. Raises `OSError` on a full disk."""
        self.ready = True
        self._code = code
        for followed in attempts:
            followed.said = ""
            self.follow(followed)

    def follow(self, followed: Followed) -> None:
        """Tell a deputy everything about an attempt; it may have heard it before. Raises `OSError` on a full disk."""
        launch = followed.launch
        head: dict[str, Any] = {
            "is": "follow",
            "launch": to_plain(launch),
            "token": followed.token,
            "offset": followed.offset,
            "log": self._log_size(launch.job_id, launch.attempt),
            "immediate": self._immediate(launch),
            "hold": self._hold(launch),
        }
        try:
            head["options"] = to_plain(self._options(launch))
        except CarrelError as error:
            head["trouble"] = str(error)
        if self._signer is not None:
            head["signature"] = self._signer.sign(order_of(self._user, head["launch"]))
        note_user(self._spool, launch, self._user)
        if launch.task.snapshot and launch.task.snapshot not in self._code:
            self._code.add(launch.task.snapshot)
            self._put(self._code_frames(launch.task.snapshot))
        self.send(head)
        if followed.cancelled_by is not None:
            self.send(followed.cancel_frame())
        if followed.preempted:
            self.send(followed.preempt_frame())

    def send(self, head: Mapping[str, Any]) -> None:
        """Say this to the deputy, if there is one that is ready."""
        self._put(iter((frame(head),)))

    def answer(self, head: Mapping[str, Any]) -> None:
        """Say this to the deputy, which has asked for it."""
        if self.ready:
            data = frame(head)
            self.unread += len(data)
            self._put(self._answer(data))

    def _answer(self, data: bytes) -> Iterator[bytes]:
        self.unread -= len(data)
        yield data

    def next(self) -> bytes:
        """Return what is to be written next; nothing when all is written."""
        while self._frames:
            piece = next(self._frames[0], None)
            if piece is not None:
                return piece
            self._frames.popleft()
        return b""

    def wake(self) -> None:
        """Have the conversation look for what is to be written, and whether it is over."""
        if self.conversation is not None:
            self.conversation.wake()

    def _code_frames(self, digest: str) -> Iterator[bytes]:
        # Without it the runner fails, and says so.
        with suppress(OSError), open(self._snapshots / f"{digest.removeprefix('sha256:')}.tar", "rb") as file:
            data = file.read(CHUNK)
            while data:
                following = file.read(CHUNK)
                yield frame({"is": "code", "digest": digest, "last": not following}, data)
                data = following

    def _put(self, frames: Iterator[bytes]) -> None:
        if self.ready:
            self._frames.append(frames)
            self.wake()
