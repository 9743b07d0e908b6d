"""`carrel run` with an array: a line for each of its jobs that has ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from carrel.cli import words
from carrel.cli.endings import INTERRUPTED, OK
from carrel.cli.follow import task_exit_code
from carrel.cli.screen import STATE_STYLES, clean, paint, print_json
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import JobView


def follow_array(client: Client, array_id: int, *, as_json: bool) -> int:
    """Tell how each job ended, by index, and return the exit code of the first that did not end well.

    The first Ctrl-C asks for the end of all; a second one leaves them.
    """
    view = client.array(array_id)
    if as_json:
        print_json({"type": "submitted", "array": view.model_dump(mode="json")})
    else:
        number, count = paint(str(array_id), "bold", sys.stderr), format_count(len(view.jobs), "job")
        _say(f"Array {number}: {view.jobs[0].name}, {count} ({view.array})")
    try:
        return _tell(client, array_id, as_json=as_json)
    except KeyboardInterrupt:
        _say(f"Cancelling array {array_id}; Ctrl-C again leaves it alone.")
    try:
        client.cancel_array(array_id)
        return _tell(client, array_id, as_json=as_json)
    except CarrelError as error:
        _say(f"It cannot be cancelled: {error}")
    except KeyboardInterrupt:
        _say(f"Left array {array_id}. See how it goes: carrel show {array_id}")
    return INTERRUPTED


def _tell(client: Client, array_id: int, *, as_json: bool) -> int:
    code = OK
    for job in client.wait_array(array_id):
        code = code or task_exit_code(job)
        if as_json:
            print_json({"type": "ended", "job": job.model_dump(mode="json")})
        else:
            _say(_ending(job))
    return code


def _ending(job: JobView) -> str:
    took = words.spent(job, words.now())
    detail = "" if job.state == "COMPLETED" else f": {clean(job.message)}"
    state = paint(job.state, STATE_STYLES.get(job.state, ""), sys.stderr)
    return f"Job {words.number(job)} {state}{f' after {took}' if took else ''}{detail}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
