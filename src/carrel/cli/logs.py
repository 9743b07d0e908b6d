"""`carrel logs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import INTERRUPTED, OK
from carrel.cli.options import AsJson, Home, JobId, find_job, flag, open_client, option
from carrel.cli.screen import print_json
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.client import Client


def logs_command(
    job_id: JobId,
    follow: Annotated[bool, flag("--follow -f", "Go on until the job ends; Ctrl-C leaves it alone.")] = False,
    attempt: Annotated[int | None, option("--attempt", "N", "Of this attempt; else of the last.", min=1)] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Print a job's log.

    What it wrote to standard output and standard error, in order.
    """
    if follow and attempt is not None:
        raise Invalid("--follow shows all attempts, and --attempt one of them.", remedy="Give only one of the two.")
    with open_client(home) as client:
        number = find_job(client, job_id)
        if follow:
            return _follow(client, number, as_json=as_json)
        return _print_log(client, number, attempt, as_json=as_json)


def _follow(client: Client, job_id: int, *, as_json: bool) -> int:
    from carrel.cli.follow import Follower

    client.job(job_id)
    follower = Follower(client, job_id, as_json=as_json, cancels=False)
    job = follower.follow()
    if job is None:
        return INTERRUPTED
    if not as_json:
        follower.say_end(job)
    return OK


def _print_log(client: Client, job_id: int, attempt: int | None, *, as_json: bool) -> int:
    pieces = client.log(job_id, attempt=attempt)
    if as_json:
        shown = attempt or client.job(job_id).attempt
        print_json({"job_id": job_id, "attempt": shown, "text": b"".join(pieces).decode("utf-8", "replace")})
        return OK
    written = False
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        written = True
    sys.stdout.flush()
    if not written:
        print(f"Job {job_id} has written nothing{'' if client.job(job_id).ended else ' yet'}.", file=sys.stderr)
    return OK
