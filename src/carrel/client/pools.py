"""The part of a client that is about pools and calls."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from carrel.client import body_files
from carrel.client.nouns import NounCalls
from carrel.client.transport import LabUnreachable
from carrel.core.domain.errors import CarrelError, Conflict
from carrel.wire import frames, v1

_FRAMES = "application/vnd.carrel.frames"
#: Bytes that are sent at once.
_PIECE = 1 << 20
#: Seconds in which files of the lab's are not tried again, after they could not be had.
_AWAY = 30.0


class PoolCalls(NounCalls):
    """The part of a `carrel.Client` that is about pools of workers."""

    #: Since when files of the lab's are tried (again): they cannot be had on other machines.
    _files_from = 0.0

    def open_pool(self, request: v1.WorkerPoolRequest) -> v1.WorkerPool:
        """Open a pool."""
        return self._http.post(v1.WorkerPool, "/pools", request)

    def pools(self, *, closed: bool = False) -> list[v1.WorkerPool]:
        """One's own pools, newest first."""
        return self.all_of(v1.POOLS, closed="true" if closed else "false")

    def pool(self, pool_id: int) -> v1.WorkerPool:
        """One pool."""
        return self.one_of(v1.POOLS, pool_id)

    def close_pool(self, pool_id: int, *, cancel: bool = False) -> v1.WorkerPool:
        """Let a pool take no more calls; with `cancel`, those that wait do not begin."""
        return self._http.post(v1.WorkerPool, f"/pools/{pool_id}/close", params={"cancel": "true" if cancel else "false"})

    def remove_pool(self, pool_id: int) -> None:
        """Forget a pool that is over, with its calls and their results. Raises `Conflict` while there is something left to do."""
        self._http.call("DELETE", f"/pools/{pool_id}")

    def calls(self, pool_id: int, limit: int | None = 100, *, state: str | None = None) -> Iterator[v1.CallView]:
        """Calls of a pool, newest first, or those in a state; `limit` None gives all, page by page."""
        return itertools.islice(self._all_calls(pool_id, {} if state is None else {"state": state}), limit)

    def _all_calls(self, pool_id: int, which: dict[str, str]) -> Iterator[v1.CallView]:
        before: int | None = None
        while True:
            query = {"limit": 100, **which} | ({"before": before} if before is not None else {})
            page = self._http.get(v1.CallPage, f"/pools/{pool_id}/calls", params=query)
            yield from page.calls
            if page.next is None:
                return
            before = page.next

    def call(self, call_id: int) -> v1.CallView:
        """One call."""
        return self._http.get(v1.CallView, f"/calls/{call_id}")

    def call_log(self, call_id: int) -> v1.CallLog:
        """What a call has printed by now, or its end."""
        return self._http.get(v1.CallLog, f"/calls/{call_id}/log")

    def cancel_call(self, call_id: int) -> v1.CallView:
        """Keep a call from beginning."""
        return self._http.post(v1.CallView, f"/calls/{call_id}/cancel")

    def cancel_calls(self, pool_id: int, call_ids: Sequence[int]) -> list[int]:
        """Keep calls of a pool from beginning; return those that were cancelled. What a worker has is not waited for."""
        asked = v1.CancelRequest(calls=list(call_ids))
        return self._http.post(v1.CallNumbers, f"/pools/{pool_id}/calls/cancel", asked).calls

    def give_up_results(self, pool_id: int, call_ids: Sequence[int]) -> list[int]:
        """Say that one has had what calls returned: large results are kept no more. Returns the calls of which they went."""
        asked = v1.FetchedRequest(calls=list(call_ids))
        return self._http.post(v1.CallNumbers, f"/pools/{pool_id}/calls/fetched", asked).calls

    def interrupt_call(self, call_id: int) -> v1.CallView:
        """Raise KeyboardInterrupt in a call that runs; keep one that waits from beginning."""
        return self._http.post(v1.CallView, f"/calls/{call_id}/interrupt")

    def add_function(self, pool_id: int, digest: str, parts: Iterable[Any]) -> None:
        """Send a pickled function, or a value that is an argument of several calls."""
        content, path = list(parts), f"/pools/{pool_id}/functions/{digest}"
        with contextlib.ExitStack() as files:
            lying = self._in_a_file(pool_id, {}, content, files)
            if lying is not None:
                with contextlib.suppress(Conflict):  # the file is gone
                    self._send_frames("PUT", path, lying)
                    return
        self._send_frames("PUT", path, _frame({}, content))

    def submit_calls(self, pool_id: int, calls: Iterable[tuple[dict[str, Any], list[Any]]]) -> list[int]:
        """Submit calls: headers and parts of pickled arguments; return their numbers."""
        calls, path = list(calls), f"/pools/{pool_id}/calls"
        with contextlib.ExitStack() as files:
            lying = [self._in_a_file(pool_id, header, body, files) for header, body in calls]
            if any(one is not None for one in lying):
                parts = [part for one, call in zip(lying, calls, strict=True) for part in one or _frame(*call)]
                with contextlib.suppress(Conflict):  # a file is gone: the same calls again, as their keys say
                    return v1.CallNumbers.model_validate_json(self._send_frames("POST", path, parts)).calls
        answer = self._send_frames("POST", path, [part for call in calls for part in _frame(*call)])
        return v1.CallNumbers.model_validate_json(answer).calls

    def _in_a_file(self, pool_id: int, header: dict[str, Any], body: list[Any], files: contextlib.ExitStack) -> list[Any] | None:
        """The frame of a call whose arguments were written to a file of the lab's, which is there until `files` is closed."""
        size = sum(len(part) for part in body)
        if size < body_files.LEAST or not self._tries_files():
            return None
        try:
            offer = self._http.post(v1.BodyFile, f"/pools/{pool_id}/files", params={"size": size})
            files.callback(body_files.write(offer.model_dump(), body).close)
        except LabUnreachable:
            raise
        except (CarrelError, OSError):
            self._not_here()
            return None
        return [frames.encode({**header, "file": offer.ticket})]

    def _tries_files(self) -> bool:
        return time.monotonic() >= self._files_from

    def _not_here(self) -> None:
        self._files_from = time.monotonic() + _AWAY

    def forget_results(self, function: str | None = None) -> int:
        """Keep none of one's results for equal calls, or none of the function of that name; how many there were."""
        query = {} if function is None else {"function": function}
        answer = self._http.call("DELETE", "/cached-results", params=query)
        return v1.Forgotten.model_validate_json(answer.content).results

    def call_result(self, call_id: int) -> body_files.Content:
        """The pickled result of an ended call: a file of the lab's where this is its machine. Writing to it changes no file."""
        if self._tries_files():
            found = self._result(call_id, file=True)
            if isinstance(found, bytearray):
                return found
            try:
                return body_files.read(found.model_dump())
            except OSError:
                self._not_here()
        content = self._result(call_id, file=False)
        assert isinstance(content, bytearray)
        return content

    def _result(self, call_id: int, *, file: bool) -> bytearray | v1.BodyFile:
        with self._http.stream(f"/calls/{call_id}/result", params={"file": "true"} if file else {}) as response:
            if file and response.headers.get("Content-Type") == "application/json":
                return v1.BodyFile.model_validate_json(response.read())
            found, done = bytearray(int(response.headers.get("Content-Length", 0))), 0
            for piece in response.iter_raw():
                found[done : done + len(piece)] = piece
                done += len(piece)
        return found

    def follow_pool(self, pool_id: int, after: int) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Header and body of each frame, until the connection ends."""
        decoder = frames.Decoder()
        header: dict[str, Any] = {}
        body = bytearray()
        with self._http.stream(f"/pools/{pool_id}/results", params={"after": after}) as response:
            for data in response.iter_raw():
                for kind, value in decoder.feed(data):
                    if kind == "frame":
                        header, body = value, bytearray()
                    elif kind == "data":
                        body += value
                    else:
                        yield header, bytes(body)

    def _send_frames(self, method: str, path: str, parts: list[Any]) -> bytes:
        size = sum(len(part) for part in parts)
        headers = {"Content-Type": _FRAMES, "Content-Length": str(size)}
        content = b"".join(parts) if size < _PIECE else _pieces(parts)
        return self._http.call(method, path, headers=headers, content=content).content


def _frame(header: dict[str, Any], body: list[Any]) -> list[Any]:
    return [frames.head(header, sum(len(part) for part in body)), *body]


def _pieces(parts: list[Any]) -> Iterator[bytes]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE].tobytes()
