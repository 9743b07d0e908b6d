"""Descriptions of the newest jobs, in memory: one that is submitted is asked for at once, and it never changes."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable

from carrel.core.domain.serial import from_plain
from carrel.core.domain.task import TaskSpec

#: Jobs whose descriptions are remembered.
_MOST = 500


class Specs:
    """Gives the description of a job without reading it again. Thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, TaskSpec] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, job_ids: Iterable[int], spec: TaskSpec) -> None:
        """These jobs were written down with this description."""
        with self._lock:
            self._known.update(dict.fromkeys(job_ids, spec))
            while len(self._known) > _MOST:
                self._known.popitem(last=False)

    def get(self, job_id: int) -> TaskSpec | None:
        """The description, if it is remembered."""
        return self._known.get(job_id)

    def read(self, job_id: int, text: str) -> TaskSpec:
        """The description that the database has as `text`."""
        known = self._known.get(job_id)
        if known is None:
            known = from_plain(TaskSpec, json.loads(text))
            self.add((job_id,), known)
        return known
