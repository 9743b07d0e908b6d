"""Every change and every refusal has a line: who, on what, where from, by which rule. Secrets are in none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import V1, Rig, a_lab, client, serve

from carrel.core.domain.errors import StorageFull
from carrel.lab.audit import AuditFilter

SECRET = "planted-9f2e77-secret"


def last(rig: Rig, **wanted: str) -> dict[str, Any]:
    return rig.audit.read(AuditFilter(**wanted), limit=1, newest=True)[0]  # type: ignore[arg-type]


def count(rig: Rig) -> int:
    return rig.audit.last


@pytest.mark.gate
def test_changes_have_a_line_with_their_rule_and_reads_have_none(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload("ada")}).raise_for_status().json()["id"]
    line = last(rig)
    assert {key: line[key] for key in ("who", "role", "from", "method", "resource", "action", "result", "status", "made")} == {
        "who": "ada", "role": "user", "from": "127.0.0.1", "method": "POST", "resource": "/jobs", "action": "submit jobs",
        "result": "allowed", "status": 201, "made": f"/jobs/{job}",
    }  # fmt: skip
    before = count(rig)
    ada.get(f"{V1}/jobs/{job}").raise_for_status()
    root.get(f"{V1}/jobs/{job}/log").raise_for_status()
    assert count(rig) == before
    root.post(f"{V1}/jobs/{job}/cancel").raise_for_status()
    line = last(rig)
    assert (line["who"], line["action"], line["rule"], line["resource"]) == (
        "root", "cancel this job", "administrator", f"/jobs/{job}/cancel",
    )  # fmt: skip
    assert ada.post(f"{V1}/jobs", json={"nothing": 1}).status_code == 422
    assert (last(rig)["result"], last(rig)["status"]) == ("failed", 422)


def test_refusals_have_a_line_with_what_was_missing(rig: Rig, bob: httpx.Client, ada: httpx.Client, nobody: httpx.Client) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload("ada")}).raise_for_status().json()["id"]
    assert bob.get(f"{V1}/jobs/{job}/log").status_code == 404
    line = last(rig)
    assert (line["who"], line["result"], line["status"], line["resource"]) == ("bob", "refused", 404, f"/jobs/{job}/log")
    assert bob.get(f"{V1}/users").status_code == 403
    assert (last(rig)["rule"], last(rig)["action"]) == ("administrator", "manage users")
    before = count(rig)
    assert bob.get(f"{V1}/jobs/999999").status_code == 404  # it is not there for anybody
    assert count(rig) == before
    assert nobody.get(f"{V1}/jobs", headers={"Authorization": f"Bearer {SECRET}"}).status_code == 401
    line = last(rig)
    assert (line.get("who"), line["result"], line["rule"], line["from"]) == (None, "refused", "signed in", "127.0.0.1")
    engine_token = rig.engine.wait_started(job)[1]
    assert nobody.get(f"{V1}/audit", headers={"Authorization": f"Bearer {engine_token}"}).status_code == 403
    line = last(rig)
    assert (line["who"], line["job"], line["rule"]) == ("ada", job, "token of a job")
    assert ada.get(f"{V1}/audit").status_code == 403


def test_a_flood_of_refusals_is_counted(rig: Rig, nobody: httpx.Client) -> None:
    before = count(rig)
    for _ in range(60):
        assert nobody.get(f"{V1}/jobs").status_code == 401
    assert count(rig) - before == 10


def test_secrets_are_in_no_line(rig: Rig, ada: httpx.Client, root: httpx.Client, nobody: httpx.Client) -> None:
    assert ada.put(f"{V1}/secrets/KEY", json={"value": SECRET}).is_success
    assert ada.post(f"{V1}/jobs?x={SECRET}", json={"snapshot": rig.upload("ada"), "variables": {"A": SECRET}}).is_success
    token = root.post(f"{V1}/users", json={"name": "carl"}).raise_for_status().json()["token"]
    code = root.post(f"{V1}/invitations", json={"name": "dora"}).raise_for_status().json()["code"]
    with client(str(nobody.base_url), {"Authorization": f"Bearer {code}"}) as dora:
        made = dora.post(f"{V1}/invitations/current/redeem", json={}).raise_for_status().json()["token"]
    nobody.get(f"/login?ticket={SECRET}")
    nobody.get(f"{V1}/jobs", headers={"Authorization": f"Bearer {SECRET}", "Cookie": f"a={SECRET}"})
    text = rig.audited().decode()
    for planted in (SECRET, token, code, made, *rig.tokens.values()):
        assert planted not in text


def test_operators_read_and_filter_it_through_the_api(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    for _ in range(5):
        ada.post(f"{V1}/jobs", json={"snapshot": rig.upload("ada")}).raise_for_status()
    page = root.get(f"{V1}/audit", params={"user": "ada", "limit": 2}).raise_for_status().json()
    assert [line["who"] for line in page["lines"]] == ["ada", "ada"]
    rest = root.get(f"{V1}/audit", params={"user": "ada", "after": page["next"]}).raise_for_status().json()
    assert len(rest["lines"]) == 3
    assert rest["next"] is None
    assert root.get(f"{V1}/audit", params={"result": "refused", "since": "2020-01-01T00:00"}).json()["lines"] == []


def test_nothing_is_changed_while_it_cannot_be_written_down(rig: Rig, ada: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = rig.upload("ada")
    job = ada.post(f"{V1}/jobs", json={"snapshot": snapshot}).raise_for_status().json()["id"]

    def full(*, frees: bool = False) -> None:
        if not frees:
            raise StorageFull("There is no room to write down who does what.")

    monkeypatch.setattr(rig.audit, "make_room", full)
    assert ada.post(f"{V1}/jobs", json={"snapshot": snapshot}).status_code == 507
    assert [one["id"] for one in ada.get(f"{V1}/jobs").json()["jobs"]] == [job]
    assert ada.post(f"{V1}/jobs/{job}/cancel").is_success


@pytest.mark.parametrize(("reads", "lines"), [("others", 1), ("all", 2)])
def test_reads_have_lines_where_a_rule_of_the_lab_asks(tmp_path: Path, reads: str, lines: int) -> None:
    with a_lab(tmp_path, audit_reads=reads) as rig, serve(rig.app) as url:  # type: ignore[arg-type]
        with client(url, rig.headers("ada")) as ada, client(url, rig.headers("root")) as root:
            job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload("ada")}).raise_for_status().json()["id"]
            before = count(rig)
            ada.get(f"{V1}/jobs/{job}").raise_for_status()
            root.get(f"{V1}/jobs/{job}").raise_for_status()
            assert count(rig) - before == lines
            assert (last(rig)["who"], last(rig)["rule"]) == ("root", "administrator")
