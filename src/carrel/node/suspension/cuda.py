"""Suspension with the CUDA driver's checkpoint calls (CUDA driver API, "CUDA Checkpointing"; driver 570 and newer)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from carrel.node.devices.driver import GpuFacts
from carrel.node.suspension.calls import Calls, Deadlines, DriverSilent, NoAnswer
from carrel.node.suspension.lines import Ended, Silent
from carrel.node.suspension.operation import FailureLimit, Stop
from carrel.node.suspension.pool import HelperPool
from carrel.node.suspension.ports import Capability, DriverState, Ending, Moved, Target, Use
from carrel.node.suspension.probe import Bench, probe, read_facts
from carrel.node.suspension.suspending import Resuming, Suspending


class CudaSuspender:
    """A `Suspender`. All calls of the driver, NVML's too, are made in helper processes that are ended when they do not answer.

    Endings, beyond what `Ending` says: a driver that hangs twice in one operation, or cannot be asked any more in the middle of
    one, makes it LOST with `cordon`; when nothing had been begun yet it is RETRY with `cordon`. A lock that fails `patience`
    times in a row makes the process UNSUSPENDABLE. Operations can be repeated at any point, also by a successor after a crash:
    they go on from the state that the driver tells.
    """

    def __init__(
        self,
        *,
        devices: Sequence[str] | None = None,
        cache: Path | None = None,
        environment: Mapping[str, str] | None = None,
        deadlines: Deadlines | None = None,
        patience: int = 5,
        python: str = sys.executable,
    ) -> None:
        """`devices`: UUIDs that this node lends (default: all that NVML shows). `cache`: a file for what the probe found.

        `environment`: variables of the helper processes (default: ours). `python` has carrel and cuda-bindings.
        """
        self._devices = None if devices is None else tuple(devices)
        self._cache = cache
        self._environment = dict(os.environ if environment is None else environment)
        self._deadlines = deadlines or Deadlines()
        self._patience = FailureLimit(patience)
        self._python = python
        self._closing = threading.Event()
        self._pool = HelperPool(
            environment=self._environment,
            start_seconds=self._deadlines.start,
            python=python,
        )

    def probe(self) -> Capability:
        """Try the whole cycle on a process of our own; the answer stays in `cache` for this boot, driver and devices.

        It takes seconds, and 64 MiB (where there is plenty of room 1 GiB) of one device and of the host. Where it is HOLD,
        `message` says what stood in the way; what may have been temporary is not kept, and tried again next time.
        """
        bench = Bench(suspender=self, environment=self._environment, python=self._python, start_seconds=self._deadlines.start)
        return probe(pool=self._pool, bench=bench, devices=self._devices, cache=self._cache, seconds=self._deadlines.nvml)

    def state(self, target: Target) -> DriverState:
        """Where the process' state is."""
        try:
            return self._calls().state(target)
        except (DriverSilent, NoAnswer):
            return DriverState.UNKNOWN

    def suspend(self, targets: Sequence[Target], *, devices: Sequence[str], size: int) -> Moved:
        """Lock all, checkpoint all, see that `devices` show none of them. The first is the main one: GONE is about it."""
        calls = self._calls()
        began = time.monotonic()
        work = Suspending(calls, self._deadlines, self._patience)
        try:
            moved = Moved(ending=Ending.DONE, bytes=work.run(targets, devices, size))
        except (Stop, DriverSilent, NoAnswer) as error:
            moved = _ended(error, touched=work.touched, size=size)
        return replace(moved, seconds=time.monotonic() - began)

    def resume(
        self, targets: Sequence[Target], *, devices: Sequence[str], size: int, moves: Mapping[str, str] | None = None
    ) -> Moved:
        """Restore all, see that they are on `devices`, unlock all.

        Without `moves` they come back onto their home devices. `moves` (old UUID -> new UUID) asks for others. A driver that
        refuses the map has done nothing (RETRY); one that ignores it brings them home, which is UNVERIFIED unless `devices` holds
        home too, and the end of the state where that is full.
        """
        calls = self._calls()
        moves = whole_map(moves, [gpu.uuid for gpu in self._gpus()]) if moves else {}
        began = time.monotonic()
        work = Resuming(calls, self._deadlines, self._patience)
        try:
            moved = Moved(ending=Ending.DONE, bytes=work.run(targets, devices, size, moves) or size)
        except (Stop, DriverSilent, NoAnswer) as error:
            moved = _ended(error, touched=work.touched, size=size)
        return replace(moved, seconds=time.monotonic() - began)

    def use(self) -> Use:
        """Who is on the devices now. A device that does not answer is in neither map: then nobody knows."""
        try:
            now = self._calls().use(self._devices)
        except NoAnswer:
            return Use()
        return Use(processes=now.processes, used=now.used, busy=now.busy)

    def close(self) -> None:
        """End the helper processes. Suspended processes stay suspended; no operation may be under way."""
        self._closing.set()
        self._pool.close()

    def _gpus(self) -> Sequence[GpuFacts]:
        """All that the driver shows, also those that this node does not lend: the driver wants each in a map."""
        try:
            facts = read_facts(self._pool, self._deadlines.nvml)
        except (Silent, Ended):
            return ()
        return () if facts is None else facts.gpus

    def _calls(self) -> Calls:
        return Calls(self._pool, self._deadlines, self._closing)


def whole_map(moves: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """Return the map with all `devices` in it: those that are in the way of a move take the places that come free by it."""
    to = [uuid for uuid in moves if uuid not in moves.values()]
    others = {uuid: uuid for uuid in devices if uuid not in moves and uuid not in moves.values()}
    return {**moves, **others, **dict(zip((uuid for uuid in moves.values() if uuid not in moves), to, strict=True))}


def _ended(error: Stop | DriverSilent | NoAnswer, *, touched: bool, size: int) -> Moved:
    if isinstance(error, Stop):
        there = size if error.ending is Ending.UNVERIFIED else 0
        return Moved(ending=error.ending, message=error.message, bytes=there, libraries=error.libraries)
    if isinstance(error, NoAnswer) and not touched:
        return Moved(ending=Ending.RETRY, message=f"The driver cannot be asked: {error}. Nothing was begun.")
    if not touched:
        return Moved(ending=Ending.RETRY, message=f"The driver hung twice ({error}) before anything was begun.", cordon=True)
    return Moved(ending=Ending.LOST, message=f"The driver does not answer any more: {error}.", cordon=True)
