"""Lines that are only added; what cannot be written keeps things from being done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.retention import Kind, RetentionRules
from carrel.lab.audit import AuditFilter, AuditLog
from carrel.lab.audit import log as log_module
from carrel.lab.retention import Collector
from carrel.lab.retention.collector import Places


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def a_log(place: Path, **more: int) -> AuditLog:
    return AuditLog(place, clock=Clock(), **more)


def fill(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.add(
            {
                "who": "ada" if number % 2 else "bob",
                "action": "cancel this job",
                "resource": f"/jobs/{number}",
                "result": "allowed",
            }
        )


def numbers(log: AuditLog) -> list[int]:
    return [entry["seq"] for entry in log.read(AuditFilter(), limit=100_000)]


def test_lines_follow_one_another_over_restarts_and_files(tmp_path: Path) -> None:
    for run in range(3):
        log = a_log(tmp_path, file_size=1000)
        fill(log, 10)
        log.close()
        assert numbers(log) == list(range(1, 12 * (run + 1) + 1))
    assert len(list(tmp_path.glob("*.jsonl"))) > 3
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    again = a_log(tmp_path)
    mine = again.read(AuditFilter(who="ada", resource="/jobs/3"), limit=10)
    assert [one["resource"] for one in mine] == ["/jobs/3"] * 3
    assert [one["seq"] for one in again.read(AuditFilter(after=20), limit=4)] == [21, 22, 23, 24]
    assert [one["seq"] for one in again.read(AuditFilter(), limit=2, newest=True)] == [36, 37]
    assert [one["resource"] for one in again.read(AuditFilter(who="bob"), limit=2, newest=True)] == ["/jobs/6", "/jobs/8"]
    assert [one["seq"] for one in again.read(AuditFilter(), limit=1000, newest=True)] == list(range(1, 38))
    assert again.read(AuditFilter(since=1e12), limit=4) == []


@pytest.mark.parametrize("rest", [b'{"seq": 5, "wh', b"nonsense\n", b"[]\n", b"{}\n", b"\xff\n"])
def test_what_is_no_whole_line_is_passed_over_and_numbers_go_on(tmp_path: Path, rest: bytes) -> None:
    log = a_log(tmp_path)
    fill(log, 3)
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as more:
        more.write(rest)
    again = a_log(tmp_path)
    fill(again, 2)
    found = again.read(AuditFilter(), limit=100)
    assert len(found) == 7
    if not rest.endswith(b"\n"):
        assert found[4]["note"] == "14 bytes of a line that was not whole were cut off."
        assert numbers(again) == [1, 2, 3, 4, 5, 6, 7]


def test_whole_files_are_removed_and_that_is_said(tmp_path: Path) -> None:
    log = a_log(tmp_path, file_size=1000)
    fill(log, 30)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert log.old(0) == []
    old = log.old(1e12)
    assert old == files[:-1]
    log.remove(old[0])
    assert not old[0].exists()
    assert log.read(AuditFilter(action="remove old audit"), limit=1)[0]["file"] == old[0].name
    assert numbers(log) == list(range(int(files[1].stem), log.last + 1))


def test_a_full_disk_keeps_changes_from_being_done_but_not_what_frees_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path)
    log.make_room()

    def no_room(_fd: int, _start: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module, "_keep", no_room)
    fill(log, 10)
    log.make_room()  # what is kept is enough
    fill(log, 11_000)
    with pytest.raises(StorageFull, match="No space left on device"):
        log.make_room()
    log.make_room(frees=True)
    assert numbers(log)[-1] == log.last


def test_what_cannot_be_written_waits_and_nothing_is_done_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path)
    write = os.write

    def broken(fd: int, data: bytes) -> int:
        write(fd, data[:5])
        return 5

    monkeypatch.setattr(os, "write", broken)
    fill(log, 3)
    with pytest.raises(Unavailable, match="cannot be written"):
        log.make_room()
    monkeypatch.undo()
    log.make_room()
    assert numbers(log) == [1, 2, 3, 4]


def test_the_lab_removes_whole_files_by_its_rule_and_says_so(tmp_path: Path) -> None:
    log = a_log(tmp_path / "audit", file_size=1000)
    fill(log, 30)
    files = sorted((tmp_path / "audit").glob("*.jsonl"))
    places = Places(spool=tmp_path, snapshots=tmp_path, blobs=tmp_path)

    def collect(kept: int | None, *, dry_run: bool = False) -> int:
        rules = RetentionRules(audit=kept)
        collector = Collector(places, None, rules=lambda: rules, clock=lambda: 1e9, audit=log)  # type: ignore[arg-type]
        (found,) = collector.collect([Kind.AUDIT], dry_run=dry_run)
        assert not found.trouble
        return found.count

    assert collect(None) == 0
    assert collect(10, dry_run=True) == len(files) - 1
    assert all(path.exists() for path in files)
    assert collect(10) == len(files) - 1
    assert not any(path.exists() for path in files[:-1])
    assert numbers(log)[-1] == log.last
