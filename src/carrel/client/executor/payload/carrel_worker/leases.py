"""GPUs that calls borrow from the node's broker: a call waits for its lease before it begins, and gives it back at its end.

What the process keeps on the GPU between two calls stays there, until somebody else needs the room.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from carrel_worker.connection import note
from carrel_worker.link import Link
from carrel_worker.residency import Residency
from carrel_worker.state import blockers, in_reserve, let_go

#: Seconds that a call has waited for a GPU when the worker's log says so.
_PATIENCE = 1.0
#: As in the kernels of sessions: asking whether there is a GPU takes none, and frameworks do not take all of its memory.
_VARIABLES = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}


class StateLost(Exception):
    """What this process had on the GPU is gone: another one has to carry out the call."""


class NotWanted(Exception):
    """The call is given back to the lab: its owner has cancelled it, and it has not begun."""


class NoLease:
    """What a call has whose GPUs are its job's own, or that has none."""

    #: Name of what the call raised.
    failed = ""
    #: Any thread may call it: whoever waits, waits no more.
    want_no_more: Callable[[], None] | None = None

    def wait(self) -> None:
        """There is nothing to wait for."""

    def begin(self) -> None:
        """Nor to take."""

    def give_back(self) -> None:
        """Nor to give back."""


class Lease(NoLease):
    """What one call has of a GPU: first its place in line."""

    def __init__(self, leases: Leases, name: str) -> None:
        self._leases = leases
        self._name = name
        self._news = threading.Event()
        self._computes = False
        self._wanted = True
        self.want_no_more = self._want_no_more
        self._question: Any = leases.link.acquire(leases.gpus, name, lambda _question: self._news.set())

    def wait(self) -> None:
        """Return when the GPU is there.

        Raises `NotWanted`, `StateLost`, `RuntimeError` with the broker's reason, and what signals raise.
        """
        began = time.monotonic()
        while self._wanted and not self._question.settled and not self._leases.lost:
            self._news.wait()
            self._news.clear()
        if not self._wanted:
            raise NotWanted
        if self._leases.lost:
            raise StateLost(self._leases.lost)
        if self._question.refused is not None:
            raise RuntimeError("There is no GPU for this call. " + self._question.refused)
        if time.monotonic() - began >= _PATIENCE:
            note("{} waited {:.0f} s for a GPU.".format(self._name, time.monotonic() - began))

    def begin(self) -> None:
        """The call computes from now on, if it has its GPU."""
        if self._question.granted is not None:
            self._leases.see(self._question.granted.get("devices") or ())
            self._leases.computes.acquire()
            self._computes = True
            self._leases.residency.busy()

    def give_back(self) -> None:
        """The call is over, or does not begin."""
        if not self._computes:
            self._leases.link.cancel(self._question)
            return
        self._leases.residency.idle()
        self._leases.computes.release()
        facts = self._leases.facts()
        facts["oom"] = facts["cuda"] and "OutOfMemory" in self.failed
        outcome = "error" if self.failed else "ok"
        self._leases.link.release(self._question.granted, cell=self._name, outcome=outcome, background=0, **facts)

    def _want_no_more(self) -> None:
        self._wanted = False
        self._news.set()

    def heard(self, message: dict[str, Any]) -> None:
        """It goes on after a pause, or the process' state is lost."""
        granted = self._question.granted
        if message.get("op") == "resumed" and granted is not None and granted["lease"] == message.get("lease"):
            granted["fence"] = message.get("fence")
        self._news.set()


class Leases:
    """The connection to the broker, where the GPUs of this process are borrowed."""

    def __init__(self, pool: str) -> None:
        #: Of each call.
        self.gpus = int(os.environ.get("CARREL_BORROWS") or 0)
        self.residency = Residency()
        #: Why the state of this process is lost; "": it is not.
        self.lost = ""
        #: Held while a call computes, and while device memory is let go of.
        self.computes = threading.Lock()
        self._current: Lease | None = None
        self.link: Any = None
        broker, token = os.environ.get("CARREL_BROKER"), os.environ.get("CARREL_TOKEN")
        if self.gpus and broker and token:
            for name, value in _VARIABLES.items():
                os.environ.setdefault(name, value)
            self.link = Link(broker, token, "", "pool " + pool, self._heard)
            self.link.start()

    @contextlib.contextmanager
    def asked(self, name: str) -> Iterator[NoLease]:
        """What a call of that name needs is asked for; at the end of the block it goes back."""
        if self.link is None:
            yield NoLease()
            return
        lease = self._current = Lease(self, name)
        try:
            yield lease
        finally:
            self._current = None
            lease.give_back()

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """What happens in the block has its GPU."""
        with self.asked(name) as lease:
            lease.wait()
            lease.begin()
            yield

    def facts(self) -> dict[str, Any]:
        """What the broker is told of the process when a lease goes back."""
        touched = _uses_cuda()
        return {"cuda": touched, "blockers": self._blockers() if touched else [], "cached": in_reserve() if touched else []}

    def see(self, devices: Any) -> None:
        """Make these devices the ones that CUDA finds; it looks once, at its first use."""
        found = [device["uuid"] if isinstance(device, dict) else device for device in devices]
        if found and not _uses_cuda():
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(found)

    def _blockers(self) -> list[str]:
        return list(blockers(self.link.welcome.get("stay") or {}))

    # -- what the broker says by itself, in the link's thread

    def _heard(self, message: dict[str, Any]) -> None:
        kind = message.get("op")
        if kind == "welcome":
            self.see(message.get("home") or ())
            self.lost = self.lost or str(message.get("lost") or "")
        elif kind == "lost":
            self.lost = str(message.get("message") or kind)
        elif kind == "prepare":
            self._prepare(message)
        elif kind in ("notice", "paused"):
            note(str(message.get("message") or kind))
        if (current := self._current) is not None:
            current.heard(message)

    def _prepare(self, message: dict[str, Any]) -> None:
        """Somebody needs room: let go of what is not needed, unless a call computes."""
        held, facts = None, {}
        if self.computes.acquire(blocking=False):
            try:
                if _uses_cuda():
                    held, facts = let_go(), {"cached": in_reserve()}
            except Exception as error:  # it is moved as it is
                note("what is not needed on the GPU cannot be let go of: {!r}".format(error))
            finally:
                self.computes.release()
        self.link.say("prepared", id=message.get("id"), bytes=held, blockers=self._blockers(), **facts)


def _uses_cuda() -> bool:
    """The driver's memory device is open, which only CUDA opens."""
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink("/proc/self/fd/" + number) == "/dev/nvidia-uvm":
                    return True
    return False
