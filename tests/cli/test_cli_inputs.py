"""Inputs that come from the lab itself, in a real lab."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import CommandLine, script


def task(directory: Path, uri: str) -> str:
    """A task with one input."""
    directory.mkdir()
    (directory / "MLproject").write_text(
        f'name: next\nentry_points:\n  main:\n    command: "cat data.txt"\ncarrel:\n  inputs: {{data.txt: "{uri}"}}\n'
    )
    return str(directory)


@pytest.mark.gate
def test_what_a_job_stored_is_the_input_of_another(carrel: CommandLine, other: CommandLine, tmp_path: Path) -> None:
    made = carrel("run", script(tmp_path / "first", "echo from the first > outputs/said.txt\n"), "--name", "first")
    assert made.code == 0, made.err
    job = re.search(r"[Jj]ob (\d+)", made.err)
    assert job is not None, made.err
    uri = f"job:{job[1]}/outputs/said.txt"
    ran = carrel("run", task(tmp_path / "second", uri))
    assert (ran.code, ran.out) == (0, "from the first\n"), ran.err
    theirs = other("run", task(tmp_path / "third", uri))
    assert theirs.code != 0
    assert f"There is no job {job[1]}." in theirs.err


def test_what_is_the_labs_own_is_nobodys_input(carrel: CommandLine, lab_home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(lab_home / "secret")
    for number, place in enumerate((lab_home / "token", lab_home / "secret", tmp_path / "link", lab_home)):
        ran = carrel("run", task(tmp_path / f"t{number}", f"file://{place}"))
        assert ran.code != 0
        assert "lies in the lab's own directory" in ran.err
        assert (lab_home / "token").read_text().strip() not in ran.out
