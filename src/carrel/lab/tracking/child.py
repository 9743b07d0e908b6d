"""The MLflow process itself: run by `TrackingServer` as a script, with nothing but MLflow's own interpreter to stand on.

Arguments: path of the socket, path of the lock file, number of the descriptor to say "ready" on, pid of the parent.
Everything secret or private to MLflow comes in the environment. It ends with its parent, however that ends
(prctl(2), PR_SET_PDEATHSIG), and holds an flock(2) on the lock file as long as it lives.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
#: With it the lab itself calls (`carrel.lab.tracking.rest`). What the proxy lets users ask for comes without.
LAB_HEADER = b"x-carrel-lab"
#: Exit code that says: another MLflow holds the lock.
EXIT_LOCKED = 75


def main(socket_path: str, lock_path: str, ready: int, parent: int) -> None:
    """Serve MLflow on the socket until SIGTERM."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above took effect
        sys.exit("the lab is gone")
    os.set_inheritable(ready, False)
    os.umask(0o077)
    # Held until the process is gone, for any reason: the next lab knows by it that a server is left over.
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(f"{lock_path} is held by another MLflow", file=sys.stderr)
        sys.exit(EXIT_LOCKED)
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    # Tracking has no deadline; the jobs and the control loop come first.
    os.nice(5)
    serve(socket_path, ready)


def serve(socket_path: str, ready: int) -> None:
    """Import MLflow (seconds), listen, say so on the descriptor `ready`."""
    import uvicorn
    from mlflow.server import app as flask
    from mlflow.server.fastapi_app import app

    waiting = Path(socket_path + ".new")

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                waiting.replace(socket_path)  # a client that finds the socket finds it served
                os.write(ready, b"ready\n")
                os.close(ready)

    waiting.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(waiting))
    config = uvicorn.Config(
        _direct(app, flask), log_level="warning", access_log=False, timeout_graceful_shutdown=3, lifespan="on"
    )
    Server(config).run(sockets=[listener])


def _direct(app: Any, flask: Any) -> Any:
    """Return `app` with a shorter way for the lab's own calls (`LAB_HEADER`).

    MLflow's REST API is its Flask application, which looks after workspaces itself. In front of it is one for browsers, whose ten
    layers and five changes of threads cost a call as much as what it does.
    """
    threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="lab")

    def answer(environ: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        start: list[Any] = []
        found = flask(environ, lambda status, headers, _info=None: start.extend((status, headers)))
        try:
            body = b"".join(found)
        finally:
            found.close()
        status, headers = start[-2:]
        return int(status[:3]), [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers], body

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not any(name == LAB_HEADER for name, _ in scope["headers"]):
            await app(scope, receive, send)
            return
        from starlette.middleware.wsgi import build_environ

        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        environ = build_environ(scope, b"".join(parts))
        status, headers, body = await asyncio.get_running_loop().run_in_executor(threads, answer, environ)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return serve


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
