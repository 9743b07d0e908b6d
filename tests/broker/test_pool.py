"""The pool of host memory: who has which piece, what anybody can read in it, and what the machine keeps."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.core.domain.errors import Conflict, Unavailable
from carrel.core.domain.units import GIB, KIB, MIB
from carrel.node.broker.journal import BrokerJournal
from carrel.node.broker.pool import HostPool, Piece, PoolFull, piece_size
from carrel.node.broker.pool_allocations import PoolAllocations

PIECE = 64 * KIB
PLENTY = 1 << 40

Pools = Callable[..., HostPool]


@pytest.fixture
def pools() -> Iterator[Pools]:
    """Makes pools; at the end every descriptor must be closed."""
    before = descriptors()
    made: list[HostPool] = []

    def make(limit: int, **options: Any) -> HostPool:
        made.append(HostPool(limit, **{"piece": PIECE, "available": lambda: PLENTY, **options}))
        return made[-1]

    yield make
    for pool in made:
        pool.end()
    assert descriptors() == before, "nothing leaks"


def written(place: Path) -> PoolAllocations:
    """What the broker that begins now reads, and writes down from now on."""
    given = PoolAllocations()
    given.keep(place / "host_memory.jsonl", lambda: 1.0)
    return given


def descriptors() -> int:
    """How many files in memory this process has open."""
    return sum(1 for path in Path("/proc/self/fd").iterdir() if path.is_symlink() and "carrel-state" in str(path.readlink()))


def content(piece: Piece) -> set[int]:
    """The bytes that a process finds in it."""
    return set(os.pread(piece.fd, piece.size, 0))


def fill(pieces: list[Piece], mark: int) -> None:
    """A process puts its state there."""
    for piece in pieces:
        os.pwrite(piece.fd, bytes([mark]) * piece.size, 0)


def settle(pool: HostPool) -> None:
    """Everything that is done in the background is done."""
    while pool.prepare():
        pass


def touched(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


@pytest.mark.gate
def test_pieces_cover_what_is_asked_for_and_a_full_pool_says_what_is_free(pools: Pools) -> None:
    pool = pools(4 * PIECE)
    pieces = pool.take("ada", PIECE * 2 + 1)
    assert [piece.size for piece in pieces] == [PIECE] * 3
    with pytest.raises(PoolFull, match="64K free, and 128K are asked for") as caught:
        pool.take("bob", 2 * PIECE)
    assert caught.value.free == pool.left() == PIECE
    pool.give_back(pieces[:1])
    assert len(pool.take("bob", 2 * PIECE)) == 2


def test_a_piece_has_no_name_and_a_fixed_size(pools: Pools) -> None:
    [piece] = pools(PIECE).take("ada", 1)
    assert "memfd:" in str(Path(f"/proc/self/fd/{piece.fd}").readlink())
    assert not os.get_inheritable(piece.fd)
    for size in (0, 2 * PIECE):
        with pytest.raises(PermissionError):
            os.ftruncate(piece.fd, size)


def test_another_user_sees_nothing_even_who_kept_a_descriptor(pools: Pools) -> None:
    pool = pools(PIECE)
    [hers] = pool.take("ada", 1)
    fill([hers], 7)
    kept = os.dup(hers.fd)
    pool.give_back([hers])
    [his] = pool.take("bob", 1)
    assert content(his) == {0}
    fill([his], 9)
    assert set(os.pread(kept, PIECE, 0)) == {7}, "and she sees nothing of his"
    os.close(kept)


def test_the_same_user_gets_the_touched_memory_again_under_a_new_number(pools: Pools) -> None:
    pool = pools(2 * PIECE)
    [first] = pool.take("ada", 1, holder="kernel-1")
    fill([first], 7)
    pool.give_back([first])
    [again] = pool.take("ada", 1, holder="kernel-2")
    assert again.fd == first.fd
    assert again.number != first.number
    pool.give_back([first])
    assert pool.held("kernel-2") == [again], "what comes late changes nothing"


def test_the_pieces_of_a_process_that_is_gone_come_back(pools: Pools) -> None:
    pool = pools(4 * PIECE)
    pool.take("ada", 2 * PIECE, holder="kernel-1")
    [other] = pool.take("ada", PIECE, holder="kernel-2")
    pool.close("kernel-1")
    assert pool.left() == 3 * PIECE
    assert pool.held("kernel-1") == []
    assert pool.held("kernel-2") == [other]


@pytest.mark.parametrize("huge", [False, True])
def test_memory_that_is_ready_is_there_as_a_whole(pools: Pools, huge: bool) -> None:
    pool = pools(24 * MIB, piece=12 * MIB, ready=12 * MIB, huge=huge)
    settle(pool)
    (piece,) = pool.take("ada", 12 * MIB)
    assert touched(piece.fd) == 12 * MIB
    assert content(piece) == {0}


def test_memory_is_touched_in_the_background_and_kept_ready(pools: Pools) -> None:
    pool = pools(4 * PIECE, ready=2 * PIECE)
    settle(pool)
    assert pool.use().ready == 2 * PIECE
    pieces = pool.take("ada", 3 * PIECE)
    assert [touched(piece.fd) for piece in pieces] == [PIECE, PIECE, 0], "what is not ready is touched by who registers it"
    settle(pool)
    assert pool.use().ready == PIECE, "as much as the limit allows"
    fill(pieces, 7)
    pool.give_back(pieces)
    settle(pool)
    assert (pool.use().ready, pool.use().used_before) == (2 * PIECE, 2 * PIECE), "cleared in the background, as far as is needed"
    assert all(content(piece) == {0} for piece in pool.take("bob", 2 * PIECE))


def test_a_thread_prepares_it(pools: Pools) -> None:
    pool = pools(2 * PIECE, ready=2 * PIECE)
    pool.start()
    while pool.use().ready < 2 * PIECE:  # the time limit of the test is the limit
        os.sched_yield()


def test_a_machine_that_is_short_of_memory_gets_it_back(pools: Pools) -> None:
    free = 10 * PIECE
    pool = pools(8 * PIECE, ready=8 * PIECE, floor=4 * PIECE, available=lambda: free)
    free = 5 * PIECE
    settle(pool)
    assert pool.use().ready == 0, "nothing is touched where little would be left"
    assert pool.left() == PIECE
    free = 6 * PIECE
    assert pool.prepare()
    assert pool.use().ready == PIECE
    given = pool.take("ada", PIECE)
    pool.give_back(pool.take("bob", PIECE))
    free = 3 * PIECE
    settle(pool)
    use = pool.use()
    assert (use.ready, use.used_before, use.given) == (0, 0, PIECE), "what is free goes; what a process has stays"
    with pytest.raises(PoolFull):
        pool.take("ada", 1)
    assert content(given[0]) == {0}


def test_memory_that_was_promised_but_not_touched_is_not_promised_again(pools: Pools) -> None:
    pool = pools(8 * PIECE, available=lambda: 2 * PIECE)
    [first] = pool.take("ada", PIECE)
    assert pool.left() == PIECE
    fill([first], 1)
    assert pool.left() == 2 * PIECE, "by now the machine's own number tells it"


def test_pieces_outlive_the_broker(pools: Pools, tmp_path: Path) -> None:
    old = pools(4 * PIECE, given=written(tmp_path))
    pieces = old.take("ada", 3 * PIECE)
    fill(pieces, 7)
    copies = [os.dup(piece.fd) for piece in pieces]
    old.end()
    new = pools(4 * PIECE, given=written(tmp_path))
    assert (new.left(), new.use().given) == (PIECE, 3 * PIECE), "also before the process shows what it has"
    [mine] = new.take("bob", PIECE)
    assert mine.number > max(piece.number for piece in pieces)
    for piece, copy in zip(pieces, copies, strict=True):
        new.adopt("ada", piece.number, piece.size, copy)
    assert content(new.held("ada")[0]) == {7}
    assert new.left() == 0
    again = new.adopt("ada", pieces[0].number, PIECE, os.dup(copies[0]))
    assert again == new.held("ada")[0], "one that only connected again"
    new.close("ada")
    assert new.left() == 3 * PIECE
    assert content(mine) == {0}
    assert all(content(piece) == {0} for piece in new.take("bob", 3 * PIECE))


def test_only_what_a_broker_gave_is_adopted(pools: Pools, tmp_path: Path) -> None:
    old = pools(8 * PIECE, given=written(tmp_path))
    first, second = old.take("ada", 2 * PIECE, holder="kernel-1")
    [back] = old.take("ada", PIECE, holder="kernel-1")
    old.give_back([back])
    [his] = old.take("bob", PIECE, holder="kernel-2")
    own = HostPool(PIECE, piece=PIECE).take("mallory", PIECE)[0].fd
    plain = os.memfd_create("carrel-state")
    os.ftruncate(plain, PIECE)
    reading, writing = os.pipe()
    os.close(writing)
    memory = {name: os.dup(piece.fd) for name, piece in {"first": first, "back": back, "his": his}.items()}
    old.end()
    new = pools(8 * PIECE, given=written(tmp_path))
    for owner, holder, number, size, fd in [
        ("ada", "kernel-1", 77, PIECE, os.dup(own)),  # its own making, as good as a broker's
        ("ada", "kernel-1", second.number, PIECE, own),  # in the place of a piece that it got
        ("ada", "kernel-1", second.number, PIECE, os.dup(memory["first"])),
        ("ada", "kernel-1", first.number, 2 * PIECE, os.dup(memory["first"])),
        ("ada", "kernel-1", back.number, PIECE, memory["back"]),  # it gave that back
        ("ada", "kernel-1", his.number, PIECE, os.dup(memory["his"])),
        ("ada", "kernel-2", his.number, PIECE, os.dup(memory["his"])),
        ("bob", "kernel-1", his.number, PIECE, memory["his"]),
        ("ada", "kernel-1", first.number, PIECE, plain),
        ("ada", "kernel-1", first.number, PIECE, reading),
    ]:
        with pytest.raises(Conflict):
            new.adopt(owner, number, size, fd, holder=holder)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
    assert new.use().given == 3 * PIECE
    assert new.left() == 5 * PIECE, "nobody has less room because of what was made up"
    new.adopt("ada", first.number, PIECE, memory["first"], holder="kernel-1")
    new.all_shown("kernel-1")
    assert new.left() == 6 * PIECE, "a piece that never arrived is free again"


def test_what_processes_had_that_ended_meanwhile_is_free_again(pools: Pools, tmp_path: Path) -> None:
    old = pools(4 * PIECE, given=written(tmp_path))
    old.take("ada", 2 * PIECE, holder="kernel-1")
    old.take("ada", 2 * PIECE, holder="kernel-2")
    old.end()
    alive = {"kernel-1", "kernel-2"}
    new = pools(4 * PIECE, given=written(tmp_path), lives=alive.__contains__)
    with pytest.raises(PoolFull):
        new.take("bob", PIECE)
    alive.discard("kernel-1")  # which has never connected, so nobody watched it
    assert len(new.take("bob", 2 * PIECE)) == 2
    new.close("kernel-2")
    assert new.left() == 2 * PIECE
    new.end()
    assert [given.owner for given in written(tmp_path)] == ["bob", "bob"]


def test_nothing_is_given_that_cannot_be_written_down(pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = written(tmp_path)
    pool = pools(4 * PIECE, given=given)
    kept = pool.take("ada", PIECE)

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(BrokerJournal, "append", full)
        with pytest.raises(Unavailable, match="no space left"):
            pool.take("ada", PIECE)
        assert pool.left() == 3 * PIECE
        pool.give_back(kept)  # at worst the next broker believes that she has it still, if she says so
    assert pool.left() == 4 * PIECE
    assert len(pool.take("ada", 4 * PIECE)) == 4


def test_a_pool_that_became_smaller_keeps_what_processes_have_and_gives_nothing_more(pools: Pools, tmp_path: Path) -> None:
    old = pools(4 * PIECE, given=written(tmp_path))
    pieces = old.take("ada", 4 * PIECE)
    new = pools(2 * PIECE, given=written(tmp_path))
    assert new.left() == 0
    for piece in pieces:
        new.adopt("ada", piece.number, piece.size, os.dup(piece.fd))
    assert new.left() == 0
    new.close("ada")
    settle(new)
    assert new.left() == new.use().used_before == 2 * PIECE


def test_one_process_can_have_the_whole_pool_in_one_message() -> None:
    assert piece_size(16 * GIB) == 256 * MIB
    for limit in (64 * GIB, 300 * GIB, 2048 * GIB):
        assert limit // piece_size(limit) <= 160


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(1000, 4000), marks=pytest.mark.soak)])
def test_random_takes_returns_deaths_restarts_and_shortages(pools: Pools, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        (tmp_path / f"{seed}").mkdir()
        _History(pools, random.Random(seed), tmp_path / f"{seed}").run(120)


class _History:
    """Processes of three users come and go; each writes its user's mark into what it has."""

    def __init__(self, pools: Pools, dice: random.Random, place: Path) -> None:
        self.dice = dice
        self.place = place
        self.pools = pools
        self.limit = dice.choice([4, 9, 16]) * PIECE
        self.free = PLENTY
        #: Of each process: its pieces by number, with a descriptor of its own.
        self.processes: dict[str, dict[int, tuple[int, int]]] = {}
        self.numbers: set[int] = set()
        self.born = 0
        self.pool = self.begin()

    def begin(self) -> HostPool:
        return self.pools(
            self.limit,
            given=written(self.place),
            lives=self.processes.__contains__,
            ready=self.dice.choice([0, self.limit // 2, self.limit]),
            floor=2 * PIECE,
            available=lambda: self.free,
        )

    def run(self, steps: int) -> None:
        moves = [self.take] * 4 + [self.give_back] * 2 + [self.die, self.restart, self.memory] + [self.work] * 3
        for _ in range(steps):
            self.dice.choice(moves)()
            self.check()
        for name in list(self.processes):
            self.die(name)
        self.pool.end()

    def work(self) -> None:
        self.pool.prepare()

    def take(self) -> None:
        if not self.processes or self.dice.random() < 0.4:
            self.born += 1
            self.processes[f"{self.dice.choice('abc')}{self.born}"] = {}
        name = self.dice.choice(list(self.processes))
        size = self.dice.randrange(1, self.limit)
        left = self.pool.left()
        if size > left:
            with pytest.raises(PoolFull) as caught:
                self.pool.take(name[0], size, holder=name)
            assert caught.value.free == left
            return
        pieces = self.pool.take(name[0], size, holder=name)
        assert sum(piece.size for piece in pieces) >= size
        for piece in pieces:
            assert piece.number not in self.numbers, "a number is used once"
            self.numbers.add(piece.number)
            assert content(piece) <= {0, ord(name[0])}, "nobody reads another user's bytes"
            self.processes[name][piece.number] = (piece.size, os.dup(piece.fd))
            if self.dice.random() < 0.7:
                fill([piece], ord(name[0]))

    def give_back(self) -> None:
        name = self.dice.choice([*self.processes, ""])
        pieces = [piece for piece in self.pool.held(name) if self.dice.random() < 0.5]
        for piece in pieces:
            os.close(self.processes[name].pop(piece.number)[1])
        self.pool.give_back(pieces)

    def die(self, name: str | None = None) -> None:
        name = name or self.dice.choice([*self.processes, ""])
        for _size, fd in self.processes.pop(name, {}).values():
            os.close(fd)
        self.pool.close(name)

    def restart(self) -> None:
        """The broker is killed; processes that live say what they have, in any order, some of them twice."""
        self.pool.end()
        self.pool = self.begin()
        have = [(name, number, *found) for name, pieces in self.processes.items() for number, found in pieces.items()]
        self.dice.shuffle(have)
        for name, number, size, fd in have:
            for _ in range(self.dice.choice([1, 1, 2])):
                self.pool.adopt(name[0], number, size, os.dup(fd), holder=name)
            if self.dice.random() < 0.1:
                self.work()

    def memory(self) -> None:
        self.free = self.dice.choice([PLENTY, PLENTY, 5 * PIECE, PIECE])

    def check(self) -> None:
        held = {name: {piece.number for piece in self.pool.held(name)} for name in self.processes}
        assert held == {name: set(pieces) for name, pieces in self.processes.items()}, "nobody has what is another's"
        use = self.pool.use()
        have = [found for pieces in self.processes.values() for found in pieces.values()]
        assert len({os.fstat(fd).st_ino for _size, fd in have}) == len(have), "no piece is in two hands"
        assert sum(size for size, _fd in have) == use.given
        assert use.given + use.ready + use.used_before <= self.limit, "never over the limit"
