"""`carrel verify`: does a job repeat itself?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, JobId, JobName, find_job, job_name, open_client, option
from carrel.cli.results import Ignore, Tolerance, answer_lines
from carrel.cli.screen import StatusLine, print_json
from carrel.core.domain.errors import Denied, Invalid
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.cli.screen import StatusLine
    from carrel.client import Client
    from carrel.wire.v1 import ResultsView

#: Jobs that are compared at once, with the first.
_MOST = 7


def verify_command(
    job_id: JobId,
    times: Annotated[int | None, option("--times", "N", "Repeat it so often.  [3]")] = None,
    reruns: Annotated[
        list[JobName] | None,
        option("--rerun", "ID", "A job that repeats it already; may be repeated. Nothing is submitted.", parser=job_name),
    ] = None,
    tolerance: Tolerance = 0.0,
    ignore: Ignore = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Repeat a job and say whether it came to the same results: to the last bit, within a tolerance, or not.

    The exit code is 0 when it did, 1 when not, or when too little is known.
    """
    if reruns and times is not None:
        raise Invalid("--times repeats the job, and --rerun names jobs that repeat it already.", remedy="Choose one of them.")
    count = len(reruns) if reruns else 3 if times is None else times
    if not 1 <= count <= _MOST:
        raise Invalid(f"{count} repetitions are asked for.", remedy=f"Ask for 1 to {_MOST}.")
    with open_client(home) as client:
        first = find_job(client, job_id)
        if (state := client.wait(first).state) != "COMPLETED":
            raise Invalid(f"Job {first} is {state}.", remedy="Verify a job that is COMPLETED.")
        numbers = [_rerun_of(client, first, one) for one in reruns or ()] or [client.rerun(first).id for _ in range(count)]
        line = StatusLine()
        if not reruns:
            line.note(
                f"Submitted: {format_count(count, 'repetition')} of job {first} ({', '.join(f'job {one}' for one in numbers)})"
            )
        try:
            failed = [number for number in numbers if not follow_to_end(client, number, line, quiet=as_json)]
        except KeyboardInterrupt:
            again = " ".join(f"--rerun {number}" for number in numbers)
            line.note(f"The jobs go on. Look again with: carrel verify {first} {again}")
            return INTERRUPTED
        try:
            found = client.verify(first, *numbers, tolerance=tolerance, ignore=ignore or ())
        except Denied:  # somebody else's job, which may be looked at
            found = client.compare_results(first, *numbers, tolerance=tolerance, ignore=ignore or ())
    if as_json:
        print_json(found)
    else:
        for text in _lines(found, tolerance):
            print(text)
    return OK if found.agreement.value in ("identical", "within tolerance") and not failed else OTHER


def _rerun_of(client: Client, first: int, name: JobName) -> int:
    number = find_job(client, name)
    if client.job(number).rerun_of != first:
        raise Invalid(
            f"Job {number} does not repeat job {first}.",
            remedy=f"Repeat it: carrel rerun {first}. What differs between any two jobs: carrel compare {first} {number}.",
        )
    return number


def follow_to_end(client: Client, number: int, line: StatusLine, *, quiet: bool) -> bool:
    """Say how the job stands until it has ended, and how it ended; True when it is COMPLETED."""
    from carrel.cli.follow import wait_shown

    ended = wait_shown(client, number, line)
    if not quiet:
        why = f": {ended.message}" if ended.state != "COMPLETED" and ended.message else ""
        print(f"Job {number} is {ended.state}{why}", flush=True)
    return ended.state == "COMPLETED"


def _lines(found: ResultsView, tolerance: float) -> Iterator[str]:
    nothing = not found.outputs and not found.metrics
    yield from answer_lines(
        found,
        of=format_count(len(found.jobs) - 1, "repetition"),
        original=f"job {found.jobs[0].label}",
        tolerance=tolerance,
        unknown="These jobs left no outputs and logged no metrics: nothing can be compared." if nothing else "",
    )
    if found.agreement.value == "different":
        jobs = " ".join(one.label for one in found.jobs)
        yield f"What differs beside results: carrel compare {jobs}. A task repeats itself more often with --deterministic."
