"""Plain server-rendered pages: the lab's devices, jobs, logs and outputs. They work without scripts, and are live with them."""

from carrel.portal.portal import Portal
from carrel.portal.signin import Sessions, Tickets

__all__ = ["Portal", "Sessions", "Tickets"]
