"""What `carrel doctor` says of a job's memory limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.cli.doctor.node import memory
from carrel.node.runner import cgroups
from carrel.node.runner.cgroups import CgroupParent


@pytest.mark.parametrize("version", [1, 2])
def test_where_the_kernel_holds_it(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "find_parent", lambda: CgroupParent("/sys/fs/cgroup", version))
    check = memory()
    assert check.status == "ok"
    assert f"cgroup version {version}" in check.message


@pytest.mark.parametrize("manager", [True, False], ids=["with", "without"])
def test_where_the_lab_looks(manager: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """systemd-run is named where the user has a systemd manager that listens, and nowhere else."""
    (tmp_path / "systemd-run").touch(mode=0o755)
    if manager:
        (tmp_path / "systemd").mkdir()
        (tmp_path / "systemd/private").touch()
    monkeypatch.setattr(cgroups, "find_parent", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    check = memory()
    assert check.status == "warn"
    assert "files in memory" in check.message
    assert "Delegate=yes" in check.remedy
    assert ("systemd-run --user --scope carrel up" in check.remedy) is manager
