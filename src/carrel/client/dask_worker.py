"""One Dask worker, as a call in a worker of the lab's. It travels by value: of Carrel nothing is installed there."""

from __future__ import annotations

from typing import Any


def serve_dask(scheduler: str, tls: dict[str, str] | None, options: dict[str, Any], routes: bool) -> str:
    """Be a Dask worker until the scheduler has no need of it, or the job is told to end; return why it ended.

    `tls`: certificates as text, None for a cluster without. `routes`: whether it shows pages of its own, which have no password.
    """
    import asyncio
    import signal

    import dask
    from distributed import Security, Worker

    if not routes:
        dask.config.set({"distributed.worker.http.routes": []})

    async def serve() -> str:
        security = Security(require_encryption=True, **tls) if tls is not None else Security()
        worker = await Worker(scheduler, security=security, dashboard_address="127.0.0.1:0", **options)
        leaving: list[Any] = []

        def leave() -> None:
            # What it has computed goes to other workers first.
            leaving.append(asyncio.ensure_future(worker.close_gracefully()))

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, leave)
        try:
            await worker.finished()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
        return "the job was told to end" if leaving else "the scheduler has no need of it"

    before = signal.getsignal(signal.SIGTERM)
    try:
        return asyncio.run(serve())
    finally:
        signal.signal(signal.SIGTERM, before)
