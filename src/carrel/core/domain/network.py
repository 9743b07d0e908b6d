"""Which network a job has: what the lab gives at most, and what a task wants less."""

from __future__ import annotations

from enum import StrEnum

from carrel.core.domain.errors import Invalid


class Network(StrEnum):
    """The network of a job (`job_network` in carrel.toml, `network` in a task's description)."""

    #: The machine's.
    ON = "on"
    #: A loopback of its own: its processes reach each other and the lab, and nobody else.
    LOOPBACK = "loopback"
    #: Not the lab either: its processes reach each other alone.
    OFF = "off"


_MOST_FIRST = tuple(Network)


def read_network(text: str, what: str = "network") -> Network:
    """Read one; raise `Invalid` for another word."""
    try:
        return Network(text)
    except ValueError:
        raise Invalid(f'{what} is "{text}".', remedy=f"It must be one of: {', '.join(Network)}.") from None


def least(given: Network, wanted: Network | None) -> Network:
    """Return what a job has that wants this where at most that is given."""
    return given if wanted is None else max(given, wanted, key=_MOST_FIRST.index)
