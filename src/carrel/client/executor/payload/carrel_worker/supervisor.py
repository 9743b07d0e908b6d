"""The first process of a worker: it starts the one that carries out calls, takes what that one prints, and outlives it."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from carrel_worker.bodies import as_frames
from carrel_worker.capture import Output, Stream, over_limit
from carrel_worker.connection import Lab, Over, note
from carrel_worker.frames import Decoder, encode
from carrel_worker.live import Live

#: Seconds in which the lab has to take the last words of a worker that died.
_PATIENCE = 20.0
#: Seconds in which a worker without calls to come has to end: threads that calls have left would keep it, and what it holds.
_GRACE = 30.0
#: Seconds in which a call that is over its limit has to end by an exception: a library in C does not see it.
_LATE = 2.0


def begin(pool: str) -> Output:
    """Go on in a process of its own: this returns there, and the supervisor ends as that one does."""
    live, leaving = Live(pool), threading.Event()
    streams = [Stream("stdout", 1, live.told), Stream("stderr", 2, live.told)]
    own, other = socket.socketpair()
    # The lab tells every process of a job to end, and a terminal its group: this one waits for the other.
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    signal.signal(signal.SIGINT, lambda *_: None)
    pid = os.fork()
    if pid:
        other.close()
        for stream in streams:
            os.close(stream.write)
        Supervisor(pid, own, streams, live, leaving).run()
    os.setpgid(0, 0)  # a call that does not end by itself ends with what it has started
    own.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in streams:
        os.close(stream.read)
    return Output(other, [stream.write for stream in streams])


class Supervisor:
    """What happens beside the worker."""

    def __init__(self, pid: int, channel: socket.socket, streams: list[Stream], live: Live, leaving: threading.Event) -> None:
        """`leaving` is set when the lab has told the job to end."""
        self._pid = pid
        self._channel = channel
        self._streams = streams
        self._live = live
        self._leaving = leaving
        self._decoder = Decoder()
        self._header: dict[str, Any] = {}
        self._body = b""
        #: The call that runs or ran last; 0 before the first.
        self._call = 0
        self._runs = True
        #: Seconds that it may take; when something is done about it, by the monotonic clock; and whether it was told already.
        self._limit: float | None = None
        self._next = math.inf
        self._told_late = False
        #: No call follows: however the worker ends, nothing is lost.
        self._over = False
        #: How calls ended that the lab may not know of.
        self._ends = b""
        #: The call has ended, and how it did only the worker knows: it must not begin again.
        self._untold = False
        self._status = 0

    def run(self) -> NoReturn:
        """Take what is printed until the worker ends, and end in the same way."""
        self._live.begin()
        ended, end = os.pipe()

        def wait() -> None:
            _, self._status = os.waitpid(self._pid, 0)
            os.close(end)

        threading.Thread(target=wait, name="end of the worker", daemon=True).start()
        poll = select.poll()
        for descriptor in (ended, self._channel.fileno(), *(stream.read for stream in self._streams)):
            poll.register(descriptor, select.POLLIN)
        while True:
            left = self._next - time.monotonic()
            ready = dict(poll.poll(None if left == math.inf else max(0.0, left) * 1000))
            for stream in self._streams:
                stream.drain()
                if ready.get(stream.read, 0) == select.POLLHUP:  # the worker has closed it for good
                    poll.unregister(stream.read)
            if ready.get(self._channel.fileno()) and not self._hear():
                poll.unregister(self._channel)
            if ended in ready:
                break
            if time.monotonic() >= self._next:
                self._stop()
        for stream in self._streams:
            stream.drain()
        if self._over:
            os._exit(0)
        if self._told_late and self._runs:
            self._begin_anew()
        if self._status or self._runs:
            self._last_words()
        _end_as(self._status)

    def _hear(self) -> bool:
        """Take what the worker says; False when it says nothing any more."""
        with contextlib.suppress(ConnectionError):
            data = self._channel.recv(65536)
            for kind, value in self._decoder.feed(data):
                if kind == "frame":
                    self._header, self._body = value, b""
                elif kind == "data":
                    self._body += value
                else:
                    self._told(self._header["type"])
            return bool(data)
        return False

    def _told(self, kind: str) -> None:
        if kind == "start":
            self._call, self._runs, self._limit = self._header["call"], True, self._header["limit"]
            self._told_late, self._next = False, time.monotonic() + (self._limit or math.inf)
            self._ends, self._untold = b"" if self._header["first"] else self._ends, False
            self._live.start(self._call)
            return
        for stream in self._streams:  # it was printed before
            stream.drain()
        answer = b""
        if kind == "finish":
            self._runs, self._next = False, math.inf
            if any(stream.end[0] for stream in self._streams):
                self._live.flush()  # the call's end has not all of it
            self._live.finish()
            answer = b"".join(stream.finish() for stream in self._streams)
            self._ends += answer + self._body if self._body else b""
            self._untold = not self._body
        elif kind == "show":
            self._live.told("display", self._header["number"], self._body)
        elif kind == "flush":
            self._live.flush()
        elif kind == "over":
            self._over = True
            last = threading.Timer(_GRACE, os.kill, (self._pid, signal.SIGKILL))
            last.daemon = True
            last.start()
        with contextlib.suppress(ConnectionError):
            self._channel.sendall(encode({}, answer))

    def _stop(self) -> None:
        """The call is over its limit: an exception is raised in it, and if that does not help, its processes are killed."""
        with contextlib.suppress(ProcessLookupError):
            if not self._told_late:
                self._told_late, self._next = True, time.monotonic() + _LATE
                os.kill(self._pid, signal.SIGINT)
                return
            self._next = math.inf
            os.kill(self._pid, signal.SIGKILL)  # also where it has left its group
            os.killpg(self._pid, signal.SIGKILL)

    def _begin_anew(self) -> NoReturn:
        """Tell the lab that the call was stopped, and go on as a new worker."""
        self._live.finish()
        printed = b"".join(stream.finish() for stream in self._streams)
        ending = {"type": "ended", "call": self._call, "state": "FAILED", "error": "time_limit"}
        ending["message"] = over_limit(self._limit or 0, printed)
        held = encode({"type": "holding", "calls": []})  # what waited behind it has not begun
        with contextlib.suppress(Over):
            Lab().ask("POST", self._live.work, [held, self._ends, as_frames([printed, ending, []])], patience=_PATIENCE)
            if not self._leaving.is_set():
                os.execv(sys.executable, sys.orig_argv)
        os._exit(0)

    def _last_words(self) -> None:
        """The end of what was printed, which the lab may not have yet."""
        words = []
        for stream in self._streams:
            offset, data = stream.end
            if data:
                words.append(encode({"type": "output", "call": self._call, "stream": stream.name, "offset": offset}, data))
        try:
            if words:
                Lab().ask("POST", self._live.path, words, patience=_PATIENCE)
            if self._call:  # else it has taken no call, as far as the lab is told
                held = encode({"type": "holding", "calls": [self._call] if self._runs or self._untold else []})
                Lab().ask("POST", self._live.work, [held, self._ends], patience=_PATIENCE)
        except Over as reason:
            note(f"what it printed last is in this log only: {reason}")


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # there is a dump of the worker, if there are any
        with contextlib.suppress(OSError):  # SIGKILL has no other action
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))
