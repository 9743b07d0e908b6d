"""Waiting for a GPU where a person sees it: one line in the cell's output, and an interrupt that is noted."""

import signal
import threading
import uuid
from contextlib import contextmanager, suppress

#: Seconds without news of a lease before the cell says that it waits.
PATIENCE = 0.3


class Line:
    """One line in the cell's output that changes while the cell waits."""

    def __init__(self, kernel):
        self._kernel = kernel
        self._id = uuid.uuid4().hex
        self.shown = ""

    def show(self, text):
        """Say this now."""
        if text == self.shown:
            return
        kind = "update_display_data" if self.shown else "display_data"
        self.shown = text
        content = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": self._id}}
        with suppress(Exception):
            self._kernel.send_response(self._kernel.iopub_socket, kind, content)

    def end(self, text):
        """The last word, where there was a first one."""
        if self.shown:
            self.show(text)


class Interrupt:
    """Whether the user has interrupted: at once in `came`, and as a future for those who sleep."""

    def __init__(self, loop):
        self._loop = loop
        self.future = loop.create_future()
        self.came = False

    def note(self, *_):
        """A handler of SIGINT."""
        self.came = True
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self):
        if not self.future.done():
            self.future.set_result(True)


@contextmanager
def interruptible(loop):
    """Notes an interrupt instead of raising it: a KeyboardInterrupt in the event loop would end the kernel."""
    interrupt = Interrupt(loop)
    # Only the main thread is interrupted (signal(7)); a subshell has another one.
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interrupt.note) if main else None
    try:
        yield interrupt
    finally:
        if main:
            signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
        interrupt.future.cancel()


def names(granted):
    """The lent devices for people."""
    found = [
        "GPU %s%s" % (device.get("index"), " (simulated)" if device.get("simulated") else "")
        for device in granted.get("devices") or ()
    ]
    return ", ".join(found) or "a GPU"


def span(seconds):
    """A time for people."""
    return "%d s" % round(seconds) if seconds >= 1 else "%.1f s" % seconds
