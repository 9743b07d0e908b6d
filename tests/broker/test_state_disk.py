"""GPU states on the disk: what comes back is what went out, or the state is lost and named."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.units import GIB, KIB, MIB
from carrel.node.broker.boot_key import BootKey, boot_key
from carrel.node.broker.disk import CHUNK, DiskFull, StateDisk, StateLost
from carrel.node.broker.pool import HostPool, Piece

PIECE = 512 * KIB


@pytest.fixture
def pool() -> Iterator[HostPool]:
    pool = HostPool(512 * MIB, piece=PIECE, available=lambda: 1 << 40)
    yield pool
    pool.end()


@pytest.fixture
def key(tmp_path: Path) -> BootKey:
    return BootKey(bytes(range(32)))


def disk_in(path: Path, key: BootKey, *, limit: int = GIB, floor: int = 0) -> StateDisk:
    return StateDisk(path, limit=limit, floor=floor, key=key)


def put(pieces: list[Piece], data: bytes) -> None:
    for piece in pieces:
        os.pwrite(piece.fd, data[: piece.size], 0)
        data = data[piece.size :]


def got(pieces: list[Piece], size: int) -> bytes:
    return b"".join(os.pread(piece.fd, piece.size, 0) for piece in pieces)[:size]


def files(path: Path) -> list[Path]:
    return sorted(path.iterdir())


@pytest.mark.parametrize("size", [1, 4096, CHUNK - 16, CHUNK - 15, 2 * CHUNK + 12345])
def test_a_state_goes_out_and_comes_back_into_other_pieces(tmp_path: Path, pool: HostPool, key: BootKey, size: int) -> None:
    disk, data = disk_in(tmp_path / "d", key), random.Random(size).randbytes(size)
    pieces = pool.take("ada", size)
    put(pieces, data)
    disk.write("state", pieces, size)
    [file] = files(tmp_path / "d")
    assert file.stat().st_mode & 0o077 == 0
    assert data[:1000] not in file.read_bytes() or size < 100, "nobody reads it there"
    assert disk.used() == file.stat().st_size
    pool.give_back(pieces)
    again = pool.take("bob", 1) + pool.take("ada", size)
    assert disk.read("state", again[1:]) == size
    assert got(again[1:], size) == data
    disk.remove("state")
    assert files(tmp_path / "d") == []


def test_a_full_disk_is_said_with_the_numbers_and_leaves_nothing(tmp_path: Path, pool: HostPool, key: BootKey) -> None:
    pieces = pool.take("ada", 10 * MIB)
    small = disk_in(tmp_path / "small", key, limit=14 * MIB)
    small.write("one", pieces, 5 * MIB)
    with pytest.raises(DiskFull, match=r"has 9M free for GPU states, 10M are needed"):
        small.write("two", pieces, 10 * MIB)
    assert len(files(tmp_path / "small")) == 1
    assert 0 < small.left() < 8 * MIB
    with pytest.raises(DiskFull):
        disk_in(tmp_path / "kept", key, floor=1 << 60).write("one", pieces, MIB)
    assert files(tmp_path / "kept") == []


def test_a_file_that_the_system_does_not_take_leaves_nothing(tmp_path: Path, pool: HostPool, key: BootKey) -> None:
    limit = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))"""
    _, said = writer(tmp_path / "d", limit).communicate()
    assert b"cannot be written to the disk: file too large" in said
    assert files(tmp_path / "d") == []


def test_a_broker_that_is_killed_while_it_writes_leaves_a_whole_state_or_none(
    tmp_path: Path, pool: HostPool, key: BootKey
) -> None:
    (tmp_path / "d").mkdir()
    process = writer(tmp_path / "d", "")
    while not files(tmp_path / "d"):  # the time limit of the test is the limit
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    disk = disk_in(tmp_path / "d", key)
    if disk.clean(["state"]):
        assert files(tmp_path / "d") == []
    else:
        assert disk.read("state", pool.take("ada", 64 * MIB)) == 64 * MIB


