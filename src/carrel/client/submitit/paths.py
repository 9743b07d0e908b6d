"""Files of a job in the folder of its executor, on the caller's machine."""

from __future__ import annotations

from pathlib import Path


class JobPaths:
    """Where a job's files are. In the folder's name %j is the job, %A the array, %a the index and %t the task."""

    def __init__(self, folder: str | Path, job_id: str | None = None, task_id: int | None = None) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self.job_id = job_id
        self.task_id = task_id or 0

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._named(self._folder)

    @property
    def submitted_pickle(self) -> Path:
        """The submission as it was sent."""
        return self._named(self.folder / "%j_submitted.pkl")

    @property
    def result_pickle(self) -> Path:
        """The result, once it was fetched."""
        return self._named(self.folder / "%j_%t_result.pkl")

    @property
    def stdout(self) -> Path:
        """What the task wrote to its standard output, once the job has ended and the file was fetched."""
        return self._named(self.folder / "%j_%t_log.out")

    @property
    def stderr(self) -> Path:
        """The same of its standard error."""
        return self._named(self.folder / "%j_%t_log.err")

    def _named(self, path: Path) -> Path:
        if self.job_id is None:
            return path
        array, _, index = self.job_id.partition("_")
        said = {"%j": self.job_id, "%A": array, "%a": index or "0", "%t": str(self.task_id)}
        text = str(path)
        for mark, value in said.items():
            text = text.replace(mark, value)
        return Path(text)

    @staticmethod
    def get_first_id_independent_folder(folder: str | Path) -> Path:
        """The part of a folder's path before any mark."""
        path = Path(folder).expanduser().absolute()
        for part in (path, *path.parents):
            if not any(mark in str(part) for mark in ("%j", "%A", "%a", "%t")):
                return part
        return path

    def __repr__(self) -> str:
        return f"JobPaths({self.folder})"
