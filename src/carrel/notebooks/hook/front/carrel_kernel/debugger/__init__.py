"""The page's debugger, for this session's own processes alone.

debugpy listens on the loopback, where every user of the machine is a neighbour, and asks for no key: whoever connects there runs
code in the kernel. So what it listens on, in the kernel and in its *adapter* (a process of its own), takes own connections alone.
"""

from contextlib import suppress

from .own import keep_apart


class PrivateDebugger:
    """Part of a kernel."""

    _apart = False

    async def do_debug_request(self, msg):
        """As ipykernel does it; the first one comes before the debugger is started."""
        if not self._apart:
            with suppress(ImportError):  # an environment without debugpy has no debugger
                from debugpy import adapter

                keep_apart()
                # debugpy starts the directory of this file (`debugpy.server.api.listen`): ours becomes the adapter.
                adapter.__file__ = __file__
            self._apart = True
        return await super().do_debug_request(msg)
