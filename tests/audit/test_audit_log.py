"""Lines that are only added: what is changed, removed or put in is seen; what cannot be written keeps things from being done."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.retention import Kind, RetentionRules
from carrel.lab.audit import AuditFilter, AuditLog, check_lines, line_of
from carrel.lab.audit import log as log_module
from carrel.lab.audit.chain import NOTHING, REMOVED
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


def test_lines_follow_one_another_over_restarts_and_files(tmp_path: Path) -> None:
    for run in range(3):
        log = a_log(tmp_path, file_size=1000)
        fill(log, 10)
        log.close()
        found = log.check()
        assert (found.lines, found.first, found.last, found.trouble) == (12 * (run + 1), 1, 12 * (run + 1), "")
    assert len(list(tmp_path.glob("*.jsonl"))) > 5
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    again = a_log(tmp_path)
    mine = again.read(AuditFilter(who="ada", resource="/jobs/3"), limit=10)
    assert [one["resource"] for one in mine] == ["/jobs/3"] * 3
    assert [one["seq"] for one in again.read(AuditFilter(after=20), limit=4)] == [21, 22, 23, 24]
    assert [one["seq"] for one in again.read(AuditFilter(), limit=2, newest=True)] == [36, 37]
    assert again.read(AuditFilter(since=1e12), limit=4) == []


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_done_to_a_line_is_seen(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = a_log(tmp_path)
    fill(log, 20)
    log.close()
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_bytes().splitlines()
    place = chance.randrange(1, len(lines) - 1)
    kind = seed % 5
    if kind == 0:
        del lines[place]
    elif kind == 1:
        entry = json.loads(lines[place])
        entry[chance.choice(["who", "action", "at", "seq", "before", "digest", "more"])] = chance.choice(["eve", 7])
        lines[place] = json.dumps(entry).encode()
    elif kind == 2:
        other = chance.choice([number for number in range(1, len(lines) - 1) if number != place])
        lines[place], lines[other] = lines[other], lines[place]
    elif kind == 3:  # with a digest of its own that is right
        entry = {**json.loads(lines[place]), "who": "eve"}
        digest = entry.pop("digest")
        lines[place] = line_of(entry, seq=entry["seq"], before=entry["before"])[0].encode()
        assert digest not in lines[place].decode()
    else:
        lines.insert(place, chance.randbytes(40).replace(b"\n", b""))
    file.write_bytes(b"\n".join(lines) + b"\n")
    assert check_lines(lines).trouble
    assert a_log(tmp_path).check().trouble


def test_lines_that_are_missing_at_the_end_are_seen_by_the_lab_and_after_it(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    fill(log, 9)
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-3]))
    assert log.check().trouble == "Lines 8 to 10 are missing at the end."
    again = a_log(tmp_path)
    assert "Lines after number 7, up to 10, are missing." in again.read(AuditFilter(after=7), limit=1)[0]["note"]
    assert again.check().trouble == "Number 7 is followed by number 11: lines between them are missing."


def test_a_line_that_a_crash_has_cut_is_cut_off_and_said(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    fill(log, 3)
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as more:
        more.write(b'{"seq": 5, "wh')
    again = a_log(tmp_path)
    assert again.check().trouble == ""
    assert again.read(AuditFilter(after=4), limit=1)[0]["note"] == "14 bytes of a line that was not whole were cut off."


def test_what_is_removed_by_rule_is_said_and_anything_else_is_seen(tmp_path: Path) -> None:
    log = a_log(tmp_path, file_size=1000)
    fill(log, 30)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert log.old(0) == []
    old = log.old(1e12)
    assert old == files[:-1]
    log.remove(old[0])
    log.remove(old[1])
    found = log.check()
    assert found.trouble == ""
    assert found.first == int(files[2].stem)
    files[2].unlink()
    assert "the log does not say that they went" in log.check().trouble


def test_a_full_disk_keeps_changes_from_being_done_but_not_what_frees_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path)
    log.make_room()

    def no_room(_fd: int, _start: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module.room, "keep", no_room)
    fill(log, 10)
    log.make_room()  # what is kept is enough
    fill(log, 6000)
    with pytest.raises(StorageFull, match="No space left on device"):
        log.make_room()
    log.make_room(frees=True)
    assert log.check().trouble == ""


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
    found = log.check()
    assert (found.lines, found.trouble) == (4, "")


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
    assert log.check().trouble == ""


@pytest.mark.parametrize(
    "entry", [{}, {"before": 1}, {"before": NOTHING, "action": REMOVED}, {"before": NOTHING, "action": REMOVED, "removed": 7}]
)
def test_a_line_that_fits_its_digest_and_says_too_little_is_trouble_and_no_crash(entry: dict[str, object]) -> None:
    whole = {**entry, "seq": 1}
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert check_lines([json.dumps({**whole, "digest": digest})]).trouble.startswith("The line at the beginning")
