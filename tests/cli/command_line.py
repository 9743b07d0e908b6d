"""The command line as a user meets it: a process of its own, with its output and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carrel.testing.waiting import PATIENCE
from support.fork_server import run_carrel

CARREL = (sys.executable, "-m", "carrel.cli.main")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        """The one document on standard error."""
        return json.loads(self.err)


@dataclass(frozen=True)
class CommandLine:
    """Runs `carrel` with only the variables that it was given."""

    variables: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    def environment(self) -> dict[str, str]:
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("CARREL_", "NO_COLOR"))}
        return {**bare, **self.variables}

    def __call__(self, *words: str, cwd: Path | None = None) -> Ended:
        done = run_carrel(words, variables=self.environment(), directory=cwd or self.cwd, timeout=PATIENCE)
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *words: str, text: bool = True) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            [*CARREL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(), text=text
        )


def script(directory: Path, text: str, name: str = "task.sh") -> str:
    """A bare script in a directory of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return str(path)
