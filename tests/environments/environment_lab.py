"""A machine with its own pip configuration and wheels, and a stand-in in front of uv that keeps a list of calls."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import uv

from carrel.core.domain.task import EnvironmentRecipe
from carrel.node.environments import Environment, EnvironmentSettings, EnvironmentStore
from support.package_index import PackageIndex, make_wheel


class Lab:
    """A machine's configuration, and stores on it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "home"
        self.wheels = base / "wheels"
        self.code = base / "code"
        for path in (self.home, self.wheels, self.code):
            path.mkdir()
        self.root = base / "environments"
        self.calls_file = base / "calls"
        self.reports: list[str] = []
        self.held: list[Environment] = []
        kept = ("PATH", "SSL_CERT_FILE", "PIP_CERT", "HTTPS_PROXY", "https_proxy")
        self.environ = {name: os.environ[name] for name in kept if name in os.environ}
        self.environ |= {"HOME": str(self.home), "UV_CACHE_DIR": str(base / "cache"), "UV_HTTP_RETRIES": "0"}
        for name in ("PYENV_ROOT", "PYENV_VERSION"):
            if name in os.environ:
                self.environ[name] = os.environ[name]

    def offline(self) -> None:
        """Packages come from the lab's wheels only, as pip would be told."""
        self.pip_conf(f"[global]\nfind-links = {self.wheels}\nno-index = true\n")

    def pip_conf(self, text: str) -> None:
        """Set the user's pip configuration."""
        file = self.home / ".config/pip/pip.conf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def use_index(self, index: PackageIndex) -> None:
        """Packages come from an index, and from nowhere else."""
        address = index.variables["UV_DEFAULT_INDEX"]
        self.environ["UV_DEFAULT_INDEX"] = address
        self.pip_conf(f"[global]\nindex-url = {address}\n")

    def locked(self, about: str) -> dict[str, str]:
        """Lock a project of that description in the code's directory with uv; returns what both files say."""
        (self.code / "pyproject.toml").write_text(
            f'[project]\nname = "study"\nversion = "1"\nrequires-python = ">=3.11"\n{about}'
        )
        words = [uv.find_uv_bin(), "lock", "--no-python-downloads", "-q"]
        subprocess.run(words, env=self.environ, cwd=self.code, check=True, timeout=60)
        return {name: (self.code / name).read_text() for name in ("pyproject.toml", "uv.lock")}

    def wheel(self, name: str, version: str = "1.0", *, requires: tuple[str, ...] = (), where: Path | None = None) -> Path:
        """Make a wheel of one module."""
        return make_wheel(where or self.wheels, name, version, requires=requires)

    def uv(self, before: str = "") -> Path:
        """Make a uv that notes each call, runs the shell text `before` ("$*" is the call), and then is the real one."""
        file = self.base / "uv"
        real, calls = shlex.quote(uv.find_uv_bin()), shlex.quote(str(self.calls_file))
        file.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{before}\nexec {real} "$@"\n')
        file.chmod(0o755)
        return file

    def calls(self, *commands: str) -> list[str]:
        """Return the calls of uv so far that start with one of `commands` (all of them by default)."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [line for line in lines if not commands or line.startswith(commands)]

    def store(self, **settings: object) -> EnvironmentStore:
        """Return a store; without `uv`, behind the list of calls."""
        settings.setdefault("uv", self.base / "uv" if (self.base / "uv").exists() else self.uv())
        return EnvironmentStore(self.root, settings=EnvironmentSettings(**settings), environ=self.environ)  # type: ignore[arg-type]

    def prepare(self, recipe: EnvironmentRecipe, *, store: EnvironmentStore | None = None, **options: object) -> Environment:
        """Prepare a recipe for the code in `self.code`; what is reported is added to `self.reports`."""
        arguments: dict[str, object] = {"code": self.code, "code_digest": "sha256:aa", "report": self.reports.append, **options}
        environment = (store or self.store()).prepare(recipe, **arguments)  # type: ignore[arg-type]
        self.held.append(environment)
        return environment

    def release(self) -> None:
        """End every use of environments so far."""
        while self.held:
            self.held.pop().hold.close()
