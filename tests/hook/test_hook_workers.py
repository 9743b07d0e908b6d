"""The commonest PyTorch notebook, with PyTorch itself: an epoch whose batches come from workers, and the GPU is free after it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from carrel.testing.waiting import wait_until
from support.broker_process import start_broker
from support.kernel import TestKernel

#: A process that has used CUDA as far as the hook can see: it has tried to load the driver's library.
TOUCH = "import ctypes, contextlib\nwith contextlib.suppress(OSError):\n    ctypes.CDLL('libcuda.so.1')"
EPOCH = textwrap.dedent(
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.multiprocessing.set_sharing_strategy({strategy!r})
    data = TensorDataset(torch.randn(256, 8), torch.ones(256))
    kept = [batch for batch in DataLoader(data, batch_size=32, num_workers=2, persistent_workers={persistent})]
    from torch.multiprocessing.reductions import StorageWeakRef, shared_cache
    print(len(shared_cache) > 0)
    """
)
#: What only a GPU has, under the keys that PyTorch gives it, with a real weak reference.
SHARED = "shared_cache[{key}] = StorageWeakRef(kept[0][0].untyped_storage())\nprint([1])"


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("heavy")
def test_batches_from_workers_do_not_hold_the_gpu(python: Path, tmp_path: Path) -> None:
    with start_broker(tmp_path / "broker", devices=1) as broker:
        session = broker.session(1)
        with TestKernel(python=python, variables={**session.variables, "OMP_NUM_THREADS": "1"}) as kernel:

            def state() -> list[tuple[str, str]]:
                """The states of the leases that are left after the cell, and why."""
                wait_until(lambda: "active" not in str(broker.status()["leases"]), "the cell's lease to end")
                (tenant,) = broker.status()["tenants"]
                return [(lease["state"], tenant["why_not"]) for lease in broker.status()["leases"]]

            kernel.run(TOUCH)
            for strategy in ("file_descriptor", "file_system"):
                for persistent in (False, True):
                    ran = kernel.run(EPOCH.format(strategy=strategy, persistent=persistent))
                    assert ran.text.endswith("True\n"), ran.text
                    assert state() == []
            kernel.run(SHARED.format(key="b'c' + bytes(64)"))
            assert state() == [("held", "CUDA IPC")]
            kernel.run("shared_cache.clear()\n" + SHARED.format(key="(b'c' + bytes(64), 0)"))
            assert state() == [("held", "CUDA IPC")]
            kernel.run("del kept\nimport gc; gc.collect()\nprint([1])")
            assert state() == []
