"""`carrel.Executor`: functions of Python that run as calls on the lab's machines."""

import carrel.wire
from carrel.client.executor.errors import (
    CallTimeout,
    DependencyFailed,
    RemoteError,
    RemoteTraceback,
    WorkerDied,
    WorkersDoNotStart,
)
from carrel.client.executor.executor import Executor
from carrel.client.executor.future import Future

__all__ = [
    "CallTimeout",
    "DependencyFailed",
    "Executor",
    "Future",
    "RemoteError",
    "RemoteTraceback",
    "WorkerDied",
    "WorkersDoNotStart",
]
