"""`python -m carrel.notebooks.jupyter.inside PLACE PROGRAM...`: become a program of the image at PLACE.

Kernels and terminals of a session with an image are started so. Beside PLACE lies a file (JSON) with what the image sets, and
the names of what is the machine's own. "python" is the image's python3, or else its python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from carrel.node.containment.view import enter, found_in

#: The exit code where there is no such program in the image, as shells have it.
NO_PROGRAM = 127
#: Of the notebook server, and of no use in an image.
_SERVERS = ("VIRTUAL_ENV", "SHELL")


def words(place: Path, *program: str) -> list[str]:
    """Return the arguments that start a program of the image."""
    return [sys.executable, "-P", "-m", "carrel.notebooks.jupyter.inside", str(place), *program]


def become(place: str, said: Mapping[str, Mapping[str, str]], program: Sequence[str]) -> None:
    """Become the program. Returns where there is none of that name; raises `OSError`."""
    variables = {name: value for name, value in os.environ.items() if name not in (*said["without"], *_SERVERS)}
    variables |= said["variables"]
    names = ("python3", "python") if program[0] == "python" else (program[0],)
    paths = [name if name.startswith("/") else found_in(place, name, variables) for name in names]
    path = next((path for path in paths if path is not None), None)
    if path is None:
        return
    directory = os.getcwd()  # noqa: PTH109
    enter(place)
    if os.path.isdir(directory):  # noqa: PTH112 - the session's own are there under the same names
        os.chdir(directory)
    os.execve(path, [path, *program[1:]], variables)


def main(arguments: Sequence[str]) -> int:
    """Never returns where the program could be started."""
    place, *program = arguments
    try:
        become(place, json.loads(Path(f"{place}.json").read_bytes()), program)
    except OSError as error:
        print(f"{program[0]} of the image could not be started: {error.strerror}.", file=sys.stderr)
        return NO_PROGRAM
    print(f"The image has no {program[0]} on its PATH.", file=sys.stderr)
    return NO_PROGRAM


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
