"""What tools of environments say is heard to its end."""

from __future__ import annotations

import select
import selectors
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from carrel.node.environments.guards import WaitLimit
from carrel.node.environments.tools import ToolContext
from carrel.node.environments.words import Redactor
from carrel.testing.waiting import PATIENCE

pytestmark = pytest.mark.quick

SAYS = """
import pathlib, sys, time
while not pathlib.Path("looked").exists(): time.sleep(0.005)
print("on this"); print("on the other", file=sys.stderr)
"""


def test_what_a_tool_says_between_a_look_and_its_end_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine: the first look for output finds nothing, then the tool speaks and ends before anything else is done."""
    looked = tmp_path / "looked"
    look = selectors.DefaultSelector.select

    def late(self: Any, timeout: float | None = None) -> Any:
        if looked.exists():
            return look(self, timeout)
        looked.touch()
        for fd in self.get_map():  # until the tool has closed both
            end = select.poll()
            end.register(fd, 0)
            end.poll()
        return []

    monkeypatch.setattr(selectors.DefaultSelector, "select", late)
    patience = WaitLimit(deadline=time.monotonic() + PATIENCE, stop=lambda: False)
    context = ToolContext(variables={}, patience=patience, redactor=Redactor(()), report=lambda _: None, log=None)
    finished = context.attempt([sys.executable, "-I", "-S", "-c", SAYS], cwd=tmp_path)
    assert (finished.status, finished.output, finished.lines) == (0, "on this\n", ("on the other",))
    assert looked.exists()
