from __future__ import annotations

from support.small_lab import client, small_lab

__all__ = ["client", "lab"]

lab = small_lab(gpus=1)
