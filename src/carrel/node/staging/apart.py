"""Staging where users' code is kept apart: what reads the addresses that a user writes runs behind the walls of their jobs.

It reads one JSON document (what to fetch, and the job's token) and writes a line of JSON for each piece of news and for the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from carrel.core.domain.errors import CarrelError, StorageFull
from carrel.core.domain.launch import InputsReady, LaunchRucio
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.task import InputSpec
from carrel.core.spool.foreign import parse_json
from carrel.node.containment.program import start_program
from carrel.node.containment.walls import Walls
from carrel.node.staging.cache import open_cache
from carrel.node.staging.download import NO_LIMIT, Most
from carrel.node.staging.failed import InputFailed, NotKept
from carrel.node.staging.fetching import Closed, stage_in, stage_inputs
from carrel.node.staging.lab import LabFiles

_BEGIN = "import sys; sys.path.append(sys.argv[1]); from carrel.node.staging.apart import main; main()"
#: What it may end with, by name.
_KINDS: dict[str, type[CarrelError]] = {kind.__name__: kind for kind in (InputFailed, NotKept, StorageFull)}
_OURS = str(Path(__file__).resolve().parents[3])
#: Characters of one line that are looked at.
_LONGEST = 4 * 1024**2


def stage_here(
    inputs: tuple[InputSpec, ...],
    directory: Path,
    report: Callable[[str], None],
    *,
    cache: tuple[str, int] = ("", 0),
    staged: InputsReady | None = None,
    filling: bool = False,
    **how: Any,
) -> dict[str, str]:
    """Do the same in this process."""
    kept = open_cache(*cache, filling=filling)
    if filling and kept is not None:
        return stage_in(inputs, directory, report, cache=kept, **how)
    return stage_inputs(inputs, directory, report, cache=kept, staged=staged, **how)


def stage_apart(
    inputs: tuple[InputSpec, ...],
    directory: Path,
    report: Callable[[str], None],
    *,
    lab: LabFiles,
    closed: Closed,
    most: Most = NO_LIMIT,
    cache: tuple[str, int] = ("", 0),
    rucio: LaunchRucio | None = None,
    resolved: Callable[[str, str], None] = lambda _path, _source: None,
    staged: InputsReady | None = None,
    filling: bool = False,
    walls: Walls,
    variables: Mapping[str, str],
) -> dict[str, str]:
    """Do what `stage_inputs` does, in a process inside `walls` with these variables. None of it is left afterwards.

    `cache` is what `open_cache` takes. `filling`: do what `stage_in` does.
    """
    about = {
        "inputs": [to_plain(item) for item in inputs],
        "directory": str(directory),
        "lab": [lab.url, lab.token, lab.authority],
        "closed": [str(place) for place in closed.places],
        "own": str(closed.own) if closed.own else None,
        "most": [most.size, most.files, None, most.seconds, most.pinned],
        "cache": cache,
        "rucio": to_plain(rucio) if rucio is not None else None,
        "staged": to_plain(staged) if staged is not None else None,
        "filling": filling,
    }
    arguments = [sys.executable, "-I", "-c", _BEGIN, _OURS]
    program = start_program(
        walls, arguments, directory="/tmp", variables=variables, stdin=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert program.process.stdin is not None
        assert program.process.stdout is not None
        try:
            with program.process.stdin as given:
                given.write(json.dumps(about).encode())
        except BrokenPipeError:
            pass  # what it says tells why
        return _listen(program.process.stdout, report, resolved)
    except BaseException:
        program.process.kill()
        raise
    finally:
        program.end()
        if program.process.stdout is not None:
            program.process.stdout.close()


def _listen(stream: Any, report: Callable[[str], None], resolved: Callable[[str, str], None]) -> dict[str, str]:
    last = ""
    while line := stream.readline(_LONGEST).decode(errors="replace"):
        said = _read(line)
        if said is None:
            last = line.strip() or last
            if line.startswith("Waiting: "):  # it is not behind its walls yet
                report(last)
        elif "report" in said:
            report(str(said["report"]))
        elif "resolved" in said:
            resolved(str(said["resolved"]), str(said.get("source", "")))
        elif "failed" in said:
            kind = _KINDS.get(str(said.get("kind")), InputFailed)
            raise kind(str(said["failed"]), remedy=str(said.get("remedy", "")))
        elif isinstance(said.get("digests"), dict):
            return {str(path): str(digest) for path, digest in said["digests"].items()}
    raise InputFailed(f"The inputs could not be fetched: {last or 'the process that fetches them was ended'}.")


def _read(line: str) -> dict[str, Any] | None:
    try:
        said = parse_json(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def main() -> None:
    """What the process inside does."""
    about = json.loads(sys.stdin.buffer.read())
    closed = Closed(tuple(map(Path, about["closed"])), Path(about["own"]) if about["own"] else None)
    inputs = tuple(from_plain(InputSpec, item) for item in about["inputs"])
    try:
        found = stage_here(
            inputs,
            Path(about["directory"]),
            lambda text: _say({"report": text}),
            lab=LabFiles(*about["lab"]),
            closed=closed,
            most=Most(*about["most"]),
            cache=tuple(about["cache"]),
            rucio=from_plain(LaunchRucio, about["rucio"]) if about["rucio"] else None,
            resolved=lambda path, source: _say({"resolved": path, "source": source}),
            staged=from_plain(InputsReady, about["staged"]) if about["staged"] else None,
            filling=about["filling"],
        )
    except (InputFailed, StorageFull) as error:
        _end({"failed": error.message, "remedy": error.remedy, "kind": type(error).__name__}, 1)
    _end({"digests": found}, 0)


def _say(what: Mapping[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def _end(what: Mapping[str, Any], code: int) -> NoReturn:
    _say(what)
    raise SystemExit(code)
