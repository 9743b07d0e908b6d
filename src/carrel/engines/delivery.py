"""How engines hand their news to the lab: what is not taken, because of any error of the receiver, is handed over again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from carrel.core.domain.launch import Observation
from carrel.core.transport.reactor import Reactor
from carrel.engines.attempts import Key

#: Takes news; it has them when it returns. May be called with the same news again.
Receiver = Callable[[Sequence[Observation]], None]

#: Seconds before news that were not taken are handed over again.
AGAIN = 1.0
#: Seconds between two deliveries at the least: news that come meanwhile go together.
_GATHER = 0.001

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """What there is to tell of one attempt."""

    observation: Observation
    #: Called when the receiver has it.
    taken: Callable[[], None]


class Delivery:
    """Hands over the news of attempts, in the thread of a reactor."""

    def __init__(self, reactor: Reactor, *, news: Callable[[Key], News | None], receiver: Receiver) -> None:
        """`news` returns what there is to tell of an attempt now, or None."""
        self._reactor = reactor
        self._news = news
        self._receiver = receiver
        #: Attempts that may have news: a delivery is due while there are some.
        self._due: set[Key] = set()
        self._not_before = 0.0

    def look(self, keys: Set[Key]) -> None:
        """Hand over what there is to tell of these attempts, soon."""
        if keys and not self._due:
            self._reactor.later(self._not_before - self._reactor.monotonic(), self._deliver)
        self._due |= keys

    def _deliver(self) -> None:
        keys, self._due = self._due, set()
        found = [news for key in keys if (news := self._news(key)) is not None]
        if not found:
            return
        self._not_before = self._reactor.monotonic() + _GATHER
        if not _is_taken(self._receiver, [news.observation for news in found]):
            self._not_before = self._reactor.monotonic() + AGAIN
            self.look(keys)
            return
        for news in found:
            news.taken()


def deliver_now(receivers: Sequence[Receiver], observations: Sequence[Observation], *, closed: threading.Event) -> None:
    """Hand over, and wait until every receiver has taken the news, or `closed` is set."""
    for receiver in receivers if observations else ():
        while not closed.is_set() and not _is_taken(receiver, observations):
            closed.wait(AGAIN)


def _is_taken(receiver: Receiver, observations: Sequence[Observation]) -> bool:
    try:
        receiver(observations)
    except Exception:  # noqa: BLE001 - after any error of the receiver, its news must not be lost
        _log.exception("news were not taken and are delivered again")
        return False
    return True
