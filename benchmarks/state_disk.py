"""GPU states to the disk and back, against a plain file of the same size; and how fast host memory gets ready."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from carrel.node.broker.boot_key import BootKey
from carrel.node.broker.disk import CHUNK, StateDisk
from carrel.node.broker.pool import PIECE, HostPool
from figure import Figure, median

_SIZE = 1 << 30
_TURNS = 3


def measure(scratch: Path) -> list[Figure]:
    pool = HostPool(_SIZE, ready=_SIZE)
    touched = _seconds(lambda: [None for _ in iter(pool.prepare, False)])
    pieces = pool.take("somebody", _SIZE)
    for piece in pieces:
        os.pwrite(piece.fd, secrets.token_bytes(PIECE), 0)
    disk = StateDisk(scratch / "states", limit=4 * _SIZE, floor=0, key=BootKey(secrets.token_bytes(32)))
    plain = scratch / "plain"
    taken: dict[str, list[float]] = {"write": [], "read": [], "plain write": [], "plain read": []}
    for turn in range(_TURNS):
        taken["plain write"].append(_seconds(lambda: _plain(plain, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)))
        taken["write"].append(_seconds(lambda turn=turn: disk.write(f"state {turn}", pieces, _SIZE)))
        taken["plain read"].append(_seconds(lambda: _plain(plain, os.O_RDONLY)))
        taken["read"].append(_seconds(lambda turn=turn: disk.read(f"state {turn}", pieces)))
        disk.remove(f"state {turn}")
    pool.end()
    rates = {name: [_SIZE / one / 1e9 for one in seconds] for name, seconds in taken.items()}
    figures = [median(f"GPU state on the disk: {name}", values, "GB/s") for name, values in rates.items()]
    for way in ("write", "read"):
        ratios = [ours / theirs for ours, theirs in zip(rates[way], rates[f"plain {way}"], strict=True)]
        figures.append(median(f"GPU state on the disk: {way}, encrypted, of plain", ratios, "×"))
    return [*figures, Figure(name="host memory touched in the background", value=_SIZE / touched / 1e9, unit="GB/s")]


def _plain(path: Path, flags: int) -> None:
    file = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    with mmap.mmap(-1, CHUNK) as buffer:
        buffer[:] = secrets.token_bytes(CHUNK)
        for offset in range(0, _SIZE, CHUNK):
            if flags & os.O_CREAT:
                os.pwrite(file, buffer, offset)
            else:
                os.preadv(file, [buffer], offset)
    os.fsync(file)
    os.close(file)


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
