"""Messages in a stream of bytes: however the stream is cut, the same messages come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import LIMIT, cut, cuts, lines, one_line

from carrel.core.transport.framing import Garbled, Incoming, Lines, TooLong, object_line, object_of


@given(lines, cuts, st.binary(max_size=LIMIT).map(one_line))
def test_any_split_gives_the_same_lines(sent: list[bytes], at: list[int], rest: bytes) -> None:
    framing = Lines(LIMIT)
    found = [line for piece in cut(b"".join(line + b"\n" for line in sent) + rest, at) for line in framing.feed(piece)]
    assert found == sent
    assert framing.midway == bool(rest)


@given(lines, st.integers(1, 100), cuts)
def test_a_line_that_is_too_long_is_refused_after_those_before_it(sent: list[bytes], more: int, at: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in sent) + b"x" * (LIMIT + more)
    for end in (b"", b"\n"):
        framing, found = Lines(LIMIT), []
        with pytest.raises(TooLong, match="longer than 40 bytes"):
            for piece in cut(stream + end, at):
                found += [line for line in framing.feed(piece)]  # noqa: C416 - what came before the error counts
        assert found == sent[: len(found)]


@given(st.lists(st.binary(max_size=60), max_size=6), cuts)
def test_raw_bytes_may_follow_a_line(bodies: list[bytes], at: list[int]) -> None:
    pieces, found = Incoming(LIMIT), []
    size: int | None = None
    for data in cut(b"".join(b"%d\n%b" % (len(body), body) for body in bodies), at):
        pieces.add(data)
        while True:
            if size is None:
                line = pieces.line()
                if line is None:
                    break
                size = int(line)
            body = pieces.exactly(size)
            if body is None:
                break
            found.append(body)
            size = None
    assert found == bodies
    assert len(pieces) == 0


def test_empty_lines_are_no_messages() -> None:
    assert list(Lines(LIMIT).feed(b"\n\na\n\n")) == [b"a"]


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())))
def test_an_object_is_one_line(fields: dict[str, object]) -> None:
    line = object_line(fields)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert object_of(line) == fields


@pytest.mark.parametrize("line", [b"", b"[]", b"3", b"\xff", b"{", b"[" * 100_000])
def test_what_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(Garbled, match="no JSON"):
        object_of(line)
