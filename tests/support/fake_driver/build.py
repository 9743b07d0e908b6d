"""Compiling the fake driver, and setting up what it pretends."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Unavailable

#: Names the directory in which all processes on the fake driver meet.
STATE_VARIABLE = "CARREL_FAKE_DRIVER"

_SOURCES = Path(__file__).parent
_LIBRARIES = {
    "libcuda.so.1": (
        *("state.c", "cuda.c", "memory.c", "physical.c", "vmm.c", "host.c", "pools.c", "sharing.c", "pointers.c"),
        *("checkpoint.c", "copies.c", "streams.c", "stream_calls.c", "async.c", "launches.c", "graphs.c", "per_thread.c"),
        *("entries.c", "errors.c", "first_names.ld"),
    ),
    "libnvidia-ml.so.1": ("state.c", "nvml.c", "health.c", "mig.c"),
}
_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpu:
    """One device that the fake driver shows."""

    uuid: str
    #: Bytes.
    memory: int = 1024 * _MIB
    name: str = "NVIDIA H200"
    #: True: it says that it is in MIG mode, and checkpoints of processes on it fail as they do there. A GPU called as those in
    #: mig.c can then be cut into slices by NVML, which libcuda.so.1 does not show.
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeDriver:
    """A machine with the fake driver. Everything that uses it is started with `environment()`."""

    #: Directory of libcuda.so.1 and libnvidia-ml.so.1.
    libraries: Path
    #: Directory in which the processes meet: devices, memory, faults.
    state: Path
    gpus: tuple[FakeGpu, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        """The devices, in their order."""
        return tuple(gpu.uuid for gpu in self.gpus)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of a process that shall see this driver: `base` (default: our own) and two more.

        LD_LIBRARY_PATH is read when a program starts, so setting these inside a running process has no effect.
        """
        variables = dict(os.environ if base is None else base)
        others = [path for path in variables.get("LD_LIBRARY_PATH", "").split(":") if path and path != str(self.libraries)]
        variables["LD_LIBRARY_PATH"] = ":".join([str(self.libraries), *others])
        variables[STATE_VARIABLE] = str(self.state)
        variables.pop("CUDA_VISIBLE_DEVICES", None)
        return variables

    def another(
        self,
        state: Path,
        *,
        gpus: int | Sequence[FakeGpu] = 1,
        memory: int = 1024 * _MIB,
        driver: str = "580.65.06",
        cuda: int = 13000,
        context: int = 8 * _MIB,
    ) -> FakeDriver:
        """Return another machine in the new directory `state`, with the same libraries: compile once, use for many tests.

        `gpus`: devices, or how many of `memory` bytes. `driver`: what NVML says. `cuda`: what cuDriverGetVersion says; from 13040
        on there are states CHECKPOINTING and RESTORING. `context`: bytes that a CUDA context takes.
        """
        state.mkdir(parents=True)
        for part in ("device", "host"):
            (state / part).mkdir()
        devices = _numbered(state, gpus, memory) if isinstance(gpus, int) else tuple(gpus)
        lines = [f"driver {driver}", f"cuda {cuda}", f"context {context}"]
        lines += [f"device {gpu.uuid} {gpu.memory} {int(gpu.mig)} {gpu.name}" for gpu in devices]
        (state / "config").write_text("\n".join(lines) + "\n")
        (state / "faults").touch()
        return FakeDriver(libraries=self.libraries, state=state, gpus=devices)

    def inject(self, call: str, action: str, argument: float = 0, *, pid: int = 0, count: int = 1, after: int = 0) -> None:
        """Let `call` go right `after` times and then wrong `count` times (-1: always), for the process `pid` (0: any).

        `pid` is the process that a checkpoint call is *about*, and the calling process for all others. Actions, with `argument`:

        * any call: "error" (the code that it returns; nothing else happens), "hang" (seconds before it starts; -1: for ever);
        * copies and fills (cuMemcpyHtoD, cuMemcpyDtoH, cuMemcpyDtoD, cuMemset, and these with Async), results of kernels
          (cuLaunchKernel): "cut" (after so many bytes it fails with 999; where it is work of a stream, that ends the context),
          "stall" (after so many bytes it stops for ever: the moment to kill its process), "rate" (bytes a second);
        * checkpoint calls: "hang_after" (it is done, but returns only after so many seconds), "segv" (the process gets SIGSEGV,
          the call returns 999);
        * cuCheckpointProcessCheckpoint: "fail" (state FAILED, returns 999), "rate" (bytes a second), "ghost" (NVML goes on to
          show the process, for so many seconds; -1: until it is restored);
        * cuCheckpointProcessRestore: "poison" (out of memory; from then on 304, unlock 401), "elsewhere" (onto the device with
          this index), "stay" (a map is taken and ignored), "refuse_map" (INVALID_VALUE where a map is given), "rate";
        * calls that make and destroy slices (nvmlDeviceCreateGpuInstanceWithPlacement, nvmlGpuInstanceCreateComputeInstance,
          nvmlComputeInstanceDestroy, nvmlGpuInstanceDestroy): "lost" (it is done, and this code is returned), "die" (it is done,
          and the calling process dies);
        * nvmlDeviceGetComputeRunningProcesses_v3: "blind" (shows nobody, as from inside some containers).

        Names of calls are those without a version (cuMemAlloc, cuMemMap, cuCtxSynchronize ...), but NVML's with
        (nvmlDeviceGetComputeRunningProcesses_v3). cuMemset and cuMemsetAsync are those of all widths; cuMemAllocAsync is from
        any pool. Calls that only tell something, as cuPointerGetAttribute, have no faults. A target whose own call hangs, or
        whose work does, keeps a lock from being taken, as a long kernel does.
        """
        with self._locked():
            (self.state / "go").unlink(missing_ok=True)
            with (self.state / "faults").open("a") as file:
                file.write(f"{call} {pid} {count} {action} {argument:.17g}{f' {after}' if after else ''}\n")

    def xid(self, number: int, device: int = 0) -> None:
        """Let a device have this error once: whoever waits for events hears of it."""
        self.inject("nvmlEventSetWait_v2", "xid", 1000 * device + number)

    def put_on(self, slice_uuid: str, pid: int, memory: int = 0) -> None:
        """Let NVML say that a process runs on a slice, and has so many bytes there."""
        with (self.state / "running").open("a") as file:
            file.write(f"{slice_uuid} {pid} {memory}\n")

    def for_all(self) -> None:
        """Let programs that have these libraries, and an environment without our variable, see this machine: runners of a lab."""
        (self.libraries / "machine").write_text(str(self.state))

    def let_go(self) -> None:
        """Nothing hangs, is slow or is shown although it is gone any more, what has begun included; until the next `inject`."""
        (self.state / "go").touch()

    def clear(self) -> None:
        """Let everything go right again. A call that hangs already goes on hanging: see `let_go`."""
        with self._locked():
            (self.state / "faults").write_text("")

    def pending(self) -> list[str]:
        """Return the faults that have not been used up, a line each; empty when everything that was asked for has happened."""
        with self._locked():
            return (self.state / "faults").read_text().splitlines()

    def record(self) -> None:
        """Begin a record of all calls that pass where faults are; see `calls`."""
        (self.state / "calls").touch()

    def calls(self) -> list[tuple[int, str, tuple[int, ...]]]:
        """Return (pid, call, bytes in use on each device when it began) of every call since `record`, in their order."""
        with self._locked():
            lines = (self.state / "calls").read_text().splitlines()
        return [(int(pid), call, tuple(map(int, used))) for pid, call, *used in map(str.split, lines)]

    def broken(self) -> list[tuple[int, int, str]]:
        """Return (pid, error, call) of every context that ended because its work failed: its memory was not there, say."""
        path = self.state / "broken"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), int(code), call) for pid, code, call, _ in map(str.split, lines)]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.state / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def build(directory: Path, *, gpus: int | Sequence[FakeGpu] = 1, memory: int = 1024 * _MIB) -> FakeDriver:
    """Compile both libraries and the worker into `directory`/lib and return a machine with `gpus` in `directory`/state.

    Raises `Unavailable` where there is no C compiler, or with what the compiler said.
    """
    compiler = find_compiler()
    if compiler is None:
        raise Unavailable(
            "The fake NVIDIA driver is compiled from C, and there is neither gcc nor cc.",
            remedy="Install a C compiler (Debian: apt-get install gcc libc6-dev).",
        )
    libraries = directory / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra"]
    for name, sources in _LIBRARIES.items():
        # Calls inside a library stay inside it, as in the real one: a library before the driver sees what programs call.
        shared = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic", "-Wl,-z,defs", f"-Wl,-soname,{name}"]
        _compile([compiler, *flags, *shared], sources, libraries / name)
    _compile([compiler, *flags], ("worker.c",), libraries / "worker")
    return FakeDriver(libraries=libraries, state=directory, gpus=()).another(directory / "state", gpus=gpus, memory=memory)


def _compile(words: list[str], sources: Sequence[str], target: Path) -> None:
    words = [*words, "-o", str(target), *(str(_SOURCES / source) for source in sources), "-lpthread", "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{words[0]} could not compile {target.name}: {done.stderr.strip()}")


def find_compiler() -> str | None:
    """Return the C compiler ($CC, gcc or cc), or None."""
    return next((found for name in (os.environ.get("CC"), "gcc", "cc") if name and (found := shutil.which(name))), None)


def _numbered(state: Path, count: int, memory: int) -> tuple[FakeGpu, ...]:
    """Uuids are different on every machine of this kind: locks on devices are shared by everything that runs here."""
    return tuple(
        FakeGpu(uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'{state}#{number}')}", memory=memory) for number in range(count)
    )
