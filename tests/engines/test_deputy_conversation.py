"""A conversation with a deputy's process, which here is `cat` or a shell: what is said comes back."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from carrel.core.domain.errors import Unavailable
from carrel.engines.deputy.conversation import Conversation
from carrel.engines.deputy.frames import CHUNK, NotAFrame, frame

pytestmark = pytest.mark.quick


class Lab:
    """Says frames, and remembers what it hears; it is over when it has heard as many as were said."""

    def __init__(self, place: Path, *command: str, frames: int = 0, patient: bool = False) -> None:
        self.bodies = [os.urandom(1 + number % 3) * (CHUNK // 3) for number in range(frames)]
        self.left = deque(frame({"is": "code", "number": number}, body) for number, body in enumerate(self.bodies))
        self.heard: list[bytes] = []
        self.patient = patient
        with open(place / "log", "wb") as log:
            self.conversation = Conversation(
                command, environ=dict(os.environ), log=log, say=self.say, hear=self.hear, is_over=self.is_over
            )

    def say(self) -> bytes:
        return self.left.popleft() if self.left else b""

    def hear(self, head: Mapping[str, Any], body: bytes) -> None:
        assert head["number"] == len(self.heard)
        self.heard.append(body)

    def is_over(self, pending: bool) -> bool:
        return not self.patient and not pending and len(self.heard) == len(self.bodies)


def test_much_goes_both_ways_at_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "cat", frames=100)
    assert lab.conversation.run() is True
    assert lab.heard == lab.bodies


def test_a_deputy_that_ends_by_itself(tmp_path: Path) -> None:
    assert Lab(tmp_path, "true", patient=True).conversation.run() is False


def test_what_is_no_frame_ends_it(tmp_path: Path) -> None:
    with pytest.raises(NotAFrame, match="'hello'"):
        Lab(tmp_path, "sh", "-c", "echo hello; cat", patient=True).conversation.run()


def test_another_thread_has_more_to_say(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "cat", patient=True)

    def more() -> None:
        lab.bodies.append(b"more")
        lab.left.append(frame({"is": "code", "number": 0}, b"more"))
        lab.patient = False
        lab.conversation.wake()

    thread = threading.Thread(target=more)
    lab.conversation.wake()
    thread.start()
    assert lab.conversation.run() is True
    thread.join()
    assert lab.heard == [b"more"]


def test_a_deputy_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be started: No such file"):
        Lab(tmp_path, str(tmp_path / "none"))


class FakeTime:
    """Of which the processor's share is as large as a test says."""

    def __init__(self) -> None:
        self.now = self.spent = 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.spent


def test_a_deputy_that_costs_more_than_its_share_of_a_processor_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    fake = FakeTime()
    monkeypatch.setattr("carrel.engines.deputy.conversation.time", fake)
    lab = Lab(tmp_path, "cat", frames=4)
    hear = lab.hear

    def hear_long(head: Mapping[str, Any], body: bytes) -> None:
        fake.now, fake.spent = fake.now + 10, fake.spent + 10  # ten seconds for each frame, all of them of the processor
        hear(head, body)

    conversation = lab.conversation
    conversation._hear = hear_long
    monkeypatch.setattr(conversation._channel, "rest", rests.append)
    assert conversation.run() is True
    # It has 20 s at once, and 2.5 s more after each frame: 10, 2.5, -5 and -12.5 are left, four seconds of rest for each.
    assert rests == [20.0, 50.0]


def test_a_channel_that_rests_is_read_later(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "cat", frames=20)
    hear, channel = lab.hear, lab.conversation._channel

    def hear_and_rest(head: Mapping[str, Any], body: bytes) -> None:
        hear(head, body)
        channel.rest(0.01)
        channel.rest(0.01)

    lab.conversation._hear = hear_and_rest
    assert lab.conversation.run() is True
    assert lab.heard == lab.bodies
