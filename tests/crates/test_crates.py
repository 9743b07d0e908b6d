"""Crates: the same bytes each time, what the profile demands, and what comes back out of them."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_crates import LOCK, RESULT, content, digest, written

from carrel.core.crates import Content, open_crate
from carrel.core.snapshots import SnapshotStore


def graph_of(made: Content, place: Path) -> dict[str, dict[str, Any]]:
    path = place / "crate.zip"
    path.write_bytes(written(made))
    with zipfile.ZipFile(path) as archive:
        document = json.loads(archive.read("ro-crate-metadata.json"))
    assert document["@context"] == ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
    found = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(found) == len(document["@graph"]), "an entity is there twice"
    return found


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {value["@id"]} if set(value) == {"@id"} else set().union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_the_same_job_gives_the_same_bytes_and_nothing_is_compressed(tmp_path: Path) -> None:
    made = content(tmp_path)
    assert written(made) == written(made)
    path = tmp_path / "crate.zip"
    path.write_bytes(written(made))
    with zipfile.ZipFile(path) as archive:
        members = {one.filename: one for one in archive.infolist()}
        assert archive.testzip() is None
        assert archive.read("environment.lock").decode() == LOCK
        assert archive.read("results/outputs/loss.txt") == RESULT
        assert json.loads(archive.read("record.json")) == made.record
    assert {one.compress_type for one in members.values()} == {zipfile.ZIP_STORED}
    assert {one.date_time for one in members.values()} == {(1980, 1, 1, 0, 0, 0)}
    assert stat.S_ISLNK(members["code/link"].external_attr >> 16)
    assert members["code/run.sh"].external_attr >> 16 & 0o100


def test_the_metadata_is_that_of_a_process_run_crate(tmp_path: Path) -> None:
    """RO-Crate 1.1 (the root data entity, data entities) and Process Run Crate 0.5 (the table of requirements)."""
    found = graph_of(content(tmp_path), tmp_path)
    about = found["ro-crate-metadata.json"]
    assert (about["about"], about["conformsTo"]) == ({"@id": "./"}, {"@id": "https://w3id.org/ro/crate/1.1"})
    root = found["./"]
    assert root["conformsTo"] == {"@id": "https://w3id.org/ro/wfrun/process/0.5"}
    assert found["https://w3id.org/ro/wfrun/process/0.5"]["@type"] == "CreativeWork"
    assert all(root[name] for name in ("name", "description", "datePublished", "license"))
    run = found["#run"]
    assert (run["@type"], run["description"]) == ("CreateAction", "python train.py --lr 0.1")
    assert (run["startTime"], run["endTime"]) == ("2026-11-27T01:42:29+00:00", "2026-11-27T01:42:37+00:00")
    assert run["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert {"@id": "#run"} in root["mentions"]
    assert "SoftwareSourceCode" in found[run["instrument"]["@id"]]["@type"]
    assert found[run["agent"]["@id"]]["name"] == "ada"
    assert {found[one["@id"]]["name"] for one in run["object"]} == {"lr", "data set", "data/train.csv"}
    assert found["#input/data/train.csv"]["sha256"] == digest(b"1,2\n").removeprefix("sha256:")
    assert [found[one["@id"]]["sha256"] for one in run["result"]] == [digest(RESULT).removeprefix("sha256:")]
    # What is referred to is described, and every file is part of the whole.
    assert references(list(found.values())) - set(found) == {"https://w3id.org/ro/crate/1.1"}
    parts = {one["@id"] for one in root["hasPart"]} | {one["@id"] for one in found["code/"]["hasPart"]}
    assert parts == {name for name, one in found.items() if one["@type"] == "File" or name == "code/"}
    with zipfile.ZipFile(tmp_path / "crate.zip") as archive:
        assert parts <= set(archive.namelist())


def test_outputs_that_stay_behind_are_no_data_of_the_crate(tmp_path: Path) -> None:
    made = content(tmp_path)
    left = Content(
        record=made.record, code=made.code, read_code=made.read_code, outputs=(), read_output=made.read_output,
        left_out=made.outputs, version="1.0",
    )  # fmt: skip
    found = graph_of(left, tmp_path)
    assert found["#run"]["result"] == [{"@id": "#result/outputs/loss.txt"}]
    assert found["#result/outputs/loss.txt"]["@type"] == "CreativeWork"
    assert found["#licence"]["name"] == "No licence is stated"


@pytest.mark.parametrize(
    ("file", "text", "licence"),
    [
        ("CITATION.cff", "license: MIT\nauthors: [{given-names: Ada, family-names: King}]", "https://spdx.org/licenses/MIT"),
        ("pyproject.toml", '[project]\nname = "x"\nlicense = "MIT OR Apache-2.0"', "#licence"),
        ("LICENSE", "Do what you like.", "code/LICENSE"),
        ("CITATION.cff", "license: [", "#licence"),
    ],
)
def test_the_licence_is_what_the_code_says(tmp_path: Path, file: str, text: str, licence: str) -> None:
    found = graph_of(content(tmp_path, {"train.py": "", file: text}), tmp_path)
    assert found["./"]["license"] == {"@id": licence}
    assert found[licence]
    assert ("Ada" in text) == (found.get("#author-1", {}).get("name") == "Ada King")


def test_a_crate_gives_back_the_code_as_it_was(tmp_path: Path) -> None:
    made = content(tmp_path)
    path = tmp_path / "crate.zip"
    path.write_bytes(written(made))
    store = SnapshotStore(tmp_path / "store")
    with open_crate(path) as crate:
        crate.check_outputs({"outputs/loss.txt": digest(RESULT)})
        code = crate.code(crate.record["task"]["snapshot"])
        with code.open() as archive:
            store.add(code.digest, archive)
    store.extract(code.digest, tmp_path / "again")
    assert (tmp_path / "again/link").readlink() == Path("train.py")
    assert (tmp_path / "again/run.sh").stat().st_mode & 0o100


@given(st.text(min_size=1, max_size=20), st.text(max_size=40))
def test_any_names_make_metadata_that_is_json(name: str, value: str) -> None:
    from small_crates import make_record

    from carrel.core.crates.about import About
    from carrel.core.crates.metadata import describe_crate

    record = make_record("sha256:" + "0" * 64)
    record["task"]["parameters"] = {name.encode("utf-8", "replace").decode(): value.encode("utf-8", "replace").decode()}
    bare = Content(record=record, code=(), read_code=lambda _one: (), outputs=(), read_output=lambda _one: ())
    assert json.loads(describe_crate(bare, About()))["@graph"]
