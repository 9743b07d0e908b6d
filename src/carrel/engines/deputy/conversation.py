"""One conversation with a deputy: its process, and the pipes to and from it. Neither side waits for the other to read.

It begins with a greeting: the lab looks at who is there, and shows who it is itself.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import carrel
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.serial import from_plain
from carrel.core.spool.foreign import read_last
from carrel.core.spool.seal import opening_of
from carrel.core.transport.channel import Channel
from carrel.core.transport.framing import Ended
from carrel.core.transport.reactor import Reactor
from carrel.engines.deputy.frames import VERSION, FrameReader, Signer

#: Seconds after which `is_over` is asked although nothing has happened.
_LOOK = 30.0
#: Seconds that a deputy has for its end.
_FAREWELL = 10.0
#: Characters of a word of a deputy that go into a message.
_LONGEST = 64
#: Processor seconds in a second that the lab spends on reading one deputy, and how many it may spend at once. Each line of a
#: journal costs the control loop `_LINE` more, in another thread.
_SHARE, _AT_ONCE, _LINE = 0.25, 20.0, 0.0005

_log = logging.getLogger(__name__)

_Frame = tuple[dict[str, Any], bytes]


class Conversation:
    """A deputy's process, and what is said to it and by it. Its functions are called by the thread that called `run`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        log: IO[bytes],
        say: Callable[[], bytes],
        hear: Callable[[Mapping[str, Any], bytes], None],
        is_over: Callable[[bool], bool],
    ) -> None:
        """Start `command`. Raises `Unavailable`.

        `say` returns what is to be written next, which is empty for nothing; `hear` gets each frame; `is_over` is asked now and
        then, with whether something waits to be written.
        """
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be started: {error.strerror}.") from error
        self._say, self._hear, self._is_over = say, hear, is_over
        self._reactor = Reactor()
        assert self._process.stdout is not None
        # What waits is one frame, however long: the next one is asked for when it is out.
        self._channel = Channel(FrameReader(), self._process.stdout, self._process.stdin, backlog=sys.maxsize)
        self._sent_away = False
        #: Processor seconds that may be spent now, and when that was true (wall clock, and this thread's processor time).
        self._left = _AT_ONCE
        self._looked = (time.monotonic(), time.thread_time())

    def wake(self) -> None:
        """There may be more to say, or it may be over. From any thread."""
        self._reactor.post(self._look)

    def run(self) -> bool:
        """Speak with it. True when `is_over` said so; False when the deputy ended by itself.

        Raises `NotAFrame` when it says what is no frame, and what the functions raise.
        """
        self._channel.attach(self._reactor, on_message=self._heard, on_end=self._ended, on_sent=self._look)
        self._reactor.post(self._look_again)
        try:
            self._reactor.run()
        finally:
            self._channel.close()
            self._reactor.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_FAREWELL)
        return self._sent_away

    def _look(self) -> None:
        while not self._channel.waiting and (piece := self._say()):
            self._channel.send(piece)
        if self._is_over(self._channel.waiting > 0):
            self._sent_away = True
            self._reactor.stop()

    def _look_again(self) -> None:
        self._reactor.later(_LOOK, self._look_again)
        self._look()

    def _heard(self, _channel: Channel[_Frame], frame: _Frame) -> None:
        self._hear(*frame)
        self._look()
        self._slow_down(len(frame[0]["observation"]["entries"]) if frame[0]["is"] == "news" else 0)

    def _slow_down(self, lines: int) -> None:
        """Let a deputy wait that has more to say than the lab has time for: nobody else is to wait for it."""
        now, spent = time.monotonic(), time.thread_time()
        self._left = min(_AT_ONCE, self._left + _SHARE * (now - self._looked[0])) - (spent - self._looked[1]) - lines * _LINE
        self._looked = now, spent
        if self._left < 0:
            self._channel.rest(-self._left / _SHARE)

    def _ended(self, _channel: Channel[_Frame], _why: Ended) -> None:
        self._reactor.stop()


def last_words(log: Path, user: str) -> str:
    """Return the last line that the deputy of `user` has written beside the conversation, and log it; "" without one."""
    with suppress(OSError):
        lines = read_last(log, 2000).decode(errors="replace").strip().splitlines()
        if lines:
            _log.warning("The deputy of %s: %s", user, lines[-1])
            return lines[-1]
    return ""


def greet(head: Mapping[str, Any], *, user: str, lab: str, signer: Signer | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lab's first message to a deputy of `user` that said `head`; `settings` are told to it as they are.

    Raises `Unavailable` for a deputy of another Carrel or user.
    """
    theirs, who = (from_plain(str, head[name])[:_LONGEST] for name in ("carrel", "user"))
    if head["version"] != VERSION:
        raise Unavailable(
            f"The deputies are of Carrel {theirs}, the lab is of {carrel.__version__}.",
            remedy="Install the same for both.",
        )
    if who != user:
        raise Unavailable(f"The deputy runs as {who}, not as {user}.", remedy="Mend slurm_deputy.")
    opening: dict[str, Any] = {"is": "open", "lab": lab, **settings}
    if signer is not None:
        opening |= {"key": signer.public, "signature": signer.sign(opening_of(str(head["nonce"]), user, lab))}
    return opening
