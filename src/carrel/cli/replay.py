"""`carrel replay`: a job again, from its record alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, argument, find_job, job_name, open_client, option
from carrel.cli.results import Ignore, Tolerance, answer_lines, compared_text
from carrel.cli.screen import StatusLine, clean, print_json
from carrel.cli.verify import follow_to_end
from carrel.cli.words import short_digest
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.client.replays import Original, Replayed
    from carrel.core.comparison import Difference

#: Differences that are printed.
_SHOWN = 20
_INPUT = "Write it like --input data/train.csv=file:/data/train.csv"
_JOB = re.compile(r"#?[0-9]+(?:_[0-9]+)?")


def replay_command(
    target: Annotated[str, argument("FILE|ID", "A file of `carrel export`, or the number of a job.")],
    job: Annotated[int | None, option("--job", "ID", "A job that replays it already. Nothing is submitted.", min=1)] = None,
    inputs: Annotated[
        list[str] | None, option("--input", "PATH=URI", "Where an input is to be found here; may be repeated.")
    ] = None,
    secrets: Annotated[
        list[str] | None, option("--secret", "NAME", "A secret of yours that the code of a file may have; may be repeated.")
    ] = None,
    tolerance: Tolerance = 0.0,
    ignore: Ignore = None,
    qos: Annotated[str | None, option("--qos", "QOS", "Class of service here.")] = None,
    partition: Annotated[str | None, option("--partition", "PARTITION", "Part of this lab.")] = None,
    account: Annotated[str | None, option("--account", "ACCOUNT", "Account that is charged here.")] = None,
    gpu_type: Annotated[str | None, option("--gpu-type", "TYPE", 'Another type of GPU than it asked for; "any" for any.')] = None,
    python: Annotated[
        str | None, option("--python", "VERSION", 'Another Python than it had, such as 3.12; "any" for any.')
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run a job again from its record, and say whether it came to the same results.

    In any lab, without the project: code, command, parameters and lock are those of the record, inputs are checked by digest.
    What is otherwise (GPU, processor, Python, packages) is said. The exit code is 0 when the results are the same, 1 when not, or
    when too little is known.
    """
    from carrel.client.recorded import Changes

    changes = Changes(
        qos=qos,
        partition=partition,
        account=account,
        gpu_type=gpu_type,
        python=python,
        inputs=_addresses(inputs or ()),
        secrets=frozenset(secrets or ()),
    )
    with open_client(home) as client:
        source = find_job(client, job_name(target)) if _JOB.fullmatch(target) else Path(target).expanduser()
        line = StatusLine()
        with client.original(source) as (original, crate):
            number = job
            if number is None:
                made, notes = client.replay(original, crate, changes)
                number = made.id
                line.note(f"Submitted: job {number} replays {original.called}")
                for note in (*notes, *made.notes):
                    line.note(clean(note))
        try:
            completed = follow_to_end(client, number, line, quiet=as_json)
        except KeyboardInterrupt:
            line.note(f"The job goes on. Look again with: carrel replay {target} --job {number}")
            return INTERRUPTED
        found = client.compare_replay(original, number, tolerance=tolerance, ignore=ignore or ())
    if as_json:
        print_json(_plain(found, original, number, completed=completed))
    else:
        for text in _lines(found, original, number, tolerance):
            print(text)
    return OK if found.results.agreement.value in ("identical", "within tolerance") and completed else OTHER


def _addresses(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in given:
        path, equals, uri = one.partition("=")
        if not path or not equals or not uri:
            raise Invalid(f'--input "{one}" is no place and no address.', remedy=_INPUT)
        found[path] = uri
    return found


def _plain(found: Replayed, original: Original, number: int, *, completed: bool) -> dict[str, Any]:
    from carrel.core.domain.serial import to_plain

    results = to_plain(found.results)
    return {
        "job": number,
        "replays": {"lab": original.recorded.lab, "job": original.recorded.job.id},
        "completed": completed,
        **results,
        "conditions": [
            {"what": one.what, "record": one.values[0].text, "job": one.values[1].text, "cause": one.cause.value}
            for one in _conditions(found)
        ],
    }


def _lines(found: Replayed, original: Original, number: int, tolerance: float) -> Iterator[str]:
    results = found.results
    compared = compared_text(results)
    yield from answer_lines(
        results,
        of=f"job {number}",
        original=original.called,
        tolerance=tolerance,
        unknown=f"None of {compared} is known to differ.",
    )
    conditions = _conditions(found)
    if conditions:
        yield "What was otherwise than in the record:"
    for condition in conditions[:_SHOWN]:
        before, now = (short_digest(value.text) or "none" for value in condition.values)
        yield clean(f"  {condition.what}: {now}, not {before}")
    if len(conditions) > _SHOWN:
        yield f"  and {len(conditions) - _SHOWN} more (--json has all)"


def _conditions(found: Replayed) -> list[Difference]:
    """What may have changed the results: hardware, Python, packages, inputs. What nothing depends on is not among them."""
    from carrel.core.comparison import Cause, Kind

    causes = (Kind.INPUT, Kind.PACKAGE, Kind.ENVIRONMENT, Kind.GPU, Kind.MACHINE, Kind.RESOURCE)
    kinds = {*causes, Kind.SETTING, Kind.VARIABLE, Kind.COMMAND}
    return [one for one in found.comparison.differences if one.kind in kinds and one.cause is not Cause.UNLIKELY]
