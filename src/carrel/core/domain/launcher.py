"""What starts the processes of a task."""

from __future__ import annotations

from enum import StrEnum


class Launcher(StrEnum):
    """What starts the processes of a task on its nodes."""

    #: The lab itself.
    NONE = "none"
    #: PyTorch's, of the task's environment.
    TORCHRUN = "torchrun"
    #: Slurm's own where it speaks PMI, else `mpirun` of the task's environment.
    MPI = "mpi"
