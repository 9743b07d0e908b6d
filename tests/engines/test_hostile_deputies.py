"""The lab's side of a deputy whose place another program of the same user has taken: what it asks for has limits."""

from __future__ import annotations

import json
import queue
import sys
from pathlib import Path

import pytest

from carrel.core.domain.launch import Observation
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.deputy.frames import NotAFrame
from carrel.engines.slurm.options import SlurmOptions
from carrel.testing.builders import LabHome, make_launch
from carrel.testing.waiting import PATIENCE

_HELLO = {"is": "hello", "version": 1, "carrel": "1", "user": "bob", "nonce": "n"}
_READY = {"is": "ready", "directory": "/", "code": []}
_OFFER = {"is": "offer", "job": 1, "attempt": 1, "digests": [f"sha256:{number:064x}" for number in range(50_000)]}
#: Says all that is in a file, reads nothing, and goes when the lab has gone: silently, for last words would be told.
_SPEAKS = """
import contextlib, os, select
with contextlib.suppress(OSError):
    data = memoryview(open({file!r}, "rb").read())
    while data:
        data = data[os.write(1, data):]
    closed = select.poll()
    closed.register(0, 0)
    closed.poll()
"""


def engine_of(home: LabHome, script: str) -> DeputyEngine:
    return DeputyEngine(
        user="bob",
        command=[sys.executable, "-c", script],
        lab="l",
        spool=home.spool,
        snapshots=home.snapshots,
        blobs=home.blobs,
        log=home.root / "deputy.log",
        options=lambda _launch: SlurmOptions(),
        immediate=lambda _launch: False,
        environ={},
    )


@pytest.mark.gate
@pytest.mark.parametrize(
    ("frames", "told"),
    [
        pytest.param([_HELLO, _READY, *[_OFFER] * 20], "does not read", id="answers"),
        pytest.param([_HELLO, _READY, *[_READY] * 1000], '"ready" came twice', id="ready"),
        pytest.param([_HELLO, _READY, *[_HELLO] * 1000], '"hello" came twice', id="hello"),
    ],
)
def test_who_asks_and_never_reads_is_sent_away(tmp_path: Path, frames: list[dict[str, object]], told: str) -> None:
    (tmp_path / "said").write_text("".join(json.dumps(one) + "\n" for one in frames))
    said = _SPEAKS.format(file=str(tmp_path / "said"))
    home, news = LabHome(tmp_path), queue.Queue[Observation]()
    engine = engine_of(home, said)
    try:
        engine.observe(lambda observations: [news.put(one) for one in observations] and None)
        engine.start(make_launch(home, "true"), token="t")
        assert told in str(news.get(timeout=PATIENCE).entries)
    finally:
        engine.close()


def test_a_deputy_that_does_not_say_where_sessions_are_keeps_few_threads_waiting(tmp_path: Path) -> None:
    home = LabHome(tmp_path)
    engine = engine_of(home, "")
    waiting = [engine._addresses.ask((1, number)) for number in range(100)]
    assert 0 < len([one for one in waiting if one is not None]) <= 8
    with pytest.raises(NotAFrame):
        engine._hear({"is": "file", "id": "x"}, b"")
    for number in range(1, 100):
        engine._hear({"is": "file", "id": number, "found": True}, b"there")
    assert {one[1]() for one in waiting if one is not None} == {b"there"}
    assert engine._addresses.ask((1, 1)) is not None
