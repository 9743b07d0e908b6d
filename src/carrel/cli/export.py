"""`carrel export`: a job as a file that other labs repeat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, JobId, find_job, flag, open_client, option
from carrel.cli.screen import StatusLine, clean, paint, print_json
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.core.crates import Content


def export_command(
    job_id: JobId,
    file: Annotated[Path | None, option("--output -o", "FILE", "Where to write it.  [job-ID.zip]")] = None,
    without_outputs: Annotated[
        bool, flag("--without-outputs", "Leave out what it stored; digests are there all the same.")
    ] = False,
    force: Annotated[bool, flag("--force", "Replace a file that is there.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Write a job to a file, as an RO-Crate: record, code, lock of its environment, metrics, outputs.

    `carrel replay FILE` repeats it, in this lab or in another one.
    """
    line = StatusLine()
    with open_client(home) as client:
        number = find_job(client, job_id)
        target = (file or Path(f"job-{job_id}.zip")).expanduser()

        def report(member: str) -> None:
            if not as_json and member.startswith("results/"):
                line.show(f"Fetching {clean(member)}")

        content = client.export_job(number, target, outputs=not without_outputs, replace=force, report=report)
    line.clear()
    if as_json:
        digest = _digest(target)
        counts = {"code": len(content.code), "outputs": len(content.outputs), "left_out": len(content.left_out)}
        print_json({"job": number, "file": str(target), "size": target.stat().st_size, "digest": digest, **counts})
        return OK
    print(f"Job {job_id} is in {clean(str(target))}: {_inside(content)}.")
    if content.left_out and not without_outputs:
        print(f"{len(content.left_out)} of its outputs were given up; the record has their digests.")
    print(paint("  It holds the record with everything in it: variables, names of machines, changes not committed.", "dim"))
    print(paint(f"  repeat it anywhere: carrel replay {clean(str(target))}", "dim"))
    return OK


def _inside(content: Content) -> str:
    from carrel.cli.words import size as size_text

    parts = ["the record", format_count(len(content.code), "file") + " of code"]
    parts += ["the lock"] if content.lock else []
    parts += ["metrics"] if content.metrics is not None else []
    stored = size_text(sum(one.size for one in content.outputs))
    parts += [f"{format_count(len(content.outputs), 'output')} ({stored})"] if content.outputs else []
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _digest(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
