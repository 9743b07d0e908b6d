"""What a node's driver can do, found out by doing it: a process of our own is suspended, restored and compared."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.lease import Tier
from carrel.node.devices.driver import DriverFacts, GpuFacts
from carrel.node.suspension.lines import Ended, Silent
from carrel.node.suspension.pool import HelperPool
from carrel.node.suspension.ports import Capability, Ending, Moved, Suspender
from carrel.node.suspension.specimen import Specimen, start

_MIB = 1024**2
_GIB = 1024**3
#: The state that is compared by value.
PATTERN = 64 * _MIB
#: The state that speed is measured with, where a device has `_PLENTY` free: with less, what is fixed per call hides the copying.
LARGE = _GIB
_PLENTY = 8 * _GIB
#: CUDA 12.8 came with it, and with the checkpoint calls in the driver's interface.
FIRST_DRIVER = 570
#: driver -> (only with the open kernel module, what is wrong). Issues 53 and 58 of NVIDIA/cuda-checkpoint.
DENIED: Mapping[str, tuple[bool, str]] = {
    "595.71.05": (True, "with the open kernel module, ending a process that was restored can hang the whole machine"),
    "610.57.04": (False, "locking can crash the process that is to be suspended"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the probe tries things with."""

    suspender: Suspender
    #: Variables and program of the processes that are suspended.
    environment: Mapping[str, str]
    python: str
    #: How long such a process may take until it has its state.
    start_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A capability, and whether it will be the same next time."""

    capability: Capability
    #: False: something temporary may have stood in the way.
    lasting: bool
    #: What became of a process with managed memory: "refused", "lost", "works" or "not tried".
    managed: str = "not tried"


def probe(
    *,
    pool: HelperPool,
    bench: Bench,
    devices: Sequence[str] | None,
    cache: Path | None,
    seconds: float,
    root: Path = Path("/"),
    machine: str = platform.machine(),
) -> Capability:
    """Return what this node's driver can do. Never raises: what stands in the way is the capability's message."""
    try:
        facts = read_facts(pool, seconds)
    except (Silent, Ended) as error:
        return _hold(f"The NVIDIA driver does not answer ({error}).")
    if facts is None:
        return _hold("No NVIDIA driver answers on this machine (NVML).")
    refused = refusal(facts, devices=devices, machine=machine, open_module=has_open_module(root))
    if refused:
        return _hold(refused, facts.version)
    key = _key(facts, root)
    known = _recall(cache, key)
    if known is not None:
        threading.Thread(target=pool.warm, name="attach to the driver", daemon=True).start()
        return known
    finding = _try(facts, bench, devices)
    if cache is not None and finding.lasting:
        _remember(cache, key, finding)
    return finding.capability


def read_facts(pool: HelperPool, seconds: float) -> DriverFacts | None:
    """Ask NVML for the driver and its devices. Raises `Silent` or `Ended`."""
    said: dict[str, Any] | None = pool.ask("driver", seconds)["driver"]
    if said is None:
        return None
    return DriverFacts(version=said["version"], gpus=tuple(GpuFacts(**gpu) for gpu in said["gpus"]))


def refusal(facts: DriverFacts, *, devices: Sequence[str] | None, machine: str, open_module: bool) -> str:
    """Return why suspension is not to be tried here, or ""."""
    if machine not in ("x86_64", "AMD64"):
        return f"The driver suspends processes on x86-64 only; this machine is {machine}."
    if not facts.gpus:
        return "The NVIDIA driver shows no device."
    sliced = [gpu for gpu in facts.gpus if gpu.mig and (devices is None or gpu.uuid in devices)]
    if sliced or any(uuid.startswith("MIG-") for uuid in devices or ()):
        return "A device is in MIG mode, in which the driver cannot suspend processes."
    major = facts.version.split(".")[0]
    if major.isdigit() and int(major) < FIRST_DRIVER:
        return f"Driver {facts.version} cannot suspend processes; {FIRST_DRIVER} and newer can."
    only_open, wrong = DENIED.get(facts.version, (False, ""))
    if wrong and (open_module or not only_open):
        return f"Driver {facts.version} is not used for suspension: {wrong}. Another version is needed."
    return ""


def has_open_module(root: Path = Path("/")) -> bool:
    """Return True when the kernel module is the open one, as /proc/driver/nvidia/version says."""
    try:
        return "Open Kernel Module" in (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return False


def _try(facts: DriverFacts, bench: Bench, devices: Sequence[str] | None) -> Finding:
    usable = [gpu for gpu in facts.gpus if devices is None or gpu.uuid in devices]
    if not usable:
        return Finding(capability=_hold("None of this node's devices is shown by the driver.", facts.version), lasting=False)
    gpu = max(usable, key=lambda one: one.free)
    if gpu.free < min(_GIB, gpu.memory // 2):
        message = f"No device has room to try suspension ({gpu.free // _MIB} MiB free); it is tried again at the next start."
        return Finding(capability=_hold(message, facts.version), lasting=False)
    try:
        found = _cycle(gpu, bench, facts.version)
        if found.capability.tier is not Tier.SUSPEND:
            return found
        moves = any(_moves(gpu, other, bench) for other in _like(gpu, usable)[:1])
        return Finding(capability=replace(found.capability, homes_move=moves), lasting=True, managed=_managed(gpu, bench))
    except (Unavailable, RuntimeError, TimeoutError) as error:
        return Finding(capability=_hold(f"Suspension could not be tried: {error}", facts.version), lasting=False)


def _cycle(gpu: GpuFacts, bench: Bench, driver: str) -> Finding:
    """Suspend and restore a known state, compare it, and measure."""
    with closing(_specimen(gpu, bench, PATTERN)) as specimen:
        seconds = [(PATTERN, *_there_and_back(specimen, gpu, bench, PATTERN))]
        if gpu.free >= _PLENTY and _host_free() >= 4 * LARGE:
            specimen.order("grow", bench.start_seconds, size=LARGE - PATTERN)
            seconds.append((LARGE, *_there_and_back(specimen, gpu, bench, LARGE)))
        rates = [_rate([(size, both[way]) for size, *both in seconds]) for way in (0, 1)]
    return Finding(
        capability=Capability(tier=Tier.SUSPEND, driver=driver, suspend_rate=rates[0], restore_rate=rates[1]), lasting=True
    )


def _there_and_back(specimen: Specimen, gpu: GpuFacts, bench: Bench, size: int) -> tuple[float, float]:
    """Return the seconds of a suspension and a restore. Raises `_NotHere` when the driver cannot do it, or does it wrong."""
    away = bench.suspender.suspend([specimen.target], devices=[gpu.uuid], size=size)
    _expect(away, "suspending")
    back = bench.suspender.resume([specimen.target], devices=[gpu.uuid], size=size)
    _expect(back, "restoring")
    if not specimen.order("check", bench.start_seconds)["same"]:
        raise Unavailable("the restored memory is not what it was.")
    return away.seconds, back.seconds


def _like(gpu: GpuFacts, usable: Sequence[GpuFacts]) -> Sequence[GpuFacts]:
    """Other devices of its type that have room for a state, the emptiest first."""
    alike = (one for one in usable if one.uuid != gpu.uuid and (one.name, one.memory) == (gpu.name, gpu.memory))
    return sorted((one for one in alike if one.free >= min(_GIB, one.memory // 2)), key=lambda one: -one.free)


def _moves(gpu: GpuFacts, other: GpuFacts, bench: Bench) -> bool:
    """See whether a process of our own comes back on another device, and is told so: drivers refuse maps, or ignore them.

    It has what the residency library leaves behind, too, and must be able to use that there.
    """
    try:
        with closing(_specimen(gpu, bench, PATTERN)) as specimen:
            specimen.order("reserve", bench.start_seconds)
            _expect(bench.suspender.suspend([specimen.target], devices=[gpu.uuid], size=PATTERN), "suspending")
            back = bench.suspender.resume([specimen.target], devices=[other.uuid], size=PATTERN, moves={gpu.uuid: other.uuid})
            _expect(back, "moving")
            there = specimen.order("where", bench.start_seconds)["device"]
            same = (specimen.order(order, bench.start_seconds)["same"] for order in ("check", "fill"))
            return there == other.uuid and all(same)
    except (Unavailable, RuntimeError, TimeoutError):
        return False


def _expect(moved: Moved, doing: str) -> None:
    if moved.ending is not Ending.DONE:
        raise Unavailable(f"{doing} a process of our own ended as {moved.ending.value}: {moved.message}")


def _managed(gpu: GpuFacts, bench: Bench) -> str:
    """See what becomes of a process with managed memory. It is ours, so nothing is at stake."""
    try:
        with closing(_specimen(gpu, bench, _MIB, managed=2 * _MIB)) as specimen:
            away = bench.suspender.suspend([specimen.target], devices=[gpu.uuid], size=3 * _MIB)
            if away.ending is Ending.DONE:
                back = bench.suspender.resume([specimen.target], devices=[gpu.uuid], size=3 * _MIB)
                return "works" if back.ending is Ending.DONE and specimen.order("check", 10.0)["same"] else "lost"
            return "refused" if specimen.alive() and specimen.order("check", 10.0)["same"] else "lost"
    except (Unavailable, RuntimeError, TimeoutError):
        return "lost"


def _specimen(gpu: GpuFacts, bench: Bench, size: int, managed: int = 0) -> Specimen:
    return start(
        size=size,
        managed=managed,
        device=gpu.uuid,
        environment=bench.environment,
        python=bench.python,
        seconds=bench.start_seconds,
    )


def _rate(points: Sequence[tuple[int, float]]) -> float:
    """Bytes a second; between two sizes where there are two, so that what is fixed per call does not count."""
    size, seconds = points[-1]
    if len(points) > 1 and seconds > points[0][1]:
        return (size - points[0][0]) / (seconds - points[0][1])
    return size / seconds if seconds > 0 else 0.0


def _host_free() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _hold(message: str, driver: str = "") -> Capability:
    return Capability(tier=Tier.HOLD, message=message, driver=driver)


def _key(facts: DriverFacts, root: Path) -> dict[str, object]:
    try:
        boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return {"driver": facts.version, "devices": sorted(gpu.uuid for gpu in facts.gpus), "boot": boot}


def _recall(cache: Path | None, key: Mapping[str, object]) -> Capability | None:
    if cache is None:
        return None
    try:
        kept = json.loads(cache.read_text())
        if kept["key"] != key:
            return None
        return Capability(**kept["capability"] | {"tier": Tier(kept["capability"]["tier"])})
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or not one of ours: the probe is made again
        return None


def _remember(cache: Path, key: Mapping[str, object], finding: Finding) -> None:
    kept = {"key": key, "capability": asdict(finding.capability), "managed": finding.managed, "at": int(time.time())}
    draft = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(kept, indent=2) + "\n")
        draft.replace(cache)
    except OSError:  # it only saves time
        draft.unlink(missing_ok=True)
