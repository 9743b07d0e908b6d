"""What a lease costs a warm cell: a kernel whose cells need a lease each, against plain ipykernel, in turns.

From the request's sending to the reply, as a front end sees it. The GPU is simulated and free, the session is resident: nothing
is waited for but the broker's answer.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from figure import Figure
from support.broker_process import start_broker
from support.kernel import TestKernel

CELLS = 400
CELL = "x = sum(range(1000)); x"


def once(kernel: TestKernel) -> float:
    began = time.perf_counter()
    ran = kernel.run(CELL)
    assert ran.status == "ok", ran
    return time.perf_counter() - began


def measure(scratch: Path, cells: int = CELLS) -> list[Figure]:
    with start_broker(scratch / "broker", devices=1) as broker:
        session = broker.session(1)
        with TestKernel(hooked=False) as plain, TestKernel(variables=session.variables) as ours:
            ours.run("%gpu on")
            for kernel in (plain, ours):
                for _ in range(20):
                    once(kernel)
            pairs = [(once(ours), once(plain)) for _ in range(cells)]
            leases = next(row for row in broker.status()["tenants"])["cells"]
    assert leases >= cells, f"only {leases} cells had a lease"
    with_lease = sorted(ours for ours, _ in pairs)
    without = sorted(plain for _, plain in pairs)

    def at(times: list[float], share: float) -> float:
        return times[int(share * (len(times) - 1))] * 1000

    return [
        Figure(name="plain ipykernel, warm cell", value=at(without, 0.5), unit="ms", spread=f"p95 {at(without, 0.95):.2f}"),
        Figure(name="added by a lease, median", value=at(with_lease, 0.5) - at(without, 0.5), unit="ms", at_most=5),
        Figure(name="added by a lease, p95", value=at(with_lease, 0.95) - at(without, 0.95), unit="ms", at_most=15),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as directory:
        for figure in measure(Path(directory), cells=int(sys.argv[1]) if len(sys.argv) > 1 else CELLS):
            print(figure.row())
