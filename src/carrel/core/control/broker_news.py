"""What a broker says of the devices that it lends, as a caller may see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed

#: Parts of a broker's status whose rows are somebody's.
WHOSE = ("tenants", "leases", "queue", "moves", "hour")


def blanked(status: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    """The broker's status without the names of what the caller may not see."""
    if not status:
        return {}
    shown = dict(status)
    for part in WHOSE:
        shown[part] = [_blank(row, caller) for row in status.get(part, ())]
    for part in ("history", "charges"):
        shown.pop(part, None)
    return shown


def _blank(row: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    mine = row.get("owner") == caller.user.subject
    if allowed(caller, Action.SEE_JOB, Resource(owner=str(row.get("owner", "")))):
        return {**row, "mine": mine}
    hidden = {name: "" for name in ("owner", "label", "kernel", "cell") if name in row}
    if "why_not" in row:
        # What a process says of itself is for its owner; others read words of ours.
        hidden["why_not"] = str(row.get("stays", ""))
    return {**row, **hidden, "job": None, "pid": 0, "mine": False}


def with_sessions(status: Mapping[str, Any], session_of: Callable[[object], str]) -> Mapping[str, Any]:
    """The status with the session before the name of each notebook; `session_of`: what a session is called, by number."""
    named = dict(status)
    for part in WHOSE:
        if part in status:
            named[part] = [_with_session(row, session_of(row.get("job"))) for row in status[part]]
    return named


def _with_session(row: Mapping[str, Any], session: str) -> Mapping[str, Any]:
    return {**row, "label": f"{session}: {row['label']}"} if session and row.get("label") else row
