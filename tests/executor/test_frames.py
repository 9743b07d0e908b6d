"""Frames, whichever way they are cut on their way."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.wire.frames import LONGEST, Decoder, Malformed, encode

pytestmark = pytest.mark.quick
HEADERS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=4)


def decoded(decoder: Decoder, pieces: list[bytes]) -> list[tuple[dict[str, object], bytes]]:
    found: list[tuple[dict[str, object], bytes]] = []
    header: dict[str, object] = {}
    body = b""
    for piece in pieces:
        for kind, value in decoder.feed(piece):
            if kind == "frame":
                header, body = value, b""
            elif kind == "data":
                body += value
            else:
                found.append((header, body))
    return found


@given(frames=st.lists(st.tuples(HEADERS, st.binary(max_size=40)), max_size=5), cuts=st.lists(st.integers(0, 600), max_size=9))
def test_what_is_sent_comes_out_however_it_is_cut(frames: list[tuple[dict[str, object], bytes]], cuts: list[int]) -> None:
    data = b"".join(encode(header, body) for header, body in frames)
    places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    decoder = Decoder()
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert decoded(decoder, pieces) == [({**header, "size": len(body)}, body) for header, body in frames]
    assert decoder.between


@given(st.binary(min_size=1, max_size=60))
def test_anything_else_is_malformed_or_not_whole(data: bytes) -> None:
    decoder = Decoder()
    try:
        for _, body in decoded(decoder, [data]):
            assert len(body) <= len(data)
    except Malformed:
        return
    assert decoder.between or decoder.feed(b"") == []


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", LONGEST + 1),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 11) + b'{"size":-1}',
        struct.pack(">I", 13) + b'{"size":true}',
        struct.pack(">I", 4) + b"\xff\xff\xff\xff",
    ],
)
def test_headers_without_a_size_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        Decoder().feed(data)
