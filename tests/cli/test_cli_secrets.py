"""`carrel secret`, and a task that uses one in a real lab."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command_line import CARREL, CommandLine, script

from carrel.testing.waiting import PATIENCE

VALUE = "correct-horse-battery-staple"


def keep(carrel: CommandLine, value: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Set a secret by the standard input, as `pass show ... | carrel secret set` does."""
    command = [*CARREL, "secret", "set", *words]
    return subprocess.run(
        command, input=value, capture_output=True, text=True, env=carrel.environment(), timeout=PATIENCE, check=False
    )


@pytest.mark.gate
def test_a_task_finds_it_and_the_lab_wrote_it_nowhere(carrel: CommandLine, lab_home: Path, tmp_path: Path) -> None:
    done = keep(carrel, VALUE + "\n", "TASK_KEY")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "TASK_KEY is kept. A task gets it with `carrel run --secret TASK_KEY ...`\n"
    task = script(tmp_path / "code", 'echo "${#TASK_KEY}"; echo "it is $TASK_KEY"\n')
    ran = carrel("run", task, "--secret", "TASK_KEY")
    assert ran.code == 0, ran.err
    assert ran.out == f"{len(VALUE)}\nit is ********\n"
    listed = carrel("secret", "list", "--json").json["secrets"]
    assert next(one for one in listed if one["name"] == "TASK_KEY")["used_at"]
    assert carrel("secret", "remove", "TASK_KEY").out == "TASK_KEY is forgotten.\n"
    for path in lab_home.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert VALUE.encode() not in path.read_bytes(), path
    refused = carrel("run", task, "--secret", "TASK_KEY")
    assert refused.code == 2, refused.err
    assert "You have no secret TASK_KEY." in refused.err
    assert "carrel secret set TASK_KEY" in refused.err


def test_what_cannot_be_one_is_refused(carrel: CommandLine, tmp_path: Path) -> None:
    assert "cannot be the name of a secret" in keep(carrel, VALUE, "A-B").stderr
    assert "empty" in keep(carrel, "\n", "EMPTY").stderr
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not text" in carrel("secret", "set", "BINARY", "--from", str(tmp_path / "binary")).err
    assert "No such file" in carrel("secret", "set", "GONE", "--from", str(tmp_path / "gone")).err
    short = keep(carrel, "1234", "PIN", "--json")
    assert (short.returncode, "1234" in short.stdout) == (0, False)
    assert carrel("secret", "remove", "PIN", "--json").json == {"removed": "PIN"}
    assert carrel("secret", "remove", "PIN").code != 0
