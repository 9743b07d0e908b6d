"""Moving the GPU state of a process to host memory and back, and knowing where it is: the CUDA driver's checkpoint interface."""

from carrel.suspension.calls import Deadlines
from carrel.suspension.cuda import CudaSuspender
from carrel.suspension.identity import start_of
from carrel.suspension.ports import Capability, DriverState, Ending, Moved, Suspender, Target, Use

__all__ = [
    "Capability",
    "CudaSuspender",
    "Deadlines",
    "DriverState",
    "Ending",
    "Moved",
    "Suspender",
    "Target",
    "Use",
    "start_of",
]
