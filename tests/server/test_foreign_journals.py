"""A task that writes into its own journal, as it can where it runs as its owner: the lab believes none of it."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE
from support.forged_journal import FORGER
from support.lab_process import LabProcess


@pytest.mark.gate
def test_it_costs_nobody_anything(lab: LabProcess, client: Client, bob: Client, tmp_path: Path) -> None:
    (tmp_path / "forge.py").write_text(FORGER)
    (tmp_path / "MLproject").write_text(f"entry_points:\n  main:\n    command: python3 forge.py {lab.home}/token\n")
    (tmp_path / "other.sh").write_text("true\n")
    forger = client.submit_project(tmp_path).id
    other = bob.submit_project(tmp_path / "other.sh").id
    assert bob.wait(other, timeout=PATIENCE).state == "COMPLETED"
    ended = client.wait(forger, timeout=PATIENCE)
    log = b"".join(client.log(forger)).decode()
    assert (ended.state, log) == ("COMPLETED", "forged\n"), (ended.message, log)
    assert ended.ended_at is not None
    assert ended.ended_at.timestamp() <= time.time()
    assert client.outputs(forger) == []
    address = f"{lab.url}/api/v1/jobs/{forger}/outputs/token"
    assert httpx.get(address, headers={"Authorization": f"Bearer {lab.token}"}).status_code == 404
    record = client.record(forger)
    assert lab.token not in str(record)
    later = bob.submit_project(tmp_path / "other.sh").id
    assert bob.wait(later, timeout=PATIENCE).state == "COMPLETED"
