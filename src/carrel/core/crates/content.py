"""What a crate holds, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carrel.core.snapshots import Entry

METADATA = "ro-crate-metadata.json"
#: What `carrel record` prints.
RECORD = "record.json"
#: What the environment of the last attempt was built from.
LOCK = "environment.lock"
METRICS = "metrics.json"
#: Files of the code, and outputs, by their paths.
CODE = "code/"
RESULTS = "results/"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One output of the job."""

    path: str
    size: int
    #: "sha256:…"
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All that goes into a crate. Bytes of files are asked for when they are written."""

    record: Mapping[str, Any]
    #: Of the code, sorted by path, each file with its digest.
    code: Sequence[Entry]
    read_code: Callable[[Entry], Iterable[bytes]]
    #: Sorted by path; those whose content is in the crate.
    outputs: Sequence[OutputFile]
    read_output: Callable[[OutputFile], Iterable[bytes]]
    #: Those whose content stays behind.
    left_out: Sequence[OutputFile] = ()
    #: As the API has them; None: the job has no run.
    metrics: Mapping[str, Any] | None = None
    #: Of the lab's Carrel.
    version: str = ""
    #: What the code says of itself, by file name ("LICENSE", "CITATION.cff", "pyproject.toml").
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def attempt(self) -> Mapping[str, Any]:
        """The last attempt: the one that all this is about."""
        last: Mapping[str, Any] = self.record["attempts"][-1]
        return last

    @property
    def lock(self) -> str:
        """The text of its lock; "" for none."""
        return self.attempt.get("environment_lock_text") or ""
