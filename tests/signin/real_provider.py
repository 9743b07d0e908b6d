"""npm's oidc-provider in a process of its own (`provider/server.mjs`), installed once, outside of the repository."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel.lab.credentials.oidc import Client
from carrel.testing.waiting import PATIENCE

FILES = Path(__file__).parent / "provider"
#: Of Node.js; what oidc-provider needs of the language and its libraries is there from then on.
OLDEST_NODE = 20


@dataclass
class RealProvider:
    issuer: str
    secret: str

    def client(self, name: str = "carrel", *, secret: bool = True) -> Client:
        return Client(id=name, secret=self.secret if secret else None)

    def press(self, button: str, **asked: Any) -> dict[str, int]:
        """Press one of its buttons; returns how often each of its addresses was asked."""
        answer = httpx.post(f"{self.issuer}/-/{button}", json=asked, timeout=PATIENCE, trust_env=False)
        found: dict[str, int] = answer.raise_for_status().json()
        return found

    def person(self, login: str, **claims: Any) -> None:
        """Somebody has these claims from now on."""
        known = {"sub": f"sub-{login}", "preferred_username": login, "email": f"{login}@example.org", "email_verified": True}
        self.press("people", **{login: {**known, "groups": [], **claims}})


def install(root: Path) -> Path:
    """Where it is installed; by whoever comes first, while others wait. Where that cannot be, the tests are skipped."""
    _check_programs()
    place = root / "oidc-provider"
    with (root / "oidc-provider.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "installed").exists():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(FILES, place, ignore=shutil.ignore_patterns("node_modules"))
            words = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=600)
            if done.returncode:
                _missing(f"npm ci failed: {done.stderr[-500:]}")
            (place / "installed").touch()
    return place


def _check_programs() -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        _missing("Node.js or npm is not installed (Debian: apt-get install nodejs npm)")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)\.", said)
    if found is None or int(found[1]) < OLDEST_NODE:
        _missing(f"Node.js is {said.strip()}; oidc-provider wants {OLDEST_NODE} or newer")


def _missing(message: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def a_provider(root: Path) -> Iterator[RealProvider]:
    place = install(root)
    with (place / "errors.log").open("ab") as errors:
        process = subprocess.Popen(
            ["node", "server.mjs"], cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (place / "errors.log").read_text()[-2000:]
            yield RealProvider(**json.loads(line))
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends with that
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
