"""Small real things for tests: a snapshot, a launch, an ear for an engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.launch import Ended, JournalRecord, Launch, LaunchLimits, LaunchPaths, Observation
from carrel.core.domain.ports import Engine
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.snapshots.archive import END, Entry, Kind, header, manifest_digest, padding
from carrel.core.spool import AttemptDirectory, Spool
from carrel.testing.waiting import PATIENCE


@dataclass(frozen=True, slots=True)
class LabHome:
    """The directories of a lab, below `root`."""

    root: Path

    @property
    def spool(self) -> Spool:
        """Where attempts live."""
        return Spool(self.root / "spool")

    @property
    def run(self) -> Path:
        """Sockets."""
        return self.root / "run"

    @property
    def snapshots(self) -> Path:
        """Code."""
        return self.root / "snapshots"

    @property
    def blobs(self) -> Path:
        """Stored outputs."""
        return self.root / "blobs"

    @property
    def environments(self) -> Path:
        """Environments."""
        return self.root / "environments"

    def attempt(self, launch: Launch) -> AttemptDirectory:
        """Where the attempt of `launch` lives."""
        return self.spool.attempt(launch.job_id, launch.attempt)

    def blob(self, digest: str) -> Path:
        """Where the blob of `digest` is."""
        name = digest.removeprefix("sha256:")
        return self.blobs / name[:2] / name


def make_snapshot(directory: Path, files: Mapping[str, str | bytes] | None = None, links: Mapping[str, str] | None = None) -> str:
    """Write a snapshot with `files` (path -> content) and `links` (path -> target) into `directory`; return its digest."""
    import hashlib

    contents = {path: data.encode() if isinstance(data, str) else data for path, data in (files or {}).items()}
    entries = [Entry(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in contents.items()]
    entries += [Entry(path=path, kind=Kind.LINK, target=target) for path, target in (links or {}).items()]
    digest = manifest_digest(entries)
    directory.mkdir(parents=True, exist_ok=True)
    body = b"".join(header(entry) + contents.get(entry.path, b"") + padding(entry.size) for entry in entries)
    draft = directory / f"{os.getpid()}.partial"
    draft.write_bytes(body + END)
    draft.rename(directory / f"{digest.removeprefix('sha256:')}.tar")  # a runner may be reading the one that is there
    return digest


def make_deep(place: Path, levels: int, content: bytes = b"") -> None:
    """Make directories in each other, to which no path leads (PATH_MAX), and a file `end` in the last one."""
    here = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(levels):
            os.mkdir("d" * 100, dir_fd=here)
            below = os.open("d" * 100, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        with open(os.open("end", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here), "wb") as file:
            file.write(content)
    finally:
        os.close(here)


def make_launch(
    home: LabHome,
    command: str,
    *,
    job_id: int = 1,
    attempt: int = 1,
    files: Mapping[str, str | bytes] | None = None,
    links: Mapping[str, str] | None = None,
    resources: Resources | None = None,
    limits: LaunchLimits | None = None,
    task: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Launch:
    """Return a launch of `command` whose snapshot holds `files` and `links`; `task` and `fields` set anything else."""
    return Launch(
        job_id=job_id,
        attempt=attempt,
        kind=JobKind.TASK,
        owner="alice",
        name=f"job-{job_id}",
        account="default",
        qos="normal",
        node="here",
        task=TaskSpec(entry_point="main", command=command, snapshot=make_snapshot(home.snapshots, files, links), **(task or {})),
        resources=resources or Resources(cpus=1, memory=512 * 1024**2, time=600),
        limits=limits or LaunchLimits(),
        devices=fields.pop("devices", ()),
        paths=LaunchPaths(environments=str(home.environments), snapshots=str(home.snapshots), blobs=str(home.blobs)),
        **fields,
    )


@dataclass(slots=True)
class AttemptEvents:
    """Everything that an engine said about one attempt."""

    records: list[JournalRecord] = field(default_factory=list)
    offset: int = 0
    log_size: int = 0
    gone: bool = False

    @property
    def ended(self) -> Ended | None:
        """How it ended, or None."""
        return next((record for record in self.records if isinstance(record, Ended)), None)

    def first(self, kind: type[Any]) -> Any:
        """Return the first record of class `kind`, or None."""
        return next((record for record in self.records if isinstance(record, kind)), None)


class EngineListener:
    """Listens to an engine, and waits for what it says."""

    def __init__(self, engine: Engine, *, refuse: int = 0) -> None:
        """Listen; refuse the first `refuse` deliveries with an exception, as a receiver whose database is locked does."""
        self._changed = threading.Condition()
        self._stories: dict[tuple[int, int], AttemptEvents] = {}
        self._refuse = refuse
        engine.observe(self._hear)

    def _hear(self, observations: Sequence[Observation]) -> None:
        with self._changed:
            if self._refuse:
                self._refuse -= 1
                raise Unavailable("Not now.")
            for observation in observations:
                story = self._stories.setdefault((observation.job_id, observation.attempt), AttemptEvents())
                story.records += [entry.record for entry in observation.entries]
                story.offset = observation.offset
                story.log_size = story.log_size if observation.log_size is None else observation.log_size
                story.gone = story.gone or observation.gone
            self._changed.notify_all()

    def story(self, launch: Launch) -> AttemptEvents:
        """Return what was said so far about the attempt of `launch`."""
        with self._changed:
            return self._stories.setdefault((launch.job_id, launch.attempt), AttemptEvents())

    def wait(self, launch: Launch, happened: Callable[[AttemptEvents], Any], timeout: float = PATIENCE) -> AttemptEvents:
        """Return the story as soon as `happened` is true of it; fail with the story so far after `timeout` seconds."""
        story = self.story(launch)
        with self._changed:
            if not self._changed.wait_for(lambda: happened(story), timeout):
                raise AssertionError(f"Not within {timeout} s; so far: {story}")
        return story

    def ended(self, launch: Launch, timeout: float = PATIENCE) -> Ended:
        """Wait for the end and return it."""
        ended = self.wait(launch, lambda story: story.ended, timeout).ended
        assert ended is not None
        return ended

    def wrote(self, launch: Launch, log: Path, text: bytes, timeout: float = PATIENCE) -> None:
        """Wait until the log of the attempt holds `text`."""
        self.wait(launch, lambda _story: log.exists() and text in log.read_bytes(), timeout)
