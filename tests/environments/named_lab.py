"""A lab's named environments with wheels of its own, where a kernel is a package of one module."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import uv
from environment_lab import Lab

from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.environments.named import NamedEnvironments, Work
from carrel.node.environments.named.holding import Opened

#: Seconds that anything in these tests may take.
LIMIT = 60

USER = """
import json, sys
from pathlib import Path
from carrel.node.environments.named import NamedEnvironments, Work
root, uv, environ, owner, name = json.loads(sys.argv[1])
def say(kind, what):
    print(json.dumps([kind, what]), flush=True)
environments = NamedEnvironments(Path(root), uv=Path(uv), environ=environ)
opened = environments.open(owner, name, Work(report=lambda line: say("report", line)))
say("ready", str(opened.prefix))
sys.stdin.read()
"""


class NamedLab:
    """Named environments, behind a list of uv's calls."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.clock = 1_000_000.0
        self.reports: list[str] = []
        self._opened: list[Opened] = []
        if not lab.environ.get("UV_DEFAULT_INDEX"):
            lab.wheel("ipykernel", "7.0", requires=("traitlets",))
            lab.wheel("traitlets", "5.0")
            lab.wheel("pip", "25.0")
        lab.uv()

    def environments(self, **options: object) -> NamedEnvironments:
        return NamedEnvironments(
            self.lab.root,
            environ=self.lab.environ,
            uv=self.lab.base / "uv",
            clock=lambda: self.clock,
            **options,  # type: ignore[arg-type]
        )

    def work(self) -> Work:
        return Work(report=self.reports.append)

    def open(self, owner: str, name: str = "default", *, default: str = "") -> Opened:
        opened = self.environments().open(owner, name, self.work(), default)
        self._opened.append(opened)
        return opened

    def create(self, owner: str, name: str, *lines: str) -> Path:
        recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, source="requirements.txt", requirements=lines)
        self.environments().create(owner, name, recipe, self.work())
        return self.environments().get(owner, name).prefix

    def install(self, prefix: Path, *words: str) -> None:
        """What `!uv pip install` does in a session."""
        self.uv(
            "pip", "install", *words, "--python", str(prefix / "bin/python"), "--find-links", str(self.lab.wheels), "--no-index"
        )

    def uninstall(self, prefix: Path, *words: str) -> None:
        self.uv("pip", "uninstall", *words, "--python", str(prefix / "bin/python"))

    def uv(self, *words: str) -> None:
        done = subprocess.run(
            [uv.find_uv_bin(), *words], env=self.lab.environ, cwd=self.lab.base, capture_output=True, text=True, timeout=LIMIT
        )
        assert done.returncode == 0, done.stderr

    def packages(self, owner: str, name: str = "default") -> list[str]:
        lines = self.environments().lock(owner, name).text.splitlines()
        return [line.removesuffix(" \\") for line in lines if not line.startswith(" ")]

    def release(self) -> None:
        while self._opened:
            self._opened.pop().hold.close()


@contextmanager
def process_of(program: str, arguments: Sequence[object]) -> Iterator[subprocess.Popen[str]]:
    """Another process that is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def user(named: NamedLab, owner: str, name: str = "default") -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that opens an environment and uses it until its standard input closes."""
    return process_of(USER, [str(named.lab.root), str(named.lab.base / "uv"), named.lab.environ, owner, name])


def hear(process: subprocess.Popen[str], kind: str, what: object = None) -> str:
    """Wait until the process says something of this kind; return it."""
    assert process.stdout is not None
    for line in process.stdout:
        said, value = json.loads(line)
        if said == kind and what in (None, value):
            return str(value)
    raise AssertionError(f"it never said {kind}")


class Gate:
    """Stops uv at a command until opened: two FIFOs, one to say that it is there, one to let it go on."""

    def __init__(self, lab: Lab, command: str) -> None:
        self.arrived, self.opened = lab.base / "arrived", lab.base / "opened"
        os.mkfifo(self.arrived)
        os.mkfifo(self.opened)
        lab.uv(f'case "$*" in "{command}"*) echo here > {self.arrived}; read line < {self.opened};; esac')

    def wait(self) -> None:
        fd = os.open(self.arrived, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert select.select([fd], [], [], LIMIT)[0], "uv never came so far"
        finally:
            os.close(fd)

    def open(self) -> None:
        with self.opened.open("w") as stream:
            stream.write("go\n")
