"""Which libraries survive it when the driver suspends their process: the one table, and how they are found in a process.

The driver's checkpoint stops calls into CUDA. It does not stop a library's own threads that look at device memory, and not other
processes or engines that share it. A process that has loaded such a library is never suspended that way; its GPU is held. What
is not in the table calls plain CUDA as far as anybody knows: each node's probe moves such a process and compares every byte
before any state is moved there. `docs/decisions/0033` has why the line is drawn here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What is known of one library."""

    #: For people.
    name: str
    #: True when its state survives; False when it does not, or when nobody has seen it survive and there is reason to doubt.
    survives: bool
    #: What was seen, or why there is doubt.
    evidence: str
    #: Python modules that are there once it is loaded.
    modules: tuple[str, ...] = ()
    #: Pattern of the files that it maps into the process; "": they tell nothing.
    files: str = ""


LIBRARIES: tuple[Library, ...] = (
    Library(name="plain CUDA", survives=True, evidence="Moved by each node's own probe, every byte compared."),
    Library(
        name="PyTorch",
        survives=True,
        evidence="H100, driver 580.159, PyTorch 2.11: over 25 moves of 18 GB, a CUDA graph, a training in mid-flight.",
        modules=("torch",),
    ),
    Library(
        name="CuPy",
        survives=True,
        evidence="Calls plain CUDA from the thread that computes (traces on an H100).",
        modules=("cupy",),
    ),
    Library(
        name="numba",
        survives=True,
        evidence="Calls plain CUDA from the thread that computes (traces on an H100).",
        modules=("numba",),
    ),
    Library(
        name="JAX",
        survives=False,
        evidence="H100, driver 580.159, JAX 0.11: SIGSEGV of one of XLA's threads within 8 s of a suspension, 3 of 3.",
        modules=("jaxlib", "jax_cuda12_plugin", "jax_cuda13_plugin"),
        files=r"/jaxlib/|/jax_plugins/|/libjax_common\.so|/xla_extension\.|/xla_cuda_plugin\.so",
    ),
    Library(
        name="TensorFlow",
        survives=False,
        evidence="Runs on XLA and on threads of its own that wait for events of the GPU; not seen to survive.",
        modules=("tensorflow",),
        files=r"/libtensorflow(_framework|_cc)?\.so|/_pywrap_tensorflow",
    ),
    Library(
        name="PyTorch/XLA",
        survives=False,
        evidence="Runs on XLA.",
        modules=("torch_xla",),
        files=r"/torch_xla/|/_XLAC[^/]*\.so",
    ),
    Library(
        name="OptiX",
        survives=False,
        evidence="The driver's ray tracing keeps state of its own on the GPU; not seen to survive.",
        modules=("optix",),
        files=r"/libnvoptix\.so",
    ),
    Library(
        name="OpenGL or Vulkan on the GPU",
        survives=False,
        evidence="Graphics contexts take device memory that the checkpoint calls do not know; not seen to survive.",
        files=r"/libnvidia-(egl|gl|rtx)core\.so",
    ),
    Library(
        name="NVENC or NVDEC",
        survives=False,
        evidence="Sessions of the video engines are no CUDA state; not seen to survive.",
        files=r"/libnvcuvid\.so|/libnvidia-encode\.so",
    ),
    Library(
        name="NCCL between processes",
        survives=False,
        evidence="Its threads and its peers look at device memory (NVIDIA/cuda-checkpoint issues 27 and 30, NVIDIA/nccl 2350).",
        files=r" /dev/shm/nccl-",
    ),
    Library(
        name="UCX",
        survives=False,
        evidence="Shares device memory with other processes (CUDA IPC), which drivers before 610 cannot move.",
        modules=("ucp", "ucxx"),
        files=r"/libuct_cuda\.so",
    ),
)

_DOUBTED = tuple(library for library in LIBRARIES if not library.survives)
#: Reasons of the residency library (`residency/src/stays.c`) why memory stays on the device: first those that the driver moves.
DRIVER_MOVES = frozenset({"pitched memory", "memory pools", "arrays", "no virtual memory on this device"})
REASONS = DRIVER_MOVES | {
    "managed memory",
    "CUDA IPC",
    "external memory",
    "multicast",
    "NCCL",
    "imported memory",
    "exported memory",
}
#: All words for what keeps a state where it is: these libraries, and what only the process itself can see.
WORDS = frozenset({"CUDA IPC", "distributed", "managed memory", *REASONS, *(library.name for library in _DOUBTED)})
_STAY = tuple((library.name, re.compile(library.files.encode())) for library in _DOUBTED if library.files)


def staying_modules() -> Mapping[str, str]:
    """Return the Python modules whose process is not suspended, with the library's name; a kernel looks for them itself."""
    return {module: library.name for library in _DOUBTED for module in library.modules}


def staying_libraries(pid: int, *, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the names of the libraries in process `pid` that do not survive its suspension (proc_pid_maps(5)).

    The process has no say in this. () as well where its maps cannot be read: another user's process, or one that is gone.
    """
    try:
        maps = (proc / str(pid) / "maps").read_bytes()
    except OSError:
        return ()
    return tuple(name for name, pattern in _STAY if pattern.search(maps))


def why_it_stays(names: tuple[str, ...]) -> str:
    """Return why a process with these libraries is not suspended, in a few words."""
    return f"{' and '.join(names)} would not survive it"
