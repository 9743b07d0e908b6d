"""The log of an attempt: order, limit, secrets, full disks."""

import stat

import pytest

from carrel.core.spool import LogWriter, read_log


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


def test_what_is_written_is_there(path):
    log = LogWriter(path, limit=1000)
    log.write(b"one\n")
    log.write(b"two")
    assert path.read_bytes() == b"one\ntwo"
    log.note("a note")
    log.close()
    assert path.read_bytes() == b"one\ntwo\n[carrel] a note\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_limit_is_kept_and_said(path):
    log = LogWriter(path, limit=10)
    log.write(b"12345678")
    log.write(b"9abcdef")
    log.write(b"more")
    log.close()
    lines = path.read_text().splitlines()
    assert lines[0] == "123456789a"
    assert "limit" in lines[1]
    assert "9 bytes" in lines[2]
    assert log.dropped == 9


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_secret_is_found_however_it_is_cut(path, cut):
    log = LogWriter(path, limit=1000, secrets=["s3cr3t-t0k3n"])
    text = b"before s3cr3t-t0k3n after s3cr3t-s3cr3t-t0k3n."
    for start in range(0, len(text), cut):
        log.write(text[start : start + cut])
    log.close()
    assert path.read_bytes() == b"before ******** after s3cr3t-********."


def test_what_may_be_the_start_of_a_secret_waits(path):
    log = LogWriter(path, limit=1000, secrets=["s3cr3t-t0k3n"])
    log.write(b"x s3cr")
    assert path.read_bytes() == b"x "
    assert log.unsettled
    log.settle()
    assert path.read_bytes() == b"x s3cr"
    assert not log.unsettled


def test_a_full_disk_loses_nothing_that_fits_in_memory(small_disk):
    filler, path = small_disk / "filler", small_disk / "log"
    log = LogWriter(path, limit=2**30)
    log.write(b"start\n")
    fill(filler)
    for number in range(100):
        log.write(b"%d " % number * 1000)
    assert log.unsettled
    assert log.stuck > 0
    filler.unlink()
    log.write(b"end\n")
    assert log.stuck == 0
    log.close()
    assert path.read_bytes() == b"start\n" + b"".join(b"%d " % number * 1000 for number in range(100)) + b"end\n"


def test_a_disk_that_stays_full_is_said_when_there_is_room_again(small_disk):
    filler, path = small_disk / "filler", small_disk / "log"
    log = LogWriter(path, limit=2**30)
    log.write(b"start\n")
    fill(filler)
    for _ in range(40):
        log.write(b"x" * 2**16)
    filler.unlink()
    log.settle()
    log.settle()
    data = path.read_bytes()
    log.close()
    assert 2**20 > data.count(b"x") > 0
    assert log.stuck > 0 or b"bytes of output were lost here: the disk was full." in data


def fill(filler):
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass


def test_a_range_is_read(path):
    path.write_bytes(b"0123456789")
    assert read_log(path, 2, 3).data == b"234"
    assert read_log(path, -4, 100).data == b"6789"
    assert read_log(path, 8, 100).data == b"89"
    assert read_log(path, 50, 100).data == b""
    assert read_log(path, 0, 0).size == 10
    assert read_log(path.with_name("none"), 0, 10).size == 0
