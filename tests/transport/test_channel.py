"""Channels over real sockets and pipes."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from streams import cut, cuts, lines

from carrel.core.transport.channel import Channel, Dropped, Silent, peer_credentials
from carrel.core.transport.framing import Closed, Ended, Lines, TooLong, Torn
from carrel.core.transport.reactor import Reactor

#: Seconds that are enough on any machine.
PATIENCE = 60.0
LIMIT = 1000


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


def test_messages_come_in_order_and_then_the_end(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    channel = Channel(Lines(LIMIT), ours)
    theirs.sendall(b"one\ntwo\n")
    theirs.close()
    assert channel.receive(PATIENCE) == b"one"
    assert channel.receive(PATIENCE) == b"two"
    for _ in range(2):
        with pytest.raises(Closed) as found:
            channel.receive(PATIENCE)
        assert type(found.value) is Closed


@given(lines, cuts)
def test_any_split_gives_the_same_messages(sent: list[bytes], at: list[int]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel, got = Channel(Lines(LIMIT), ours), list[bytes]()
    for piece in cut(b"".join(line + b"\n" for line in sent), at):
        theirs.sendall(piece)
        while (line := channel.receive(0.0)) is not None:
            got.append(line)
    assert got == sent
    theirs.close()
    with pytest.raises(Closed):
        channel.receive(PATIENCE)
    channel.close()


def test_nothing_within_the_time_is_none(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    channel = Channel(Lines(LIMIT), ours)
    theirs.sendall(b"half")
    assert channel.receive(0.0) is None
    theirs.sendall(b" and half\n")
    assert channel.receive(PATIENCE) == b"half and half"


def test_half_a_message_is_told_apart_from_a_clean_end(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(b"whole\nhal")
    theirs.close()
    channel = Channel(Lines(LIMIT), ours)
    assert channel.receive(PATIENCE) == b"whole"
    with pytest.raises(Torn, match="in the middle"):
        channel.receive(PATIENCE)


def test_a_message_that_is_too_long_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(b"whole\n" + b"x" * (LIMIT + 1))
    channel = Channel(Lines(LIMIT), ours)
    assert channel.receive(PATIENCE) == b"whole"
    with pytest.raises(TooLong, match="longer than 1000 bytes"):
        channel.receive(PATIENCE)


@pytest.fixture
def passing(ends: tuple[socket.socket, socket.socket]) -> Iterator[tuple[Channel, Channel, int, int]]:
    """Two channels, of which the second takes two descriptors, and the ends of a pipe."""
    read, write = os.pipe()
    yield Channel(Lines(LIMIT), ends[0]), Channel(Lines(LIMIT), ends[1], most_files=2), read, write
    os.close(read)


def test_descriptors_go_with_a_message(passing: tuple[Channel, Channel, int, int]) -> None:
    sender, taker, read, write = passing
    sender.send(b"take this\n", [write])
    sender.flush(PATIENCE)
    os.close(write)
    assert taker.receive(PATIENCE) == b"take this"
    (got,) = taker.files()
    os.write(got, b"hello")
    os.close(got)
    assert os.read(read, 100) == b"hello"
    assert os.read(read, 100) == b""  # nobody else has it


def test_more_descriptors_than_are_taken_are_closed(passing: tuple[Channel, Channel, int, int]) -> None:
    sender, taker, read, write = passing
    for number in range(3):
        sender.send(b"%d\n" % number, [write])
    os.close(write)
    assert [taker.receive(PATIENCE) for _ in range(3)] == [b"0", b"1", b"2"]
    kept = taker.files()
    assert len(kept) == 2
    for file in kept:
        os.close(file)
    assert os.read(read, 1) == b""


def test_descriptors_are_refused_from_a_moment_on(passing: tuple[Channel, Channel, int, int]) -> None:
    sender, taker, read, write = passing
    sender.send(b"1\n", [write])
    assert taker.receive(PATIENCE) == b"1"
    taker.refuse_files()
    sender.send(b"2\n", [write])
    os.close(write)
    assert taker.receive(PATIENCE) == b"2"
    assert taker.files() == []
    assert os.read(read, 1) == b""  # nobody has it


def test_descriptors_that_nobody_asked_for_are_closed_with_the_channel(passing: tuple[Channel, Channel, int, int]) -> None:
    sender, taker, read, write = passing
    sender.send(b"take this\n", [write])
    os.close(write)
    assert taker.receive(PATIENCE) == b"take this"
    taker.close()
    assert os.read(read, 100) == b""


def test_flushing_waits_for_the_reader_and_not_for_ever(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, _theirs = ends
    now = [0.0]
    channel = Channel(Lines(LIMIT), ours, backlog=1 << 30, monotonic=lambda: now[0])
    while not channel.waiting:
        channel.send(b"x" * 65536 + b"\n")
    with pytest.raises(Silent, match="within 0 s"):
        channel.flush(0.0)


def test_sending_to_nobody_shows_when_flushing(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    channel = Channel(Lines(LIMIT), ours)
    theirs.close()
    channel.send(b"hello\n")
    with pytest.raises(Closed):
        channel.flush(PATIENCE)


def test_the_kernel_says_who_is_there(ends: tuple[socket.socket, socket.socket]) -> None:
    found = peer_credentials(ends[0])
    assert (found.pid, found.uid, found.gid) == (os.getpid(), os.getuid(), os.getgid())


def test_a_child_is_spoken_with_through_its_pipes() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        channel = Channel(Lines(LIMIT), child.stdout, child.stdin)
        channel.send(b"hello\n")
        assert channel.receive(PATIENCE) == b"hello"
        channel.close()
        assert child.wait(PATIENCE) == 0


# --- with a reactor -----------------------------------------------------------------------------------------------------------


def test_a_reactor_calls_back_for_messages_and_once_for_the_end(
    ends: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    ours, theirs = ends
    told: list[object] = []

    def end(channel: Channel[bytes], why: Ended) -> None:
        told.append(type(why))
        channel.send(b"last words\n")
        reactor.stop()

    Channel(Lines(LIMIT), ours).attach(reactor, on_message=lambda _channel, line: told.append(line), on_end=end)
    theirs.sendall(b"one\ntwo\nthr")
    theirs.shutdown(socket.SHUT_WR)
    reactor.run()
    assert told == [b"one", b"two", Torn]
    assert theirs.recv(100) == b"last words\n"
    assert theirs.recv(100) == b""


def test_a_message_may_end_the_channel(ends: tuple[socket.socket, socket.socket], reactor: Reactor) -> None:
    ours, theirs = ends
    told: list[object] = []

    def message(channel: Channel[bytes], line: bytes) -> None:
        told.append(line)
        channel.end(Closed("enough"))
        reactor.stop()

    Channel(Lines(LIMIT), ours).attach(reactor, on_message=message, on_end=lambda _channel, why: told.append(str(why)))
    theirs.sendall(b"one\ntwo\n")
    reactor.run()
    assert told == [b"one", "enough"]


def test_somebody_who_does_not_read_is_dropped(ends: tuple[socket.socket, socket.socket], reactor: Reactor) -> None:
    ours, _theirs = ends
    told: list[Ended] = []
    channel = Channel(Lines(LIMIT), ours, backlog=100_000)
    channel.attach(reactor, on_message=lambda _channel, _line: None, on_end=lambda _channel, why: told.append(why))
    while channel.open:
        channel.send(b"x" * 999 + b"\n")
    channel.send(b"more\n")
    (why,) = told
    assert isinstance(why, Dropped)


def test_much_goes_out_as_it_is_read(ends: tuple[socket.socket, socket.socket], reactor: Reactor) -> None:
    ours, theirs = ends
    sender, taker = Channel(Lines(LIMIT), ours), Channel(Lines(LIMIT), theirs)
    sent, got = [b"%04d" % number * 200 for number in range(1000)], list[bytes]()
    rest = iter(sent)

    def more() -> None:
        while not sender.waiting and (line := next(rest, None)) is not None:
            sender.send(line + b"\n")

    def message(_channel: Channel[bytes], line: bytes) -> None:
        got.append(line)
        if len(got) == len(sent):
            reactor.stop()

    sender.attach(reactor, on_message=message, on_end=lambda _channel, _why: None, on_sent=more)
    taker.attach(reactor, on_message=message, on_end=lambda _channel, _why: None)
    reactor.post(more)
    reactor.run()
    assert got == sent
