"""Accounts and fair share over REST."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from gateway_lab import RULES, V1, Rig

from carrel.core.domain.account import Account
from carrel.core.domain.job import JobState

ACCOUNTS = {
    "physics": Account(name="physics", shares=3, users={"ada": 2, "root": 1}),
    "biology": Account(name="biology", shares=1),
}


@pytest.fixture
def accounts(rig: Rig) -> Rig:
    rig.written.append(replace(RULES, accounts=ACCOUNTS))
    assert rig.lab.administration.apply_rules()
    return rig


def submit(rig: Rig, who: httpx.Client, account: str | None = None) -> httpx.Response:
    return who.post(f"{V1}/jobs", json={"snapshot": rig.upload(), "account": account, "resources": {"gpus": 1}})


@pytest.mark.parametrize("account", ["root", "physics", "ada"])
def test_without_accounts_no_word_is_a_fresh_share(rig: Rig, ada: httpx.Client, root: httpx.Client, account: str) -> None:
    task = {"snapshot": rig.upload()}
    a_sweep = {"task": task, "parameters": {"times": "int(1, 9)"}, "metric": "loss", "trials": 1}
    named: list[tuple[str, dict[str, object]]] = [
        ("/jobs", task), ("/sessions", {}), ("/tokens", {}),
        ("/pools", {"max_workers": 1, "task": task}), ("/sweeps", a_sweep),
    ]  # fmt: skip
    for path, body in named:
        inner = body.get("task")
        said = {**body, "task": {**inner, "account": account}} if isinstance(inner, dict) else {**body, "account": account}
        answer = ada.post(V1 + path, json=said)
        told = (answer.status_code, answer.json().get("detail"), answer.json().get("remedy"))
        assert told == (422, f'There is no account "{account}".', "Open to ada: default."), path
    times = {"begin": "2090-01-01T00:00:00Z", "end": "2090-01-02T00:00:00Z", "nodes": ["*"], "reason": "x", "accounts": [account]}
    kept = root.put(f"{V1}/reservations/mine", json=times)
    assert (kept.status_code, kept.json()["remedy"]) == (404, "There are: default."), kept.text


@pytest.mark.gate
def test_work_is_charged_to_an_account_that_admits_its_owner(accounts: Rig, ada: httpx.Client) -> None:
    assert submit(accounts, ada).json()["account"] == "physics"
    assert submit(accounts, ada, "biology").json()["account"] == "biology"
    wrong = submit(accounts, ada, "phisics")
    assert (wrong.status_code, wrong.json()["detail"]) == (422, 'There is no account "phisics".')
    assert 'Did you mean "physics"?' in wrong.json()["remedy"]


def test_a_task_whose_account_is_gone_can_be_run_again(accounts: Rig, ada: httpx.Client) -> None:
    job = submit(accounts, ada, "biology").json()["id"]
    accounts.written.append(replace(RULES, accounts={"physics": ACCOUNTS["physics"]}))
    assert accounts.lab.administration.apply_rules()
    assert ada.post(f"{V1}/jobs/{job}/rerun").json()["account"] == "physics"


def test_an_account_is_not_for_everybody(accounts: Rig, bob: httpx.Client) -> None:
    code, archive = accounts.archive({"main.py": "print(1)\n"})
    assert bob.put(f"{V1}/snapshots/{code}", content=archive).status_code == 201
    body = {"snapshot": code, "script": "main.py"}
    assert bob.post(f"{V1}/jobs", json=body).json()["account"] == "biology"
    refused = bob.post(f"{V1}/jobs", json={**body, "account": "physics"})
    assert refused.status_code == 403
    assert "may not charge account" in refused.json()["detail"]
    assert "Open to bob: biology." in refused.json()["remedy"]


def test_everybody_sees_their_own_standing_and_administrators_all(
    accounts: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    job = submit(accounts, ada).json()["id"]
    accounts.engine.run(job)
    accounts.wait(job, JobState.RUNNING)
    mine = ada.get(f"{V1}/share").json()
    assert [(row["account"], row["user"], row["place"]) for row in mine["standings"]] == [("physics", "ada", 1)]
    assert mine["held"] == pytest.approx(1 + 0.02)
    assert set(mine["in_an_hour_kept"]) == {"physics"}
    theirs = bob.get(f"{V1}/share").json()
    assert [(row["user"], row["factor"], row["place"]) for row in theirs["standings"]] == [("bob", 1.0, 1)]
    assert theirs["held"] == 0
    assert {row["user"] for row in root.get(f"{V1}/share").json()["standings"]} == {"ada", "root"}
    accounts.engine.end(job)
    accounts.wait(job, JobState.COMPLETED)
    assert ada.get(f"{V1}/share").json()["held"] == 0
