"""Crates that were made to do harm, or that a line has garbled: each is refused, in words."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_crates import RESULT, changed, content, digest, make_record, member, written

from carrel.client.recorded import Changes, read_recorded, task_again
from carrel.core.comparison import Code, Metrics, side_of
from carrel.core.crates import open_crate
from carrel.core.domain.errors import CarrelError, Invalid, NotFound, TooLarge


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(content(tmp_path_factory.mktemp("crate")))


def read_all(path: Path) -> None:
    """All that a replay reads."""
    with open_crate(path) as crate:
        recorded = read_recorded(crate.record, "the record")
        _ = crate.metrics
        crate.check_outputs(recorded.output_digests)
        crate.code(recorded.task.snapshot).open().close()


def refused(place: Path, data: bytes) -> str:
    path = place / "one" / "two" / "three" / "crate.zip"  # what leads out of a few directories is seen, too
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    before = sorted(place.rglob("*"))
    with pytest.raises((Invalid, TooLarge)) as error:
        read_all(path)
    assert sorted(place.rglob("*")) == before, "something was written"
    return str(error.value)


def same(one: zipfile.ZipInfo, data: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    return one, data


def compressed(one: zipfile.ZipInfo, data: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    """As a program that packs it anew does it."""
    one.compress_type = zipfile.ZIP_DEFLATED
    return one, data


def test_what_is_good_is_taken(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "crate.zip").write_bytes(good)
    read_all(tmp_path / "crate.zip")
    (tmp_path / "crate.zip").write_bytes(changed(good, compressed))
    assert len(good) > (tmp_path / "crate.zip").stat().st_size
    read_all(tmp_path / "crate.zip")


@pytest.mark.parametrize(
    "name", ["../out", "/tmp/out", "code/../../out", "code//x", "code/./x", "a\\..\\b", "x" * 300, "code/a/../b", "./x"]
)
def test_names_that_lead_elsewhere(good: bytes, tmp_path: Path, name: str) -> None:
    assert "has no plain name" in refused(tmp_path, changed(good, same, (member(name), b"x")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("made", "text", "fact"),
    [
        (member("code/train.py"), b"x", "is there twice"),
        (member("results/x", 0o120777), b"/etc/passwd", "is a link"),
        (member("code/evil", 0o120777), b"../../etc/passwd", "leads outside the directory"),
        (member("code/evil", 0o120777), b"/etc/passwd", "is absolute"),
        (member("code/evil", 0o120777), b"x" * 5000, "is too long"),
        (member("code/pipe", 0o010644), b"", "is neither a file nor a directory"),
        (member("code/train.py/x"), b"", "lies under"),
        (member("code/x/", 0o100644), b"", "is a directory with content"),
        (member("x", method=zipfile.ZIP_BZIP2), b"x", "is compressed in a way that is not read"),
        (member("code/more.py"), b"", "the code is not that of the record"),
        (member("results/more"), b"", 'the record knows no output "more"'),
    ],
)
def test_members_that_are_not_taken(good: bytes, tmp_path: Path, made: zipfile.ZipInfo, text: bytes, fact: str) -> None:
    assert fact in refused(tmp_path, changed(good, same, (made, text)))


def test_what_would_grow_too_large(good: bytes, tmp_path: Path) -> None:
    bomb = changed(good, same, (member("results/outputs/zeros", method=zipfile.ZIP_DEFLATED), bytes(64 << 20)))
    assert "says that it holds" in refused(tmp_path, bomb)


@pytest.mark.parametrize("lie", [1, 1 << 20])
def test_sizes_that_are_not_true(good: bytes, tmp_path: Path, lie: int) -> None:
    """The directory at the end says another size than what is there."""
    at = good.rindex(b"PK\x01\x02", 0, good.rindex(b"results/outputs/loss.txt"))
    data = bytearray(good)
    data[at + 24 : at + 28] = lie.to_bytes(4, "little")
    assert refused(tmp_path, bytes(data))


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("code/train.py", b"print(2)\n", "the code is not that of the record"),
        ("code/run.sh", None, "the code is not that of the record"),
        ("results/outputs/loss.txt", b"0.26\n", 'the output "outputs/loss.txt" is not that of the record'),
        ("record.json", None, "has no record.json"),
        ("record.json", b"{", "record.json is not JSON"),
        ("record.json", b"[" * 100_000, "record.json is not JSON"),
        ("record.json", b"[1]", "record.json is no object"),
        ("record.json", b"\xff", "record.json is not JSON"),
        ("record.json", b"{}", "lab: Field required"),
        ("ro-crate-metadata.json", None, "it is no RO-Crate"),
    ],
)
def test_content_that_is_not_what_it_was(good: bytes, tmp_path: Path, name: str, text: bytes | None, fact: str) -> None:
    def change(one: zipfile.ZipInfo, data: bytes) -> tuple[zipfile.ZipInfo, bytes] | None:
        return (one, data) if one.filename != name else None if text is None else (one, text)

    assert fact in refused(tmp_path, changed(good, change))


@pytest.mark.parametrize("text", ["", "no archive", "PK\x05\x06" + "\0" * 18])
def test_files_that_are_no_crates(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text.encode())
    with pytest.raises(NotFound, match="There is no file"), open_crate(tmp_path / "none.zip"):
        pass


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda record: record.update(lab="../x"), "lab"),
    (lambda record: record["job"].update(id="x"), "job.id"),
    (lambda record: record["job"].update(id=0), "job.id"),
    (lambda record: record["job"].update(resources={"cpus": "many"}), "cpus"),
    (lambda record: record["job"].update(resources={"nodes": 0}), "nodes"),
    (lambda record: record["task"].update(warp=9), "unknown field 'warp'"),
    (lambda record: record["task"].update(command=None), "command"),
    (lambda record: record["task"].update(snapshot="../x"), "session"),
    (lambda record: record["task"].update(pool=3), "pool"),
    (lambda record: record["task"].update(inputs=[{"path": "a"}]), "inputs"),
    (lambda record: record["task"].update(inputs=[{"path": "a", "uri": "b", "mode": 1}]), "unknown field 'mode'"),
    (lambda record: record["task"].update(environment={"kind": "magic"}), "environment.kind"),
    (lambda record: record.update(attempts=[]), "attempts"),
    (lambda record: record["attempts"][0].update(hardware={"cpu": 1}), "hardware"),
    (lambda record: record["attempts"][0].update(started_at="never"), "started_at"),
    (lambda record: record["attempts"][0].update(environment_lock_text="idna==1\n"), "has not the digest"),
    (lambda record: record["attempts"][0]["outputs"][0].update(digest="md5:1"), "digest"),
]


@pytest.mark.parametrize(("change", "fact"), CHANGES)
def test_records_that_are_none(change: Callable[[dict[str, Any]], object], fact: str) -> None:
    record = make_record("sha256:" + "0" * 64)
    read_recorded(record, "x")
    change(record)
    with pytest.raises(Invalid) as error:
        read_recorded(record, "crate.zip: the record")
    assert fact in str(error.value)
    assert str(error.value).startswith("crate.zip: the record: ")


def words_of(call: Callable[[], object]) -> str | None:
    """What it says when it refuses; any other error is one of the test."""
    try:
        call()
    except CarrelError as error:
        return str(error)
    return None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_json_in_any_place_of_a_record_is_taken_or_refused_in_words(data: st.DataObject) -> None:
    record = json.loads(json.dumps(make_record("sha256:" + "0" * 64)))
    place: Any = record
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    said = words_of(lambda: read_recorded(record, "x"))
    if said is not None:
        assert said.startswith("x: ")
        return
    recorded = read_recorded(record, "x")
    assert words_of(lambda: task_again(recorded, "here", Changes())) != ""
    plain = recorded.plain
    assert side_of(plain, plain["attempts"][-1]["number"], label="x", code=Code(), metrics=Metrics()).sections


@given(st.data())
def test_garbled_bytes_end_in_words(good: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    garbled = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        garbled[data.draw(st.integers(0, len(garbled) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.none() | st.integers(0, len(garbled)))
    path = tmp_path_factory.getbasetemp() / "garbled.zip"
    path.write_bytes(garbled[:end])
    assert words_of(lambda: read_all(path)) != ""


def test_a_crate_whose_code_is_as_said_and_whose_outputs_are_elsewhere_is_taken(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "crate.zip"
    path.write_bytes(changed(good, lambda one, data: None if one.filename.startswith("results/") else (one, data)))
    read_all(path)
    assert digest(RESULT) in path.read_bytes().decode("latin-1")
    assert zipfile.is_zipfile(io.BytesIO(good))
