"""What keeps a kernel's GPU state from being moved, as seen from inside: stand-ins for what only a GPU has, a real broker."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_torch import write_fake_torch

from carrel.notebooks.hook.kernelspec import HOOK_DIRECTORY
from carrel.testing.waiting import wait_until
from support.broker_process import BrokerProcess
from support.kernel import TestKernel

Make = Callable[..., TestKernel]
#: As torch._C._cuda_* gives them: a letter for the kind, then cudaIpcMemHandle_t or a file descriptor's.
HANDLE = b"\x63" + bytes(range(64))


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HOOK_DIRECTORY))
    return importlib.import_module("carrel_kernel.state")


class Reference:
    """A StorageWeakRef of torch/multiprocessing/reductions.py."""

    def __init__(self, *, alive: bool) -> None:
        self._alive = alive

    def expired(self) -> bool:
        return not self._alive


LIVE, DEAD = Reference(alive=True), Reference(alive=False)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("cache", "children", "shared"),
    [
        ({}, False, False),
        # Batches of a DataLoader's workers: shared memory by its descriptor, and by its name ("file_system").
        ({(1234, 26): LIVE, (1235, 26): DEAD}, True, False),
        ({b"/torch_4711_3141592653_0": LIVE, b"/torch_4711_3141592653_1": DEAD}, True, False),
        # A tensor of another process' GPU, open here, and after it was dropped.
        ({(1234, 26): LIVE, (HANDLE, 512): LIVE}, True, True),
        ({(HANDLE, 512): DEAD}, True, False),
        # A tensor of ours that was sent: while it lives, while a child may have it, and after both.
        ({HANDLE: LIVE}, False, True),
        ({HANDLE: DEAD}, True, True),
        ({HANDLE: DEAD}, False, False),
        ({b"\x2f" + HANDLE[1:]: LIVE}, False, True),
    ],
)
def test_only_memory_of_a_gpu_that_is_shared_is_cuda_ipc(
    state: ModuleType, monkeypatch: pytest.MonkeyPatch, cache: dict[Any, Reference], children: bool, shared: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch.multiprocessing.reductions", SimpleNamespace(shared_cache=cache))
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [object()] if children else [])
    assert state.blockers({}) == (["CUDA IPC"] if shared else [])


def test_a_library_that_would_not_survive_is_named(state: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.blockers({"jaxlib": "JAX"}) == []
    monkeypatch.setitem(sys.modules, "jaxlib", SimpleNamespace())
    assert state.blockers({"jaxlib": "JAX"}) == ["JAX"]


# ---- in a kernel


CACHE = """\
class Reference:
    def __init__(self, alive):
        self.alive = alive
    def expired(self):
        return not self.alive
shared_cache = {}
"""


@pytest.fixture
def kernel(kernel_of: Make, tmp_path: Path) -> TestKernel:
    """A kernel that has used CUDA, with what looks like PyTorch's table of shared storages."""
    write_fake_torch(tmp_path, **{"multiprocessing.__init__": "", "multiprocessing.reductions": CACHE})
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").write_text("")
    made = kernel_of(1)
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    ran = made.run(path + "import torch\nfrom torch.multiprocessing.reductions import Reference, shared_cache\ntorch.cuda.init()")
    assert ran.status == "ok", ran.text
    return made


def test_an_epoch_with_workers_gives_the_gpu_back(kernel: TestKernel, broker: BrokerProcess) -> None:
    kernel.run("shared_cache[(7, 26)] = Reference(True); shared_cache[(8, 26)] = Reference(False)\nprint([1])")
    wait_until(lambda: not broker.status()["leases"], "the lease to go back")
    assert [row["why_not"] for row in broker.status()["tenants"]] == [""]


def test_a_shared_tensor_and_jax_keep_the_gpu_and_the_cell_says_so_once(
    kernel: TestKernel, kernel_of: Make, broker: BrokerProcess
) -> None:
    kernel.run(f"shared_cache[{HANDLE!r}] = Reference(True)\nprint([1])")
    wait_until(lambda: [row["state"] for row in broker.status()["leases"]] == ["held"], "the lease to be held")
    assert "cannot be moved (CUDA IPC)" in kernel.run("print([2])").text
    kernel.run("shared_cache.clear()\nprint([3])")
    wait_until(lambda: not broker.status()["leases"], "the lease to go back when nothing is shared any more")
    kernel.run("import jaxlib\nprint([4])")
    wait_until(lambda: [row["state"] for row in broker.status()["leases"]] == ["held"], "the lease to be held")
    assert "cannot be moved (JAX)" in kernel.run("print([5])").text
    assert "cannot be moved" not in kernel.run("print([6])").text
    other = kernel_of(2)
    waiting = other.send("# carrel: gpus=1\nprint('ran')")
    shown = other.result(waiting, until=lambda ran: bool(ran.shown)).shown[0]
    assert "GPU state of another of your notebooks is held on it and cannot be moved: JAX" in shown
    other.interrupt()
    assert other.result(waiting).error == "KeyboardInterrupt"


def test_what_the_allocator_keeps_in_reserve_is_told(state: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's cache: what it has reserved and nothing is in, device by device; without PyTorch there is none."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert state.in_reserve() == []
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        memory_reserved=lambda number: (54, 8)[number] * 2**30,
        memory_allocated=lambda number: (18, 8)[number] * 2**30,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert state.in_reserve() == [36 * 2**30, 0]
    cuda.is_initialized = lambda: False
    assert state.in_reserve() == []
