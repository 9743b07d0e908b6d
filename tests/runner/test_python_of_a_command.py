"""`python` is there for every command, also where the machine has python3 alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.node.runner.variables import with_python


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with what a command line needs, and no Python."""
    directory = tmp_path / "machine"
    directory.mkdir()
    for name in ("sh", "env"):
        (directory / name).symlink_to(str(shutil.which(name)))
    return directory


def said(variables: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


@pytest.mark.gate
@pytest.mark.parametrize("has_python3", [True, False])
def test_where_there_is_no_python_there_is_one(programs: Path, tmp_path: Path, has_python3: bool) -> None:
    if has_python3:
        (programs / "python3").write_text('#!/bin/sh\necho "python3: $*"\n')
        (programs / "python3").chmod(0o755)
    variables = with_python({"PATH": str(programs)}, tmp_path / "attempt" / "programs")
    answer = said(variables, "sh", "-c", "python -c 'print(6 * 7)'")
    assert answer == ("python3: -c print(6 * 7)\n" if has_python3 else "42\n")
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env python\nprint(6 * 7)\n")
    script.chmod(0o755)
    assert said(variables, str(script)) == (f"python3: {script}\n" if has_python3 else "42\n")


def test_a_python_that_is_there_stays_what_it_is(tmp_path: Path) -> None:
    variables = {"PATH": os.path.dirname(sys.executable)}  # noqa: PTH120
    assert with_python(variables, tmp_path / "programs") == variables
    assert not (tmp_path / "programs").exists()
