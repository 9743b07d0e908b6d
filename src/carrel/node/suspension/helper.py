"""The program that calls the NVIDIA driver: `python -m carrel.node.suspension.helper`, one JSON object a line in and out.

Calls of the driver can block for ever, crash, or hold a lock; here they cost a process that can be ended and replaced. It
initialises CUDA once (attaching to the driver takes seconds on large machines) and never makes a context, so it is on no device.

    {"op": "lock", "pid": 4711, "start": 123456, "seconds": 15.0, "timeout_ms": 10000} -> {"code": 0, "name": "CUDA_SUCCESS"}

Answers: "code" and "name" of the CUresult; "state" and "thread" for "state"; {"gone": true} when (pid, start) is no process; or
{"unavailable": "why"} when there is no driver, or one without these calls. When its input ends it ends, after the call in hand.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from carrel.node.devices.driver import driver_facts
from carrel.node.devices.processes import DeviceProcesses
from carrel.node.suspension.identity import is_alive
from carrel.node.suspension.ports import Target

#: Seconds beyond the caller's deadline after which the kernel ends us (SIGALRM): a caller that died cannot.
GRACE = 15.0

_readers: dict[tuple[str, ...] | None, DeviceProcesses] = {}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do one request."""
    match request["op"]:
        case "hello":
            return {"pid": os.getpid()}
        case "use":
            return _use(request.get("devices"))
        case "driver":
            facts = driver_facts()
            return {"driver": None if facts is None else dataclasses.asdict(facts)}
    try:
        driver: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return {"unavailable": "the package cuda-bindings is not installed"}
    try:
        if request["op"] == "init":
            return _told(driver.cuInit(0)[0])
        target = Target(pid=int(request["pid"]), start=int(request["start"]))
        return _act(driver, request, target) if is_alive(target) else {"gone": True}
    except Exception as error:  # noqa: BLE001 - the loader of the driver raises errors of its own
        return {"unavailable": f"{type(error).__name__}: {error}".splitlines()[0]}


def _act(driver: Any, request: Mapping[str, Any], target: Target) -> dict[str, Any]:
    pid = target.pid
    match request["op"]:
        case "state":
            # GetState takes processes without CUDA for running ones; the thread is there only when CUDA is.
            thread = driver.cuCheckpointProcessGetRestoreThreadId(pid)[0]
            result, *state = driver.cuCheckpointProcessGetState(pid)
            return _told(result) | {"thread": int(thread), "thread_name": thread.name, "state": int(state[0]) if state else None}
        case "lock":
            arguments = driver.CUcheckpointLockArgs()
            arguments.timeoutMs = int(request["timeout_ms"])
            return _told(driver.cuCheckpointProcessLock(pid, arguments)[0])
        case "checkpoint":
            return _told(driver.cuCheckpointProcessCheckpoint(pid, None)[0])
        case "restore":
            return _told(driver.cuCheckpointProcessRestore(pid, _map(driver, request.get("moves") or {}))[0])
        case "unlock":
            return _told(driver.cuCheckpointProcessUnlock(pid, None)[0])
    raise ValueError(f"unknown operation {request['op']!r}")


def _map(driver: Any, moves: Mapping[str, str]) -> Any:
    if not moves:
        return None
    pairs = []
    for old, new in moves.items():
        pair = driver.CUcheckpointGpuPair()
        pair.oldUuid, pair.newUuid = _uuid(driver, old), _uuid(driver, new)
        pairs.append(pair)
    arguments = driver.CUcheckpointRestoreArgs()
    arguments.gpuPairs = pairs
    arguments.gpuPairsCount = len(pairs)
    return arguments


def _uuid(driver: Any, text: str) -> Any:
    uuid = driver.CUuuid()
    raw = bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))
    ctypes.memmove(int(uuid.getPtr()), raw, 16)  # its attribute cannot be set
    return uuid


def _told(result: Any) -> dict[str, Any]:
    return {"code": int(result), "name": result.name}


def _use(devices: list[str] | None) -> dict[str, Any]:
    key = None if devices is None else tuple(devices)
    reader = _readers.get(key)
    if reader is None:
        reader = _readers[key] = DeviceProcesses(devices)
    now = reader.read()
    if not now.processes:  # next time it looks anew which devices there are
        _readers.pop(key).close()
    return dataclasses.asdict(now)


def main() -> None:
    """Answer until the input ends."""
    # All that a library prints goes to stderr: our stdout carries answers only.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, float(request["seconds"]) + GRACE)
        said = answer(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            answers.write(json.dumps(said) + "\n")
            answers.flush()
        except OSError:  # the caller is gone
            os._exit(0)


if __name__ == "__main__":
    main()
