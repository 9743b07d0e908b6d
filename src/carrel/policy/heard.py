"""Which verdicts were asked for while something was carried out, for whoever writes down by which rule it was."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrel.policy.access import Action, Verdict

#: The last verdict on each action, in the order in which they were first asked for; None: nobody wants to know.
HEARD: ContextVar[dict[Action | None, Verdict] | None] = ContextVar("heard", default=None)
