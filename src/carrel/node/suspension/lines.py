"""Talking with a child process through its pipes, one JSON object a line, where every wait has an end."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from carrel.core.transport import channel, framing

#: Seconds that a killed process gets to be gone; one that the kernel cannot end is left behind.
KILL_SECONDS = 2.0
#: Bytes of an answer at most.
_LONGEST = 1 << 20


class Silent(Exception):
    """The child did not answer in time. What it answers later belongs to nobody: end it."""


class Ended(Exception):
    """The child ended, or closed its pipes, without an answer."""


class Conversation:
    """A child process that answers each line with a line. Not for several threads at once."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start `words`. It gets a session of its own, so that a Ctrl-C for us is not for it; its stderr is ours."""
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._channel = channel.Channel(framing.Lines(_LONGEST), self._process.stdout, self._process.stdin)

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    def ended(self) -> bool:
        """Return True when the child is gone."""
        return self._process.poll() is not None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send one object and return the answer. Raises `Silent` after `seconds`, `Ended` when there will be none."""
        self.send(request)
        return self.receive(seconds)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send one object (small: it fits into the pipe). Raises `Ended`."""
        self._channel.send(framing.object_line(request))
        try:
            self._channel.flush(KILL_SECONDS)
        except (framing.Ended, channel.Silent) as error:
            raise Ended(self._ending()) from error

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next object that the child says. Raises `Silent` or `Ended`."""
        try:
            line = self._channel.receive(seconds)
        except framing.Ended as error:
            raise Ended(self._ending()) from error
        if line is None:
            raise Silent(f"process {self.pid} did not answer within {seconds:g} s")
        try:
            return framing.object_of(line)
        except framing.Garbled as error:
            raise Ended(f"process {self.pid} said {line[:80]!r}") from error

    def kill(self) -> bool:
        """SIGKILL. Returns False when it is not gone even then (it hangs inside the kernel): there is nothing more to do."""
        self._process.kill()
        return self._leave(KILL_SECONDS)

    def close(self, seconds: float = 5.0) -> None:
        """Close its input, which asks it to end, and kill it when it does not."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if not self._leave(seconds):
            self.kill()

    def _leave(self, seconds: float) -> bool:
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        self._channel.close()
        return True

    def _ending(self) -> str:
        try:
            code = self._process.wait(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return f"process {self.pid} closed its pipe"
        return f"process {self.pid} ended by signal {-code}" if code < 0 else f"process {self.pid} ended with exit code {code}"
