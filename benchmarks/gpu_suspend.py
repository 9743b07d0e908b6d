"""Suspending real GPU state: `PYTHONPATH=src python benchmarks/gpu_suspend.py`, on a machine with an NVIDIA GPU and PyTorch.

What it does, each part in processes of its own, so that one that fails does not spoil the next:

* `probe`: what the node's start-up probe says;
* `copy`: plain copies between host and device, pageable and pinned, to compare with;
* `state`: suspend and restore 1, 8 and 32 GB of PyTorch state, compare every element, see by NVML that it was gone and is back;
* `turns`: two processes with state on one device, only one of them there at a time, for some rounds;
* `flight`: a training suspended in the middle, three times; its parameters must be the very ones of an undisturbed run.

Sizes that the device or the host has no room for are left out, and so is what `--seconds` has no time for; both are said. With
`--fake` it runs on the fake driver of the tests, at small sizes and without PyTorch: that tests this program; the figures
mean nothing.

Needs: Python 3.11, torch, cuda-bindings, nvidia-ml-py. Ends with 0 when everything that ran was verified.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carrel.node.devices.driver import DriverFacts, GpuFacts
from carrel.node.devices.machine import memory_limit
from carrel.node.suspension import CudaSuspender, DriverState, Ending, Moved, Target, start_of
from carrel.node.suspension.lines import Conversation, Ended, Silent
from carrel.node.suspension.probe import has_open_module, read_facts
from figure import Figure

GB = 10**9
#: Beside the state: contexts, and what is needed to compare.
MARGIN = 2 * GB


class Skipped(Exception):
    """A part that cannot run here, and why."""


class Child:
    """A process with GPU state."""

    def __init__(self, run: Run) -> None:
        words = [sys.executable, str(Path(__file__).with_name("gpu_suspend_child.py")), run.kind, "--device", run.gpu.uuid]
        self._conversation = Conversation(words, run.environment)
        self._owed = 0
        self.target = Target(pid=self._conversation.pid, start=start_of(self._conversation.pid) or 0)
        try:
            self.ready = self._conversation.receive(180.0)
            if "error" in self.ready:
                raise RuntimeError(self.ready["error"])
        except BaseException:
            self._conversation.kill()
            raise

    def order(self, do: str, seconds: float = 120.0, **values: Any) -> dict[str, Any]:
        self._settle(seconds)
        answer = self._conversation.ask({"do": do, **values}, seconds)
        if "error" in answer:
            raise RuntimeError(f"{do}: {answer['error']}")
        return answer

    def peek(self, do: str) -> dict[str, Any] | None:
        """Ask something while the process is suspended; None when it does not answer then. The answer is taken later."""
        self._settle(0.5)
        if self._owed:
            return None
        self._conversation.send({"do": do})
        self._owed += 1
        return self._settle(3.0)

    def _settle(self, seconds: float) -> dict[str, Any] | None:
        answer = None
        while self._owed:
            try:
                answer = self._conversation.receive(seconds)
            except Silent:
                return None
            self._owed -= 1
        return answer

    def close(self) -> None:
        self._conversation.close(20.0)


@dataclass
class Run:
    """One run of this program."""

    suspender: CudaSuspender
    gpu: GpuFacts
    facts: DriverFacts
    environment: Mapping[str, str]
    kind: str
    ends_at: float
    results: dict[str, Any] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    #: What was wrong.
    wrong: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @contextmanager
    def child(self) -> Iterator[Child]:
        made = Child(self)
        try:
            yield made
        finally:
            if self.suspender.state(made.target) in (DriverState.LOCKED, DriverState.CHECKPOINTED):  # not to be killed live
                self.suspender.resume([made.target], devices=[self.gpu.uuid], size=self.gpu.memory)
            made.close()

    def suspend(self, child: Child, size: int) -> Moved:
        return self._moved(self.suspender.suspend([child.target], devices=[self.gpu.uuid], size=size), child, there=False)

    def resume(self, child: Child, size: int) -> Moved:
        return self._moved(self.suspender.resume([child.target], devices=[self.gpu.uuid], size=size), child, there=True)

    def _moved(self, moved: Moved, child: Child, *, there: bool) -> Moved:
        if moved.ending is not Ending.DONE:
            raise RuntimeError(f"{'resume' if there else 'suspend'} ended as {moved.ending}: {moved.message}")
        shown = child.target.pid in self.suspender.use().processes.get(self.gpu.uuid, {})
        if shown != there:
            raise RuntimeError(f"NVML {'shows' if shown else 'does not show'} process {child.target.pid} on the device")
        return moved

    def expect(self, what: str, holds: bool) -> None:
        if not holds:
            self.wrong.append(what)


def room(run: Run, size: int, *, copies_on_host: int = 1) -> None:
    """Raise `Skipped` when `size` bytes fit not on the device, or their image not into the host's memory."""
    free = run.gpu.memory - run.suspender.use().used.get(run.gpu.uuid, 0)
    margin = MARGIN if run.kind == "torch" else 0
    if size + margin > free:
        raise Skipped(f"{size / GB:g} GB: the device has {free / GB:.1f} GB free")
    host = host_free()
    if copies_on_host * size * 1.1 + margin > host:
        raise Skipped(f"{size / GB:g} GB: the host has {host / GB:.1f} GB free")