def writer(path: Path, first: str) -> subprocess.Popen[bytes]:
    """A process that writes a state of 64 MiB."""
    program = f"""
MIB = 1 << 20
from pathlib import Path
from carrel.node.broker.boot_key import BootKey
from carrel.node.broker.disk import StateDisk
from carrel.node.broker.pool import HostPool
pieces = HostPool(64 * MIB, piece=16 * MIB, available=lambda: 1 << 40).take("ada", 64 * MIB)
{first}
StateDisk(Path({str(path)!r}), limit=1 << 40, floor=0, key=BootKey(bytes(range(32)))).write("state", pieces, 64 * MIB)
"""
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)


def test_after_a_restart_states_are_there_and_what_nobody_names_goes(tmp_path: Path, pool: HostPool, key: BootKey) -> None:
    pieces = pool.take("ada", MIB)
    before = disk_in(tmp_path, key)
    for name in ("a", "b", "c"):
        before.write(name, pieces, MIB)
    (tmp_path / "half.part").write_bytes(b"x")
    after = disk_in(tmp_path, key)
    assert after.clean(["a", "c", "never"]) == ["never"]
    assert len(files(tmp_path)) == 2
    assert after.read("c", pieces) == MIB


def test_after_a_boot_every_state_is_lost_and_its_file_is_gone(tmp_path: Path, pool: HostPool, key: BootKey) -> None:
    pieces = pool.take("ada", MIB)
    disk_in(tmp_path, key).write("a", pieces, MIB)
    after = disk_in(tmp_path, BootKey(bytes(32)))
    with pytest.raises(StateLost):
        after.read("a", pieces)
    assert after.clean(["a"]) == ["a"]
    assert files(tmp_path) == []


def test_the_key_is_kept_in_memory_until_the_machine_boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        places = (tmp_path, Path(memory))
        first = boot_key(Path("/lab/broker"), places)
        [file] = Path(memory).glob("*/*")
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert boot_key(Path("/lab/broker"), places) == first
        assert boot_key(Path("/other/broker"), places).id != first.id
        assert first.secret.hex() not in repr(first)
        monkeypatch.setattr("carrel.node.broker.boot_key.boot_id", lambda: "another boot")
        assert boot_key(Path("/lab/broker"), places).id != first.id
        file.parent.chmod(0o755)
        with pytest.raises(Unavailable, match="is not in memory; .*belongs to somebody else"):
            boot_key(Path("/lab/broker"), places)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(100, 400), marks=pytest.mark.soak)])
def test_damage_is_seen_and_never_becomes_a_state(tmp_path: Path, pool: HostPool, key: BootKey, seeds: range) -> None:
    for seed in seeds:
        dice = random.Random(seed)
        size = dice.choice([dice.randrange(1, 5000), dice.randrange(1, 3 * CHUNK)])
        data = dice.randbytes(size)
        disk, directory = disk_in(tmp_path / str(seed), key), tmp_path / str(seed)
        pieces = pool.take("ada", size)
        put(pieces, data)
        disk.write("mine", pieces, size)
        disk.write("other", pieces, size)
        good = {path: path.read_bytes() for path in files(directory)}
        for _ in range(8):
            for path, content in good.items():
                path.write_bytes(content)
            damage(dice, directory, list(good))
            put(pieces, bytes(size))
            with suppress(StateLost):
                assert disk.read("mine", pieces) == size
                assert got(pieces, size) == data, f"wrong bytes, seed {seed}"
        pool.give_back(pieces)


def damage(dice: random.Random, directory: Path, paths: list[Path]) -> None:
    """Change one file in a way that a disk or a person could."""
    path = dice.choice(paths)
    content = bytearray(path.read_bytes())
    match dice.randrange(6):
        case 0:
            path.unlink()
        case 1:
            os.truncate(path, dice.randrange(len(content)))
        case 2:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            path.write_bytes(content)
        case 3:
            start = dice.randrange(len(content))
            path.write_bytes(content[:start] + bytes(dice.randrange(1, 9000)) + content[start:])
        case 4:
            paths[0].write_bytes(paths[1].read_bytes())
        case 5:
            content[4096:8192], content[-4096:] = content[-4096:], content[4096:8192]
            path.write_bytes(content)
