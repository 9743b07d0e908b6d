"""A place at a session: everything real but its node's broker."""

from __future__ import annotations

from dataclasses import dataclass

from session_rig import Front, Jupyter
from small_broker import SmallBroker


@dataclass
class Seat:
    """A real session behind the real proxy, with a small broker on its node."""

    jupyter: Jupyter
    front: Front
    label: str
    broker: SmallBroker

    def link(self, path: str = "/lab") -> str:
        """A link that lets one browser in."""
        return self.front.link(self.label, path)
