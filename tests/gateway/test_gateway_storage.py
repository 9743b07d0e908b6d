"""What is kept, what goes, and how much each user may have: a real lab's files and memory, through the API."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from gateway_lab import V1, Rig, a_lab, client, serve

from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.retention import RetentionRules
from carrel.lab.store.tables import attempts
from carrel.testing.builders import make_deep

#: Where each lab answers.
URLS: dict[int, str] = {}
LONG_AGO = time.time() - 30 * 86400


@contextmanager
def a_site(home: Path, **options: Any) -> Iterator[Rig]:
    """A lab that answers; `call` finds it."""
    with a_lab(home, **options) as rig, serve(rig.app) as url:
        URLS[id(rig)] = url
        yield rig


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Rig]:
    """A lab that keeps nothing that no record names."""
    with a_site(tmp_path, keeps=RetentionRules(work=0, unused=0, logs=None, outputs=None)) as rig:
        yield rig


@pytest.fixture
def usual(tmp_path: Path) -> Iterator[Rig]:
    """A lab with the rules that are there without a word."""
    with a_site(tmp_path) as rig:
        yield rig


def call(rig: Rig, method: str, path: str, who: str = "root", **request: Any) -> httpx.Response:
    with client(URLS[id(rig)], rig.headers(who)) as http:
        return http.request(method, f"{V1}{path}", **request)


def collect(rig: Rig, *kinds: str, dry_run: bool = False) -> dict[str, dict[str, Any]]:
    answer = call(rig, "POST", "/storage/collect", json={"kinds": list(kinds), "dry_run": dry_run})
    assert answer.status_code == 200, answer.text
    assert not [one for one in answer.json()["collected"] if one["trouble"]]
    return {one["kind"]: one for one in answer.json()["collected"]}


def finished(rig: Rig, *contents: bytes, log: bytes = b"", lost: bool = False) -> int:
    """A job of Ada's that ended, with outputs of these contents."""
    job = int(call(rig, "POST", "/jobs", "ada", json={"snapshot": rig.upload()}).json()["id"])
    rig.engine.run(job)
    files = tuple(
        StoredFile(path=f"outputs/{number}", size=len(data), digest=rig.store_blob(data)) for number, data in enumerate(contents)
    )
    state = JobState.NODE_FAIL if lost else JobState.COMPLETED
    rig.engine.end(job, state=state, reason=Reason(code="Ended", message="It ended."), outputs=files, log=log)
    rig.wait(job, state)
    return job


def age(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (LONG_AGO, LONG_AGO))


def blobs(rig: Rig) -> list[Path]:
    return sorted(path for path in rig.lab.files.blobs.glob("??/*") if path.is_file())


@pytest.mark.gate
def test_nothing_goes_that_a_record_names(strict: Rig) -> None:
    job = finished(strict, b"result", log=b"words")
    spool = strict.lab.files.spool.attempt(job, 1)
    age(*blobs(strict), *(strict.home / "snapshots").glob("*.tar"))
    found = collect(strict)
    assert {kind: one["count"] for kind, one in found.items()} == {
        "work": 0,
        "logs": 0,
        "code": 0,
        "outputs": 0,
        "artifacts": 0,
        "audit": 0,
        "cells": 0,
        "calls": 0,
    }
    assert spool.log.read_bytes() == b"words"
    assert call(strict, "GET", f"/jobs/{job}/outputs/outputs/0", "ada").content == b"result"


def test_what_nobody_names_goes_and_a_dry_run_removes_nothing(strict: Rig) -> None:
    finished(strict, b"kept")
    nobodys = strict.lab.files.blobs / strict.store_blob(b"nobody's")[7:9] / strict.store_blob(b"nobody's")[7:]
    digest = strict.upload(files={"unused.py": "x = 1"})
    code = strict.snapshots.path(digest)
    draft = strict.lab.files.blobs / "incoming" / "4711"
    draft.parent.mkdir()
    draft.write_bytes(b"half")
    age(nobodys, code, draft)
    for dry_run in (True, False):
        found = collect(strict, dry_run=dry_run)
        assert (found["outputs"]["count"], found["code"]["count"]) == (2, 1)
        assert found["code"]["size"] == code.stat().st_blocks * 512 if code.exists() else found["code"]["size"]
        assert (nobodys.exists(), code.exists(), draft.exists()) == ((dry_run,) * 3)
    assert len(blobs(strict)) == 1
    # Whoever uploaded it is asked for it again.
    assert call(strict, "HEAD", f"/snapshots/{digest}", "ada").status_code == 404
    assert collect(strict)["outputs"]["count"] == 0


def test_what_is_used_while_it_goes_stays(usual: Rig) -> None:
    """With the default rules nothing goes that was used within a day: asking for code is using it."""
    digest = usual.upload(files={"unused.py": "x = 1"})
    age(usual.snapshots.path(digest))
    assert collect(usual, "code", dry_run=True)["code"]["count"] == 1
    assert call(usual, "HEAD", f"/snapshots/{digest}", "ada").status_code == 200
    assert collect(usual, "code")["code"]["count"] == 0
    assert usual.snapshots.has(digest)


