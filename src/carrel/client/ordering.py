"""`carrel.order`: samples in the order of the job (`carrel run --order`). Standard library only, Python 3.8."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any


def order(samples: Iterable[Any]) -> Iterator[Any]:
    """Yield samples in their order, which `carrel run --order record` keeps; with `--order JOB` as that job showed them.

    Samples are what a program shows a model in an order of its own: indices, names of files, or batches (lists) of them. A
    `DataLoader` of PyTorch's needs no such call. A program calls this as often, and in the same order, as in the job that it
    repeats; else it stops with the reason. Outside of such jobs samples come as they are.
    """
    hook = sys.modules.get("carrel_order")
    if hook is None or not hook.ours:
        return iter(samples)
    found: Iterator[Any] = hook.here().iterated(iter(samples))
    return found
