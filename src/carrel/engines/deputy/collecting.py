"""Outputs in the hands of another Unix user that could not be stored at a job's end: asked for, and answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from carrel.core.domain.errors import CarrelError, Conflict, NotFound, StorageFull, Unavailable
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.spool import AttemptDirectory
from carrel.core.spool.foreign import check_files
from carrel.engines.attempts import Key
from carrel.node.runner.collecting import collect_outputs
from carrel.node.runner.outputs import StoredOutputs

#: Seconds that a deputy may take.
_PATIENCE = 3600.0
_ERRORS: Mapping[str, type[CarrelError]] = {cls.code: cls for cls in (Conflict, NotFound, StorageFull, Unavailable)}


@dataclass(slots=True)
class _Asked:
    limit: int
    answer: Queue[StoredOutputs | CarrelError] = field(default_factory=Queue)


class Collections:
    """The lab's side: what its deputy of one user is asked to collect. The caller's lock guards it, but for `wait`."""

    def __init__(self) -> None:
        self._asked: dict[Key, _Asked] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def limit_of(self, key: Key) -> int | None:
        """Bytes of outputs that are taken of an attempt; None when nobody has asked for it."""
        asked = self._asked.get(key)
        return None if asked is None else asked.limit

    def ask(self, key: Key, limit: int) -> Callable[[], StoredOutputs]:
        """Note the question; the result waits for the answer. Raises the deputy's error, or `Unavailable` without one."""
        asked = self._asked[key] = _Asked(limit)

        def wait() -> StoredOutputs:
            try:
                answer = asked.answer.get(timeout=_PATIENCE)
            except Empty:
                raise Unavailable("The deputy did not answer in an hour.", remedy="Try again.") from None
            if isinstance(answer, CarrelError):
                raise answer
            return answer

        return wait

    def frames(self) -> list[dict[str, Any]]:
        """The message to a deputy that has heard of none of it."""
        return [self.frame(key) for key in self._asked]

    def frame(self, key: Key) -> dict[str, Any]:
        """The message to a deputy about one."""
        return {"is": "collect", "job": key[0], "attempt": key[1], "limit": self._asked[key].limit}

    def answered(self, head: Mapping[str, Any]) -> None:
        """The deputy's word about one."""
        asked = self._asked.pop((int(head["job"]), int(head["attempt"])), None)
        if asked is None:
            return
        if head.get("error") is not None:
            error = head["error"]
            kind = _ERRORS.get(str(error["code"]), Unavailable)
            asked.answer.put(kind(str(error["message"]), remedy=str(error["remedy"])))
        else:
            stored = from_plain(StoredOutputs, head["stored"])
            check_files(stored.files)
            asked.answer.put(stored)

    def fail(self, error: CarrelError) -> None:
        """There is no deputy any more that could answer."""
        for asked in self._asked.values():
            asked.answer.put(error)
        self._asked.clear()


class CollectingDeputy:
    """The deputy's side: collects in a thread of its own, one attempt after the other."""

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], None],
        hand_over: Callable[[Key, Sequence[str]], Sequence[str]],
    ) -> None:
        """`hand_over` gives the lab what was stored, by digest, and returns what could not be read."""
        self._send = send
        self._hand_over = hand_over
        self._turn = threading.Lock()

    def collect(self, key: Key, directory: AttemptDirectory, limit: int, blobs: Path) -> None:
        """Begin; the answer goes to the lab when it is there."""
        work = threading.Thread(target=self._collect, args=(key, directory, limit, blobs), name="collect", daemon=True)
        work.start()

    def _collect(self, key: Key, directory: AttemptDirectory, limit: int, blobs: Path) -> None:
        head: dict[str, Any] = {"is": "collected", "job": key[0], "attempt": key[1]}
        with self._turn:
            try:
                stored = collect_outputs(directory, blobs, limit)
                lost = self._hand_over(key, [file.digest for file in stored.files])
                if lost:
                    raise Unavailable(f"{len(lost)} outputs could not be read.", remedy="Try again.")
                self._send({**head, "stored": to_plain(stored)})
            except CarrelError as error:
                self._send({**head, "error": {"code": error.code, "message": error.message, "remedy": error.remedy}})
            except OSError as error:
                self._send({**head, "error": {"code": "unavailable", "message": f"{error}.", "remedy": "Try again."}})
