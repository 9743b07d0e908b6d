"""A journal that its job's own user has written to: a line that says more than a runner can say is damaged, and hides nothing."""

from __future__ import annotations

import json
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.core.control.lab_files import blob_file
from carrel.core.domain.errors import NotFound
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Damaged, Ended, EnvironmentReady, Preparing, Resumed, Sampled, Started, StoredFile, Usage
from carrel.core.spool import Journal, entry_to_plain, read_entries
from carrel.core.spool.foreign import open_regular, parse_json, read_last, read_regular, socket_at
from carrel.core.spool.lines import checked
from carrel.engines.deputy.frames import observation_from_plain

DIGEST = f"sha256:{7:064x}"
END = entry_to_plain(
    100.0,
    Ended(
        state=JobState.COMPLETED,
        reason=Reason(code="Completed", message="Exit code 0."),
        exit_code=0,
        outputs=(StoredFile(path="outputs/a", size=1, digest=DIGEST),),
    ),
)
STARTED = entry_to_plain(50.0, Started(pid=3, hardware={"cpu": "x"}))
READY = entry_to_plain(40.0, EnvironmentReady(digest="sha256:e", lock=DIGEST, python="3", built=False, seconds=1.0))
RESUMED = entry_to_plain(60.0, Resumed(seconds=2.0))
SAMPLED = entry_to_plain(70.0, Sampled(usage=Usage(cpu_seconds=1.0, memory=5)))


def output(**change: Any) -> list[dict[str, Any]]:
    return [{"path": "a", "size": 1, "digest": DIGEST} | change]


PATHS = ["/home/lab/token", "sha256:../token", "/dev/zero", "sha256:" + "A" * 64, DIGEST + "\n", 7, [DIGEST]]
OUTSIDE = ["", "/etc/x", "../x", "a/../../x", "a\0b", 7, "\ud800", "a/" * 2049]
MANY = {str(number): "x" for number in range(1001)}
LONG = "x" * 65_537
REASONS = [
    None,
    "x",
    {},
    {"code": "x"},
    {"code": "x", "message": "\ud800"},
    {"code": 1, "message": "y"},
    {"code": "x", "message": LONG},
]
USAGES = [
    {"memory": 1e999},
    {"gpu_mean": dict.fromkeys(MANY, 1.0)},
    {"gpu_mean": {"a": "b"}},
    {"gpu_memory": {"a": 2**64}},
    [],
    None,
]
#: A record that a runner writes, one of its fields, and what no runner writes there.
FOREIGN: list[tuple[dict[str, Any], str, list[Any]]] = [
    (END, "outputs", [output(digest=digest) for digest in (*PATHS, "", None)]),
    (END, "outputs", [output(path=path) for path in OUTSIDE]),
    (END, "outputs", [output(size=size) for size in (-1, 10**30, 1.5, "1", None, True)]),
    (END, "outputs", [output(more=1), {"path": "a"}, "x"]),
    (END, "at", [1e300, -1.0, float("nan"), float("inf"), "abc", None, [], True, 10**400]),
    (END, "state", ["RUNNING", "PENDING", "SUSPENDED", "CONFIGURING", "DONE", "", None, 3, ["COMPLETED"]]),
    (END, "exit_code", [10**30, -1, 256, 1.5, "0", {"a": 1}, True]),
    (END, "signal", [0, 10**30, -9, "9"]),
    (END, "reason", REASONS),
    (RESUMED, "seconds", ["abc", float("inf"), -1.0, 1e300, None]),
    (READY, "lock", PATHS),
    (READY, "digest", ["x" * 81, "a\0b"]),
    (READY, "python", ["x" * 65]),
    (READY, "built", ["no", 1, None]),
    (STARTED, "hardware", [{"cpu": 7}, {"\ud800": "x"}, "x", [1], {"cpu": {"cpu": "x"}}, {"a": LONG}, MANY]),
    (STARTED, "pid", ["3", 2**63, None]),
    (STARTED, "type", ["stopped", "", None, 4, {}]),
    (SAMPLED, "usage", USAGES),
]
HOSTILE = [(whole, {field: value}) for whole, field, values in FOREIGN for value in values]
STRANGE = [None, True, -1, 10**30, 1e308, float("nan"), "", "\ud800", "../x", "/etc/passwd", [], {}, [[]], {"a": 1}, "x" * 1000]


