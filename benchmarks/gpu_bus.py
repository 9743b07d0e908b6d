"""Moving real GPU state over the bus: `PYTHONPATH=src python benchmarks/gpu_bus.py`, on a machine with an NVIDIA GPU and PyTorch.

The residency library alone, under a broker's side that this program plays; each part in processes of its own:

* `copy`: plain pinned copies, to compare with;
* `state`: 1, 4 and 16 GB of PyTorch state out and in, twice, every element compared;
* `exchange`: two processes with 20 GB each change places, one after the other and both at once;
* `flight`: a training moved in the middle, three times; its parameters must be the very ones of an undisturbed run;
* `steps`: the same training with the library and without it, in turns.

With `--fake` it runs on the fake driver of the tests, at small sizes and without PyTorch: that tests this program; the
figures mean nothing. Needs a C compiler and, without `--fake`, torch. Ends with 0 when everything that ran was verified.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "residency"))

from carrel.node.suspension.lines import Conversation
from carrel_residency.build import compile_library
from figure import Figure
from support.residency_peer import Peer, Server

GB, MIB = 10**9, 1024**2
_HERE = Path(__file__).parent


class Machine:
    """Where the processes run: the library, and the broker's side of it."""

    def __init__(self, scratch: Path, *, fake: bool) -> None:
        self.kind, self.plain = "torch", dict(os.environ)
        self.device = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        self.piece = 256 * MIB
        if fake:
            from support.fake_driver import build

            driver = build(scratch / "driver", memory=256 * 10**6)
            self.kind, self.plain, self.device, self.piece = "driver", driver.environment(), driver.gpus[0].uuid, 2 * MIB
        library = scratch / "library.so"
        compile_library(library, sources=_HERE.parent / "residency" / "src")
        self.server = Server(scratch / "broker")
        self.ours = {
            **self.plain,
            "LD_PRELOAD": str(library),
            "CARREL_BROKER": str(self.server.path),
            "CARREL_TOKEN": "a token",
            "CARREL_RESIDENCY_PIECE": str(2 * MIB),
        }

    @contextmanager
    def process(self, *, library: bool = True) -> Iterator[Process]:
        started = Process(self, library=library)
        try:
            yield started
        finally:
            started.close()


