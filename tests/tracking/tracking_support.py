"""People, and a proxy on a real port, for the tests of tracking."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from carrel.core.domain.errors import Unauthenticated
from carrel.core.domain.user import Caller, Role, User
from carrel.lab.tracking.proxy import TrackingProxy
from carrel.lab.tracking.server import TrackingServer
from carrel.testing.waiting import PATIENCE

PEOPLE = {
    "alice-token": Caller(user=User(subject="alice", name="Alice")),
    "bob-token": Caller(user=User(subject="bob", name="Bob")),
    "root-token": Caller(user=User(subject="root", name="Root", role=Role.ADMIN)),
    "cora-token": Caller(user=User(subject="cora", name="Cora")),
    "mara-token": Caller(user=User(subject="mara", name="Mara", role=Role.MANAGER), accounts=frozenset({"default"})),
    "olga-token": Caller(user=User(subject="olga", name="Olga", role=Role.OPERATOR)),
    "root-job-token": Caller(user=User(subject="root", name="Root", role=Role.ADMIN), job_id=7),
    "alice-job-token": Caller(user=User(subject="alice", name="Alice"), job_id=8, attempt=1),
    "alice-job-again-token": Caller(user=User(subject="alice", name="Alice"), job_id=8, attempt=2),
}


def authenticate(token: str) -> Caller:
    if token not in PEOPLE:
        raise Unauthenticated("The token is not valid here.", remedy="Ask for another.")
    return PEOPLE[token]


@dataclass(frozen=True)
class Tracking:
    server: TrackingServer
    url: str

    def client(self, token: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)


def serve(proxy: TrackingProxy) -> Iterator[str]:
    """The proxy on a port of its own; gives the address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            started.set()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets=sockets)
            await proxy.aclose()

    server = Server(uvicorn.Config(Starlette(routes=[Mount("/mlflow", proxy)]), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mlflow"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
