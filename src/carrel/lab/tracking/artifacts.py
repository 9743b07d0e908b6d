"""The directory in which MLflow keeps artifacts: what the lab puts there, and what MLflow's own memory does not name any more.

What the lab itself adds to a run is written where MLflow would put it: through MLflow it would cost a call's processor time.

MLflow keeps the artifacts of a deleted run until somebody runs ``mlflow gc``, and those of a run that it never knew for ever.
Only directories of runs are looked at (``workspaces/NAME/EXPERIMENT/RUN/artifacts``); a run of which a registered model
was made keeps its own (`model_versions` in MLflow's schema).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import sqlalchemy as sa

from carrel.core.domain.errors import Unavailable

_RUN = re.compile(r"[0-9a-f]{32}")
#: Bytes that are copied at once.
_PART = 1024**2


class ArtifactStore:
    """The directory into which MLflow puts artifacts, and the database that says whose they are."""

    def __init__(self, directory: Path, database_url: str) -> None:
        self._directory = directory
        self._url = sa.make_url(database_url)

    def put(self, workspace: str, experiment_id: str, run_id: str, path: str, content: BinaryIO) -> None:
        """Store `content` as the run's artifact `path`, in place of what was there; whole, or not at all.

        Raises `Unavailable` when that cannot be written, and `OSError` when `content` cannot be read.
        """
        target = self._directory / "workspaces" / workspace / experiment_id / run_id / "artifacts" / path
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        except OSError as error:
            raise _unwritten(target, error) from error
        try:
            with os.fdopen(descriptor, "wb") as file:
                while part := content.read(_PART):
                    try:
                        file.write(part)
                        file.flush()
                    except OSError as error:
                        raise _unwritten(target, error) from error
            Path(draft).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise

    def unused(self, *, unused_before: float, deleted_before: float | None) -> Iterator[Path]:
        """Yield the artifact directories of no run, last written before `unused_before`, and of runs deleted before the other.

        Both are Unix seconds; None: deleted runs keep theirs. Raises `Unavailable` when MLflow's database cannot be read.
        """
        found = [path for path in sorted(self._directory.glob("workspaces/*/*/*/artifacts")) if _RUN.fullmatch(path.parent.name)]
        if not found:
            return
        runs, kept = self._runs()
        for path in found:
            run = path.parent.name
            if run in kept:
                continue
            if run not in runs:
                if path.stat().st_mtime < unused_before:
                    yield path
            elif deleted_before is not None and (runs[run] or float("inf")) < deleted_before:
                yield path

    def _runs(self) -> tuple[dict[str, float | None], set[str]]:
        """All runs with the time at which they were deleted (None: they are not), and those that models were made of."""
        engine = sa.create_engine(self._url)
        try:
            with engine.connect() as connection:
                rows = connection.execute(sa.text("SELECT run_uuid, lifecycle_stage, deleted_time FROM runs"))
                runs = {
                    row.run_uuid: (row.deleted_time or 0) / 1000 if row.lifecycle_stage == "deleted" else None for row in rows
                }
                models = connection.execute(sa.text("SELECT run_id, source FROM model_versions"))
                named = " ".join(f"{row.run_id} {row.source}" for row in models)
        except sa.exc.DBAPIError as error:
            raise Unavailable(f"MLflow's database does not answer: {error.orig}.", remedy="Try again in a moment.") from error
        finally:
            engine.dispose()
        return runs, set(_RUN.findall(named))


def _unwritten(target: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{target} cannot be written: {error.strerror}.", remedy="It is tried again.")