def host_free() -> int:
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    free = int(found[1]) * 1024 if found else 0
    limit = memory_limit()
    return free if limit is None else min(free, limit)


def probe(run: Run, cache: Path) -> None:
    began = time.monotonic()
    found = run.suspender.probe()
    kept = json.loads(cache.read_text()) if cache.exists() else {}
    run.results["probe"] = {
        "tier": found.tier,
        "message": found.message,
        "suspend_rate": found.suspend_rate,
        "restore_rate": found.restore_rate,
        "managed": kept.get("managed", ""),
        "seconds": time.monotonic() - began,
    }
    run.figures.append(
        Figure(
            name="start-up probe", value=time.monotonic() - began, unit="s", spread=f"tier {found.tier}. {found.message}".strip()
        )
    )
    if found.tier != "suspend":
        raise RuntimeError(f"the probe says {found.tier}: {found.message}")


def copy(run: Run, size: int) -> None:
    with run.child() as child:
        run.results["torch"] = child.ready["torch"]
        rates = child.order("copy", size=size)["rates"]
    run.results["copy"] = {"bytes": size, "rates": rates}
    run.figures += [Figure(name=f"plain copy, {name}", value=rate / GB, unit="GB/s") for name, rate in rates.items()]


def state(run: Run, size: int) -> None:
    room(run, size)
    rates = run.results.get("copy", {}).get("rates", {})
    with run.child() as child:
        child.order("fill", size=size)
        before = child.order("rss")["rss"]
        away = run.suspend(child, size)
        held = child.order("rss")["rss"]
        back = run.resume(child, size)
        same = child.order("check")["same"]
    run.expect(f"{size / GB:g} GB came back with other values", same)
    run.results.setdefault("state", []).append(
        {
            "bytes": size,
            "moved": away.bytes,
            "suspend_seconds": away.seconds,
            "restore_seconds": back.seconds,
            "same": same,
            "host_memory_of_the_process": held - before,
        }
    )
    for name, moved, way in (("suspend", away, "to host"), ("restore", back, "to device")):
        compared = ", ".join(
            f"{moved.bytes / moved.seconds / rates[key]:.2f} × {kind}"
            for kind in ("pinned", "pageable")
            if (key := f"{kind}, {way}") in rates
        )
        spread = f"{moved.seconds:.2f} s; {compared}; values {'the same' if same else '**differ**'}, NVML agrees"
        run.figures.append(
            Figure(name=f"{name} {size / GB:g} GB", value=moved.bytes / moved.seconds / GB, unit="GB/s", spread=spread)
        )


