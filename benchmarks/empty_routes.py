"""Routes of FastAPI that do nothing, served by uvicorn on a free port, whose address is the first line that this program prints.

What no lab that speaks through FastAPI and uvicorn can be below.
"""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

#: Addresses: one route that stays on the loop, and one that runs in a thread.
PATHS = ("/on-the-loop", "/in-a-thread")


class Nothing(BaseModel):
    """The answer."""

    number: int = 0


async def on_the_loop() -> Nothing:
    """Answer at once."""
    return Nothing()


def in_a_thread() -> Nothing:
    """Answer from a worker's thread, as FastAPI does for each plain function."""
    return Nothing()


def main() -> None:
    """Serve until killed."""
    app = FastAPI()
    for path, endpoint in zip(PATHS, (on_the_loop, in_a_thread), strict=True):
        app.add_api_route(path, endpoint)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
