"""A worker of pytest-xdist that crashes costs the one test that it ran; all the others are run.

With `--dist loadgroup`, pytest-xdist 3.8 waits for ever then: it gives a new worker one test, and the worker waits for a second
before it begins. And it gives out again what is complete, and what crashed (its issues 1323, 1327 and 1378).
"""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Scheduling(LoadGroupScheduling):
    """How tests come to workers."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker that ended, and give what it has not run to the others; return the test in which it crashed."""
        units = self.assigned_work.pop(node)
        left = [(scope, name) for scope, unit in units.items() for name, complete in unit.items() if not complete]
        if not left:
            return None
        for scope, name in left[1:]:
            self.workqueue.setdefault(scope, {})[name] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0][1]

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker at least two tests, or let it end: it runs one when it knows the next."""
        while node in self.registered_collections and not node.shutting_down:
            before = self._pending_of(self.assigned_work[node])
            super()._reschedule(node)
            if before >= 1:
                return
