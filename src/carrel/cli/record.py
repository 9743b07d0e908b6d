"""`carrel record`: what explains a job and repeats it, on one screen or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from carrel.cli import words
from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, JobId, find_job, open_client, option
from carrel.cli.screen import clean, print_fields
from carrel.cli.words import short_digest, size
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.client import Client

#: Lines of each part that are shown; the JSON has all.
_MOST = 8
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
#: What the lab and MLflow measure of the machine begins so; the rest is the task's own.
_SYSTEM = "system/"


def record_command(
    job_id: JobId,
    file: Annotated[Path | None, option("--output -o", "FILE", "Write all of it to this file, as JSON.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show what explains a job and repeats it: code, parameters, environment, machine, results.

    `--json` has all of it: every lock, seed, digest and attempt.
    """
    with open_client(home) as client:
        number = find_job(client, job_id)
        record = client.record(number)
        measured = {} if as_json or file is not None else _measured(client, number)
    if file is not None:
        try:
            file.write_text((json.dumps(record) if as_json else json.dumps(record, indent=2, ensure_ascii=False)) + "\n")
        except OSError as error:
            raise Invalid(f"{file} cannot be written: {error.strerror}.") from error
    elif as_json:
        print(json.dumps(record))
    else:
        _print(record, measured)
    return OK


def _measured(client: Client, job_id: int) -> Mapping[str, str]:
    """Last values of what the task logged; the record is worth showing without them."""
    try:
        found = client.metrics(job_id)
    except CarrelError:
        return {}
    return {name: metric.last for name, metric in found.metrics.items() if not name.startswith(_SYSTEM)}


def _print(record: Mapping[str, Any], measured: Mapping[str, str]) -> None:
    job, task, attempts = record["job"], record["task"], record["attempts"]
    last: Mapping[str, Any] = attempts[-1] if attempts else {}
    reason = job.get("reason") or {}
    print_fields(
        (name, "\n".join(clean(line) for line in value.splitlines()))
        for name, value in (
            ("job", f"{job['id']} {job['name']}, of {job['owner']} (account {job['account']})"),
            ("result", f"{job['state']}: {reason.get('message', '')}".rstrip(": ")),
            ("", _lines(f"{name} = {value}" for name, value in measured.items())),
            ("outputs", _lines(_output(one) for one in last.get("outputs", ()))),
            ("ended", words.local(job.get("ended_at"))),
            ("command", task["command"]),
            ("parameters", _lines(f"{name} = {value}" for name, value in task["parameters"].items())),
            ("code", words.short_digest(task["snapshot"])),
            ("git", _git(task.get("git"))),
            ("inputs", _lines(_inputs(task, last))),
            ("environment", _environment(task, last)),
            ("seeds", _lines(f"{name} = {value}" for name, value in last.get("seeds", {}).items())),
            ("machine", _lines(_machine(last))),
            ("attempts", f"{len(attempts)}; this is the last" if len(attempts) > 1 else ""),
            ("verified", _verified(record.get("verification"))),
            ("all of it", f"carrel record {job['id']} --json"),
        )
    )


def _lines(found: Iterable[str]) -> str:
    shown = list(found)
    more = len(shown) - _MOST
    return "\n".join([*shown[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def _output(one: Mapping[str, Any]) -> str:
    return f"{one['path']}  {size(one['size'])}  {short_digest(one['digest'])}"


def _git(git: Mapping[str, Any] | None) -> str:
    if git is None:
        return ""
    branch = f" on {git['branch']}" if git.get("branch") else ""
    return f"{git['commit'][:12]}{branch}{', with uncommitted changes' if git['dirty'] else ''}"


def _verified(found: Mapping[str, Any] | None) -> str:
    return "" if found is None else f"{found['agreement']}, by jobs {', '.join(str(job) for job in found['repetitions'])}"


def _inputs(task: Mapping[str, Any], attempt: Mapping[str, Any]) -> Iterator[str]:
    asked = {**{one["path"]: one["uri"] for one in task.get("inputs", ())}, **task.get("path_parameters", {})}
    digests = attempt.get("inputs", {})
    for path, uri in asked.items():
        yield f"{path} from {uri}  {short_digest(digests.get(path) or '')}".rstrip()


def _environment(task: Mapping[str, Any], attempt: Mapping[str, Any]) -> str:
    from carrel.core.comparison.packages import image_of, normalised, packages_of

    asked, lock = task["environment"], attempt.get("environment_lock_text")
    if asked["kind"] == "none":
        return "the lab's own Python, of which nothing is recorded"
    source = f" from {asked['source']}" if asked.get("source") else ""
    python = attempt.get("python") or "Python"
    if lock is None:
        return f"{python}{source}, without a lock"
    digest = short_digest(attempt["environment_lock"])
    packages = packages_of(lock)
    if packages is None:
        return f"{image_of(lock) or python}{source}, lock {digest}"
    names = [normalised(match[0]) for line in asked.get("requirements", ()) if (match := _NAME.match(line))]
    named = ", ".join(f"{name} {packages[name]}" for name in dict.fromkeys(names) if name in packages)
    count = format_count(len(packages), "package")
    return "\n".join(part for part in (f"{python}, {count}{source}, lock {digest}", named) if part)


def _machine(attempt: Mapping[str, Any]) -> Iterator[str]:
    facts = attempt.get("hardware", {})
    if not facts:
        return
    cpus = f"{facts['cpus']} × " if "cpus" in facts else ""
    parts = [f"{cpus}{facts.get('cpu', '')}", facts.get("memory", ""), facts.get("system", "")]
    yield f"{attempt.get('node', '')}: {', '.join(part for part in parts if part)}"
    if "composition" in facts:
        yield f"made from parts, machine {facts['composition']}"
    yield from (text for name, text in facts.items() if name.startswith("gpu_") and name[4:].isdecimal())