def test_what_a_runner_has_stored_stays_while_its_journal_is_not_read(strict: Rig) -> None:
    job = int(call(strict, "POST", "/jobs", "ada", json={"snapshot": strict.upload()}).json()["id"])
    strict.engine.run(job)
    strict.wait(job, JobState.RUNNING)
    strict.store_blob(b"stored, and not told yet")
    assert collect(strict, "outputs")["outputs"]["count"] == 0
    assert len(blobs(strict)) == 1


def test_work_of_lost_attempts_goes_and_that_of_running_ones_stays(strict: Rig) -> None:
    lost = finished(strict, lost=True)
    runs = int(call(strict, "POST", "/jobs", "ada", json={"snapshot": strict.upload()}).json()["id"])
    strict.engine.run(runs)
    strict.wait(runs, JobState.RUNNING)
    places = [strict.lab.files.spool.attempt(job, 1).work for job in (lost, runs)]
    for place in places:
        (place / "inner").mkdir(parents=True)
        (place / "inner" / "data").write_bytes(b"x" * 10_000)
        (place / "link").symlink_to("/etc")
    (places[0] / "inner").chmod(0o500)
    found = collect(strict, "work")["work"]
    assert found["count"] == 1
    assert str(lost) in str(found["examples"])
    assert [place.exists() for place in places] == [False, True]
    assert Path("/etc/passwd").exists()


def test_whatever_a_job_left_behind_goes(strict: Rig) -> None:
    """Its end was interrupted, and it has dug deep and closed the door behind it."""
    lost = finished(strict, lost=True)
    attempt = strict.lab.files.spool.attempt(lost, 1)
    places = [attempt.work, attempt.temporary, *attempt.private_places, attempt.checkpoint]
    for place in places:
        place.mkdir(parents=True)
        make_deep(place, 3000, b"x" * 10_000)
        place.chmod(0o500)
    seen = collect(strict, "work", dry_run=True)["work"]
    found = collect(strict, "work")["work"]
    assert (found["count"], found["size"]) == (len(places), seen["size"])
    assert found["size"] > len(places) * 10_000
    assert [place for place in places if os.path.lexists(place)] == []


def test_temporary_files_that_lie_elsewhere_go_if_a_runner_put_them_there(strict: Rig, tmp_path: Path) -> None:
    (one, own), (other, strange) = [
        (finished(strict, lost=True), make()) for make in (_short_place, lambda: tmp_path / "strange")
    ]
    for job, place in ((one, own), (other, strange)):
        (place / "inner").mkdir(parents=True)
        strict.lab.files.spool.attempt(job, 1).path.mkdir(parents=True, exist_ok=True)
        strict.lab.files.spool.attempt(job, 1).temporary.symlink_to(place)
    assert collect(strict, "work")["work"]["count"] == 1
    assert (own.exists(), strange.exists()) == (False, True)


def _short_place() -> Path:
    return Path(tempfile.mkdtemp(prefix="carrel-", dir="/tmp"))


def test_what_waits_to_be_collected_stays_whatever_the_rules_say(tmp_path: Path) -> None:
    with a_site(tmp_path, keeps=RetentionRules(outputs=0, logs=0, unused=0, work=0)) as rig:
        waits, other = finished(rig, log=b"words"), finished(rig, log=b"words")
        for job in (waits, other):
            rig.lab.files.spool.attempt(job, 1).work.mkdir(parents=True)
        with rig.store.database.write() as connection:
            connection.execute(sa.update(attempts).where(attempts.c.job_id == waits).values(uncollected=1))
        assert (collect(rig)["work"]["count"], collect(rig)["logs"]["count"]) == (1, 0)
        assert rig.lab.files.spool.attempt(waits, 1).work.is_dir()
        assert not rig.lab.files.spool.attempt(other, 1).path.exists()


def test_outputs_go_by_a_rule_and_their_names_stay(tmp_path: Path) -> None:
    with a_site(tmp_path, keeps=RetentionRules(outputs=0, logs=0, unused=0, work=None)) as rig:
        job = finished(rig, b"one", b"two", log=b"words")
        age(*blobs(rig))
        dry = collect(rig, dry_run=True)
        assert (dry["outputs"]["count"], dry["outputs"]["size"]) == (2, 6)
        assert dry["logs"]["count"] == 1
        assert collect(rig)["outputs"]["count"] == 2
        assert blobs(rig) == []
        listed = call(rig, "GET", f"/jobs/{job}/outputs", "ada").json()["outputs"]
        assert [(one["path"], one["size"]) for one in listed] == [("outputs/0", 3), ("outputs/1", 3)]
        assert all(one["removed_at"] for one in listed)
        gone = call(rig, "GET", f"/jobs/{job}/outputs/outputs/0", "ada")
        assert gone.status_code == 404
        assert "given up" in gone.json()["detail"]
        assert f"carrel rerun {job}" in gone.json()["remedy"]
        log = call(rig, "GET", f"/jobs/{job}/log", "ada")
        assert (log.status_code, "not kept any more" in log.text) == (404, True)
        assert rig.lab.produced.record(rig.caller("ada"), job)["attempts"][0]["outputs"][0]["digest"].startswith("sha256:")


