"""`carrel audit` on a lab that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import CommandLine

from support.lab_process import LabProcess


@pytest.mark.gate
def test_an_administrator_reads_and_exports_the_log(carrel: CommandLine, lab: LabProcess, tmp_path: Path) -> None:
    assert carrel("user", "add", "audited").code == 0
    found = json.loads(carrel("audit", "list", "--action", "manage users", "--json").out)["lines"]
    assert (found[-1]["resource"], found[-1]["rule"], found[-1]["result"]) == ("/users", "administrator", "allowed")
    assert "manage users  POST /users" in carrel("audit", "list", "--resource", "/users").out
    copy = tmp_path / "audit.jsonl"
    assert carrel("audit", "export", str(copy)).code == 0
    lines = copy.read_text().splitlines()
    assert found[-1] in [json.loads(line) for line in lines]
    token = (lab.home / "token").read_text().strip()
    assert all(token not in line for line in lines)
