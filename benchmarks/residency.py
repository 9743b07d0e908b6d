"""What the residency library costs: nanoseconds that the gate adds to a call of the driver, and the lease of a resident process.

The driver is one that does nothing, so everything that is measured is ours; the broker's side is a thread that grants at once.
On a real GPU a launch takes some 2 to 4 microseconds of the processor's time.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from figure import Figure, median, percentile

sys.path.insert(0, str(Path(__file__).parents[1] / "residency"))

from carrel_residency.build import compile_library, compiler

CALLS, LEASES = 20_000_000, 500
_HERE = Path(__file__).parent
_SOURCES = _HERE.parent / "residency"


def _lend(listening: socket.socket) -> None:
    """Grant whatever is asked for."""
    link, _ = listening.accept()
    fence = 0
    with link, link.makefile("rwb") as stream:
        for line in stream:
            message = json.loads(line)
            if message["op"] == "hello":
                stream.write(b'{"op":"welcome","v":1,"linger":3600}\n')
            elif message["op"] == "acquire":
                fence += 1
                answer = {"op": "granted", "request": message["request"], "lease": f"l{fence}", "fence": fence}
                stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


def measure(scratch: Path, calls: int = CALLS, leases: int = LEASES) -> list[Figure]:
    words = compiler()
    if words is None:
        return []
    scratch.mkdir(parents=True, exist_ok=True)
    source = str(_HERE / "residency_gate.c")
    subprocess.run([*words, "-O2", "-DDRIVER", "-shared", "-fPIC", "-o", scratch / "libcuda.so.1", source], check=True)
    subprocess.run([*words, "-O2", "-o", scratch / "program", source, "-ldl"], check=True)
    compile_library(scratch / "library.so", sources=_SOURCES / "src")
    plain = {**os.environ, "LD_LIBRARY_PATH": str(scratch)}
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listening:
        path = f"{short}/broker"
        listening.bind(path)
        listening.listen()
        threading.Thread(target=_lend, args=(listening,), daemon=True).start()
        ours = {**plain, "LD_PRELOAD": str(scratch / "library.so"), "CARREL_BROKER": path}
        run = [str(scratch / "program"), str(calls), str(leases)]
        without = subprocess.run(run, env=plain, check=True, capture_output=True, text=True).stdout.split()
        found = subprocess.run(run, env=ours, check=True, capture_output=True, text=True).stdout.split()
    waits = [float(one) / 1e6 for one in found[1:]]
    return [
        Figure(name="the gate, for each call of the driver", value=float(found[0]) - float(without[0]), unit="ns", at_most=25),
        median("lease of a resident process", waits, "s", at_most=0.0005),
        percentile("lease of a resident process, p95", waits, "s", 95),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for figure in measure(Path(place)):
            print(figure.row())
