"""Messages, and the pieces in which a connection may deliver them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

#: Bytes of a message at most.
LIMIT = 40


def one_line(data: bytes) -> bytes:
    return data.replace(b"\n", b"_")


lines = st.lists(st.binary(min_size=1, max_size=LIMIT).map(one_line), max_size=8)
cuts = st.lists(st.integers(0, 400), max_size=20)


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    """The same bytes, cut at these places."""
    places = sorted({0, len(data), *(place for place in at if place < len(data))})
    return [data[begin:end] for begin, end in pairwise(places)]
