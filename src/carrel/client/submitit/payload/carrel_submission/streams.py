"""What a process prints goes to the job's log, and to files of its own."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from typing import Any, Dict, List, Optional

#: Seconds between two looks whether a process has ended whose children hold its output open.
_LOOK = 0.2


def split(out: str, err: Optional[str]) -> Optional[int]:
    """Go on in a child, whose output is copied to the files `out` and `err` (None: all of it to `out`).

    Return None in the child. The parent passes SIGTERM on, and returns the child's end: its exit code, or minus its signal.
    """
    outputs = [os.pipe()] if err is None else [os.pipe(), os.pipe()]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        for descriptor in (1, 2):
            os.dup2(outputs[min(descriptor - 1, len(outputs) - 1)][1], descriptor)
        for ends in outputs:
            os.close(ends[0])
            os.close(ends[1])
        return None
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    sources: Dict[int, Any] = {}
    for place, (ends, path) in enumerate(zip(outputs, [out, err])):
        os.close(ends[1])
        os.set_blocking(ends[0], False)
        sources[ends[0]] = (place + 1, open(str(path), "ab", buffering=0))
    return _copy(child, sources)


def _pass_on(child: int) -> None:
    try:
        os.kill(child, signal.SIGTERM)
    except ProcessLookupError:
        pass


def _copy(child: int, sources: Dict[int, Any]) -> int:
    status: Optional[int] = None
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        while selector.get_map():
            ready: List[int] = [key.fd for key, _ in selector.select(_LOOK)]
            for source in ready:
                if not _move(source, *sources[source]):
                    selector.unregister(source)
            if not ready:
                if status is not None:
                    break  # what is left has the output open, and says nothing
                found, said = os.waitpid(child, os.WNOHANG)
                status = said if found else None
    if status is None:
        status = os.waitpid(child, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _move(source: int, descriptor: int, file: Any) -> bool:
    try:
        data = os.read(source, 65536)
    except BlockingIOError:
        return True
    if not data:
        return False
    file.write(data)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        print("the job's log takes no more: {}".format(error), file=sys.__stderr__)
    return True
