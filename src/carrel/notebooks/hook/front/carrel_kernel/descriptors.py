"""What programs and libraries write to descriptors 1 and 2, on its way to the notebook and to the session's log.

ipykernel reads these by a thread of the kernel: a library that prints while it keeps the interpreter's lock waits for that thread
for ever when the pipe is full. Here a process of its own takes what is written, whatever the kernel does. It is forked before
there are threads, and ends when nobody can write any more.
"""

import codecs
import os
import select
import signal
import socket
import struct
import threading
from contextlib import suppress

#: Bytes that wait for a kernel that does not take them. Then writers wait.
KEPT = 64 * 1024**2
#: Seconds that a cell's end waits for what it has written.
PATIENCE = 5.0
#: The most that a pipe of Linux holds by default (/proc/sys/fs/pipe-max-size): one read empties it.
_PIPE = 1024**2
#: The number of the descriptor and the bytes that follow; number 0: all is delivered that was written before the kernel asked.
_FRAME = struct.Struct("=BI")


class Descriptors:
    """The kernel's end: shows in its streams what was written to its descriptors."""

    def __init__(self):
        """Start the process that takes what is written. Called before there is a thread."""
        pipes = {number: os.pipe() for number in (1, 2)}
        self._process, theirs = socket.socketpair()
        self._write_ends = {number: write_end for number, (_, write_end) in pipes.items()}
        child = os.fork()
        if not child:
            # Two steps: it is nobody's child here, so that a cell that waits for its children does not wait for it.
            if os.fork():
                os._exit(0)
            try:
                self._process.close()
                for write_end in self._write_ends.values():
                    os.close(write_end)
                _carry({read_end: number for number, (read_end, _) in pipes.items()}, theirs)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        theirs.close()
        for read_end, _ in pipes.values():
            os.close(read_end)
        self._delivered = threading.Event()

    def show(self, streams, log):
        """Show in these streams of ipykernel (by number) what is written from now on; the handlers of `log` write past them."""
        before = os.dup(2)
        for handler in log.handlers:
            if hasattr(handler, "setStream"):
                handler.setStream(open(before, "w", buffering=1, closefd=False))
        for number, write_end in self._write_ends.items():
            os.dup2(write_end, number)
            os.close(write_end)
            streams[number]._original_stdstream_copy = number  # what `fileno` answers: programs that are given the stream
        threading.Thread(target=self._hear, args=(streams,), name="carrel-descriptors", daemon=True).start()

    def settle(self):
        """Return when what was written until now is in the streams."""
        self._delivered.clear()
        with suppress(OSError, KeyboardInterrupt):
            self._process.sendall(b"?")
            self._delivered.wait(PATIENCE)

    def _hear(self, streams):
        decoders = {number: codecs.getincrementaldecoder("utf-8")("replace") for number in streams}
        with self._process.makefile("rb") as file:
            while True:
                head = file.read(_FRAME.size)
                if len(head) < _FRAME.size:
                    return self._delivered.set()
                number, size = _FRAME.unpack(head)
                if not number:
                    self._delivered.set()
                elif text := decoders[number].decode(file.read(size)):
                    with suppress(Exception):
                        streams[number].write(text)


def _carry(sources, kernel):
    """Carry what comes from `sources` (numbers by descriptor) to the log, and to the kernel while it lives."""
    os.setsid()  # what is sent to the kernel's group is not for this process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kernel.setblocking(False)
    waiting = bytearray()

    def take(source):
        data = os.read(source, _PIPE)
        if not data:
            del sources[source]
            return
        _log(sources[source], data)
        if kernel is not None:
            waiting.extend(_FRAME.pack(sources[source], len(data)) + data)

    while sources or waiting:
        reads = [*(sources if len(waiting) < KEPT else ()), *(() if kernel is None else (kernel,))]
        readable, writable, _ = select.select(reads, [kernel] if waiting else [], [])
        for source in readable:
            if source is not kernel:
                take(source)
        if kernel in readable:
            if _asked(kernel):
                for source in select.select(list(sources), [], [], 0)[0]:
                    take(source)
                waiting.extend(_FRAME.pack(0, 0))
            else:
                kernel, writable = None, []
                waiting.clear()
        if writable:
            with suppress(OSError):
                del waiting[: kernel.send(waiting)]


def _asked(kernel):
    """Whether the kernel asked; it is gone otherwise."""
    try:
        return bool(kernel.recv(64))
    except OSError:
        return False


def _log(number, data):
    with suppress(OSError):
        while data:
            data = data[os.write(number, data) :]


class SettlesDescriptors:
    """A kernel whose cells end when what they wrote to descriptors is in the notebook."""

    descriptors = None

    async def do_execute(self, *arguments, **options):
        """As ipykernel does it."""
        try:
            return await super().do_execute(*arguments, **options)
        finally:
            if self.descriptors is not None:
                self.descriptors.settle()
