"""How idle a session is, as its notebook server knows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

#: A kernel in one of these does nothing. Anything else is busy: one that starts, or of which nothing is known, is not idle.
_AT_REST = frozenset({"idle", "dead"})


def activity(settings: dict[str, Any]) -> dict[str, Any]:
    """Kernels that run a cell, open connections, terminals, and when anything was last done (Unix seconds)."""
    kernels = settings["kernel_manager"].list_kernels()
    terminals = settings["terminal_manager"].list() if settings.get("terminal_manager") is not None else []
    moments = [settings["started"].timestamp()]
    moments += [_seconds(model["last_activity"]) for model in [*kernels, *terminals]]
    api = settings.get("api_last_activity")
    if api is not None:
        moments.append(api.timestamp())
    return {
        "kernels": len(kernels),
        "kernels_busy": sum(model["execution_state"] not in _AT_REST for model in kernels),
        "connections": sum(int(model["connections"]) for model in kernels),
        "terminals": len(terminals),
        "last_activity": max(moments),
    }


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
