"""How an interrupt reaches a cell that awaits, in ipykernel's own hooks for it."""

import asyncio
import signal
from contextlib import contextmanager, suppress


class InterruptsCells:
    """The part of a kernel that ends the task of a cell at an interrupt; goes before ipykernel's class.

    The kernel has `link`, or None, and `shares` where it has one.
    """

    @contextmanager
    def _cancel_on_sigint(self, future):
        """ipykernel's own, but it wakes the loop at once (ipykernel issue 881: without, an interrupt waits for other news)."""
        loop = asyncio.get_running_loop()

        def stop():
            if not future.done():
                future.cancel()

        with self._as_the_cell(future):
            before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(stop))
            try:
                yield
            finally:
                signal.signal(signal.SIGINT, before)

    @contextmanager
    def _dummy_context_manager(self, *arguments):
        """ipykernel's own for a subshell, where signals do not arrive."""
        with self._as_the_cell(*arguments[:1]):
            yield

    @contextmanager
    def _as_the_cell(self, *futures):
        """A cell with a top-level await runs in a task of its own, and is the same user."""
        for future in futures:
            if self.link is not None:
                with suppress(Exception):
                    self.shares.also(future, self.shares.current())
        yield
