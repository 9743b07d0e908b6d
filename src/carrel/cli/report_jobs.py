"""`carrel report jobs`: attempts as lines of formats that others read."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from carrel.core.domain.errors import Invalid
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.exports import SACCT_COLUMNS, ExportedAttempt, Numbers, SwfHeader, SwfWriter, anonymous, sacct_line

if TYPE_CHECKING:
    from carrel.client import Client

#: By name.
FORMATS = ("sacct", "xdmod", "swf")
#: With all that the lab told.
JSON = "json"
#: Bytes of a key: that of HMAC-SHA-256.
_KEY = 32


def export(
    client: Client, form: str, *, begin: str | None, end: str | None, cluster: str, numbers: Numbers | None, out: TextIO
) -> int:
    """Write what the caller may see, and return how many attempts that were. `numbers`: in the place of names.

    Memory does not grow with the lab: lines are written as they come, and what has to be put in order waits in a temporary file.
    """
    found = _attempts(client, begin, end, numbers)
    if form == JSON:
        return _write_json(found, out)
    return _write_swf(client, found, cluster, numbers, out) if form == "swf" else _write_sacct(found, form, cluster, out)


def numbers_of(*, hide: bool, key: Path | None, form: str) -> Numbers | None:
    """The numbers that take the place of names; None: names stay. Raises `Invalid` for a key that is none."""
    if not hide:
        if key is not None:
            raise Invalid("--key is about numbers in the place of names.", remedy="Add --anonymous.")
        return None
    if key is None:
        # Without a key users of SWF are counted: 1, 2, 3.
        return None if form == "swf" else Numbers(secrets.token_bytes(_KEY))
    return Numbers(_read_key(key))


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """Where lines go: standard output, or a file that is there when it is complete, and not before."""
    if path is None:
        yield sys.stdout
        return
    try:
        if path.exists() and not path.is_file():  # a pipe, or /dev/null
            with path.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            return
        path = path.resolve()  # of a link, what it names
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("x", encoding="utf-8", newline="\n") as file:
                yield file
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        if error.filename is None:
            raise
        raise Invalid(f"{path} cannot be written: {error.strerror}.", remedy="Name a file in a directory of yours.") from None


def _read_key(path: Path) -> bytes:
    """The key in a file, which is made where there is none."""
    try:
        with suppress(FileNotFoundError):
            text = path.read_text().strip()
            if len(text) < 2 * _KEY or not set(text) <= set("0123456789abcdef"):
                raise Invalid(f"{path} holds no key.", remedy="Name a file that is not there: a key is made in it.")
            return bytes.fromhex(text)
        made = secrets.token_bytes(_KEY)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made.hex() + "\n")
    except (OSError, ValueError) as error:
        raise Invalid(f"The key {path} can be neither read nor made: {error}.", remedy="Name another file.") from None
    return made


def _attempts(
    client: Client, begin: str | None, end: str | None, numbers: Numbers | None
) -> Iterator[tuple[ExportedAttempt, float]]:
    """Attempts by job and number, each with the moment until which they are told."""
    for page in client.report_jobs(begin=begin, end=end):
        until = page.end.timestamp()
        for one in page.attempts:
            yield one if numbers is None else anonymous(one, numbers), until


def _write_sacct(found: Iterator[tuple[ExportedAttempt, float]], form: str, cluster: str, out: TextIO) -> int:
    count = 0
    if form == "sacct":
        out.write("|".join(SACCT_COLUMNS) + "\n")
    for one, now in found:
        out.write(sacct_line(one, cluster=cluster, now=now) + "\n")
        count += 1
    return count


def _write_json(found: Iterator[tuple[ExportedAttempt, float]], out: TextIO) -> int:
    """One document, an attempt a line."""
    count = 0
    out.write('{"attempts": [')
    for one, _ in found:
        out.write((",\n" if count else "\n") + json.dumps(asdict(one)))
        count += 1
    out.write("\n]}\n")
    return count


def _write_swf(
    client: Client, found: Iterator[tuple[ExportedAttempt, float]], cluster: str, numbers: Numbers | None, out: TextIO
) -> int:
    """In the order of submission, after a header that says how many there are: so all have to be there first."""
    with closing(sqlite3.connect("")) as kept:  # a file without a name, which SQLite removes
        columns = "at REAL, job INTEGER, number INTEGER, cluster INTEGER, queue TEXT, partition TEXT, whole TEXT"
        kept.execute(f"CREATE TABLE attempts ({columns})")
        kept.executemany("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?)", (_kept(one) for one, _ in found))
        figures = kept.execute("SELECT count(*), min(at), max(at), max(cluster) FROM attempts")
        count, begin, end, on_cluster = figures.fetchone()
        # What machines a cluster has the lab does not know.
        nodes = () if on_cluster else client.nodes()
        header = SwfHeader(
            computer=cluster,
            jobs=count,
            begin=begin or 0.0,
            end=end or 0.0,
            nodes=len(nodes),
            gpus=sum(len(node.devices) for node in nodes),
            queues=[name for (name,) in kept.execute("SELECT DISTINCT queue FROM attempts WHERE queue <> '' ORDER BY queue")],
            partitions=[name for (name,) in kept.execute("SELECT DISTINCT partition FROM attempts ORDER BY partition")],
        )
        for line in header.lines():
            out.write(line + "\n")
        writer = SwfWriter(header, numbers)
        for (whole,) in kept.execute("SELECT whole FROM attempts ORDER BY at, job, number"):
            out.write(writer.line(from_plain(ExportedAttempt, json.loads(whole))) + "\n")
        return int(count)


def _kept(one: ExportedAttempt) -> tuple[float, int, int, bool, str, str, str]:
    queue = "" if one.is_session else one.qos
    return one.submitted_at, one.job, one.attempt, one.on_cluster, queue, one.partition, json.dumps(to_plain(one))
