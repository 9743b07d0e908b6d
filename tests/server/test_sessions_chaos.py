"""Eight notebooks share two simulated GPUs while kernels, the broker and the server are killed at random moments.

It goes on until enough was killed, and for CARREL_CHAOS_SECONDS at least; the full run of ten minutes is made by hand.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import WebSocketException

from carrel import Client
from carrel.core.domain.errors import CarrelError
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import Kernel, SessionBrowser

SECONDS = float(os.environ.get("CARREL_CHAOS_SECONDS", "0"))
KILLS = 10
SESSIONS = 8
GPUS = 2

#: A cell that leaves evidence from outside of Carrel: it locks a file for its device while it computes, which fails when
#: another cell has the device too, and writes a line when it begins and when it is done.
CELL = """\
# carrel: gpus=1
import fcntl, os, time
with open({ledger!r}, "a") as ledger:
    ledger.write("begin {cell}\\n")
device = os.environ["CUDA_VISIBLE_DEVICES"]
with open({locks!r} + "/" + device, "w") as mine:
    fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep({seconds})
count = globals().get("count", 0) + 1
with open({ledger!r}, "a") as ledger:
    ledger.write("done {cell}\\n")
print("count", count, device)
"""


@dataclass
class Notebook:
    """One user's notebook: runs cells one after the other, and remembers what its kernel must know."""

    number: int
    session: int
    scratch: Path
    ledger: Path
    kernel_id: str = ""
    #: Cells that were run since the kernel started.
    count: int = 0
    cells: int = 0
    restarts: int = 0
    waited: int = 0
    faults: list[str] = field(default_factory=list)
    #: Cells of which nobody knows whether they were run: their kernel was killed, or the connection lost.
    doubtful: set[str] = field(default_factory=set)


class Chaos:
    """The lab, its users, and what happens to them."""

    def __init__(self, lab: LabProcess, home: Path, seed: int) -> None:
        self.lab = lab
        self.home = home
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.kills: list[str] = []
        self.notebooks: list[Notebook] = []

    def cells(self) -> int:
        """How many cells were begun so far, in all notebooks."""
        return sum(notebook.cells for notebook in self.notebooks)

    def client(self) -> Client:
        return Client(home=self.lab.home)

    def open(self, notebook: Notebook) -> SessionBrowser:
        """A way in, as soon as the lab answers."""

        def opened() -> SessionBrowser | None:
            try:
                with self.client() as client:
                    if client.session(notebook.session).ready:
                        return SessionBrowser(client.open_session(notebook.session))
            except (CarrelError, OSError, RuntimeError):
                pass  # the server has gone, or the session has: look again
            return None

        return wait_until(opened, "the session to be ready")  # type: ignore[return-value]

    def kernel(self, browser: SessionBrowser, notebook: Notebook) -> Kernel:
        """The notebook's kernel; a new one when it was killed."""
        if notebook.kernel_id:
            found = browser.request("GET", f"/api/kernels/{notebook.kernel_id}")
            if found.status_code == 200:
                return browser.kernel(notebook.kernel_id)
        kernel = browser.start_kernel(f"work-{uuid.uuid4().hex[:6]}.ipynb")
        notebook.kernel_id, notebook.count = kernel.id, 0
        return kernel

    def work(self, notebook: Notebook) -> None:
        """Run cells until it is over; what breaks the connection is met by connecting again."""
        try:
            while not self.over.is_set():
                try:
                    with self.open(notebook) as browser, closing(self.kernel(browser, notebook)) as kernel:
                        self.catch_up(kernel, notebook)
                        while not self.over.is_set():
                            self.cell(kernel, notebook)
                except TimeoutError as error:
                    notebook.faults.append(f"a cell took too long: {error}")
                except (OSError, EOFError, RuntimeError, WebSocketException, httpx.TransportError):
                    time.sleep(0.05)  # the server or the kernel has gone: look again
        except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
            notebook.faults.append(f"{type(error).__name__}: {error}")

    def catch_up(self, kernel: Kernel, notebook: Notebook) -> None:
        """After a connection was lost: the kernel knows of every cell that was done, and of no more than were asked for."""
        kernel.listen()
        result = kernel.execute("print(globals().get('count', 0))")
        if result.status != "ok" or not result.text:  # what a kernel says while it is taken over can be lost; it is asked again
            raise EOFError
        said = int(result.text)
        lines = notebook.ledger.read_text().splitlines()
        done = sum(line.startswith("done") for line in lines)
        if said < notebook.count:  # killed meanwhile, which nobody was connected to see
            notebook.restarts += 1
        elif said > done:
            notebook.faults.append(f"the kernel counts {said}, but only {done} cells were ever done")
        notebook.count = said

    def cell(self, kernel: Kernel, notebook: Notebook) -> None:
        cell = uuid.uuid4().hex
        notebook.cells += 1
        seconds = notebook_pause(self.random)
        code = CELL.format(cell=cell, ledger=str(notebook.ledger), locks=str(self.home / "locks"), seconds=seconds)
        notebook.doubtful.add(cell)
        result = kernel.execute(code)
        if result.status == "dead":
            notebook.count = 0
            notebook.restarts += 1
            raise EOFError
        if result.status != "ok":
            notebook.faults.append(f"{result.status} {result.error}: {result.text[-300:]}")
            return
        if "count " not in result.text:  # it ran, and its output was lost with a connection
            raise EOFError
        notebook.doubtful.discard(cell)
        notebook.waited += bool(result.displays)
        said = int(result.text.split("count ")[1].split()[0])
        if said == 1 and notebook.count:  # its kernel was killed between two cells
            notebook.restarts += 1
            notebook.count = 0
        notebook.count += 1
        if said != notebook.count:
            notebook.faults.append(f"the kernel counts {said}, {notebook.count} cells were run")


