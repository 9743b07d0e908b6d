"""The process' GPU state, as it can be seen from inside: what can be let go of, and what keeps it from being moved."""

import gc
import sys
from contextlib import suppress


def let_go():
    """Give back device memory that nobody needs, with modules that are there already; return the bytes that stay, or None."""
    gc.collect()
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    cuda.synchronize()
    with suppress(Exception):
        cuda.ipc_collect()
    cuda.empty_cache()
    return int(sum(cuda.memory_reserved(number) for number in range(cuda.device_count())))


def in_reserve():
    """Bytes on each visible device that PyTorch's allocator keeps although nothing is in them; nothing is imported for it."""
    with suppress(Exception):
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            return [int(cuda.memory_reserved(n) - cuda.memory_allocated(n)) for n in range(cuda.device_count())]
    return []


def blockers(stay):
    """Why the driver could not move this process' state, as far as can be seen from inside.

    `stay`: modules of libraries that do not survive it, with their names, as the broker knows them.
    """
    found = {name for module, name in dict(stay).items() if module in sys.modules}
    for name, check in (("distributed", _distributed), ("CUDA IPC", _shares_cuda_memory), ("managed memory", _managed)):
        with suppress(Exception):
            if check():
                found.add(name)
    return sorted(found)


def _distributed():
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _shares_cuda_memory():
    """True while memory of a GPU is shared with another process (torch.multiprocessing with CUDA tensors).

    PyTorch keeps all storages that came from or went to other processes in one table, the batches of a DataLoader's workers too.
    Its keys tell them apart (torch/multiprocessing/reductions.py): (inode, device) or the name of a file for host memory;
    (handle, offset) for memory of another process' GPU that is open here, a bare handle for ours that was sent. An entry stays
    after its storage is gone; what was received is closed then, what was sent may be open in a process that still lives.
    """
    reductions = sys.modules.get("torch.multiprocessing.reductions")
    if reductions is None:
        return False
    for key, reference in list(reductions.shared_cache.items()):
        received = isinstance(key, tuple) and key and isinstance(key[0], bytes)
        sent = isinstance(key, bytes) and not key.startswith(b"/torch_")
        if (received or sent) and not reference.expired():
            return True
        if sent and _children():
            return True
    return False


def _children():
    """Processes that were started from here and live."""
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing.active_children() if multiprocessing is not None else []


def _managed():
    rmm = sys.modules.get("rmm")
    if rmm is not None and "Managed" in type(rmm.mr.get_current_device_resource()).__name__:
        return True
    paged = sys.modules.get("bitsandbytes.optim.optimizer")
    return paged is not None and any(
        isinstance(thing, paged.Optimizer8bit) and getattr(thing, "is_paged", False) for thing in gc.get_objects()
    )
