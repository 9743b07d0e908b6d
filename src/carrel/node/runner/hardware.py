"""What the machine is, for the record."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from carrel.core.domain.node import Device
from carrel.core.domain.units import format_size


def machine_facts() -> dict[str, str]:
    """Return processor, memory, kernel, distribution and GPU driver; what cannot be read is left out. Does not change."""
    facts = {"kernel": f"{os.uname().sysname} {os.uname().release}", "architecture": os.uname().machine}
    facts["cpus"] = str(os.cpu_count() or 1)
    if match := re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE):
        facts["cpu"] = match[1].strip()
    if match := re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE):
        facts["memory"] = format_size(int(match[1]) * 1024)
    if match := re.search(r"(\d+\.\d+(?:\.\d+)?)\s", _read("/proc/driver/nvidia/version")):
        facts["gpu_driver"] = match[1]
    # os-release(5); `platform` knows it too, and takes longer to import than all of this.
    match = re.search(r'^PRETTY_NAME=(["\']?)(.*)\1$', _read("/etc/os-release") or _read("/usr/lib/os-release"), re.MULTILINE)
    facts["system"] = match[2] if match else os.uname().sysname
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
