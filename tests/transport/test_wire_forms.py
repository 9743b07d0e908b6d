"""Bytes that processes of other releases read: a broker, a library in a kernel, a deputy. They stay as they are, byte by byte."""

from __future__ import annotations

import pytest

from carrel.engines.deputy.frames import FrameReader, NotAFrame, frame
from carrel.node.leases.protocol import decode, encode


def test_messages_of_leases() -> None:
    assert encode("status") == b'{"op":"status"}\n'
    assert encode("release", lease="a.1", fence=3, outcome="ok", cuda=True, waited=0.5, held=None, blockers=["CUDA IPC"]) == (
        b'{"op":"release","lease":"a.1","fence":3,"outcome":"ok","cuda":true,"waited":0.5,"held":null,"blockers":["CUDA IPC"]}\n'
    )
    assert encode("queued", message="2 wait · é") == b'{"op":"queued","message":"2 wait \\u00b7 \\u00e9"}\n'


def test_messages_with_fields_that_a_side_does_not_know() -> None:
    assert decode(b' {"op": "welcome", "v": 1, "new": {"a": []}} ') == {"op": "welcome", "v": 1, "new": {"a": []}}


def test_frames_of_deputies() -> None:
    assert frame({"is": "forget", "job": 7, "over": True}) == b'{"is":"forget","job":7,"over":true}\n'
    assert frame({"is": "code", "last": False}, b"\x00\n\xff") == b'{"is":"code","last":false,"bytes":3}\n\x00\n\xff'


@pytest.mark.parametrize("size", range(1, 12))
def test_frames_arrive_in_pieces(size: int) -> None:
    sent = [({"is": "hello", "user": "ann"}, b""), ({"is": "log", "bytes": 5}, b"a\nb\n\n"), ({"is": "ready"}, b"")]
    stream = b"".join(frame({name: value for name, value in head.items() if name != "bytes"}, body) for head, body in sent)
    reader = FrameReader()
    found = [one for begin in range(0, len(stream), size) for one in reader.feed(stream[begin : begin + size])]
    assert found == sent
    assert not reader.midway
    assert list(reader.feed(b'{"is":"log","bytes":2}\na')) == []
    assert reader.midway


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"is": 3}', b'{"is":"log","bytes":-1}', b'{"is":"log","bytes":true}', b'{"bytes":1}']
)
def test_what_is_no_frame(line: bytes) -> None:
    with pytest.raises(NotAFrame, match="where a frame was expected"):
        list(FrameReader().feed(line + b"\n"))
