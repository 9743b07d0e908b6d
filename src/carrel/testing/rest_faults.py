"""Trouble with slurmrestd, on request: a socket before its own, which passes whole requests on until a test asks for a fault."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from carrel.testing.waiting import PATIENCE

#: What can be wrong with a submission.
FAULTS: dict[str, str] = {
    "cut": "the request is not passed on, and the connection ends",
    "lost": "the request is passed on, and the connection ends without an answer",
    "half": "the request is passed on, and the answer ends in its middle",
    "empty": "the request is passed on, and the answer has no body",
    "garbage": "the request is passed on, and the answer cannot be read",
    "hidden": "the request is passed on, and the answer is the page of a proxy that gave up",
    "late": "the request is passed on, and no answer ever comes",
    "refused": "the request is not passed on, and slurmrestd says that it does not know who asks",
}
_INSTEAD = {
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "garbage": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\xff\xfe{oops: [",
    "hidden": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 11\r\n\r\nBad Gateway",
    "refused": b"HTTP/1.1 401 UNAUTHORIZED\r\nContent-Length: 22\r\n\r\nAuthentication failure",
}


class RestFaults:
    """A context manager: inside it listens, and what it was asked is in `requests`."""

    def __init__(self, path: Path, behind: Path) -> None:
        """Listen at `path` for what goes to `behind`."""
        self.address = f"unix:{path}"
        #: First lines of the requests so far.
        self.requests: list[str] = []
        #: Those of them that slurmrestd has answered.
        self.answered: list[str] = []
        self._behind = str(behind)
        self._fault = ""
        self._breaks = 0
        self._over = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._serve, name="rest-faults")]

    def set(self, fault: str) -> None:
        """From now on submissions have a fault of `FAULTS`; "" is none."""
        if fault and fault not in FAULTS:
            raise ValueError(f"There is no fault {fault!r}; there are {', '.join(FAULTS)}.")
        self._fault = fault

    def break_off(self, times: int = 1) -> None:
        """The connections of the next questions end without an answer; submissions have faults of their own."""
        self._breaks = times

    def submissions(self) -> int:
        """Return how many there were."""
        return sum("job/submit" in line for line in self.requests)

    def accepted(self) -> int:
        """Return how many submissions slurmrestd has answered, whether or not the answer was passed on."""
        return sum("job/submit" in line for line in self.answered)

    def __enter__(self) -> RestFaults:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                line, _ = self._listener.accept()
                thread = threading.Thread(target=self._answer, args=(line,), name="rest-faults")
                self._threads.append(thread)
                thread.start()

    def _answer(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            line.settimeout(PATIENCE)
            request = _message(line)
            first = request.split(b"\r\n", 1)[0].decode()
            self.requests.append(first)
            submitted = "job/submit" in first
            fault = self._fault if submitted else ""
            if fault == "cut":
                return
            if self._breaks and not submitted:
                self._breaks -= 1
                return
            answer = b"" if fault == "refused" else self._ask(request)
            self.answered += [first] if answer else []
            if fault == "late":
                self._over.wait(PATIENCE)
            elif fault == "half":
                line.sendall(answer[: len(answer) // 2])
            elif fault != "lost":
                line.sendall(_INSTEAD.get(fault, answer))

    def _ask(self, request: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(PATIENCE)
            line.connect(self._behind)
            line.sendall(request)
            return _message(line)


def _message(line: socket.socket) -> bytes:
    """Read one message of HTTP whose length is announced, or that has no body."""
    text = b""
    while b"\r\n\r\n" not in text:
        part = line.recv(65536)
        if not part:
            return text
        text += part
    head, _, body = text.partition(b"\r\n\r\n")
    lengths = [
        int(value)
        for name, _, value in (field.partition(b":") for field in head.split(b"\r\n"))
        if name.lower() == b"content-length"
    ]
    while lengths and len(body) < lengths[0]:
        part = line.recv(65536)
        if not part:
            break
        body += part
    return head + b"\r\n\r\n" + body