def line(plain: Any) -> bytes:
    return checked(json.dumps(plain).encode())


def test_what_runners_write_is_read(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(b"".join(map(line, (READY, STARTED, RESUMED, SAMPLED, END))))
    entries, offset = read_entries(journal)
    assert [type(entry.record) for entry in entries] == [EnvironmentReady, Started, Resumed, Sampled, Ended]
    assert offset == journal.stat().st_size


@pytest.mark.parametrize(("whole", "change"), HOSTILE)
def test_what_no_runner_writes_is_damaged(tmp_path: Path, whole: dict[str, Any], change: dict[str, Any]) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(line(STARTED) + line(whole | change) + line(END))
    entries, _ = read_entries(journal)
    assert [type(entry.record) for entry in entries] == [Started, Damaged, Ended]
    news = {"job_id": 1, "attempt": 1, "entries": [whole | change], "offset": 5, "beside": False, "log_size": None, "gone": False}
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        observation_from_plain(news)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"at":' * 50_000, "[]", "7", "null", '"x"', "{", "", "{}"])
def test_lines_of_any_form_hide_nothing(tmp_path: Path, text: str) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(line(STARTED) + checked(text.encode()) + line(END))
    entries, _ = read_entries(journal)
    assert (type(entries[0].record), type(entries[-1].record)) == (Started, Ended)
    assert all(isinstance(entry.record, Damaged) for entry in entries[1:-1])


def mutated(plain: Any, chance: random.Random) -> Any:
    if isinstance(plain, dict) and plain and chance.random() < 0.8:
        key = chance.choice(list(plain))
        if chance.random() < 0.1:
            return {**plain, "more": chance.choice(STRANGE)}
        return {**plain, key: mutated(plain[key], chance)}
    if isinstance(plain, list) and plain and chance.random() < 0.8:
        return [mutated(plain[0], chance), *plain[1:]]
    return chance.choice(STRANGE)


def test_whatever_is_written_is_read_as_a_record_of_its_types_or_as_damaged(tmp_path: Path) -> None:
    chance = random.Random(7)
    journal = tmp_path / "journal"
    lines = [line(mutated(chance.choice((READY, STARTED, RESUMED, SAMPLED)), chance)) for _ in range(5000)]
    journal.write_bytes(line(STARTED) + b"".join(lines) + line(END))
    entries, offset = read_entries(journal)
    assert offset == journal.stat().st_size
    assert isinstance(entries[-1].record, Ended)
    assert sum(isinstance(entry.record, Damaged) for entry in entries) > 1000
    for entry in entries:  # whatever was let in can be written down
        assert 0 <= entry.at < 1e10
        json.dumps(entry_to_plain(entry.at, entry.record), allow_nan=False).encode()


@pytest.mark.parametrize(
    "digest", ["/etc/passwd", "sha256:/etc/passwd", "sha256:../../x", "..", "", "sha256:", f"{7:064x}", DIGEST + "/"]
)
def test_no_path_is_made_of_what_is_no_digest(tmp_path: Path, digest: str) -> None:
    with pytest.raises(NotFound):
        blob_file(tmp_path, digest)
    assert blob_file(tmp_path, DIGEST) == tmp_path / "00" / f"{7:064x}"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(line(STARTED))
    link, pipe, directory, device = (tmp_path / name for name in ("link", "pipe", "directory", "device"))
    link.symlink_to(real)
    os.mkfifo(pipe)
    directory.mkdir()
    device.symlink_to("/dev/zero")
    for path in (link, pipe, directory, device, tmp_path / "missing"):
        assert read_entries(path, 5) == ((), 5)
    for path in (link, pipe, directory, device):
        with pytest.raises(OSError, match=r"regular|symbolic"):
            open_regular(path)
    with open_regular(real) as file:
        assert file.read() == line(STARTED)


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a" * 10 + b"b" * 5)
    assert read_regular(file, 15) == file.read_bytes()
    assert read_last(file, 6) == b"abbbbb"
    assert read_last(file, 100) == file.read_bytes()
    with pytest.raises(OSError, match="longer than 14 bytes"):
        read_regular(file, 14)
    os.truncate(file, 2**40)
    with pytest.raises(OSError, match="longer than"):
        read_regular(file)
    assert read_last(file, 3) == b"\0\0\0"
    for text in ("[" * 100_000, '{"a":' * 100_000, "", "{"):
        with pytest.raises(ValueError, match=r"nested|Expecting"):
            parse_json(text)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, and the sockets of two processes: of the session, and of a daemon elsewhere."""
    with tempfile.TemporaryDirectory(prefix="carrel-", dir="/tmp") as name:
        place = Path(name)
        for path in (place / "session/s", place / "daemon/s"):
            path.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
            one.bind(str(place / "session/s"))
            other.bind(str(place / "daemon/s"))
            yield place


@pytest.mark.slow
@pytest.mark.gate
def test_a_socket_is_reached_where_it_was_looked_at(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(place / "session/listens"))
        listener.listen()
        with socket_at(place / "session/listens") as found:
            (place / "session/listens").unlink()
            (place / "session/listens").symlink_to(place / "daemon/s")
            client.connect(found)
            listener.accept()[0].close()


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.parametrize("what", ["link", "link to its directory", "file", "pipe", "device", "directory", "missing"])
def test_what_is_not_the_sessions_socket_is_not_connected_to(place: Path, what: str) -> None:
    path = place / "session/s"
    path.unlink()
    if what == "link":
        path.symlink_to(place / "daemon/s")
    elif what == "link to its directory":
        path.parent.rmdir()
        path.parent.symlink_to(place / "daemon")
    elif what == "file":
        path.write_text("")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/null")
    elif what == "directory":
        path.mkdir()
    with pytest.raises(OSError, match=r"non-socket|such file|directory"), socket_at(path):
        pass


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a socket to another user")
@pytest.mark.parametrize("whose", ["session/s", "session"])
def test_a_socket_of_another_user_is_not_connected_to(place: Path, whose: str) -> None:
    os.chown(place / whose, 65534, 65534)
    with pytest.raises(PermissionError, match="another user"), socket_at(place / "session/s"):
        pass


@pytest.mark.parametrize("message", ["a\0b", "caf\udce9", LONG * 3])
def test_a_message_that_quotes_a_program_does_not_cost_the_record(tmp_path: Path, message: str) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(1.0, Preparing(message=message))
    journal.append(2.0, Ended(state=JobState.FAILED, reason=Reason(code="x", message=message)))
    journal.close()
    (preparing, ended), _ = read_entries(tmp_path / "journal")
    assert isinstance(preparing.record, Preparing)
    assert isinstance(ended.record, Ended)
    assert preparing.record.message == ended.record.reason.message
    assert ended.record.reason.message[:3] == message.encode(errors="replace").decode().replace("\0", "\ufffd")[:3]


def test_of_a_journal_that_is_too_long_only_the_end_is_read(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(line(STARTED))
    os.truncate(journal, 200 * 1024**3)  # sparse: it takes no room
    with open(journal, "ab") as file:
        file.write(b"\n" + line(SAMPLED) + line(END))
    entries, offset = read_entries(journal, len(line(STARTED)))
    assert offset == journal.stat().st_size
    assert [type(entry.record) for entry in entries][-2:] == [Sampled, Ended]
    assert all(isinstance(entry.record, Damaged) for entry in entries[:-2])
