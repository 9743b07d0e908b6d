"""What the machine is, for the record."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.node import Device
from carrel.core.domain.units import format_size

#: Beginnings of the processor's flags by which numeric libraries choose their code (x86 and ARM).
_COMPUTES = ("sse", "ssse3", "avx", "fma", "f16c", "amx", "asimd", "sve", "bf16", "neon", "fphp")
_CGROUPS = "/sys/fs/cgroup"


def machine_facts() -> dict[str, str]:
    """Return processor, memory, system, GPU driver and libraries; what cannot be read is left out. Does not change."""
    facts = {"kernel": f"{os.uname().sysname} {os.uname().release}", "architecture": os.uname().machine}
    facts["cpus"] = str(os.cpu_count() or 1)
    if match := re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE):
        facts["cpu"] = match[1].strip()
    if match := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE):
        facts["cpu_flags"] = " ".join(sorted({flag for flag in match[1].split() if flag.startswith(_COMPUTES)}))
    if match := re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE):
        facts["memory"] = format_size(int(match[1]) * 1024)
    if match := re.search(r"(\d+\.\d+(?:\.\d+)?)\s", _read("/proc/driver/nvidia/version")):
        facts["gpu_driver"] = match[1]
    # os-release(5); `platform` knows it too, and takes longer to import than all of this.
    match = re.search(r'^PRETTY_NAME=(["\']?)(.*)\1$', _read("/etc/os-release") or _read("/usr/lib/os-release"), re.MULTILINE)
    facts["system"] = match[2] if match else os.uname().sysname
    return facts | _libraries()


def _libraries() -> dict[str, str]:
    """The machine's own libraries for numbers. What an environment brings is in its lock."""
    found = {}
    with suppress(ValueError, OSError):
        found["libc"] = os.confstr("CS_GNU_LIBC_VERSION") or ""
    with suppress(ValueError, KeyError, TypeError):
        found["cuda"] = str(json.loads(_read("/usr/local/cuda/version.json"))["cuda"]["version"])
    with suppress(OSError):
        # Debian's alternatives: what programs that use the system's BLAS get.
        chosen = [os.path.realpath(path) for path in sorted(Path("/etc/alternatives").glob("libblas.so.3*"))]
        found["blas"] = next((path for path in chosen if os.path.exists(path)), "")  # noqa: PTH110
    return {name: text for name, text in found.items() if text}


def limit_facts(cgroup: str | None) -> dict[str, str]:
    """Return the processors that this process may use, and the limits of its cgroup or of `cgroup`.

    Of version 2 the tightest of it and all above it, as cgroups(7) has them. What cannot be read is left out.
    """
    facts = {}
    with suppress(OSError):
        facts["cpus_allowed"] = str(len(os.sched_getaffinity(0)))
    match = re.search(r"^0::(/.*)$", _read("/proc/self/cgroup"), re.MULTILINE)
    here = Path(cgroup) if cgroup else Path(_CGROUPS + match[1]) if match else None
    if here is None or not here.is_relative_to(_CGROUPS):
        return facts
    places = [place for place in (here, *here.parents) if place.is_relative_to(_CGROUPS)]
    memory = [int(text) for place in places if (text := _read(f"{place}/memory.max").strip()).isdecimal()]
    if memory:
        facts["cgroup_memory"] = format_size(min(memory))
    quotas = [_read(f"{place}/cpu.max").split() for place in places]
    cpus = [int(one[0]) / int(one[1]) for one in quotas if len(one) == 2 and all(part.isdecimal() and int(part) for part in one)]
    if cpus:
        facts["cgroup_cpu"] = f"{min(cpus):g}"
    return facts


def device_facts(devices: Sequence[Device]) -> dict[str, str]:
    """Return one line per device of the job."""
    return {
        f"gpu_{number}": f"{device.name}, {format_size(device.memory)}, {device.uuid}" for number, device in enumerate(devices)
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
