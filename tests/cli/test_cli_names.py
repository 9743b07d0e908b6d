"""Another distribution with Carrel's module and command, as `carrel` on PyPI is: both in one environment, and on one PATH."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from command_line import PATIENCE

from support.package_index import make_wheel

ROOT = Path(__file__).parents[2]
#: Without the places that this machine takes packages from, and without the tests' own Python.
BARE = {name: value for name, value in os.environ.items() if not name.startswith(("CARREL_", "UV_", "PIP_", "PYTHON"))}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheels of this Carrel, and of the other program."""
    place = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    (ours,) = place.glob("carrel_lab-*-py3-none-any.whl")
    return ours, make_wheel(place, "carrel", "0.5.0", command="carrel")


class Environment:
    """A virtual environment of its own, in which only the packages that Carrel needs are those of the tests."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.home = directory / "home"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=PATIENCE)
        (packages,) = directory.glob("lib/python*/site-packages")
        (packages / "needs.pth").write_text(sysconfig.get_path("purelib"))

    def pip(self, verb: str, *words: str | Path) -> None:
        uv = [Path(sys.executable).parent / "uv", "pip", verb, "--quiet", "--offline", "--python", self.bin / "python"]
        subprocess.run([*uv, *words], check=True, env=BARE, timeout=PATIENCE)

    def install(self, *words: str | Path) -> None:
        self.pip("install", "--no-deps", "--no-index", *words)

    def doctor(self, *first: Path) -> tuple[int, dict[str, str]]:
        """How `carrel doctor` ends, and what it says of the command, with these directories first on PATH."""
        variables = {
            **BARE,
            "CARREL_HOME": str(self.home),
            "PATH": os.pathsep.join(map(str, (*first, self.bin, "/usr/bin", "/bin"))),
        }
        done = subprocess.run(
            [self.bin / "carrel", "doctor", "--json"],
            capture_output=True,
            text=True,
            env=variables,
            timeout=PATIENCE,
            check=False,
        )
        (check,) = (check for check in json.loads(done.stdout)["checks"] if check["name"] == "command")
        return done.returncode, check


def test_doctor_says_which_distribution_owns_the_same_names_and_what_to_do(tmp_path: Path, wheels: tuple[Path, Path]) -> None:
    ours, other = wheels
    here = Environment(tmp_path / "env")
    here.install(other)
    assert subprocess.run([here.bin / "carrel"], capture_output=True, text=True, check=True).stdout == "carrel 0.5.0\n"
    here.install(ours)
    code, check = here.doctor()
    assert (code, check["status"]) == (1, "fail")
    assert check["message"].startswith(f"carrel 0.5.0 owns the module carrel and the command carrel too, in {tmp_path}")
    away, _, again = check["remedy"].partition("Here: ")[2].partition(", then ")
    assert shlex.split(away) == ["pip", "uninstall", "carrel"]
    assert shlex.split(again) == ["pip", "install", str(ours), "--force-reinstall", "--no-deps"]

    here.pip("uninstall", "carrel")
    assert not (here.bin / "carrel").exists(), "which is why the remedy installs ours again"
    here.install("--force-reinstall", ours)
    assert here.doctor()[1] == {"name": "command", "status": "ok", "message": f"carrel is {here.bin / 'carrel'}", "remedy": ""}


def test_doctor_says_that_path_has_another_command_first(tmp_path: Path, wheels: tuple[Path, Path]) -> None:
    here, there, linked = Environment(tmp_path / "here"), Environment(tmp_path / "there"), tmp_path / "linked"
    here.install(wheels[0])
    there.install(wheels[1])
    check = here.doctor(there.bin)[1]
    assert check["status"] == "warn"
    assert check["message"] == f"The first carrel on PATH is {there.bin}/carrel; that of this installation is {here.bin}/carrel."
    assert check["remedy"] == f"Put {here.bin} before {there.bin} on PATH."
    linked.mkdir()
    (linked / "carrel").symlink_to(here.bin / "carrel")
    assert here.doctor(linked)[1]["status"] == "ok"
