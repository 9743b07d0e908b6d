"""Code as it is now, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType


class RsyncSnapshot:
    """Copies a directory, and is there as long as the ``with`` block lasts. (It needs no rsync: the name is submitit's.)

    Of a git repository the files that git knows are copied, else all. `root_dir` None: the repository of the working directory,
    or that directory itself. `exclude`: patterns of files that stay behind; `include`: files that come along although git does
    not know them. Code that is imported travels with each job without this.
    """

    def __init__(
        self,
        snapshot_dir: Path,
        root_dir: Path | None = None,
        with_submodules: bool = False,
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
    ) -> None:
        self.snapshot_dir = Path(snapshot_dir)
        self.root_dir = Path(root_dir) if root_dir is not None else _root(Path.cwd())
        self.original_dir = Path.cwd()
        self.with_submodules = with_submodules
        self.exclude = tuple(exclude)
        self.include = tuple(include)

    @staticmethod
    def available(throw: bool = False) -> bool:  # noqa: ARG004 - there is nothing to throw
        """Whether it can be used: always."""
        return True

    def __enter__(self) -> None:
        self.original_dir = Path.cwd()
        for name in [*self._files(), *self.include]:
            source, target = self.root_dir / name, self.snapshot_dir / name
            if source.is_file() and self.snapshot_dir.resolve() not in source.resolve().parents:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        os.chdir(self.snapshot_dir)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        os.chdir(self.original_dir)

    def _files(self) -> Iterator[str]:
        listed = _git(self.root_dir, "ls-files", "-z", *(["--recurse-submodules"] if self.with_submodules else []))
        if listed is None:
            names = [str(path.relative_to(self.root_dir)) for path in sorted(self.root_dir.rglob("*")) if path.is_file()]
        else:
            names = [name for name in listed.split("\0") if name]
        for name in names:
            if not any(fnmatch(name, pattern) or fnmatch(name, pattern.rstrip("/") + "/*") for pattern in self.exclude):
                yield name


def archive_dev_folders(folders: Sequence[str | Path], outfile: str | Path | None = None) -> Path:
    """Write directories to an archive (.tar.gz), each by its own name, and return its path."""
    path = Path(outfile) if outfile is not None else Path.cwd() / "_dev_folders_.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for folder in map(Path, folders):
            archive.add(folder, arcname=folder.resolve().name)
    return path


def _root(directory: Path) -> Path:
    found = _git(directory, "rev-parse", "--show-toplevel")
    return Path(found.removesuffix("\n")) if found else directory


def _git(directory: Path, *words: str) -> str | None:
    """What git says, or None where there is no git or no repository."""
    try:
        return subprocess.run(["git", *words], cwd=directory, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
