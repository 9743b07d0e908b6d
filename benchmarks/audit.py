"""What the audit log costs a request: the gateway's outermost layer around an application that does nothing."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from carrel.core.domain.user import Caller, User
from carrel.lab.audit import AuditLog
from carrel.lab.gateway.auditing import Auditing
from carrel.lab.gateway.gate import Zones

ROUNDS, REQUESTS = 7, 3000
CALLER = Caller(user=User(subject="ada", name="Ada"))


async def nothing(scope: Any, _receive: Any, send: Any) -> None:
    """Answer 200 as somebody who is signed in."""
    scope.setdefault("state", {})["caller"] = CALLER
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def seconds(app: Any, method: str) -> float:
    """Seconds of the processor for each request: a busy machine does not count."""

    async def send(_message: Any) -> None:
        pass

    begun = time.process_time()
    for _ in range(REQUESTS):
        scope = {"type": "http", "method": method, "path": "/api/v1/jobs/12/cancel", "client": ("127.0.0.1", 1), "headers": []}
        await app(scope, None, send)
    return (time.process_time() - begun) / REQUESTS


async def main() -> None:
    """Print what it costs."""
    with tempfile.TemporaryDirectory() as place:
        log = AuditLog(Path(place) / "audit", clock=time.time)
        around = Auditing(
            nothing,
            log=log,
            zones=Zones(public=frozenset()),
            reads="none",
            refuse=None,
            clock=time.monotonic,  # type: ignore[arg-type]
        )
        for method in ("GET", "POST"):
            without = statistics.median([await seconds(nothing, method) for _ in range(ROUNDS)])
            with_it = statistics.median([await seconds(around, method) for _ in range(ROUNDS)])
            print(f"{method:5} {without * 1e6:6.1f} µs without, {with_it * 1e6:6.1f} µs with the audit log")
        log.close()


if __name__ == "__main__":
    asyncio.run(main())
