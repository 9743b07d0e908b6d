"""One conversation with a deputy: its process, and the pipes to and from it. Nobody waits for the other to read."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from carrel.domain.errors import Unavailable
from carrel.engines.deputy.frames import FrameReader

#: Seconds after which `is_over` is asked although nothing has happened.
_LOOK = 30.0
#: Seconds that a deputy has for its end.
_FAREWELL = 10.0


def converse(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    log: IO[bytes],
    wake: int,
    say: Callable[[], memoryview],
    hear: Callable[[Mapping[str, Any], bytes], None],
    is_over: Callable[[bool], bool],
) -> bool:
    """Start `command` and speak with it. True when `is_over` said so; False when the deputy ended by itself.

    `say` returns what is to be written next, which is empty for nothing; a byte in the pipe `wake` has it asked again. `hear`
    gets each frame. `is_over` is asked now and then, with whether something waits to be written. Exceptions of theirs end it.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environ,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be started: {error.strerror}.") from error
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        return _speak(process.stdin.fileno(), process.stdout.fileno(), wake, say, hear, is_over)
    finally:
        process.stdin.close()
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_FAREWELL)


def _speak(
    to: int,
    back: int,
    wake: int,
    say: Callable[[], memoryview],
    hear: Callable[[Mapping[str, Any], bytes], None],
    is_over: Callable[[bool], bool],
) -> bool:
    os.set_blocking(to, False)
    os.set_blocking(back, False)
    reader = FrameReader()
    pending = memoryview(b"")
    writing = False
    with selectors.DefaultSelector() as selector:
        selector.register(back, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            pending = pending or say()
            if bool(pending) != writing:
                writing = bool(pending)
                selector.register(to, selectors.EVENT_WRITE) if writing else selector.unregister(to)
            ready = {key.fd for key, _ in selector.select(timeout=_LOOK)}
            if wake in ready:
                with suppress(BlockingIOError):
                    os.read(wake, 4096)
            if to in ready:
                try:
                    pending = pending[os.write(to, pending) :]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    return False
            if back in ready:
                data = os.read(back, 1024**2)
                if not data:
                    return False
                for head, body in reader.feed(data):
                    hear(head, body)
            if is_over(bool(pending)):
                return True
