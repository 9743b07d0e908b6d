"""What can go wrong with a call, beside what its function raises."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool


class WorkerDied(BrokenProcessPool):
    """The worker ended before the call did: it was killed, ran out of memory, or reached its walltime.

    The call may have done a part of its work. With `retries` it begins again.
    """


class WorkersDoNotStart(BrokenProcessPool):
    """No worker came to where it takes calls; the message says why, and which job's log has more."""


class DependencyFailed(Exception):
    """A call whose result was an argument failed or was cancelled, so this one did not begin; the message names it.

    The cause is what that call raised.
    """


class RemoteTraceback(Exception):
    """The cause of an exception that a call raised: where that was."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