class Process:
    """One with GPU state (`gpu_suspend_child.py`)."""

    def __init__(self, machine: Machine, *, library: bool) -> None:
        words = [sys.executable, str(_HERE / "gpu_suspend_child.py"), machine.kind, "--device", machine.device]
        self._conversation = Conversation(words, machine.ours if library else machine.plain)
        self._piece = machine.piece
        self._given = 0
        try:
            if library:
                self.peer: Peer = machine.server.accept(linger=3600.0)
                self.peer.grant()
            ready = self._conversation.receive(300.0)
            if "error" in ready:
                raise RuntimeError(ready["error"])
        except BaseException:
            self._conversation.kill()
            raise

    def order(self, do: str, seconds: float = 300.0, **values: Any) -> dict[str, Any]:
        answer = self._conversation.ask({"do": do, **values}, seconds)
        if "error" in answer:
            raise RuntimeError(f"{do}: {answer['error']}")
        return answer

    def fill(self, size: int) -> None:
        """State of so many bytes, and host memory for it: touched, mapped and registered."""
        self.order("fill", size=size)
        missing = size + size // 8 + 64 * self._piece // 8 - self._given
        while missing > 0:
            files = [_touched(self._piece) for _ in range(min(16, -(-missing // self._piece)))]
            numbers = [self._given // self._piece + number + 1 for number in range(len(files))]
            _must(self.peer.ask("pieces", "pieces", files=files, pieces=numbers, sizes=[self._piece] * len(files)))
            self._given += len(files) * self._piece
            missing -= len(files) * self._piece
            for file in files:
                os.close(file)

    def move(self) -> tuple[int, float, float]:
        """Out and in again. Returns the bytes, and the seconds of each."""
        size = sum(_must(self.peer.pause())["movable"])
        began = time.perf_counter()
        _must(self.peer.out())
        away = time.perf_counter() - began
        began = time.perf_counter()
        _must(self.peer.back())
        back = time.perf_counter() - began
        _must(self.peer.go())
        return size, away, back

    def same(self) -> bool:
        return bool(self.order("check")["same"])

    def close(self) -> None:
        self._conversation.kill()


def _touched(size: int) -> int:
    file = os.memfd_create("piece")
    for _ in range(0, size, 2 * MIB):
        os.write(file, bytes(2 * MIB))
    return file


def _must(answer: Mapping[str, Any]) -> dict[str, Any]:
    if answer.get("ok") is not True:
        raise RuntimeError(f"{answer['op']}: {answer.get('why') or answer}")
    return dict(answer)


Figures = Iterator[Figure]


def copy(machine: Machine, size: int, rates: dict[str, float]) -> Figures:
    with machine.process(library=False) as process:
        rates.update(process.order("copy", size=size)["rates"])
    for name in ("pinned, to host", "pinned, to device"):
        yield Figure(name=f"plain copy, {name}", value=rates[name] / GB, unit="GB/s")


def state(machine: Machine, sizes: Sequence[int], rates: Mapping[str, float], wrong: list[str]) -> Figures:
    for size in sizes:
        with machine.process() as process:
            process.fill(size)
            moves = [process.move() for _ in range(2)]
            same = process.same()
        if not same:
            wrong.append(f"{size / GB:g} GB came back with other values")
        for name, seconds, plain in (("out", 1, "pinned, to host"), ("in", 2, "pinned, to device")):
            best = max(one[0] / float(one[seconds]) for one in moves)
            values = "the same" if same else "**differ**"
            spread = f"{best / rates[plain]:.2f} × pinned, {moves[0][0] / GB:.3g} GB moved, values {values}"
            yield Figure(name=f"{name}, {size / GB:g} GB of PyTorch", value=best / GB, unit="GB/s", spread=spread)


def exchange(machine: Machine, size: int, wrong: list[str]) -> Figures:
    with machine.process() as first:
        first.fill(size)
        _must(first.peer.pause())
        _must(first.peer.out())
        with machine.process() as second:
            second.fill(size)
            here, there = second, first
            for name, target in (("one after the other", None), ("both at once", 0.8), ("both at once, again", 0.8)):
                began = time.perf_counter()
                _must(here.peer.pause())
                away = here.peer.begin("out")
                if target is None:
                    _must(here.peer.finish("moved", away))
                back = there.peer.begin("in", patience=30.0)
                if target is not None:
                    _must(here.peer.finish("moved", away))
                _must(there.peer.finish("moved", back))
                _must(there.peer.go())
                seconds = time.perf_counter() - began
                if not there.same():
                    wrong.append("a state that was exchanged has other values")
                yield Figure(name=f"exchange of two with {size / GB:g} GB, {name}", value=seconds, unit="s", at_most=target)
                here, there = there, here


def flight(machine: Machine, steps: int, size: int, wrong: list[str]) -> Figures:
    found = []
    times = []
    for moved in (False, True):
        with machine.process() as process:
            process.fill(size)
            process.order("train", steps=steps)
            for part in (1, 2, 3) if moved else ():
                while process.order("count")["count"] < steps * part // 5:
                    threading.Event().wait(0.01)
                times.append(sum(process.move()[1:]))
                if process.order("count")["count"] >= steps:
                    wrong.append("the training was over before it could be moved")
            found.append(process.order("join")["digest"])
    same = found[0] == found[1]
    if not same:
        wrong.append("the training that was moved ended with other parameters")
    spread = f"n={len(times)}, {size / GB:g} GB beside it, parameters {'identical' if same else '**differ**'}"
    yield Figure(name="moved in mid-flight, out and in", value=statistics.median(times), unit="s", spread=spread)


def steps(machine: Machine, count: int, turns: int) -> Figures:
    found: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * turns):
        library = turn % 2 == 0
        with machine.process(library=library) as process:
            for _warm in (True, False):
                process.order("train", steps=count)
                seconds = process.order("join")["seconds"]
            found[library].append(float(seconds) / count)
    ours, plain = statistics.median(found[True]), statistics.median(found[False])
    ranges = ", ".join(
        f"{name} {min(times) * 1e3:.3g} to {max(times) * 1e3:.3g} ms"
        for name, times in (("with", found[True]), ("without", found[False]))
    )
    yield Figure(
        name="a training step with the library", value=ours / plain, unit="×", at_most=1.01, spread=f"{ranges}, n={turns}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="some of: copy state exchange flight steps (default: all)")
    parser.add_argument("--fake", action="store_true", help="on the fake driver, at small sizes")
    parser.add_argument("--sizes", help="GB of state, with commas (default: 1,4,16)")
    parser.add_argument("--exchange", type=float, help="GB of each of the two that change places (default: 20)")
    parser.add_argument("--steps", type=int, help="of the training")
    parser.add_argument("--turns", type=int, default=4, help="of the training with the library and without it")
    options = parser.parse_args()
    fake = options.fake
    sizes = [int(float(word) * GB) for word in (options.sizes or ("0.004,0.01" if fake else "1,4,16")).split(",")]
    whole = int((options.exchange or (0.03 if fake else 20)) * GB)
    count = options.steps or (3000 if fake else 4000)
    wrong: list[str] = []
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as scratch:
        machine = Machine(Path(scratch), fake=fake)
        parts: dict[str, Callable[[], Figures]] = {
            "copy": lambda: copy(machine, max(sizes) if fake else 4 * GB, rates),
            "state": lambda: state(machine, sizes, rates, wrong),
            "exchange": lambda: exchange(machine, whole, wrong),
            "flight": lambda: flight(machine, count, sizes[0], wrong),
            "steps": lambda: steps(machine, count, options.turns),
        }
        unknown = [name for name in options.parts if name not in parts]
        if unknown:
            parser.error(f"There is no part {unknown[0]}; there are {', '.join(parts)}.")
        chosen = {"copy", *(options.parts or parts)}
        print(f"{'FAKE driver, figures mean nothing' if fake else 'real driver'}\n")
        print("| figure | measured | spread | target | |\n|---|---|---|---|---|")
        for name, part in parts.items():
            if name in chosen:
                try:
                    for figure in part():
                        print(figure.row(), flush=True)
                except (RuntimeError, EOFError) as error:
                    wrong.append(f"{name}: {error}")
        machine.server.close()
    for line in wrong:
        print(f"\nWRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
