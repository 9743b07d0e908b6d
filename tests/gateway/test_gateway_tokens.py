"""Tokens: what each is good for, how it ends, and what its bearer is told."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import V1, Rig, a_lab, client, serve

from carrel.core.control.last_use import LastUse
from carrel.core.domain.errors import Unauthenticated
from carrel.core.domain.job import JobState
from carrel.core.policy.access import CHOICES, SCOPES, Action
from carrel.testing.waiting import PATIENCE

DAY = 86400.0


def make(http: httpx.Client, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = http.post(f"{V1}/tokens", json={"name": "a test", "scopes": scopes, **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.gate
def test_each_scope_lets_its_bearer_do_what_the_table_says(rig: Rig, root: httpx.Client) -> None:
    digest = rig.upload("root")
    job = root.post(f"{V1}/jobs", json={"snapshot": digest}).json()["id"]
    #: One request of each kind, and what a lab answers that lets it through.
    kinds: Mapping[Action, tuple[str, str, Any, int]] = {
        Action.LOOK: ("GET", f"{V1}/jobs", None, 200),
        Action.SUBMIT: ("POST", f"{V1}/jobs", {"snapshot": digest}, 201),
        Action.CANCEL_JOB: ("POST", f"{V1}/jobs/{job}/cancel", None, 202),
        Action.START_SESSION: ("POST", f"{V1}/sessions", {"kind": "terminal"}, 201),
        Action.TRACK: ("GET", "/mlflow/", None, 404),  # nothing is mounted there
        Action.MANAGE_TOKENS: ("POST", f"{V1}/tokens", {"scopes": ["read"]}, 201),
        Action.RELOAD: ("POST", f"{V1}/lab/reload", None, 200),
    }
    for scope in CHOICES:
        token = make(root, scope)["token"]
        for action, (method, path, body, through) in kinds.items():
            answer = root.request(method, path, json=body, headers=bearer(token))
            expected = through if action in SCOPES[scope] else 403
            assert answer.status_code == expected, (scope, action, answer.text)
            if expected == 403:
                assert f"for {scope} only" in answer.json()["detail"]
                assert "carrel token create --scope" in answer.json()["remedy"]


def test_nobody_makes_a_token_for_more_than_their_own(rig: Rig, ada: httpx.Client) -> None:
    assert make(ada)["about"]["scopes"] == ["all"]
    unknown = ada.post(f"{V1}/tokens", json={"scopes": ["root"]}).json()
    assert unknown["remedy"] == "There are: all, read, submit, sessions, tracking."
    for internal in ("job", "invitation"):
        assert ada.post(f"{V1}/tokens", json={"scopes": [internal]}).status_code == 422
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload()}).json()["id"]
    jobs = rig.engine.wait_started(job)[1]
    for method, path in (("POST", "/tokens"), ("GET", "/tokens"), ("DELETE", "/tokens/1")):
        answer = ada.request(method, V1 + path, json={}, headers=bearer(jobs))
        assert (answer.status_code, f"job {job}" in answer.json()["detail"]) == (403, True)
    assert ada.delete(f"{V1}/tokens/current", headers=bearer(jobs)).status_code == 404


def test_tokens_are_listed_without_themselves_and_each_sees_their_own(
    ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    made = make(ada, "read", "tracking", expires_in=3600)
    listed = ada.get(f"{V1}/tokens")
    assert made["token"] not in listed.text
    mine = listed.json()["tokens"][-1]
    assert mine == made["about"]
    assert (mine["name"], mine["scopes"], mine["state"], mine["user"]) == ("a test", ["read", "tracking"], "valid", "ada")
    number = mine["id"]
    assert number not in [one["id"] for one in bob.get(f"{V1}/tokens").json()["tokens"]]
    assert bob.delete(f"{V1}/tokens/{number}").text == bob.delete(f"{V1}/tokens/99999").text.replace("99999", str(number))
    assert bob.get(f"{V1}/tokens", params={"all": True}).status_code == 403
    assert number in [one["id"] for one in root.get(f"{V1}/tokens", params={"all": True}).json()["tokens"]]
    assert root.delete(f"{V1}/tokens/{number}").status_code == 204
    after = ada.get(f"{V1}/tokens").json()["tokens"][-1]
    assert (after["state"], after["revoked_by"]) == ("revoked", "root")


def test_expired_and_revoked_and_unknown_are_told_apart(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    with a_lab(tmp_path, clock=lambda: now[0]) as rig:
        caller = rig.caller("ada")
        short, text = rig.lab.tokens.create(caller, name="laptop", lifetime=DAY)
        other, revoked = rig.lab.tokens.create(caller, name="old laptop")
        rig.lab.tokens.revoke(rig.caller("root"), other.id)
        assert rig.lab.authenticate(text).token_id == short.id
        now[0] += DAY
        with pytest.raises(
            Unauthenticated, match=r'"laptop" \(number \d+\) expired on 2023-11-15 22:13 UTC.*carrel user reset ada'
        ):
            rig.lab.authenticate(text)
        with pytest.raises(
            Unauthenticated, match=r'"old laptop" .* was revoked on 2023-11-14 22:13 UTC by root.*carrel user reset ada'
        ):
            rig.lab.authenticate(revoked)
        with pytest.raises(Unauthenticated, match="not valid here"):
            rig.lab.authenticate("carrel_nothing")
        forever, text = rig.lab.tokens.create(caller, lifetime=None)
        now[0] += 1000 * DAY
        assert rig.lab.authenticate(text).token_id == forever.id


def test_a_token_may_be_for_one_account_alone(rig: Rig, ada: httpx.Client) -> None:
    made = make(ada, "all", account="default")
    with client(str(ada.base_url), bearer(made["token"])) as http:
        digest = rig.upload()
        assert http.post(f"{V1}/jobs", json={"snapshot": digest}).json()["account"] == "default"
        answer = http.post(f"{V1}/jobs", json={"snapshot": digest, "account": "optics"})
        assert (answer.status_code, 'account "default" alone' in answer.json()["detail"]) == (403, True)
        # And so are those that it makes.
        assert make(http)["about"]["account"] == "default"
        assert http.post(f"{V1}/tokens", json={"account": "optics"}).status_code == 403


def test_a_revoked_token_ends_its_streams_at_once(tmp_path: Path) -> None:
    # No sign of life comes that could end it.
    with a_lab(tmp_path, heartbeat=PATIENCE * 10) as rig, serve(rig.app) as url, client(url, rig.headers("ada")) as ada:
        made = make(ada, "read")
        with client(url, bearer(made["token"])) as http:
            with http.stream("GET", f"{V1}/events", headers={"Accept": "text/event-stream"}) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("retry")
                assert ada.delete(f"{V1}/tokens/{made['about']['id']}").status_code == 204
                assert not [line for line in lines if line]  # and it ends


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("DELETE", "/tokens/{token}", None, 401),
        ("POST", "/users/ada/revoke", {}, 401),
        ("POST", "/users/ada/suspend", {"reason": "a test"}, 403),
        ("DELETE", "/users/ada", None, 401),
    ],
)
def test_who_was_known_a_moment_ago_is_looked_up_again_when_that_ends(
    rig: Rig, ada: httpx.Client, root: httpx.Client, method: str, path: str, body: object, status: int
) -> None:
    made = make(ada, "read")
    assert ada.get(f"{V1}/lab", headers=bearer(made["token"])).status_code == 200
    caller = rig.lab.recognize(made["token"])  # it is known now, unless this took more than a second
    assert caller is None or caller.user.subject == "ada"
    answer = root.request(method, V1 + path.format(token=made["about"]["id"]), json=body)
    assert answer.is_success, answer.text
    assert ada.get(f"{V1}/lab", headers=bearer(made["token"])).status_code == status


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/jobs/{job}/cancel", {}, 401),
        ("/users/ada/revoke", {}, 401),
        ("/users/ada/suspend", {"reason": "a test"}, 403),
    ],
)
def test_a_job_that_was_known_a_moment_ago_is_looked_up_again_when_that_ends(
    rig: Rig, ada: httpx.Client, root: httpx.Client, path: str, body: object, status: int
) -> None:
    job = rig.running(ada)
    _, token = rig.engine.wait_started(job)
    assert ada.get(f"{V1}/lab", headers=bearer(token)).status_code == 200
    caller = rig.lab.recognize(token)  # it is known now, unless this took more than a second
    assert caller is None or (caller.user.subject, caller.job_id) == ("ada", job)
    assert root.post(V1 + path.format(job=job), json=body).is_success
    if "cancel" in path:
        rig.engine.end(job)
        rig.wait_for(lambda: rig.lab.jobs_store.get(job).state.ended)
    assert ada.get(f"{V1}/lab", headers=bearer(token)).status_code == status


def test_a_token_signs_itself_out(ada: httpx.Client) -> None:
    token = make(ada, "tracking")["token"]
    assert ada.delete(f"{V1}/tokens/current", headers=bearer(token)).status_code == 204
    answer = ada.delete(f"{V1}/tokens/current", headers=bearer(token))
    assert (answer.status_code, answer.json()["details"]["cause"]) == (401, "revoked")


def test_last_use_is_written_once_a_minute_and_not_by_the_request() -> None:
    written: list[Mapping[int, float]] = []
    news = threading.Semaphore(0)

    def write(moments: Mapping[int, float]) -> None:
        assert threading.current_thread().name == "last use of tokens"
        written.append(dict(moments))
        news.release()

    uses = LastUse(write)
    for now in (100.0, 100.5, 159.9):
        uses.note(1, now)
    assert news.acquire(timeout=PATIENCE)
    uses.note(1, 160.0)
    assert news.acquire(timeout=PATIENCE)
    uses.note(2, 161.0)
    uses.close()
    uses.note(3, 162.0)
    assert written == [{1: 100.0}, {1: 160.0}, {2: 161.0}]


def test_last_use_is_shown(rig: Rig, ada: httpx.Client) -> None:
    made = make(ada, "read")
    assert made["about"]["last_used_at"] is None
    assert ada.get(f"{V1}/jobs", headers=bearer(made["token"])).status_code == 200
    rig.lab.tokens.close()  # writes what is left
    assert ada.get(f"{V1}/tokens").json()["tokens"][-1]["last_used_at"] is not None


def test_a_reset_gives_a_new_token_and_ends_the_others(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    assert ada.post(f"{V1}/users/ada/reset", json={}).status_code == 403
    exists = root.post(f"{V1}/users", json={"name": "ada"})
    assert (exists.status_code, "carrel user reset ada" in exists.json()["remedy"]) == (409, True)
    made = root.post(f"{V1}/users/ada/reset", json={"expires_in": 60}).json()
    assert ada.get(f"{V1}/jobs").json()["details"]["cause"] == "revoked"
    assert ada.get(f"{V1}/jobs", headers=bearer(made["token"])).status_code == 200
    assert made["expires_at"] is not None
    assert root.post(f"{V1}/users/nobody/reset", json={}).status_code == 404


def test_a_jobs_token_is_void_with_its_attempt(rig: Rig, ada: httpx.Client) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload(), "retries": 1}).json()["id"]
    _, first = rig.engine.wait_started(job)
    caller = rig.lab.authenticate(first)
    assert caller.job_id == job
    rig.engine.end(job, state=JobState.FAILED, exit_code=1)
    _, second = rig.engine.wait_started(job, attempt=2)
    rig.wait(job, JobState.CONFIGURING)
    with pytest.raises(Unauthenticated, match="is over"):
        rig.lab.authenticate(first)
    assert rig.lab.authenticate(second).job_id == job
