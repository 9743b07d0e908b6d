"""A lab's home that other users of the machine could change is not opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.core.domain.errors import Denied
from carrel.lab.server.home import LabHome
from carrel.testing.waiting import PATIENCE


@pytest.fixture
def home(tmp_path: Path) -> LabHome:
    home = LabHome(tmp_path / "place" / "home")
    home.create()
    return home


@pytest.mark.quick
def test_a_home_of_ones_own_is_good(home: LabHome, tmp_path: Path) -> None:
    home.settings.write_text("")
    home.blobs.rmdir()
    (tmp_path / "disk").mkdir()
    home.blobs.symlink_to(tmp_path / "disk")
    home.files.rmdir()
    home.check()


@pytest.mark.quick
@pytest.mark.parametrize("place", ["place", "place/home", "place/home/spool", "place/home/carrel.toml", "disk", "."])
def test_a_home_where_others_could_write_is_refused_with_the_place(home: LabHome, tmp_path: Path, place: str) -> None:
    home.settings.write_text("")
    home.blobs.rmdir()
    (tmp_path / "disk" / "blobs").mkdir(parents=True)
    home.blobs.symlink_to(tmp_path / "disk" / "blobs")
    (tmp_path / place).chmod(0o777)
    with pytest.raises(Denied) as refused:
        home.check()
    assert f"not safe from other users of this machine: {tmp_path / place} may be written by everybody" in refused.value.message
    assert f"chmod go-w {tmp_path / place}" in refused.value.remedy


def test_carrel_up_refuses_it_and_reads_nothing_in_it(home: LabHome) -> None:
    home.settings.write_text("prot = 1\n")
    home.path.chmod(0o777)
    command = [sys.executable, "-m", "carrel.cli.main", "up", "--home", home.path]

    def last_words(*more: str) -> str:
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=PATIENCE, env={**os.environ})
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "may be written by everybody" in last_words()
    assert 'Did you mean "port"' in last_words("--no-strict-modes")
