"""What sessions in the hands of another Unix user have written about where they are: asked for, and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import Empty, Queue
from typing import Any

from carrel.engines.attempts import Key

#: Seconds in which a deputy has to answer, and questions that wait for it at once: each keeps a thread of the lab's.
_ANSWERS, _MOST = 5.0, 4


class Addresses:
    """The lab's questions for addresses that its deputy of one user has not answered. The caller's lock guards `ask`."""

    def __init__(self) -> None:
        self._answers: dict[int, Queue[bytes | None]] = {}
        self._asked = 0

    def ask(self, key: Key) -> tuple[dict[str, Any], Callable[[], bytes | None]] | None:
        """Return the message to the deputy, and what waits for the answer: None when there is none.

        None in the place of both while it has not answered earlier questions.
        """
        if len(self._answers) >= _MOST:
            return None
        answer: Queue[bytes | None] = Queue()
        self._asked += 1
        number = self._asked
        self._answers[number] = answer

        def wait() -> bytes | None:
            try:
                return answer.get(timeout=_ANSWERS)
            except Empty:
                return None
            finally:
                self._answers.pop(number, None)

        return {"is": "read", "id": number, "job": key[0], "attempt": key[1]}, wait

    def answered(self, head: Mapping[str, Any], body: bytes) -> None:
        """The deputy's word about one."""
        if (waiting := self._answers.get(int(head["id"]))) is not None:
            waiting.put(body if head["found"] else None)
