"""The driver's checkpoint calls for one process, each with its deadline, and what they answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.node.devices.processes import OnDevices
from carrel.node.suspension.identity import is_alive
from carrel.node.suspension.lines import Ended, Silent
from carrel.node.suspension.pool import HelperPool
from carrel.node.suspension.ports import DriverState, Target

#: CUresult, CUDA driver API.
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
OPERATING_SYSTEM = 304
ILLEGAL_STATE = 401
NOT_READY = 600
NOT_PERMITTED = 800
NOT_SUPPORTED = 801
#: The driver looked at the process and said no: it is as it was. After any other error the process may be dying.
REFUSALS = (INVALID_VALUE, ILLEGAL_STATE, NOT_READY, NOT_PERMITTED, NOT_SUPPORTED)

#: CUprocessState. 4 (checkpointing) and 5 (restoring) are under way: what becomes of them is not known yet.
_STATES = (DriverState.RUNNING, DriverState.LOCKED, DriverState.CHECKPOINTED, DriverState.FAILED)
#: Seconds between two looks at something that sends no events, first and last.
_FIRST_LOOK = 0.005
_LAST_LOOK = 0.25
#: Seconds that a process gets to die after a call about it failed in an unexpected way.
_DYING = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long the driver may take, in seconds."""

    #: A new helper, until it has attached to the driver.
    start: float = 60.0
    #: Asking for a state.
    state: float = 10.0
    #: The driver's own limit for a lock; the call may take `slack` more.
    lock: float = 10.0
    slack: float = 5.0
    #: A checkpoint or restore takes `move` plus the bytes over `rate` (bytes a second).
    move: float = 30.0
    rate: float = 2e9
    unlock: float = 30.0
    #: A question to NVML.
    nvml: float = 10.0
    #: Until NVML must show what a checkpoint or restore did.
    verify: float = 5.0

    def moving(self, size: int) -> float:
        """Return the limit for a checkpoint or restore of `size` bytes."""
        return self.move + size / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one call."""

    #: CUresult by number and name.
    code: int = -1
    name: str = ""
    #: The process is not there any more.
    gone: bool = False
    #: The helper did not answer and was ended; or "".
    hung: str = ""
    #: Where the process is afterwards. Asked for only when the call did not plainly succeed.
    state: DriverState = DriverState.UNKNOWN

    @property
    def ok(self) -> bool:
        """The driver says that it is done."""
        return self.code == 0


class DriverSilent(Exception):
    """The driver hung for the second time in one operation."""


class NoAnswer(Exception):
    """NVML, or the whole driver, cannot be asked. The question itself has changed nothing."""


class Calls:
    """The calls of one operation. It counts hangs: the second raises `DriverSilent`, and nothing more is to be tried."""

    def __init__(self, pool: HelperPool, deadlines: Deadlines, closing: threading.Event) -> None:
        self._pool = pool
        self._deadlines = deadlines
        self._closing = closing
        self.hangs = 0

    def state(self, target: Target) -> DriverState:
        """Return where the process' state is, once it is at rest. Raises `NoAnswer` where there is no driver to ask."""
        pause = _FIRST_LOOK
        waited = 0.0
        while True:
            answer = self._ask("state", target, self._deadlines.state)
            if "hung" in answer:
                continue  # the second time it raises
            if "unavailable" in answer:
                raise NoAnswer(str(answer["unavailable"]))
            found = _read_state(answer)
            if found is not DriverState.UNKNOWN:
                return found
            if waited >= self._deadlines.move:
                self._hang(f"process {target.pid} is between two states for {waited:.0f} s")
                waited = 0.0
            self._closing.wait(pause)
            waited += pause
            pause = min(2 * pause, _LAST_LOOK)

    def lock(self, target: Target) -> Answer:
        """Stop it from using CUDA; what it has submitted completes first."""
        limit = self._deadlines.lock
        return self._call("lock", target, limit + self._deadlines.slack, timeout_ms=max(1, round(limit * 1000)))

    def checkpoint(self, target: Target, size: int) -> Answer:
        """Move its state to host memory."""
        return self._call("checkpoint", target, self._deadlines.moving(size))

    def restore(self, target: Target, size: int, moves: Mapping[str, str] | None = None) -> Answer:
        """Bring its state back; with `moves` (old UUID -> new UUID, for every device of the node) onto other devices."""
        return self._call("restore", target, self._deadlines.moving(size), moves=dict(moves or {}))

    def unlock(self, target: Target) -> Answer:
        """Let it use CUDA again."""
        return self._call("unlock", target, self._deadlines.unlock)

    def use(self, devices: Sequence[str] | None = None) -> OnDevices:
        """Ask NVML who is where. Raises `NoAnswer`; a device that does not answer is `unread`."""
        try:
            said = self._pool.ask("use", self._deadlines.nvml, devices=None if devices is None else list(devices))
        except (Silent, Ended) as error:
            raise NoAnswer(f"NVML does not answer ({error})") from error
        return OnDevices(
            processes={uuid: {int(pid): size for pid, size in present.items()} for uuid, present in said["processes"].items()},
            used=said["used"],
            unread=said["unread"],
            busy=said["busy"],
        )

    def died(self, target: Target) -> bool:
        """Return True when the process ends now: a driver call that failed may have taken it along, and dying takes a moment."""
        deadline = time.monotonic() + _DYING
        pause = _FIRST_LOOK
        while is_alive(target):
            if time.monotonic() >= deadline:
                return False
            self.wait(pause)
            pause *= 2
        return True

    def wait(self, pause: float) -> None:
        """Wait before the next look, no longer than until we are closed."""
        self._closing.wait(min(pause, _LAST_LOOK))

    def _call(self, op: str, target: Target, seconds: float, **values: Any) -> Answer:
        answer = self._ask(op, target, seconds, **values)
        if answer.get("gone"):
            return Answer(gone=True, name="the process is gone", state=DriverState.GONE)
        hung = str(answer.get("hung", ""))
        code, name = int(answer.get("code", -1)), str(answer.get("name") or answer.get("unavailable") or hung)
        if code == 0:
            return Answer(code=code, name=name)
        return Answer(code=code, name=name, hung=hung, state=self.state(target))

    def _ask(self, op: str, target: Target, seconds: float, **values: Any) -> dict[str, Any]:
        try:
            answer = self._pool.ask(op, seconds, pid=target.pid, start=target.start, **values)
        except (Silent, Ended) as error:
            self._hang(f"{op} of process {target.pid}: {error}")
            return {"hung": f"no answer within {seconds:g} s"}
        return answer

    def _hang(self, message: str) -> None:
        self.hangs += 1
        if self.hangs >= 2:
            raise DriverSilent(message)


def _read_state(answer: Mapping[str, Any]) -> DriverState:
    if answer.get("gone"):
        return DriverState.GONE
    if answer["thread"] != 0:
        return DriverState.NO_CUDA
    if answer["code"] != 0 or answer["state"] is None:
        raise NoAnswer(f"cuCheckpointProcessGetState answered {answer['name']}")
    return _STATES[answer["state"]] if answer["state"] < len(_STATES) else DriverState.UNKNOWN
