"""The residency library in this process, if it was loaded (LD_PRELOAD): what the hook tells it, and asks it."""

import ctypes
import json
from contextlib import suppress


class Residency:
    """The library's own functions. Without it all of them do nothing."""

    def __init__(self):
        self._own = None
        with suppress(Exception):
            own = ctypes.CDLL(None)
            own.carrel_residency_status.restype = ctypes.c_size_t
            self._busy, self._idle = own.carrel_residency_busy, own.carrel_residency_idle
            self._own = own

    def status(self):
        """What it says of itself; {} where it does nothing."""
        if self._own is None:
            return {}
        with suppress(Exception):
            text = ctypes.create_string_buffer(4096)
            self._own.carrel_residency_status(text, ctypes.c_size_t(len(text)))
            found = json.loads(text.value)
            return found if found.get("gate") != "off" and not found.get("aside") else {}
        return {}

    def busy(self):
        """A cell runs: short pauses of the device are no reason to give it back."""
        if self._own is not None:
            self._busy(1)

    def idle(self):
        """No cell runs: the device goes back as soon as it has nothing to do."""
        if self._own is not None:
            self._idle()
