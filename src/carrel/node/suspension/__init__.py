"""Moving the GPU state of a process to host memory and back, and knowing where it is: the CUDA driver's checkpoint interface."""

from carrel.node.suspension.calls import Deadlines
from carrel.node.suspension.cuda import CudaSuspender
from carrel.node.suspension.identity import start_of
from carrel.node.suspension.ports import Capability, DriverState, Ending, Moved, Suspender, Target, Use
