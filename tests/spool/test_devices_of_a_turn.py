"""With which devices a job goes on that was stopped: what the engine leaves for the runner and the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.core.domain.node import Device
from carrel.core.spool import present_devices, write_devices


def device(uuid: str, *, simulated: bool = True) -> Device:
    return Device(uuid=uuid, index=0, type="h200", name="H200", memory=2**30, simulated=simulated)


def test_others_are_believed_where_all_are_simulated_and_as_many(tmp_path: Path) -> None:
    file, given = tmp_path / "devices", (device("SIM-1"), device("SIM-2"))
    assert present_devices(file, given) == given
    write_devices(file, ["SIM-3", "SIM-4"])
    assert present_devices(file, given) == (device("SIM-3"), device("SIM-4"))
    assert present_devices(file, given[:1]) == given[:1]
    real = (device("GPU-1", simulated=False), device("SIM-2"))
    assert present_devices(file, real) == real
    write_devices(file, ["SIM-2", "SIM-1"])
    assert [one.uuid for one in present_devices(file, given)] == ["SIM-2", "SIM-1"]


@pytest.mark.parametrize("text", ["", "{}", "[1", "\xff"])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "devices"
    file.write_bytes(text.encode("latin-1"))
    assert present_devices(file, (device("SIM-1"),)) == (device("SIM-1"),)


def test_a_full_disk_is_told(small_disk: Path) -> None:
    (small_disk / "fill").write_bytes(b"x" * 2**19)
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "rest").write_bytes(b"x" * 2**20)
    with pytest.raises(OSError, match="No space left"):
        write_devices(small_disk / "devices", ["SIM-1"])
    assert not (small_disk / "devices").exists()
