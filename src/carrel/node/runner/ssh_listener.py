"""The way in for the lab's ssh connections: a socket in its attempt's directory, while its command runs.

Each connection has a server of its own (`carrel.node.runner.ssh_server`), which is started beside the command: behind the same
walls, in the same cgroup, with the same environment. Only the lab's own user finds the socket.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from carrel.core.domain.launch import Launch
from carrel.core.spool import AttemptDirectory
from carrel.node.runner.prepared import Prepared
from carrel.node.runner.process import SshListener
from carrel.node.runner.session import VARIABLE

_SERVER = "import sys; sys.path.append(sys.argv[1]); from carrel.node.runner.ssh_server import main; main()"
_OURS = str(Path(__file__).resolve().parents[3])


def listen(directory: AttemptDirectory, launch: Launch, prepared: Prepared, variables: Mapping[str, str]) -> SshListener | None:
    """Begin to listen; None where the lab could not reach the socket (another machine), or no Python is there (an image)."""
    if launch.remote or prepared.root is not None or prepared.view is not None:
        return None
    directory.ssh_socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # The spool's own path may be too long for a socket's name (unix(7)).
    place = os.open(directory.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{place}/{directory.ssh_socket.name}")
        listener.listen()
    except OSError:  # a full disk: the job does without
        listener.close()
        return None
    finally:
        os.close(place)
    seen = {name: value for name, value in variables.items() if name != VARIABLE}
    if launch.task.session is not None and prepared.places.environment is not None:
        # As in the session's terminals (`carrel.notebooks.jupyter.config`).
        prefix = str(prepared.places.environment)
        seen |= {"VIRTUAL_ENV": prefix, "PATH": os.pathsep.join((f"{prefix}/bin", seen.get("PATH", os.defpath)))}
    return SshListener(socket=listener, arguments=[sys.executable, "-I", "-c", _SERVER, _OURS], variables=seen)
