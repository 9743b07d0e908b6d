"""Outputs of jobs, as one user sees them: listed, fetched and checked, stored late."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from carrel.client.transport import LabUnreachable, Transport
from carrel.core.domain.errors import CarrelError, Invalid, StorageFull, Unavailable
from carrel.wire import v1

#: Seconds that the lab may take to store outputs.
_COLLECTING = 3600.0


class OutputCalls:
    """The part of a `carrel.Client` that is about what jobs have stored."""

    _http: Transport

    def outputs(self, job_id: int) -> list[v1.OutputView]:
        """What the job stored."""
        return self._http.get(v1.OutputList, f"/jobs/{job_id}/outputs").outputs

    def collect_outputs(self, job_id: int) -> v1.OutputList:
        """Store what could not be stored when the job ended (its disk was full); returns all that is stored then.

        Raises `StorageFull` while there is no room; what could be stored is stored all the same.
        """
        return self._http.post(v1.OutputList, f"/jobs/{job_id}/outputs", timeout=_COLLECTING)

    def download_outputs(
        self,
        job_id: int,
        directory: str | Path,
        *,
        report: Callable[[v1.OutputView, bool], None] | None = None,
        failed: Callable[[v1.OutputView, CarrelError], None] | None = None,
    ) -> list[Path]:
        """Fetch all outputs into `directory`; files that are there and equal stay. Every file is checked by its digest.

        `report` is called for each file with whether it was fetched. One that cannot be fetched does not stop the others:
        `failed` is called for it; without `failed`, the first such error is raised at the end. A full disk and a lab that does
        not answer do stop the others, and are raised at once.
        """
        root = Path(directory)
        written: list[Path] = []
        failures: list[CarrelError] = []
        for output in self.outputs(job_id):
            try:
                target = _below(root, output.path)
                fetched = not _holds(target, output)
                if fetched:
                    self._fetch(job_id, output, target)
            except (StorageFull, LabUnreachable):
                raise
            except CarrelError as error:
                failures.append(error)
                if failed is not None:
                    failed(output, error)
                continue
            if report is not None:
                report(output, fetched)
            written.append(target)
        if failures and failed is None:
            raise failures[0]
        return written

    def download_output(self, job_id: int, output: v1.OutputView, target: str | Path) -> bool:
        """Fetch one output to the file `target`, and check it by its digest; return False for a file that is there and equal."""
        path = Path(target)
        if _holds(path, output):
            return False
        self._fetch(job_id, output, path)
        return True

    def _fetch(self, job_id: int, output: v1.OutputView, target: Path) -> None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.")
        except OSError as error:
            raise _unwritable(target, error) from error
        try:
            found = hashlib.sha256()
            with os.fdopen(descriptor, "wb") as file:
                with self._http.stream(f"/jobs/{job_id}/outputs/{quote(output.path)}") as response:
                    for piece in response.iter_bytes():
                        found.update(piece)
                        file.write(piece)
            if f"sha256:{found.hexdigest()}" != output.digest:
                raise Unavailable(f'"{output.path}" did not arrive whole.', remedy="Fetch it again.")
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        except OSError as error:
            raise _unwritable(target, error) from error
        finally:
            with suppress(FileNotFoundError):
                Path(temporary).unlink()


def _unwritable(path: Path, error: OSError) -> CarrelError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    kind, remedy = (StorageFull, "Free some space.") if full else (Invalid, "Name another directory.")
    return kind(f"{path} cannot be written: {error.strerror}.", remedy=f"{remedy} What was fetched before stays.")


def _below(root: Path, path: str) -> Path:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise CarrelError(f'The lab names an output "{path}", which is not below the directory.')
    return root.joinpath(*parts)


def _holds(path: Path, output: v1.OutputView) -> bool:
    try:
        if not path.is_file() or path.stat().st_size != output.size:
            return False
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == output.digest
    except OSError:
        return False  # it cannot be compared: fetching it will tell whether it can be replaced
