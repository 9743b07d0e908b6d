"""What a node of the cluster sees of the lab. ``python -m carrel.engines.slurm.probe <directory> <address of the lab> <broker>``.

`carrel doctor slurm` submits it as a tiny job. It writes what it found into the directory, all at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from carrel.engines.slurm.batch import answers

#: Names in the directory: what the lab wrote, the file that it holds a lock on, and the answer.
WORD, LOCK, ANSWER = "word", "lock", "answer.json"
#: The certificate of the lab's own authority, where it has one.
AUTHORITY = "authority.pem"
#: Seconds for an answer of the lab.
_PATIENCE = 10.0


def main(arguments: Sequence[str]) -> int:
    """Look, and write down what was seen."""
    directory, url = Path(arguments[0]), arguments[1] if len(arguments) > 1 else ""
    broker = arguments[2] if len(arguments) > 2 else ""
    found = {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "time": time.time(),
        "uid": os.getuid(),
        "python": sys.executable,
        "word": (directory / WORD).read_text(),
        "lock_holds": _lock_holds(directory / LOCK),
        "lab": _reach(url, directory / AUTHORITY) if url else "",
        "broker": answers(broker),
        "images": _images(),
    }
    draft = directory / f"{ANSWER}.{os.getpid()}"
    draft.write_text(json.dumps(found))
    draft.rename(directory / ANSWER)
    return 0


def _lock_holds(path: Path) -> bool:
    """True when a lock that the lab's machine holds is seen here."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _images() -> list[str]:
    """Return what keeps tasks with an image from running here, and what can be done about it; [] where they run."""
    from carrel.node.environments.errors import EnvironmentFailed
    from carrel.node.environments.image_tools import find_image_tool
    from carrel.node.runner.image import check_node

    try:
        check_node()
        find_image_tool(os.environ)
    except EnvironmentFailed as error:
        return [error.message, error.remedy]
    return []


def _reach(url: str, authority: Path) -> str:
    """Return "" when something answers at the address, else why not."""
    try:
        trusted = ssl.create_default_context(cafile=authority if authority.exists() else None)
        with urllib.request.urlopen(url, timeout=_PATIENCE, context=trusted):
            return ""
    except urllib.error.HTTPError:
        return ""
    except OSError as error:
        return str(error.reason if isinstance(error, urllib.error.URLError) else error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
