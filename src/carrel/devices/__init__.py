"""What this machine has: GPUs (through NVML) or simulated ones, processors, memory; and who holds which GPU."""

from carrel.devices.discover import discover
from carrel.devices.driver import driver_facts
from carrel.devices.locks import DeviceLocks
from carrel.devices.machine import this_node
from carrel.devices.processes import DeviceProcesses
from carrel.devices.sampler import GpuSampler, GpuUse

__all__ = ["DeviceLocks", "DeviceProcesses", "GpuSampler", "GpuUse", "discover", "driver_facts", "this_node"]
