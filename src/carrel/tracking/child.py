"""The MLflow process itself: run by `TrackingServer` as a script, with nothing but MLflow's own interpreter to stand on.

Arguments: path of the socket, path of the lock file, number of the descriptor to say "ready" on, pid of the parent.
Everything secret or private to MLflow comes in the environment. It ends with its parent, however that ends
(prctl(2), PR_SET_PDEATHSIG), and holds an flock(2) on the lock file as long as it lives.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
#: Exit code that says: another MLflow holds the lock.
EXIT_LOCKED = 75


def main(socket_path: str, lock_path: str, ready: int, parent: int) -> None:
    """Serve MLflow on the socket until SIGTERM."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above took effect
        sys.exit("the lab is gone")
    os.set_inheritable(ready, False)
    os.umask(0o077)
    # Held until the process is gone, whatever ends it: the next lab knows by it that a server is left over.
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
    from mlflow.server.fastapi_app import app

    waiting = Path(socket_path + ".new")

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                waiting.replace(socket_path)  # whoever finds the socket finds it served
                os.write(ready, b"ready\n")
                os.close(ready)

    waiting.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(waiting))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3, lifespan="on")
    Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