def test_a_content_that_two_jobs_stored_goes_with_the_last(strict: Rig) -> None:
    first, second = finished(strict, b"same"), finished(strict, b"same")
    assert call(strict, "DELETE", f"/jobs/{first}/outputs", "ada").json() == {"count": 1, "size": 4}
    age(*blobs(strict))
    collect(strict)
    assert call(strict, "GET", f"/jobs/{second}/outputs/outputs/0", "ada").content == b"same"
    assert call(strict, "GET", f"/jobs/{first}/outputs/outputs/0", "ada").status_code == 404
    assert call(strict, "DELETE", f"/jobs/{second}/outputs", "ada").json()["count"] == 1
    collect(strict)
    assert blobs(strict) == []


def test_outputs_are_given_up_by_their_owner_after_the_end(usual: Rig) -> None:
    job = finished(usual, b"mine")
    assert call(usual, "DELETE", f"/jobs/{job}/outputs", "bob").status_code == 404
    runs = int(call(usual, "POST", "/jobs", "ada", json={"snapshot": usual.upload()}).json()["id"])
    assert call(usual, "DELETE", f"/jobs/{runs}/outputs", "ada").status_code == 409
    assert call(usual, "DELETE", f"/jobs/{job}/outputs", "root").json()["count"] == 1
    assert call(usual, "DELETE", f"/jobs/{job}/outputs", "ada").json()["count"] == 0


def test_only_administrators_collect_and_everybody_sees_their_own(usual: Rig) -> None:
    job = finished(usual, b"12345", log=b"123")
    assert call(usual, "POST", "/storage/collect", "ada", json={}).status_code == 403
    mine = call(usual, "GET", "/storage", "ada").json()
    assert (mine["mine"]["outputs"], mine["mine"]["logs"], mine["users"]) == (5, 3, {})
    assert mine["mine"]["code"] > 0
    assert call(usual, "GET", "/storage", "bob").json()["mine"]["total"] == 0
    assert call(usual, "GET", "/storage", "root").json()["users"]["ada"]["outputs"] == 5
    call(usual, "DELETE", f"/jobs/{job}/outputs", "ada")
    assert call(usual, "GET", "/storage", "ada").json()["mine"]["outputs"] == 0


def test_who_has_too_much_starts_nothing_until_there_is_room(tmp_path: Path) -> None:
    with a_site(tmp_path, quota=100_000) as rig:
        job = finished(rig, b"x" * 200_000)
        digest = rig.store.jobs.task(job).snapshot  # type: ignore[union-attr]
        refused = call(rig, "POST", "/jobs", "ada", json={"snapshot": digest})
        assert (refused.status_code, refused.json()["type"]) == (507, "urn:carrel:problem:storage_full")
        assert "100K" in refused.json()["detail"] or "97.7K" in refused.json()["detail"]
        assert "--remove" in refused.json()["remedy"]
        other, archive = rig.archive({"other.py": "y = 1"})
        assert call(rig, "PUT", f"/snapshots/{other}", "ada", content=archive).status_code == 507
        assert call(rig, "POST", "/jobs", "bob", json={"snapshot": rig.upload("bob")}).status_code == 201
        call(rig, "DELETE", f"/jobs/{job}/outputs", "ada")
        assert call(rig, "POST", "/jobs", "ada", json={"snapshot": digest}).status_code == 201


def test_cells_are_forgotten_after_their_time(tmp_path: Path) -> None:
    with a_site(tmp_path, keeps=RetentionRules(cells=86400)) as rig:
        job = finished(rig)
        now = time.time()
        rig.store.cells.add([cell_of(job, number, seen_at=now - age) for number, age in enumerate((3 * 86400, 2 * 86400, 60), 1)])
        assert collect(rig, "cells", dry_run=True)["cells"]["count"] == 2
        assert [cell["number"] for cell in call(rig, "GET", "/cells?owner=all").json()["cells"]] == [1, 2, 3]
        assert collect(rig, "cells")["cells"]["count"] == 2
        assert [cell["number"] for cell in call(rig, "GET", "/cells", "ada").json()["cells"]] == [3]
        assert collect(rig, "cells")["cells"]["count"] == 0


def cell_of(job: int, number: int, *, seen_at: float) -> RecordedCell:
    return RecordedCell(
        broker="b",
        number=number,
        session=job,
        attempt=1,
        process="7-70",
        asked_at=seen_at - 3,
        granted_at=seen_at - 2,
        returned_at=seen_at,
        seen_at=seen_at,
        computed=2.0,
        gpus=1,
    )
