"""Arguments and results on their way: large ones in files of the lab's, where it is on this machine."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from typing import Any

from carrel_worker import body_files, pickling
from carrel_worker.connection import Lab, Over, Refused, all_frames, note
from carrel_worker.failures import failure_of
from carrel_worker.frames import encode, head

#: Bytes of scattered values that a worker keeps.
_VALUES = 1024 * 1024 * 1024


def as_frames(ended: list[Any]) -> bytes:
    """What the lab is told of the end of a call, in one piece."""
    printed, ending, parts = ended
    return b"".join([printed, head(ending, pickling.size_of(parts)), *parts])


class Bodies:
    """What the worker asks of the lab, and tells it."""

    def __init__(self, lab: Lab, pool: str) -> None:
        self._lab = lab
        self._pool = pool
        #: Files can be tried; the lab has said that it has them.
        self._tries = True
        self._offered = False

    def next_calls(self, ended: list[list[Any]]) -> list[tuple[dict[str, Any], Any]]:
        """Tell how calls ended (of each: what was printed, the ending, parts of the result); return the frames of the answer."""
        while True:
            answer = self._told(ended, "/work?files=true" if self._tries else "/work", [])
            ended = []
            header, _ = answer[0]
            self._offered = bool(header.get("files"))
            if "file" not in header:
                return answer
            try:
                return [(header, body_files.read(header["file"]))]
            except OSError as error:
                # The call has not begun here, and waits again, as this worker does not say that it holds it.
                self._without(error)

    def tell(self, ended: list[list[Any]], holding: list[int]) -> None:
        """Tell how calls ended, and ask for no other one. What is not in `holding` either has not begun."""
        self._told(ended, "/work?take=false", holding)

    def result(self, call: int) -> Any:
        """The pickled result of a call."""
        return self._read(f"/calls/{call}/result")

    def value(self, digest: str) -> Any:
        """A pickled value that the pool has."""
        return self._read(f"{self._pool}/functions/{digest}")

    def _read(self, path: str) -> Any:
        if self._tries:
            found = self._lab.ask("GET", path + "?file=true")
            if self._lab.kind != "application/json":
                return found
            try:
                return body_files.read(json.loads(found))
            except OSError as error:
                self._without(error)
        return self._lab.ask("GET", path)

    def _told(self, ended: list[list[Any]], path: str, holding: list[int]) -> list[tuple[dict[str, Any], Any]]:
        start = encode({"type": "holding", "calls": holding})
        if not ended:
            return all_frames(self._lab.ask("POST", self._pool + path, [start]))
        *before, (printed, ending, parts) = ended
        if before:
            try:
                return self._sent(path, start + b"".join(map(as_frames, before)), printed, ending, parts)
            except Refused:  # one of them: the others are told alone
                for place, one in enumerate(before, start=1):
                    later = [one[1]["call"] for one in ended[place:]]
                    self._told([one], "/work?take=false", [*holding, *later])
        try:
            return self._sent(path, start, printed, ending, parts)
        except Refused as reason:
            why = reason
        if printed or "message" in ending:
            note(f"what call {ending['call']} printed was left out: {why}")
            words = f"[carrel: what this call printed was left out: {why}]\n".encode()
            told = encode({"type": "stderr"}, struct.pack(">Q", len(words)) + words)
            message = {"message": ascii(ending["message"])} if "message" in ending else {}
            with contextlib.suppress(Refused):
                return self._sent(path, start, told, {**ending, **message}, parts)
        text = "The lab did not take what this call {} ({} bytes): {}".format(
            "returned" if ending["state"] == "COMPLETED" else "raised", pickling.size_of(parts), ascii(str(why))
        )
        note(text)
        failed = {"type": "ended", "call": ending["call"], "state": "FAILED", "error": "not_taken", "message": text}
        return self._sent(path, start, b"", failed, pickling.dump(failure_of(RuntimeError(text))))

    def _sent(
        self, path: str, start: bytes, printed: bytes, ending: dict[str, Any], parts: list[Any]
    ) -> list[tuple[dict[str, Any], Any]]:
        size = pickling.size_of(parts)
        with self._in_a_file(parts, size) as ticket, contextlib.suppress(Refused):  # the file is gone: the lab was restarted
            if ticket is not None:
                return all_frames(self._lab.ask("POST", self._pool + path, [start, printed, encode({**ending, "file": ticket})]))
        return all_frames(self._lab.ask("POST", self._pool + path, [start, printed, head(ending, size), *parts]))

    @contextlib.contextmanager
    def _in_a_file(self, parts: list[Any], size: int) -> Iterator[Any]:
        """The ticket of a file that has the parts, which is there meanwhile; None where that cannot be."""
        if size < body_files.LEAST or not (self._tries and self._offered):
            yield None
            return
        ticket, stream = None, None
        try:
            offer = json.loads(self._lab.ask("POST", f"{self._pool}/files?size={size}"))
            stream = body_files.write(offer, parts)
            ticket = offer["ticket"]
        except Over:
            pass  # not this time
        except OSError as error:
            self._without(error)
        with stream or contextlib.nullcontext():
            yield ticket

    def _without(self, error: OSError) -> None:
        self._tries = False
        note(f"large values go through HTTP: {error}")


class Values:
    """Scattered values, kept for the next calls: those that were used last, up to a size."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        #: Value and bytes.
        self._kept: dict[str, tuple[Any, int]] = {}

    def of(self, digest: str) -> Any:
        """The value. Its arrays are for reading alone: other calls have them, too."""
        found = self._kept.pop(digest, None)
        if found is None:
            try:
                body = self._bodies.value(digest)
            except Over as reason:
                raise RuntimeError("A scattered value cannot be fetched: {}".format(reason)) from None
            found = pickling.load(memoryview(body).toreadonly()), len(body)
        self._kept[digest] = found
        while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > _VALUES:
            del self._kept[next(iter(self._kept))]
        return found[0]
