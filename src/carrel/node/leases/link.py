"""One connection to the node's broker, from its hello to its end."""

from __future__ import annotations

import socket
from typing import Any

from carrel.core.domain import errors
from carrel.core.transport.channel import Channel, Silent
from carrel.core.transport.framing import Ended, Lines
from carrel.node.leases.protocol import LONGEST, Message, decode, encode

#: Seconds between attempts to connect: the first, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
#: Seconds between two looks at whether somebody wants an end.
LOOK = 0.2
#: Seconds in which a broker that lives answers a question.
ANSWER = 10.0


class Lost(Exception):
    """The connection is gone; the next call makes another one."""


class Link:
    """One connection after its welcome."""

    def __init__(self, path: str, hello: dict[str, Any]) -> None:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            stream.settimeout(ANSWER)
            stream.connect(path)
        except OSError as error:
            stream.close()
            raise Lost(errors.in_words(error)) from error
        self._channel = Channel(Lines(LONGEST), stream)
        try:
            self.send("hello", **hello)
            answer = self.receive(ANSWER)
            if answer is not None and answer["op"] == "refused":
                raise refusal(answer)
            if answer is None or answer["op"] != "welcome":
                raise Lost("the broker did not answer")
        except BaseException:
            self.close()
            raise
        self.welcome = answer

    def send(self, op: str, **fields: Any) -> None:
        """Send a message. Raises `Lost`."""
        self._channel.send(encode(op, **fields))
        try:
            self._channel.flush(ANSWER)
        except (Ended, Silent) as error:
            raise Lost(str(error)) from error

    def receive(self, seconds: float) -> Message | None:
        """The next message, or None when none came in so many seconds. Raises `Lost`."""
        try:
            line = self._channel.receive(seconds)
            return None if line is None else decode(line)
        except (Ended, ValueError) as error:
            raise Lost(str(error)) from error

    def fileno(self) -> int:
        """Its descriptor, for poll(2)."""
        return self._channel.fileno()

    def close(self) -> None:
        """Close it; for the broker the holder is done then."""
        self._channel.close()


def refusal(message: Message) -> errors.CarrelError:
    """The error that the broker has refused something with."""
    code = str(message.get("code", ""))
    cls = errors.class_of(code, errors.Conflict)
    return cls(str(message.get("message", "refused")), remedy=str(message.get("remedy", "")), details={"code": code})
