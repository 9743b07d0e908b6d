"""What slurmrestd answers, and what may be concluded from it. Pure.

22.05 answers nearly everything that goes wrong with the status 500, and says in a number of Slurm's own what it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from carrel.core.domain.errors import Unavailable
from carrel.engines.slurm.errors import SlurmEmpty, trouble
from carrel.engines.slurm.listing import Garbage, SlurmJob, parse_json

#: slurmrestd itself said no: it passed nothing on to the controller.
_NOT_PASSED_ON = (400, 401, 403, 404, 405, 406, 413, 415)
#: Of these, those that say that it is not for us, or not what we take it for.
_NOT_OURS = (401, 403, 404)
#: Numbers with which the controller itself answers that it will not do what it is asked.
_CONTROLLER = range(2000, 3000)
_UNKNOWN_JOB = 2017
_LARGEST = 2**32


class NotDone(Unavailable):
    """Nothing came of it, and nothing will: Slurm's commands may be asked at once."""

    def __init__(self, message: str, *, away: bool = False) -> None:
        super().__init__(message, remedy="Slurm's commands are used instead.")
        #: True when the next request has no better chance.
        self.away = away


def read_submitted(status: int, body: bytes) -> int:
    """Return the number of the job. Raises `NotDone` only where no job was made; after any other error there may be one."""
    number = _object(status, body).get("job_id")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < _LARGEST:
        raise Garbage("What slurmrestd answered", _text(body))
    return number


def read_job(status: int, body: bytes, number: int, name: str) -> SlurmJob | None:
    """Return one job, or None: the controller does not know it, or the number is another job's."""
    if status != 200 and _UNKNOWN_JOB in _numbers(body):
        return None
    _object(status, body)
    jobs = [job for job in parse_json(_text(body)) if job.id == number]
    if not jobs:
        raise Garbage("What slurmrestd answered", _text(body))
    return jobs[0] if jobs[0].identity == name else None


def read_ended(status: int, body: bytes) -> None:
    """Return when the job got the order to end, or is over, or unknown."""
    if status == 200 or _UNKNOWN_JOB not in _numbers(body):
        _object(status, body)


def read_ping(status: int, body: bytes) -> str:
    """Return the version of Slurm that slurmrestd belongs to ("22.05.8"). Raises when its controller does not answer it."""
    answer = _object(status, body)
    try:
        release = answer["meta"]["Slurm"]["release"]
        pings = [ping["ping"] for ping in answer["pings"]]
    except (KeyError, TypeError) as error:
        raise Garbage("What slurmrestd answered", _text(body)) from error
    if not isinstance(release, str) or "UP" not in pings:
        raise Garbage("What slurmrestd says of its controller", _text(body))
    return release


def _object(status: int, body: bytes) -> Mapping[str, Any]:
    """Return what was answered; raise for every status but 200."""
    if status in _NOT_PASSED_ON:
        said = "; ".join(_sentences(body)) or " ".join(_text(body).split())[:200]
        raise NotDone(f"slurmrestd answered {status}: {said}", away=status in _NOT_OURS)
    if not body.strip():
        raise SlurmEmpty(f"slurmrestd answered {status} and nothing else.", remedy="Nothing is concluded from this.")
    answer = _json(body)
    if not isinstance(answer, dict):
        raise Garbage("What slurmrestd answered", _text(body))
    if status == 200:
        return answer
    said = "; ".join(_sentences(body)) or f"status {status}"
    message = f"slurmrestd answered {status}: {said}"
    numbers = _numbers(body)
    if numbers and all(number in _CONTROLLER for number in numbers):
        raise NotDone(message)
    raise trouble(message, said)


def _errors(body: bytes) -> list[Mapping[str, Any]]:
    answer = _json(body)
    errors = answer.get("errors") if isinstance(answer, dict) else None
    return [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []


def _numbers(body: bytes) -> list[int]:
    found = [error.get("error_number", error.get("error_code")) for error in _errors(body)]
    return [number for number in found if isinstance(number, int)]


def _sentences(body: bytes) -> list[str]:
    return [str(error["error"]) for error in _errors(body) if error.get("error")]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _text(body: bytes) -> str:
    return body.decode(errors="replace")
