"""What control needs remembered of events, as protocols; `carrel.lab.store` implements them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event before it has an id."""

    job_id: int
    owner: str
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the event stream."""

    id: int
    at: float
    job_id: int
    owner: str
    type: str
    data: Mapping[str, Any]


class EventLog(Protocol):
    """Takes events."""

    def append(self, events: Sequence[NewEvent], *, now: float) -> None:
        """Add events that belong to no other change."""


class EventStore(EventLog, Protocol):
    """The append-only event table. `carrel.lab.store.events.EventTable` is one, and has the promises."""

    def after(self, event_id: int, *, job_id: int | None, owner: str | None, limit: int) -> Sequence[Event]: ...
    def last_id(self) -> int: ...
    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]: ...
