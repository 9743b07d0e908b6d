"""Who may have a GPU when a notebook and a task both could use it: the modes that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from carrel.core.domain.errors import Invalid
from carrel.core.domain.lease import LendingRules

GB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSpeeds:
    """How state moves, by what was measured on an H100: each GPU of a process has a bus of its own, and all move at once."""

    name: str
    #: Bytes a second, to host memory and back.
    out: float
    back: float
    #: Seconds that each move takes beside that.
    fixed_out: float
    fixed_back: float
    #: True where a process can be stopped while its state stays, and asks for more room when it meets a full device.
    in_place: bool

    def leaves(self, size: int) -> float:
        """Seconds in which `size` bytes of each GPU leave the device."""
        return self.fixed_out + size / self.out

    def returns(self, size: int) -> float:
        """Seconds in which they come back."""
        return self.fixed_back + size / self.back

    @property
    def rate(self) -> float:
        """Bytes a second there and back, as a broker would have measured them."""
        return 2 / (1 / self.out + 1 / self.back)


#: Allocations of the residency library, in pinned host memory.
BUS = MoveSpeeds(name="bus", out=50e9, back=50e9, fixed_out=0.05, fixed_back=0.05, in_place=True)
#: The driver's checkpoint calls.
DRIVER = MoveSpeeds(name="driver", out=1.9e9, back=5e9, fixed_out=0.35, fixed_back=0.28, in_place=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A session is a job that holds its GPUs from its opening until it is shut down; it goes before tasks in the queue."""

    name: str = "reservation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """GPUs are lent for each cell by the broker's own policy; tasks stand behind in the lab's queue."""

    name: str
    way: MoveSpeeds
    #: True: tasks lend their GPUs to cells. False: a cell waits for the end of the task that has its GPU.
    tasks_lend: bool
    #: Rules of the lending policy; how fast state moves and whether it can stay are those of `way`.
    rules: LendingRules = field(default_factory=LendingRules)
    #: True: what lies in host memory may come back on any of the GPUs, which are all alike.
    homes_move: bool = False


Mode = Reserved | Lent

RESERVED = Reserved()
#: A running task is waited for until its end.
BORROWED = Lent(name="cells wait for tasks", way=DRIVER, tasks_lend=False)
LENT_BUS = Lent(name="tasks lend, bus", way=BUS, tasks_lend=True)
LENT_DRIVER = Lent(name="tasks lend, driver", way=DRIVER, tasks_lend=True)
MODES: Sequence[Mode] = (RESERVED, BORROWED, LENT_BUS, LENT_DRIVER)


def modes_with(*, task_turn: float | None = None, task_share: float | None = None, homes_move: bool = False) -> Sequence[Mode]:
    """The modes, with other rules where GPUs are lent for each cell. Raises `Invalid` for what is no rule."""
    rules = LendingRules()
    turn = rules.task_turn if task_turn is None else task_turn
    share = rules.task_share if task_share is None else task_share
    if not turn >= 0 or not 0 <= share <= 1:
        raise Invalid(f"A task has turns of {turn:g} s and a share of {share:g}.", remedy="Give 0 s or more, and 0 to 1.")
    changed = replace(rules, task_turn=turn, task_share=share)
    lent = [replace(mode, homes_move=homes_move) if isinstance(mode, Lent) else mode for mode in MODES]
    return tuple(replace(mode, rules=changed) if isinstance(mode, Lent) and mode.tasks_lend else mode for mode in lent)


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes of GPU state on each GPU: a session and a task have one of these for as long as they live, each as likely.

    No trace says how large states are. Of these, two thirds of the pairs fit beside each other on a GPU of 80 GiB.
    """

    cells: Sequence[int] = (5 * GB, 10 * GB, 20 * GB, 40 * GB)
    tasks: Sequence[int] = (10 * GB, 20 * GB, 40 * GB, 70 * GB)

    def __post_init__(self) -> None:
        for size in (*self.cells, *self.tasks):
            if not 0 < size <= MEMORY:
                raise Invalid(
                    f"A state is {size / GB:g} GB and a GPU has {MEMORY / GB:g} GB.", remedy="Give sizes that fit on a GPU."
                )
        if not self.cells or not self.tasks:
            raise Invalid("There are no sizes of states.", remedy="Give one or more for cells, and for tasks.")


#: Bytes of memory of each GPU.
MEMORY = 80 * 1024**3