def notebook_pause(source: random.Random) -> float:
    return source.choice((0.0, 0.01, 0.05, 0.2, 0.5))


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS * 3 + 900)
@pytest.mark.parametrize("seed", [int(os.environ.get("CARREL_CHAOS_SEED", "7"))])
def test_no_cell_is_lost_or_run_twice_and_no_device_is_in_two_leases(tmp_path: Path, seed: int) -> None:
    (tmp_path / "locks").mkdir()
    options = ("--cpus", "64")
    settings = {"CARREL_TIME_SLICE": "3600s", "CARREL_MEMORY": "64G"}
    lab = start_lab(tmp_path / "lab", *options, simulate_gpus=GPUS, variables=settings)
    chaos = Chaos(lab, tmp_path, seed)
    threads: list[threading.Thread] = []
    try:
        with chaos.client() as client:
            for number in range(SESSIONS):
                session = client.start_session(SessionRequest(name=f"chaos-{number}", memory="2G"))
                ledger = tmp_path / f"ledger-{number}"
                ledger.touch()
                chaos.notebooks.append(Notebook(number=number, session=session.job.id, scratch=tmp_path, ledger=ledger))
        threads = [threading.Thread(target=chaos.work, args=(notebook,), daemon=True) for notebook in chaos.notebooks]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(notebook.cells for notebook in chaos.notebooks), "every notebook to run a cell")
        finish = time.monotonic() + SECONDS
        while time.monotonic() < finish or len(chaos.kills) < KILLS or any(one.cells <= 3 for one in chaos.notebooks):
            seen = chaos.cells()
            wait_until(lambda seen=seen: chaos.cells() >= seen + 2, "cells to be run between two kills")  # type: ignore[misc]
            time.sleep(chaos.random.uniform(0.0, 2.0))  # the moment is what is tested
            lab = _kill_something(chaos, lab, options, settings)
        chaos.over.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a notebook waits for ever"
        _check(chaos)
        _nothing_is_left_over(chaos)
    finally:
        chaos.over.set()
        with chaos.client() as client:
            for notebook in chaos.notebooks:
                client.cancel(notebook.session)
            for notebook in chaos.notebooks:
                client.wait(notebook.session)
        chaos.lab.stop()


def _kill_something(chaos: Chaos, lab: LabProcess, options: tuple[str, ...], settings: dict[str, str]) -> LabProcess:
    what = chaos.random.choice(("kernel", "kernel", "broker", "broker", "server"))
    chaos.kills.append(what)
    if what == "server":
        lab.kill()
        chaos.lab = start_lab(lab.home, *options, simulate_gpus=GPUS, variables=settings)
        return chaos.lab
    pids = _broker_pids(lab.home) if what == "broker" else _kernel_pids(chaos.home)
    if pids:
        try:
            os.kill(chaos.random.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            chaos.kills[-1] += " (gone already)"
    return lab


def _command_lines() -> dict[int, tuple[str, ...]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            found[int(entry.name)] = tuple(words)
    return found


def _broker_pids(home: Path) -> list[int]:
    return [
        pid
        for pid, words in _command_lines().items()
        if "carrel.node.broker" in words and any(str(home) in word for word in words)
    ]


def _kernel_pids(home: Path) -> list[int]:
    """Kernels of this test's sessions: their files are below `home`."""
    found = []
    for pid, words in _command_lines().items():
        if "carrel_kernel" not in words:
            continue
        try:
            if str(Path(f"/proc/{pid}/cwd").readlink()).startswith(str(home)):
                found.append(pid)
        except OSError:
            continue
    return found


def _check(chaos: Chaos) -> None:
    faults = [f"notebook {notebook.number}: {fault}" for notebook in chaos.notebooks for fault in notebook.faults]
    assert not faults, (chaos.kills, faults)
    for notebook in chaos.notebooks:
        lines = notebook.ledger.read_text().splitlines()
        begun = [line.split()[1] for line in lines if line.startswith("begin")]
        done = [line.split()[1] for line in lines if line.startswith("done")]
        assert len(begun) == len(set(begun)), "a cell was run twice"
        assert set(begun) - set(done) <= notebook.doubtful, "a cell was begun and not ended, and its kernel lived"
        assert len(done) >= notebook.cells - len(notebook.doubtful), "a cell was lost"


def _nothing_is_left_over(chaos: Chaos) -> None:
    """When no cell runs, no device is in a lease and nobody waits."""

    def quiet() -> bool:
        with chaos.client() as client:
            try:
                lending = client.gpus()
            except CarrelError:
                return False
            return lending.available and not lending.queue and not lending.leases

    wait_until(quiet, "all leases to end")
