"""Kernels with the hook and the residency library: cells, children and other kernels share a device that holds one state."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from carrel.lab.server.preload import find_library
from carrel.notebooks.hook.kernelspec import kernel_spec
from support.broker_process import BrokerProcess, start_broker
from support.fake_driver import FakeDriver, build, find_compiler
from support.kernel import TestKernel

MIB = 1024**2
MEMORY = 100 * MIB
needs_library = pytest.mark.skipif(find_compiler() is None or not find_library()[0], reason="there is no C compiler")

#: A state of known value, in the memory of the first device that the process sees.
STATE = textwrap.dedent(
    """
    import ctypes
    SIZE, content = 60 * 2**20, bytes(range(1, 251)) * (60 * 2**20 // 250)
    def good(result): assert result == 0, result
    cuda = ctypes.CDLL("libcuda.so.1")
    good(cuda.cuInit(0))
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    good(cuda.cuCtxSetCurrent(context))
    good(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(SIZE)))
    good(cuda.cuMemcpyHtoD_v2(at, content, ctypes.c_size_t(len(content))))
    def same():
        found = ctypes.create_string_buffer(len(content))
        good(cuda.cuCtxSetCurrent(context))
        good(cuda.cuMemcpyDtoH_v2(found, at, ctypes.c_size_t(len(content))))
        return found.raw == content
    """
)
CHILD = "import subprocess, sys\nprint(subprocess.run([sys.executable, {!r}], capture_output=True, text=True).stdout)"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build(tmp_path_factory.mktemp("driver"), memory=MEMORY)


@pytest.fixture
def kernels(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[BrokerProcess, list[TestKernel]]]:
    """Two kernels of two sessions, and their broker, on one device."""
    monkeypatch.setenv("CARREL_SESSION_RESIDENCY", find_library()[0])
    monkeypatch.setenv("CARREL_SESSION_GPUS", "1")
    gpu = driver.gpus[0]
    devices = (Device(uuid=gpu.uuid, index=0, type="h200", name=gpu.name, memory=MEMORY),)
    with ExitStack() as stack:
        environment = driver.environment()
        rules = LendingRules(margin=2 * MIB)
        broker = stack.enter_context(start_broker(tmp_path / "broker", devices=devices, environment=environment, rules=rules))
        jobs = [broker.session(number, owner=f"user{number}") for number in (1, 2)]
        yield broker, [stack.enter_context(TestKernel(variables={**environment, **job.variables})) for job in jobs]


@needs_library
def test_notebooks_and_their_children_share_a_device(kernels: tuple[BrokerProcess, list[TestKernel]], tmp_path: Path) -> None:
    broker, (first, second) = kernels
    for kernel in (first, second):
        ran = kernel.run(STATE)
        assert ran.status == "ok", (ran.error, ran.stderr)
    assert first.run("print(same())").text == "True\n"
    # What a child does waits for a lease of its own, which the cell that waits for the child is not in the way of.
    child = tmp_path / "child.py"
    child.write_text(STATE + "print(same())\n")
    assert first.run(CHILD.format(str(child))).text == "True\n\n"
    rows = [row for _at, rows, _drops in broker.journal() for kind, row in rows if kind == "tenant"]
    children = {(row["job"], row.get("kernel")) for row in rows if row["pid"] not in (first.pid, second.pid)}
    assert children == {(1, "test")}, "a wait of it is shown in its notebook"
    # A thread that computes between cells waits at the gate as well.
    assert (
        second.run("import threading\nfound = []\nthread = threading.Thread(target=lambda: found.append(same()))").status == "ok"
    )
    assert second.run("thread.start(); thread.join(); print(found)").text == "[True]\n"
    assert first.run("print(same())").text == "True\n"
    assert "over the bus" in first.run("%gpu").text
    assert "bus out" in broker.log.read_text()
    assert {row["way"] for row in broker.status()["tenants"]} == {"bus"}


def test_only_kernels_that_borrow_gpus_load_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARREL_SESSION_RESIDENCY", "/lib/ours.so")
    monkeypatch.setenv("CARREL_SESSION_GPUS", "0")
    assert "LD_PRELOAD" not in kernel_spec(["python"], "a")["env"]
    monkeypatch.setenv("CARREL_SESSION_GPUS", "1")
    monkeypatch.setenv("LD_PRELOAD", "/lib/theirs.so")
    environment = kernel_spec(["python"], "a")["env"]
    assert (environment["LD_PRELOAD"], environment["CARREL_DEVICES"]) == ("/lib/ours.so:/lib/theirs.so", "lease")
    monkeypatch.setenv("CARREL_SESSION_RESERVED", "1")
    assert "LD_PRELOAD" not in kernel_spec(["python"], "a")["env"]
