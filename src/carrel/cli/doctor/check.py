"""What one look of `carrel doctor` found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found."""

    name: str
    #: "ok", "warn" or "fail".
    status: str
    message: str
    remedy: str = ""