def turns(run: Run, size: int, rounds: int) -> None:
    room(run, size, copies_on_host=2)
    seconds = []
    with run.child() as first:
        first.order("fill", size=size)
        run.suspend(first, size)
        with run.child() as second:
            second.order("fill", size=size)
            here, there = second, first
            for _ in range(2 * rounds):
                began = time.monotonic()
                run.suspend(here, size)
                run.resume(there, size)
                seconds.append(time.monotonic() - began)
                here, there = there, here
                run.expect("a process came back from its turn with other values", here.order("check")["same"])
        run.resume(first, size)
        run.expect("the process that was away at the end has other values", first.order("check")["same"])
    run.results["turns"] = {"bytes": size, "seconds": seconds}
    spread = f"{min(seconds):.2f} to {max(seconds):.2f}, n={len(seconds)}, values the same, one on the device at a time"
    run.figures.append(
        Figure(
            name=f"hand-over between two with {size / GB:g} GB", value=sorted(seconds)[len(seconds) // 2], unit="s", spread=spread
        )
    )


def flight(run: Run, steps: int, size: int) -> None:
    with run.child() as child:
        child.order("fill", size=size)
        child.order("train", steps=steps)
        plain = child.order("join", 300.0)
    away: list[float] = []
    answers = []
    with run.child() as child:
        child.order("fill", size=size)
        child.order("train", steps=steps)
        for part in (1, 2, 3):
            wait_for(child, steps * part // 5)
            began = time.monotonic()
            run.suspend(child, GB)
            threading.Event().wait(0.2)  # what was called before the lock is counted
            first = child.peek("count")
            threading.Event().wait(0.2)
            second = child.peek("count")
            answers.append(first is not None and second is not None)
            if first is not None and second is not None:
                run.expect("it was over before it could be suspended", first["count"] < steps)
                run.expect(f"it went on while it was suspended ({first} to {second})", second["count"] - first["count"] <= 1)
            run.resume(child, GB)
            away.append(time.monotonic() - began)
            run.expect("it was over when it came back", child.order("count")["count"] < steps)
        disturbed = child.order("join", 300.0)
    same = plain["digest"] == disturbed["digest"]
    run.expect("the training that was suspended ended with other parameters", same)
    run.results["flight"] = {
        "steps": steps,
        "seconds": plain["seconds"],
        "disturbed_seconds": disturbed["seconds"],
        "away": away,
        "same": same,
        "answers_while_suspended": answers,
    }
    spread = f"{steps} steps in {plain['seconds']:.1f} s undisturbed, {disturbed['seconds']:.1f} s with {len(away)} suspensions"
    run.figures.append(
        Figure(
            name="suspended in mid-flight, time away",
            value=sum(away) / len(away),
            unit="s",
            spread=f"{spread}; parameters {'identical' if same else '**differ**'}",
        )
    )


def wait_for(child: Child, count: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while child.order("count")["count"] < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the training did not reach step {count} within {seconds:g} s")
        threading.Event().wait(0.01)


def perform(run: Run, parts: list[tuple[str, float, Callable[[], None]]], save: Callable[[], None]) -> None:
    """Do one part after the other. `parts`: a name, about how many seconds it takes, and what to do."""
    for name, about, act in parts:
        left = max(0.0, run.ends_at - time.monotonic())
        if left < about:
            run.skipped.append(f"{name}: {left:.0f} s are left and about {about:.0f} s are needed")
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            act()
        except Skipped as reason:
            run.skipped.append(str(reason))
        except (RuntimeError, Silent, Ended, KeyError) as error:
            run.wrong.append(f"{name}: {type(error).__name__}: {error}")
        save()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="on the fake driver, at small sizes")
    parser.add_argument("--sizes", help="GB of state, with commas (default: 1,8,32)")
    parser.add_argument("--turn-size", type=float, help="GB of each of the two that take turns (default: the largest, at most 8)")
    parser.add_argument("--rounds", type=int, default=3, help="of the two that take turns")
    parser.add_argument("--steps", type=int, help="of the training")
    parser.add_argument("--device", help="UUID (default: the one with the most free memory)")
    parser.add_argument("--seconds", type=float, default=480.0, help="in all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything there, after each part")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as scratch:
        return measure(options, Path(scratch))


def measure(options: argparse.Namespace, scratch: Path) -> int:
    environment = dict(os.environ)
    if options.fake:
        from support.fake_driver import build

        environment = build(scratch / "fake", memory=256 * 10**6).environment()
    sizes = [float(word) for word in (options.sizes or ("0.01,0.02" if options.fake else "1,8,32")).split(",")]
    turn = options.turn_size or min(8.0, max(sizes))
    cache = scratch / "probe.json"
    suspender = CudaSuspender(environment=environment, cache=cache)
    try:
        facts = read_facts(suspender._pool, 60.0)
        if facts is None or not facts.gpus:
            print("No NVIDIA driver answers on this machine; --fake tries this program without one.", file=sys.stderr)
            return 2
        gpu = max((one for one in facts.gpus if options.device in (None, one.uuid)), key=lambda one: one.free)
        run = Run(suspender, gpu, facts, environment, "driver" if options.fake else "torch", time.monotonic() + options.seconds)
        run.results["machine"] = {
            "driver": facts.version,
            "open kernel module": has_open_module(),
            "device": gpu.name,
            "memory": gpu.memory,
            "fake": options.fake,
            "python": platform.python_version(),
            "kernel": platform.release(),
            "host memory": host_free(),
        }
        steps = options.steps or (3000 if options.fake else 4000)
        whole = int(turn * GB)
        parts: list[tuple[str, float, Callable[[], None]]] = [
            ("probe", 5, lambda: probe(run, cache)),
            ("copy", 5, lambda: copy(run, 10**7 if options.fake else GB)),
            *((f"state of {size:g} GB", 5 + 2 * size, lambda size=size: state(run, int(size * GB))) for size in sizes),
            ("turns", 10 + 4 * options.rounds * turn / 4, lambda: turns(run, whole, options.rounds)),
            ("flight", 30 if not options.fake else 5, lambda: flight(run, steps, 2 * 10**6 if options.fake else GB)),
        ]
        perform(run, parts, lambda: save(run, options.json))
    finally:
        suspender.close()
    return report(run)


def save(run: Run, path: Path | None) -> None:
    if path is not None:
        everything = run.results | {"wrong": run.wrong, "skipped": run.skipped, "figures": [one.plain() for one in run.figures]}
        path.write_text(json.dumps(everything, indent=2, default=str) + "\n")


def report(run: Run) -> int:
    machine = run.results["machine"]
    kind = "FAKE driver, figures mean nothing" if machine["fake"] else f"driver {machine['driver']}"
    print(f"{machine['device']}, {kind}, torch {run.results.get('torch', '?')}, Python {machine['python']}\n")
    print("| figure | measured | spread | target | |\n|---|---|---|---|---|")
    for figure in run.figures:
        print(figure.row())
    for line in run.skipped:
        print(f"\nleft out: {line}")
    for line in run.wrong:
        print(f"\nWRONG: {line}")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
