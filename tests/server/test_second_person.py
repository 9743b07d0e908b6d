"""A lab of one person gets a second one: from then on jobs are kept apart, or somebody has said that they need not be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.client import Client
from carrel.core.domain.errors import Conflict
from carrel.core.domain.launch import Launch
from carrel.core.domain.serial import from_plain
from carrel.core.spool.disk import disk_of
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import start_lab
from support.namespaces import why_no_namespaces

#: Runs a lab where no namespaces can be made any more, as on machines whose administrators have forbidden them.
_FORBIDDEN = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" "$@"'
_WITHOUT_NAMESPACES = ("unshare", "--user", "--map-root-user", "sh", "-c", _FORBIDDEN, sys.executable)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    if why_no_namespaces() or shutil.which("unshare") is None:
        pytest.skip("This machine has no namespaces for us.")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text("tracking = false  # and of isolation nothing is said\n")
    return home


def sees_the_token(client: Client, home: Path, directory: Path) -> bool:
    directory.mkdir()
    (directory / "look.py").write_text(f"import json, os; print(json.dumps(os.path.exists({str(home / 'token')!r})))")
    job = client.submit_project(directory, script="look.py")
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    return bool(json.loads(b"".join(client.log(job.id)).splitlines()[-1]))


def lab_says(home: Path, *words: str) -> None:
    """Wait until the newest that the lab has said of isolation has these words in it."""

    def newest() -> str:
        file = home / "logs/server.log"  # which begins with the first line that there is to say
        lines = file.read_text().splitlines() if file.exists() else []
        return next((line for line in reversed(lines) if "Isolation: " in line), "")

    wait_until(lambda: all(word in newest() for word in words), f"the lab says {words}")


@pytest.mark.gate
def test_jobs_are_kept_apart_as_soon_as_there_are_two(home: Path, tmp_path: Path) -> None:
    lab = start_lab(home, simulate_gpus=0)
    with Client(home=home) as own:
        lab_says(home, "none; jobs run as")
        disk = disk_of(home).total
        assert own.storage().quota == disk // 2
        assert sees_the_token(own, home, tmp_path / "alone")
        (tmp_path / "lasting").mkdir()
        (tmp_path / "lasting/wait.py").write_text("import time; time.sleep(600)")
        lasting = own.submit_project(tmp_path / "lasting", script="wait.py").id
        wait_until(lambda: own.job(lasting).state == "RUNNING", "the job to run")
        added = own.add_user("ada")
        # It is said, and for whom not yet.
        assert "Isolation begins" in added.isolation
        assert f"(job {lasting})" in added.isolation
        assert "share this machine's network" in added.isolation
        token = added.token
        own.cancel(lasting)
        own.wait(lasting, timeout=PATIENCE)
        later = own.invite_user("ada").isolation
        assert ("are kept apart" in later, "Not yet" in later) == (True, False)
        assert own.storage().quota == disk // 4
        with Client(url=lab.url, token=token) as ada:
            assert not sees_the_token(ada, home, tmp_path / "second")
        assert not sees_the_token(own, home, tmp_path / "first")
    launch = from_plain(Launch, json.loads((home / "spool/3/1/launch.json").read_bytes()))
    assert (launch.limits.disk, launch.limits.files) == (disk // 4, 2_000_000)
    assert launch.walls is not None
    assert (launch.walls.preparing.disk, launch.walls.preparing.files) == (disk // 4, 2_000_000)
    assert launch.walls.preparing.memory > 0
    lab.stop()
    lab = start_lab(home, simulate_gpus=0)
    lab_says(home, "kept apart by the kernel")
    with Client(url=lab.url, token=token) as ada:
        assert not sees_the_token(ada, home, tmp_path / "later")
    lab.stop()


def test_where_they_cannot_be_an_administrator_has_to_say_so(home: Path) -> None:
    lab = start_lab(home, simulate_gpus=0, python=_WITHOUT_NAMESPACES)
    with Client(home=home) as own:
        for add in (own.add_user, own.invite_user):
            with pytest.raises(Conflict, match="second person") as refused:
                add("ada")
            assert "--without-isolation" in refused.value.remedy
            assert len(own.users()) == 1
        own.invite_user("ada", without_isolation=True)
        # Who has said it once need not say it of everybody.
        own.add_user("bob")
        assert len(own.users()) == 3
    lab.stop()
    # On a machine that could, too: it was said.
    lab = start_lab(home, simulate_gpus=0)
    lab_says(home, "none, for 3 people", "--without-isolation")
    with Client(home=home) as own:
        own.add_user("carol")
    lab.stop()


def test_a_lab_of_several_people_in_which_nothing_was_said_has_walls_or_does_not_start(home: Path, tmp_path: Path) -> None:
    home.joinpath("carrel.toml").write_text('tracking = false\nisolation = "none"\n')
    lab = start_lab(home, simulate_gpus=0)
    with Client(home=home) as own:
        own.add_user("ada")
    lab.stop()
    home.joinpath("carrel.toml").write_text("tracking = false  # and of isolation nothing is said any more\n")
    refused = subprocess.run(
        [*_WITHOUT_NAMESPACES, "-m", "carrel.cli.main", "up", "--home", home, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (refused.returncode != 0, 'isolation = "none" in carrel.toml' in refused.stderr) == (True, True), refused.stderr
    lab = start_lab(home, simulate_gpus=0)
    lab_says(home, "kept apart by the kernel")
    with Client(home=home) as own:
        assert not sees_the_token(own, home, tmp_path / "code")
    lab.stop()
