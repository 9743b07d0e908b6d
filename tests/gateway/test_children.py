"""Programs of the lab's own that answer in a process of their own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from carrel.core.domain.errors import Unavailable
from carrel.lab.gateway.children import Child
from carrel.testing.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.quick
PROGRAM = """
import json, os, sys, time
said = sys.stdin.read()
if said == "wait":
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
if said == "fail":
    sys.exit("out of luck")
json.dump({"said": said}, sys.stdout)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "answers_questions.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "answers_questions"


def is_gone(pid: Path) -> bool:
    return not Path(f"/proc/{pid.read_text()}").exists()


def test_one_is_asked_at_a_time(program: str, tmp_path: Path) -> None:
    child = Child("look", program, str(tmp_path / "pid"), time_limit=PATIENCE)

    async def ask() -> object:
        with pytest.raises(Unavailable, match="The look failed .out of luck"):
            await child.ask(b"fail")
        waits = asyncio.create_task(child.ask(b"wait"))
        await asyncio.to_thread(wait_until, lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        with pytest.raises(Unavailable, match="Another look is under way"):
            await child.ask(b"no")
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert is_gone(tmp_path / "pid")
        return await child.ask(b"yes")

    assert asyncio.run(ask()) == {"said": "yes"}


def test_one_that_takes_too_long_is_ended(program: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="took longer than 2 s"):
        asyncio.run(Child("look", program, str(tmp_path / "pid"), time_limit=2).ask(b"wait"))
    assert time.monotonic() - begun < PATIENCE
    assert not (tmp_path / "pid").exists() or is_gone(tmp_path / "pid")
