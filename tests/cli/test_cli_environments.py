"""`carrel env`: named environments from the command line."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine

from carrel.client import Client
from carrel.wire import v1
from support.lab_process import LabProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _tidy(client: Client) -> Iterator[None]:
    """Each test begins and ends without environments of the lab's owner."""
    yield
    for view in client.environments().environments:
        if view.owner == client.lab().caller.subject:
            client.remove_environment(view.name)


def test_the_examples_of_the_page(carrel: CommandLine, tmp_path: Path) -> None:
    """The commands of docs/environments.md, in their order."""
    page = (ROOT / "docs/environments.md").read_text()
    section = page.partition("## Environments of sessions")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (tmp_path / "requirements.txt").write_text("six==1.17.0\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/pyproject.toml").write_text(
        '[project]\nname = "study"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["idna"]\n'
    )
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) >= 10
    said = {}
    for words in commands:
        done = carrel(*words[1:], cwd=tmp_path)
        assert done.code == 0, f"{shlex.join(words)}: {done.err}"
        said[shlex.join(words)] = done.out
    assert "six==1.17.0" in (tmp_path / "paper.lock").read_text()
    assert (tmp_path / "paper.lock").read_text().count("--hash=sha256:") > 1
    assert carrel("env", "lock", "again").out == (tmp_path / "paper.lock").read_text()
    assert "idna==" in carrel("env", "lock", "lab").out
    listed = said["carrel env list"]
    assert [line.split()[0] for line in listed.splitlines()[1:5]] == ["lab", "paper", "study", "twin"]
    assert "made" in said["carrel env lock paper --history"]
    assert "everybody" in said["carrel env share paper --with all"]


def test_an_environment_is_made_with_its_progress_and_removed(carrel: CommandLine) -> None:
    made = carrel("env", "create", "study", "--json")
    view = v1.NamedEnvironmentView.model_validate(made.json)
    assert view.name == "study"
    assert "installing" in made.err
    again = carrel("env", "create", "study", "--json")
    assert (again.code, again.problem["type"]) == (5, "urn:carrel:problem:conflict")
    (row,) = carrel("env", "list", "--json").json["named"]
    assert (row["name"], row["size"] > 0) == ("study", True)
    assert carrel("env", "remove", "study", "--json").json == {"removed": "study"}
    gone = carrel("env", "remove", "study")
    assert (gone.code, "There is no environment" in gone.err) == (3, True)
    assert "No named environments yet" in carrel("env", "list").out


def test_what_pip_installs_is_in_the_lock_and_can_be_taken_back(carrel: CommandLine) -> None:
    path = carrel("env", "create", "study", "--json").json["path"]
    done = subprocess.run([f"{path}/bin/pip", "install", "-q", "six"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "six==" in carrel("env", "lock", "study").out
    history = carrel("env", "lock", "study", "--history").out
    assert [line.split()[-2] for line in history.splitlines()[1:]] == ["installed", "made"]
    assert carrel("env", "restore", "study").code == 0
    assert "six==" not in carrel("env", "lock", "study", "--json").json["text"]
    earlier = carrel("env", "lock", "study", history.splitlines()[1].split()[0])
    assert "six==" in earlier.out


def test_mistakes_have_a_remedy(carrel: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("-e ./pkg\n")
    (tmp_path / "pkg").mkdir()
    for words, code, text in (
        (("create", "Study"), 2, "Use 1 to 64 of"),
        (("create", "x", "-r", "nothing.txt"), 2, "nothing.txt is no file"),
        (("create", "x", "-r", "r.txt"), 2, "pip install -e"),
        (("create", "x", "--project", "."), 2, "no pyproject.toml"),
        (("create", "x", "--from-path", "."), 1, "bin/python"),
        (("create", "x", "--from", "y"), 3, '"y"'),
        (("create", "x", "--python", "3.1"), 1, "3.1"),
        (("lock", "x"), 3, "carrel env create x"),
        (("lock", "x", "--history", "-o", "f"), 2, "--history"),
        (("share", "x", "--off", "--with", "all"), 2, "--off"),
        (("restore", "x"), 3, '"x"'),
    ):
        done = carrel("env", *words, cwd=tmp_path)
        assert (done.code, text in done.err) == (code, True), (words, done.err)
    assert carrel("env", "list", "--json").json["named"] == []


def test_sharing_with_a_user(carrel: CommandLine, other: CommandLine, client: Client) -> None:
    carrel("env", "create", "study")
    me = client.lab().caller.subject
    them = other("lab", "--json").json["caller"]["subject"]
    assert "shared with nobody" in carrel("env", "share", "study").out
    shared = carrel("env", "share", "study", "--with", them)
    assert f"carrel notebook --env {me}/study" in shared.out
    assert [row["name"] for row in other("env", "list", "--json").json["named"]] == [f"{me}/study"]
    assert other("env", "lock", f"{me}/study").out == carrel("env", "lock", "study").out
    assert other("env", "remove", f"{me}/study").code == 3
    assert other("env", "create", "site/x").code == 4
    assert other("env", "create", "x", "--from-path", "/usr").code == 4
    assert carrel("env", "share", "study", "--off", "--json").json["shared_with"] == []
    assert other("env", "list", "--json").json["named"] == []


def test_without_a_lab_the_list_says_so(tmp_path: Path) -> None:
    alone = CommandLine({"CARREL_HOME": str(tmp_path / "none")})
    assert alone("env", "list").code == 3
    (tmp_path / "home/environments").mkdir(parents=True)
    stopped = CommandLine({"CARREL_HOME": str(tmp_path / "home")})("env", "list")
    assert stopped.code == 0
    assert "Named environments are not listed" in stopped.out
    assert "No environments of tasks yet" in stopped.out


def test_a_quota_that_is_full_is_told(tmp_path: Path) -> None:
    from support.lab_process import start_lab

    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('environment_quota = "1M"\n')
    lab: LabProcess = start_lab(home)
    try:
        carrel = CommandLine({"CARREL_HOME": str(home)})
        assert carrel("env", "create", "study").code == 0
        full = carrel("env", "create", "more")
        assert full.code == 6
        assert "of the 1M that this lab gives each user" in full.err
        assert "Yours: study" in full.err
        assert "carrel env remove" in full.err
        assert re.search(r"Yours use \S+ of 1M", carrel("env", "list").out)
    finally:
        lab.stop()
