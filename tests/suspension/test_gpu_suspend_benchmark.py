"""`benchmarks/gpu_suspend.py` and `gpu_bus.py`, which measure a real GPU where there is one, run here on the fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fake_driver import find_compiler

ROOT = Path(__file__).parents[2]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu_suspend.py", *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_does_all_parts_and_verifies_them(tmp_path: Path) -> None:
    json_file = tmp_path / "found.json"
    words = ["--sizes", "0.005,0.01,5", "--turn-size", "0.004", "--rounds", "1", "--steps", "6000", "--json", str(json_file)]
    done = run("--fake", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(json_file.read_text())
    assert found["wrong"] == []
    assert len(found["skipped"]) == 1
    assert "5 GB: the device has" in found["skipped"][0]
    assert found["probe"]["tier"] == "suspend"
    assert set(found["copy"]["rates"]) == {f"{kind}, to {way}" for kind in ("pageable", "pinned") for way in ("host", "device")}
    assert [(one["bytes"], one["same"]) for one in found["state"]] == [(5_000_000, True), (10_000_000, True)]
    assert len(found["turns"]["seconds"]) == 2
    assert found["flight"]["same"]
    assert found["flight"]["answers_while_suspended"] == [True] * 3
    assert "FAKE driver, figures mean nothing" in done.stdout


@pytest.mark.skipif(find_compiler() is None, reason="the library and the fake driver are compiled from C")
def test_moves_over_the_bus_are_measured_and_verified() -> None:
    words = ["--fake", "state", "exchange", "flight", "--sizes", "0.005", "--steps", "3000"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu_bus.py", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parameters identical" in done.stdout
    assert done.stdout.count("values the same") == 2
    assert "exchange of two with 0.03 GB, both at once" in done.stdout
