"""The examples of docs/composing.md, done in a real lab whose fabric is simulated."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path

import pytest
from command_line import CommandLine, script

from carrel.client import Client
from carrel.core.domain.composition import CompositionState
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.testing.waiting import wait_until
from support.lab_process import LabProcess, start_lab

PAGE = (Path(__file__).parents[2] / "docs" / "composing.md").read_text()
EXAMPLES = PAGE[PAGE.index("## Four examples") : PAGE.index("## The same machines again")]
#: Tasks that are named there.
PROGRAM = "import os, sys\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
WAITS = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.1)\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    tables = re.findall(r"```toml\n(# fabric.toml.*?)```", PAGE, re.DOTALL)
    (tmp_path / "fabric.toml").write_text("\n".join(table for table in tables if 'driver = "mig"' not in table))
    rules = '\n[accounts.default]\n[accounts.vision]\nusers = ["eve"]\n'
    (home / "carrel.toml").write_text(f'fabric = "{tmp_path}/fabric.toml"\nisolation = "none"\n{rules}')
    return home


@pytest.fixture
def lab(home: Path) -> Iterator[LabProcess]:
    running = start_lab(home, "--cpus", "4", simulate_gpus=1, python=(sys.executable,))
    yield running
    running.stop()


@pytest.fixture
def carrel(lab: LabProcess, home: Path, tmp_path: Path) -> CommandLine:
    for name in ("train.py", "render.py", "exercise.py"):
        script(tmp_path / "work", PROGRAM, name)
    return CommandLine({"CARREL_HOME": str(home)})


def _lines(first: str) -> list[list[str]]:
    """The words of the commands of one example, without `carrel`."""
    text = next(text for text in re.findall(r"```console\n(.*?)```", EXAMPLES, re.DOTALL) if first in text)
    return [shlex.split(line)[2:] for line in text.splitlines()]


def _student(carrel: CommandLine, lab: LabProcess, name: str) -> CommandLine:
    token = carrel("user", "add", name, "--json").json["token"]
    return CommandLine({"CARREL_URL": lab.url, "CARREL_TOKEN": token, "CARREL_HOME": "/no"})


def test_four_gpus_for_an_hour_from_a_notebook(
    carrel: CommandLine, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARREL_HOME", str(home))
    with chdir(tmp_path / "work"):
        exec(next(text for text in re.findall(r"```python\n(.*?)```", EXAMPLES, re.DOTALL)), {})
    assert capsys.readouterr().out.endswith("COMPLETED\n")
    assert carrel("logs", "1").out.strip().endswith("SIM-a100-0,SIM-a100-1,SIM-a100-2,SIM-a100-3")
    with Client() as client:
        wait_until(lambda: not any(block.composition for block in client.all_of(BLOCKS)))


def test_a_class_of_thirty_with_a_slice_each(carrel: CommandLine, lab: LabProcess, tmp_path: Path) -> None:
    ((*preview, _),) = _lines("--preview")
    assert "It would take class-gpu0/1g.5gb@" in carrel(*preview, "--preview").out
    compose, run = _lines("exercise.py")
    with ThreadPoolExecutor(4) as several:
        students = list(several.map(lambda number: _student(carrel, lab, f"s{number}"), range(30)))
        made = list(several.map(lambda student: student(*compose, "--json").json["compositions"][0], students))
    assert {one["state"] for one in made} == {"RUNNING"}
    slices = {block for one in made for block in one["blocks"]}
    assert len(slices) == 30
    assert all(name.startswith("class-gpu") for name in slices)
    told = students[7](*run, cwd=tmp_path / "work").out
    assert f"SIM-{made[7]['blocks'][0]}" in told


def test_a_node_that_shows_pictures_of_large_data(carrel: CommandLine, home: Path, tmp_path: Path) -> None:
    compose, run = _lines("render.py")
    (made,) = carrel(*compose, "--json").json["compositions"]
    assert (made["linger"], made["blocks"]) == (1800, ["node0", "a100-0", "nvme0", "nvme1"])
    assert "SIM-a100-0" in carrel(*run, cwd=tmp_path / "work").out


def test_a_groups_own_card_is_lent_and_comes_back(carrel: CommandLine, lab: LabProcess, home: Path, tmp_path: Path) -> None:
    eve = _student(carrel, lab, "eve")
    (asked,) = _lines("h100")
    guest = tmp_path / "guest"
    script(guest, WAITS, "train.py")
    with Client(home=home) as client:
        first = carrel(*asked, "--json", cwd=guest).json["id"]
        wait_until(lambda: client.job(first).state == "RUNNING")
        assert carrel(*asked[:-2], "5h", asked[-1], cwd=guest).code == 2  # it is lent for four hours
        own = eve(*asked, "--account", "vision", "--json", cwd=tmp_path / "work").json["id"]
        wait_until(lambda: "asks for them" in client.one_of(COMPOSITIONS, 1).reason)
        assert client.job(first).state == "RUNNING"
        assert client.job(own).state == "PENDING"
        client.cancel(first)
        wait_until(lambda: client.job(own).state == "COMPLETED")
        assert client.one_of(COMPOSITIONS, 1).state is CompositionState.COMPLETED
