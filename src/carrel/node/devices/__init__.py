"""What this machine has: GPUs (through NVML) or simulated ones, processors, memory; and who holds which GPU."""

from carrel.node.devices.discover import discover
from carrel.node.devices.driver import driver_facts
from carrel.node.devices.health import DeviceHealth
from carrel.node.devices.locks import DeviceLocks
from carrel.node.devices.machine import this_node
from carrel.node.devices.processes import DeviceProcesses
from carrel.node.devices.sampler import GpuSampler, GpuUse
