"""The part of a client that is about pools and calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from carrel.client.transport import Transport
from carrel.wire import frames, v1

_FRAMES = "application/vnd.carrel.frames"
#: Bytes that are sent at once.
_PIECE = 1 << 20


class PoolCalls:
    """The part of a `carrel.Client` that is about pools of workers."""

    _http: Transport

    def open_pool(self, request: v1.WorkerPoolRequest) -> v1.WorkerPoolView:
        """Open a pool."""
        return self._http.post(v1.WorkerPoolView, "/pools", request)

    def pools(self, *, closed: bool = False) -> list[v1.WorkerPoolView]:
        """One's own pools, newest first."""
        return self._http.get(v1.WorkerPoolList, "/pools", params={"closed": "true" if closed else "false"}).pools

    def pool(self, pool_id: int) -> v1.WorkerPoolView:
        """One pool."""
        return self._http.get(v1.WorkerPoolView, f"/pools/{pool_id}")

    def close_pool(self, pool_id: int, *, cancel: bool = False) -> v1.WorkerPoolView:
        """Let a pool take no more calls; with `cancel`, those that wait do not begin."""
        return self._http.post(v1.WorkerPoolView, f"/pools/{pool_id}/close", params={"cancel": "true" if cancel else "false"})

    def calls(self, pool_id: int, limit: int | None = 100) -> Iterator[v1.CallView]:
        """Calls of a pool, newest first; `limit` None gives all, page by page."""
        return itertools.islice(self._all_calls(pool_id), limit)

    def _all_calls(self, pool_id: int) -> Iterator[v1.CallView]:
        before: int | None = None
        while True:
            query = {"limit": 100} | ({"before": before} if before is not None else {})
            page = self._http.get(v1.CallPage, f"/pools/{pool_id}/calls", params=query)
            yield from page.calls
            if page.next is None:
                return
            before = page.next

    def call(self, call_id: int) -> v1.CallView:
        """One call."""
        return self._http.get(v1.CallView, f"/calls/{call_id}")

    def cancel_call(self, call_id: int) -> v1.CallView:
        """Keep a call from beginning."""
        return self._http.post(v1.CallView, f"/calls/{call_id}/cancel")

    def add_function(self, pool_id: int, digest: str, parts: Iterable[Any]) -> None:
        """Send a pickled function."""
        self._send_frames("PUT", f"/pools/{pool_id}/functions/{digest}", _frame({}, list(parts)))

    def submit_calls(self, pool_id: int, calls: Iterable[tuple[dict[str, Any], list[Any]]]) -> list[int]:
        """Submit calls: headers and parts of pickled arguments; return their numbers."""
        parts = [part for header, body in calls for part in _frame(header, body)]
        answer = self._send_frames("POST", f"/pools/{pool_id}/calls", parts)
        return v1.CallNumbers.model_validate_json(answer).calls

    def call_result(self, call_id: int) -> bytearray:
        """The pickled result of an ended call."""
        found = bytearray()
        with self._http.stream(f"/calls/{call_id}/result") as response:
            for piece in response.iter_raw(_PIECE):
                found += piece
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
