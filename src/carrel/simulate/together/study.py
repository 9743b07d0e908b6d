"""Notebooks with a queue of tasks behind them, in each mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.notebooks.modes import check
from carrel.simulate.together.lent import LentRun
from carrel.simulate.together.line import endless
from carrel.simulate.together.mode import Mode, Reserved, States
from carrel.simulate.together.reserved import ReservedRun
from carrel.simulate.together.result import Together
from carrel.simulate.trace import TraceJob


def simulate_together(
    sessions: Sequence[NotebookSession],
    tasks: Sequence[TraceJob],
    mode: Mode,
    gpus: int,
    *,
    states: States | None = None,
    seed: int = 1,
    until: float = inf,
    again: bool = False,
) -> Together:
    """Run `sessions` on `gpus` GPUs with `tasks` behind them, all of which wait from the beginning.

    With `again` the tasks come again and again, so that the queue never runs dry; then the simulation must have an end,
    `until` (seconds). `seed` is of the sizes of states. The same arguments give the same result.
    """
    check(sessions, gpus)
    if again and until == inf:
        raise Invalid("Tasks that come again and again never end.", remedy="Say until when to simulate.")
    fitting = [task for task in tasks if 0 < task.gpus <= gpus]
    if again and not any(task.duration > 0 for task in fitting):
        raise Invalid(f"No task fits on {gpus} GPUs and computes.", remedy="Name tasks that do.")
    queue: Iterable[TraceJob] = endless(fitting) if again else iter(fitting)
    if isinstance(mode, Reserved):
        return ReservedRun(sessions, queue, gpus, mode.name, until).result()
    return LentRun(sessions, queue, mode, gpus, states or States(), seed, until).result()
