"""The page docs/composing.md, done in a real lab: its file is read, its commands are run, its Python makes a machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, script

import carrel as carrel_package
from carrel.client import Client
from carrel.core.domain.composition import CompositionState
from carrel.core.domain.errors import Conflict, Impossible
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.testing.waiting import wait_until
from support.lab_process import LabProcess, start_lab

PAGE = (Path(__file__).parents[2] / "docs" / "composing.md").read_text()


def _shown(language: str, first: str) -> str:
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if first in text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (tmp_path / "fabric.toml").write_text(_shown("toml", "[[blocks]]"))
    (home / "carrel.toml").write_text(f'fabric = "{tmp_path}/fabric.toml"\n')
    return home


@pytest.fixture
def lab(home: Path) -> Iterator[LabProcess]:
    running = start_lab(home, "--cpus", "4", simulate_gpus=1, python=(sys.executable,))
    yield running
    running.stop()


@pytest.fixture
def carrel(lab: LabProcess, home: Path) -> CommandLine:
    return CommandLine({"CARREL_HOME": str(home)})


@pytest.mark.gate
def test_a_machine_is_made_used_and_given_back(carrel: CommandLine, lab: LabProcess, home: Path, tmp_path: Path) -> None:
    told = carrel("compose", "--gpus", "2", "--type", "a100", "--nvme", "1", "--preview").out
    assert "It would take node0, a100-0, a100-1, nvme0." in told
    asked = ("--gpus", "2", "--type", "a100", "--nvme", "1", "--for", "2h")
    assert re.search(r"GPU +SLICE +MEMORY +FREE NOW +USED\na100 +1g\.5gb +5G +35 +–\n", carrel("gpus").out)
    (made,) = carrel("compose", *asked, "--wait", "--json").json["compositions"]
    assert (made["state"], made["blocks"]) == ("RUNNING", ["node0", "a100-0", "a100-1", "nvme0"])
    assert made["expected"] is None
    task = script(tmp_path / "task", "echo $CUDA_VISIBLE_DEVICES\n")
    assert "SIM-a100-0,SIM-a100-1" in carrel("run", "--gpus", "2", "--gpu-type", "a100", "--time", "30m", task).out
    token = carrel("user", "add", "bob", "--json").json["token"]
    other = CommandLine({"CARREL_URL": lab.url, "CARREL_TOKEN": token, "CARREL_HOME": "/no"})
    assert other("compose", "list", "--json").json["compositions"] == []
    assert re.search(r"^a100-0 .* in use$", other("compose", "blocks").out, re.MULTILINE)
    assert other("compose", "release", "1").code == 3
    assert carrel("compose", "release", "1").out == "Machine 1 is given back.\n"
    with Client(home=home) as client:
        wait_until(lambda: client.one_of(COMPOSITIONS, 1).state is CompositionState.CANCELLED)
        # Its record says what it ran on, and the same task again gets a machine like that.
        assert client.record(1)["attempts"][-1]["hardware"]["composition"] == "1: node0, a100-0, a100-1, nvme0"
        assert client.rerun(1).resources.compose == "nvme=1"
        wait_until(lambda: client.job(2).state == "COMPLETED")
        assert client.record(2)["attempts"][-1]["hardware"]["composition"] == "2: node0, a100-0, a100-1, nvme0"
        client.remove(COMPOSITIONS, 2)
        wait_until(lambda: client.one_of(COMPOSITIONS, 2).state is CompositionState.CANCELLED)
        assert not any(block.composition for block in client.all_of(BLOCKS))
        assert [node.name for node in client.nodes()] == [client.nodes()[0].name]


@pytest.mark.gate
def test_a_job_has_a_machine_made_for_it_where_none_has_what_it_needs(carrel: CommandLine, home: Path, tmp_path: Path) -> None:
    seen = script(tmp_path / "task", "echo $CUDA_VISIBLE_DEVICES\n")
    for _ in range(2):  # the second has the machine of the first
        assert "SIM-a100-0,SIM-a100-1\n" in carrel("run", "--gpus", "2", "--gpu-type", "a100", seen).out
    wait = script(tmp_path / "wait", "while [ ! -e go ]; do sleep 0.1; done\n")
    first = carrel("submit", "--gpus", "3", "--compose", "nvme=2", "--time", "1h", wait, "--json").json["id"]
    with Client(home=home) as client:
        wait_until(lambda: client.job(first).state == "RUNNING")
        second = carrel("submit", "--gpus", "3", "--compose", "machine", "--time", "1h", seen, "--json").json["id"]
        wait_until(lambda: "machine 3 is made for it (needs 3 GPUs; at most 1 is free together" in client.job(second).message)
        made = [(one.id, one.job, one.state.value) for one in client.all_of(COMPOSITIONS)]
        assert made == [(1, 2, "COMPLETED"), (2, first, "RUNNING"), (3, second, "PENDING")]
        assert {"nvme0", "nvme1"} < set(client.one_of(COMPOSITIONS, 2).blocks)
        client.cancel(first)
        wait_until(lambda: client.job(second).state == "COMPLETED")
    assert "the fabric has 4 that fit" in carrel("submit", "--gpus", "5", "--compose", "machine", seen).err
    assert "the largest node has 1" in carrel("submit", "--gpus", "5", seen).err


def test_it_outlives_a_kill_of_the_lab(carrel: CommandLine, lab: LabProcess, home: Path) -> None:
    for _ in range(2):
        carrel("compose", "--gpus", "2", "--for", "2h")
    lab.kill()
    again = start_lab(home, "--cpus", "4", simulate_gpus=1, python=(sys.executable,))
    try:
        with Client(home=home) as client:
            both = wait_until(lambda: _all_running(client))
            assert {name for one in both for name in one.blocks} == {f"a100-{n}" for n in range(4)} | {"node0", "node1"}
    finally:
        again.stop()


def _all_running(client: Client) -> list[object]:
    found = client.all_of(COMPOSITIONS)
    return found if all(one.state is CompositionState.RUNNING for one in found) else []  # type: ignore[return-value]


def test_in_python_for_as_long_as_a_block_of_code_runs(
    carrel: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARREL_HOME", str(home))
    exec(_shown("python", "carrel.compose"), {})
    assert "('node0', 'a100-0', 'a100-1')" in capsys.readouterr().out
    with Client() as client:
        wait_until(lambda: client.all_of(COMPOSITIONS)[0].state is CompositionState.CANCELLED)
    with pytest.raises(Impossible, match="the fabric has 5 that fit"), carrel_package.compose(gpus=6):
        raise AssertionError("There is no such machine.")
    for asked, said in (({"island": True}, "one island"), ({"nics": 1}, "1 network card"), ({"slices": "9g.90gb"}, "9g.90gb")):
        with pytest.raises(Impossible, match=said), carrel_package.compose(gpus=2, **asked):
            raise AssertionError("There is no such machine.")
    with carrel_package.compose(slices=["10G", "1g.5gb"]) as machine:
        assert machine.blocks == ("class-gpu0/1g.10gb@6", "class-gpu0/1g.5gb@4")
        with (
            pytest.raises(Conflict, match="has 2 machines from parts, and may have 2"),
            carrel_package.compose(gpus=1),
            carrel_package.compose(gpus=1),
        ):
            raise AssertionError("Three machines are one too many.")


def test_machines_are_exported_and_made_again(carrel: CommandLine, home: Path, tmp_path: Path) -> None:
    carrel("compose", "--gpus", "2", "--name", "vision", "--wait")
    carrel("compose", "--slice", "1g.10gb", "--wait")
    file = tmp_path / "machines.json"
    file.write_text(carrel("compose", "export").out)
    assert carrel("compose", "apply", str(file)).out.count("is there already") == 2
    before = carrel("compose", "export").json
    for number in ("1", "2"):
        carrel("compose", "release", number)
    with Client(home=home) as client:
        wait_until(lambda: all(one.state.over for one in client.all_of(COMPOSITIONS)))
        assert "It would take node0, a100-0, a100-1." in carrel("compose", "apply", str(file), "--preview").out
        carrel("compose", "apply", str(file), "--same-blocks")
        wait_until(lambda: len([one for one in client.all_of(COMPOSITIONS) if one.state is CompositionState.RUNNING]) == 2)
    after = carrel("compose", "export").json
    assert [one["blocks"] for one in after["machines"]] == [one["blocks"] for one in before["machines"]]
    told = carrel("compose", "history", "a100-0").out
    assert told.count("vision") == 2
    assert "hours in 2 machines." in told
    for text in ("{}", "[" * 100_000):
        file.write_text(text)
        told = carrel("compose", "apply", str(file))
        assert told.code == 2
        assert "is not what `carrel compose export` prints" in told.err


def test_a_lab_without_a_fabric_says_so(tmp_path: Path) -> None:
    home = tmp_path / "bare"
    running = start_lab(home, "--cpus", "2", simulate_gpus=1, python=(sys.executable,))
    try:
        bare = CommandLine({"CARREL_HOME": str(home)})
        told = bare("compose", "--gpus", "1")
        assert told.code == 3
        assert "no fabric" in told.err
        assert bare("compose", "list", "--json").json == {"compositions": []}
    finally:
        running.stop()
