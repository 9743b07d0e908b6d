"""Who uses a named environment, and who changes it; and what both work with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Conflict, NotFound
from carrel.core.domain.task import EnvironmentRecipe
from carrel.node.environments.errors import from_os_error
from carrel.node.environments.guards import OpenGuard, try_exclusive, try_shared, wait_exclusive
from carrel.node.environments.named.builder import Builder
from carrel.node.environments.named.making import Tools, Work
from carrel.node.environments.named.records import Layout, NamedRecord, Place

#: Seconds between two looks at what somebody else holds, and for which somebody may be only looking at it.
_POLL, _GLANCE = 0.05, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An environment that is ready, and is neither removed nor replaced while `hold` is open."""

    place: Place
    record: NamedRecord
    hold: OpenGuard

    @property
    def prefix(self) -> Path:
        """Where its `bin/python` is."""
        return self.place.prefix(self.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where environments are and what builds them."""

    layout: Layout
    tools: Tools
    clock: Callable[[], float]

    @contextmanager
    def builder(
        self, owner: str, place: Place, hold: OpenGuard, work: Work, recipe: EnvironmentRecipe | None = None
    ) -> Iterator[Builder]:
        """A builder at `place`, which is one of `owner`'s and whose `changing` guard is `hold`."""
        with self.tools.build_context(owner, work, recipe) as build_context:
            yield Builder(place=place, hold=hold, build_context=build_context, clock=self.clock)


@contextmanager
def storage(layout: Layout) -> Iterator[None]:
    """Turn errors of the operating system into the lab's own."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, str(layout.root)) from error


@contextmanager
def changing(place: Place, work: Work) -> Iterator[OpenGuard]:
    """Be the only one who changes the environment at `place`; waits until others have finished."""
    place.prepare()
    hold = wait_exclusive(
        place.changing,
        work.patience,
        satisfied=lambda: False,
        waiting=lambda: work.report("somebody is changing this environment; waiting for them"),
    )
    assert hold is not None
    with hold:
        yield hold


@contextmanager
def alone(place: Place, name: str) -> Iterator[None]:
    """Be sure that no session uses the environment, and none begins to; raises `Conflict` otherwise."""
    until = time.monotonic() + _GLANCE
    while (hold := try_exclusive(place.using)) is None and time.monotonic() < until:
        time.sleep(_POLL)
    if hold is None:
        raise Conflict(f"A session is using {name}.", remedy="End it first: `carrel sessions` shows yours.")
    with hold:
        yield


def use(place: Place, name: str, work: Work) -> Opened:
    """Hold the environment at `place`, waiting while it is replaced; raises `NotFound` when there is none."""
    told, began = False, time.monotonic()
    while True:
        place.prepare()
        hold = try_shared(place.using)
        if hold is not None:
            record = place.read()
            if record is None:
                hold.close()
                raise NotFound(f'There is no environment "{name}" any more.', remedy="`carrel env list` shows yours.")
            hold.touch()
            return Opened(place=place, record=record, hold=hold)
        work.patience.check()
        if not told and time.monotonic() - began > _GLANCE:
            told = True
            work.report("the environment is being replaced; waiting for it")
        time.sleep(_POLL)


def still(place: Place, name: str) -> NamedRecord:
    """Return the record, now that the place is held; raises `NotFound` when it was removed meanwhile."""
    record = place.read()
    if record is None:
        raise NotFound(f'There is no environment "{name}" any more.', remedy="`carrel env list` shows yours.")
    return record


def in_use(place: Place) -> bool:
    """True while a session has it."""
    if not place.using.exists():
        return False
    with suppress(OSError):
        hold = try_exclusive(place.using)
        if hold is None:
            return True
        hold.close()
    return False
