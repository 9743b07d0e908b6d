"""`carrel audit` on a lab that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import CommandLine

from carrel.testing.lab_process import LabProcess


@pytest.mark.gate
def test_an_administrator_reads_exports_and_verifies_the_log(carrel: CommandLine, lab: LabProcess, tmp_path: Path) -> None:
    assert carrel("user", "add", "audited").code == 0
    found = json.loads(carrel("audit", "list", "--action", "manage users", "--json").out)["lines"]
    assert (found[-1]["resource"], found[-1]["rule"], found[-1]["result"]) == ("/users", "administrator", "allowed")
    assert "manage users  POST /users" in carrel("audit", "list", "--resource", "/users").out
    verified = carrel("audit", "verify")
    assert verified.code == 0
    head = verified.out.splitlines()[-1]
    assert carrel("audit", "verify", "--expect", head).code == 0
    assert carrel("audit", "verify", "--expect", head.split(":")[0] + ":" + "0" * 64).code == 1
    assert carrel("audit", "verify", "--expect", "1").code != 0
    copy = tmp_path / "audit.jsonl"
    assert carrel("audit", "export", str(copy)).code == 0
    assert carrel("audit", "verify", str(copy)).code == 0
    lines = copy.read_text().splitlines(keepends=True)
    copy.write_text("".join(lines[1:]))
    done = carrel("audit", "verify", str(copy))
    assert done.code == 1
    assert "the log does not say that they went" in done.out
    token = (lab.home / "token").read_text().strip()
    assert all(token not in line for line in lines)
