"""Jobs as RO-Crates: written to a file of one's own, with what the API tells their owner."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from carrel.client.transport import Transport
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, NotFound, StorageFull, Unavailable
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.core.crates import Content, OutputFile
    from carrel.core.snapshots import Entry

#: Bytes of code that are kept in memory.
_IN_MEMORY = 16 << 20


class CrateCalls:
    """The part of a `carrel.Client` that is about crates."""

    _http: Transport
    record: Callable[[int], dict[str, Any]]
    outputs: Callable[[int], list[v1.OutputView]]
    lab: Callable[[], v1.LabView]

    def metrics(self, job_id: int) -> v1.MetricsView:
        """What the job's run has measured: last values, and all steps where they are not too many."""
        return self._http.get(v1.MetricsView, f"/jobs/{job_id}/metrics")

    def download_code(self, digest: str, file: BinaryIO) -> None:
        """Write the archive of code that one has uploaded to `file`. Raises `NotFound` for what is not one's own or not kept."""
        with self._http.stream(f"/snapshots/{digest}") as response:
            for piece in response.iter_bytes():
                file.write(piece)

    def export_job(
        self,
        job_id: int,
        target: str | Path,
        *,
        outputs: bool = True,
        replace: bool = False,
        report: Callable[[str], None] = lambda _member: None,
    ) -> Content:
        """Write a job that has ended to `target`, as an RO-Crate; return what is in it.

        The same job gives the same bytes. `outputs` False leaves the content of its outputs out: their digests are there all the
        same. Nothing is at `target` before all of it is there; a file that is there stays, unless `replace`, and `Conflict` is
        raised. `report` is called with the name of each file before it is fetched.
        """
        from carrel.core.crates import write_crate

        place = Path(target)
        if place.exists() and not replace:
            raise _there(place)
        record = self.record(job_id)
        _check_exportable(record)
        with self._code_of(record) as code:
            content = self._content(record, code, outputs=outputs)
            with _written(place, replace=replace) as file:
                write_crate(content, file, report=report)
        return content

    def said_of_code(self, job_id: int) -> tuple[dict[str, Any], dict[str, str]]:
        """The record of the job, and what its code says of itself, by file name."""
        record = self.record(job_id)
        _check_code(record)
        with self._code_of(record) as code:
            return record, code.said(record["task"].get("directory", "."))

    @contextmanager
    def _code_of(self, record: dict[str, Any]) -> Iterator[_Code]:
        digest = record["task"]["snapshot"]
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            try:
                self.download_code(digest, file)  # type: ignore[arg-type]
            except NotFound:
                raise NotFound(
                    f"The code of job {record['job']['id']} ({digest[:19]}…) is not here for you.",
                    remedy="It is shown to who has uploaded it, while the lab keeps it. A job of your own: `carrel ps --all`.",
                ) from None
            yield _Code(file, digest)  # type: ignore[arg-type]

    def _content(self, record: dict[str, Any], code: _Code, *, outputs: bool) -> Content:
        from carrel.core.crates import Content, OutputFile

        job_id = record["job"]["id"]
        stored = {one.path: one for one in self.outputs(job_id)}
        every = [OutputFile(path=one.path, size=one.size, digest=one.digest) for _, one in sorted(stored.items())]
        here = [one for one in every if outputs and stored[one.path].removed_at is None]
        metrics = self.metrics(job_id) if record["job"].get("run_id") else None
        if metrics is not None and metrics.missing:
            raise Unavailable(f"The metrics of job {job_id} are not known. {metrics.missing}", remedy="Try again later.")
        return Content(
            record=record,
            code=code.entries,
            read_code=code.read,
            outputs=here,
            read_output=lambda one: self._read_output(job_id, one),
            left_out=[one for one in every if one not in here],
            metrics=None if metrics is None else metrics.model_dump(exclude={"missing"}),
            version=self.lab().version,
            said=code.said(record["task"].get("directory", ".")),
        )

    def _read_output(self, job_id: int, output: OutputFile) -> Iterator[bytes]:
        import hashlib

        found = hashlib.sha256()
        with self._http.stream(f"/jobs/{job_id}/outputs/{quote(output.path)}") as response:
            for piece in response.iter_bytes():
                found.update(piece)
                yield piece
        if f"sha256:{found.hexdigest()}" != output.digest:
            raise Unavailable(f'"{output.path}" did not arrive whole.', remedy="Export the job again.")


class _Code:
    """The code of a job, in a file that is open."""

    def __init__(self, file: BinaryIO, digest: str) -> None:
        from carrel.core.snapshots.archive import check_digest, scan

        self._file = file
        self._members = dict(sorted(scan(file, hashes=True).items(), key=lambda item: item[0].encode()))
        check_digest(digest, self._members)
        self.entries: list[Entry] = [member.entry for member in self._members.values()]

    def read(self, entry: Entry) -> Iterator[bytes]:
        """The bytes of a file."""
        from carrel.core.snapshots.archive import read_member

        return read_member(self._file, self._members[entry.path])

    def said(self, directory: str) -> dict[str, str]:
        """What it says of itself: in the directory of the task, else at its top."""
        from carrel.core.crates.about import FILES, LONGEST

        found = {}
        prefixes = ("",) if directory == "." else (f"{directory}/", "")
        for name in FILES:
            path = next((prefix + name for prefix in prefixes if prefix + name in self._members), None)
            entry = self._members[path].entry if path else None
            if path and entry and entry.sha256 and entry.size <= LONGEST:
                found[path] = b"".join(self.read(entry)).decode("utf-8", "replace")
        return found


def _check_code(record: dict[str, Any]) -> None:
    job, task = record["job"], record["task"]
    if not task.get("snapshot"):
        raise Invalid(f"Job {job['id']} is a session: it has no code of its own.", remedy="Export a task.")
    if task.get("pool") is not None:
        raise Invalid(f"Job {job['id']} is a worker of a pool, which does what it is sent.", remedy="Export a task.")


def _check_exportable(record: dict[str, Any]) -> None:
    _check_code(record)
    job = record["job"]
    if job.get("ended_at") is None:
        raise Invalid(f"Job {job['id']} is {job['state']}.", remedy=f"Export it when it has ended: carrel logs -f {job['id']}")
    if not record["attempts"]:
        raise Invalid(f"Job {job['id']} never began: it is {job['state']}.", remedy="Export a job that ran.")


def _there(place: Path) -> Conflict:
    return Conflict(f"{place} is there already.", remedy="Name another file, or say --force.")


@contextmanager
def _written(place: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """A file that is at `place` when the block has ended well, and nowhere otherwise."""
    partial = place.with_name(f".{place.name[:100]}.{secrets.token_hex(6)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            partial.replace(place)
        else:
            _place_once(partial, place)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind: type[CarrelError] = StorageFull if full else Invalid
        remedy = "Free some space, or say --without-outputs." if full else "Name another file."
        raise kind(f"{place} cannot be written: {error.strerror or error}.", remedy=remedy) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _place_once(partial: Path, place: Path) -> None:
    """Give it its name, unless another has it by now."""
    try:
        place.hardlink_to(partial)
    except FileExistsError:
        raise _there(place) from None
    except OSError:  # a file system without links
        if place.exists():
            raise _there(place) from None
        shutil.move(partial, place)
