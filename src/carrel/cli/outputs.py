"""`carrel outputs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import OK, exit_code
from carrel.cli.options import AsJson, Home, JobId, argument, find_job, flag, open_client
from carrel.cli.screen import clean, paint, print_json, print_table
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import OutputView


def outputs_command(
    job_id: JobId,
    directory: Annotated[Path | None, argument("DIR", "Where to put them; made if need be.")] = None,
    only_list: Annotated[bool, flag("--list -l", "List them, fetch nothing.")] = False,
    remove: Annotated[bool, flag("--remove", "Give them up: the lab keeps their names and digests, not the files.")] = False,
    collect: Annotated[
        bool, flag("--collect", "First store what could not be stored when the job ended: its disk was full.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Fetch the files that a job stored.

    What is there and equal stays; every file is checked by its digest.
    """
    if remove and (only_list or collect or directory is not None):
        raise Invalid("--remove fetches and lists nothing.", remedy="Fetch the outputs first, then remove them.")
    if directory is None and not only_list and not collect and not remove:
        raise Invalid("The directory for the outputs is missing.", remedy=f"carrel outputs {job_id} DIR, or --list to look.")
    with open_client(home) as client:
        number = find_job(client, job_id)
        if remove:
            return _remove(client, number, as_json=as_json)
        if collect:
            notes = client.collect_outputs(number).notes
            if directory is None and not only_list:
                return _say_collected(client, number, notes, as_json=as_json)
            _say_notes(notes)
        if only_list or directory is None:
            return _list(client, number, as_json=as_json)
        return _fetch(client, number, directory, as_json=as_json)


def _say_collected(client: Client, job_id: int, notes: Sequence[str], *, as_json: bool) -> int:
    from carrel.cli.words import size as size_text

    outputs = client.outputs(job_id)
    if as_json:
        return print_json({"outputs": [output.model_dump() for output in outputs], "notes": list(notes)})
    _say_notes(notes)
    print(f"Job {job_id} has {format_count(len(outputs), 'output')} stored, {size_text(sum(output.size for output in outputs))}.")
    if outputs:
        print(paint(f"  fetch them: carrel outputs {job_id} DIR", "dim"))
    return OK


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(clean(note), file=sys.stderr)


def _list(client: Client, job_id: int, *, as_json: bool) -> int:
    from carrel.cli.words import size as size_text

    outputs = client.outputs(job_id)
    if as_json:
        return print_json({"outputs": [output.model_dump() for output in outputs]})
    if not outputs:
        print(f"Job {job_id} has stored nothing.")
    else:
        rows = [(size_text(one.size), f"{one.path}{'' if one.removed_at is None else '  (given up)'}") for one in outputs]
        print_table(("SIZE", "PATH"), rows, right=(0,))
    return OK


def _remove(client: Client, job_id: int, *, as_json: bool) -> int:
    from carrel.cli.words import size as size_text

    gone = client.remove_outputs(job_id)
    if as_json:
        return print_json({"job": job_id, **gone.model_dump()})
    if gone.count:
        files = format_count(gone.count, "file")
        print(f"Job {job_id} stores {files} less, {size_text(gone.size)}; its record keeps their digests.")
    else:
        print(f"Job {job_id} stores nothing.")
    return OK


def _fetch(client: Client, job_id: int, directory: Path, *, as_json: bool) -> int:
    from carrel.cli.words import size as size_text

    done: list[tuple[OutputView, bool]] = []

    def report(output: OutputView, fetched: bool) -> None:
        done.append((output, fetched))
        if not as_json:
            note = "" if fetched else paint("  (was there)", "dim")
            print(f"{clean(str(directory / output.path))}{note}")

    missing: list[tuple[OutputView, CarrelError]] = []

    def failed(output: OutputView, error: CarrelError) -> None:
        missing.append((output, error))
        if not as_json:
            print(f"{clean(str(directory / output.path))}: {clean(str(error))}", file=sys.stderr)

    client.download_outputs(job_id, directory.expanduser(), report=report, failed=failed)
    if as_json:
        shown = [{**output.model_dump(), "file": str(directory / output.path), "fetched": fetched} for output, fetched in done]
        lost = [{**output.model_dump(), "error": str(error)} for output, error in missing]
        print_json({"outputs": shown, "failed": lost})
    elif not done and not missing:
        print(f"Job {job_id} has stored nothing.")
    else:
        size = sum(output.size for output, _ in done)
        print(paint(f"{format_count(len(done), 'file')}, {size_text(size)}", "dim"))
    if missing and not as_json:
        print(f"{format_count(len(missing), 'output')} of {len(done) + len(missing)} could not be fetched.", file=sys.stderr)
    return exit_code(missing[0][1]) if missing else OK
