"""People come, are suspended, and go; and what becomes of their jobs."""

from __future__ import annotations

import httpx
import pytest
from gateway_lab import V1, Rig, client

from carrel.core.domain.errors import Denied
from carrel.core.domain.job import JobState


@pytest.mark.gate
def test_nothing_of_a_suspended_user_is_accepted(rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client) -> None:
    runs = rig.submit(ada, resources={"gpus": 2})
    token = rig.engine.wait_started(runs)[1]
    rig.engine.run(runs)
    waits = rig.submit(ada, resources={"gpus": 2})
    after = rig.submit(ada, dependency=f"afterok:{runs}")
    digest = rig.upload()
    with ada.stream("GET", f"{V1}/events", headers={"Accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry")
        answer = root.post(f"{V1}/users/ada/suspend", json={"reason": "Mines coins"})
        assert (answer.json()["user"]["state"], answer.json()["cancelled"]) == ("suspended", 0)
        for _ in lines:  # and it ends
            pass
    refused = ada.get(f"{V1}/jobs")
    assert (refused.status_code, "Ada is suspended since" in refused.json()["detail"]) == (403, True)
    assert refused.json()["details"]["reason"] == "Mines coins"
    # Her running job goes on, and its token opens nothing.
    jobs = {"Authorization": f"Bearer {token}"}
    for request in (
        root.build_request("GET", f"{V1}/jobs/{runs}"),
        root.build_request("POST", f"{V1}/jobs", json={"snapshot": digest}),
    ):
        request.headers.update(jobs)
        answer = root.send(request)
        assert (answer.status_code, "Mines coins" in answer.json()["detail"]) == (403, True)
    rig.engine.end(runs)
    other = rig.submit(bob, "bob", resources={"gpus": 2})
    rig.engine.wait_started(other)  # who came later starts, and she does not
    for job in (waits, after):
        shown = root.get(f"{V1}/jobs/{job}").json()
        assert (shown["state"], shown["reason"], "Mines coins" in shown["message"]) == ("PENDING", "JobHeldAdmin", True)
    assert root.post(f"{V1}/users/ada/resume").json()["user"]["state"] == "active"
    rig.engine.wait_started(after)
    rig.engine.end(other)
    rig.engine.wait_started(waits)
    assert ada.get(f"{V1}/jobs").status_code == 200


def test_what_a_suspended_user_has_may_be_cancelled(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    runs, waits = rig.submit(ada, resources={"gpus": 2}), rig.submit(ada, resources={"gpus": 2})
    rig.engine.wait_started(runs)
    assert root.post(f"{V1}/users/ada/suspend", json={"cancel_running": True}).json()["cancelled"] == 1
    rig.wait(runs, JobState.CANCELLED)
    assert root.post(f"{V1}/jobs/{waits}/cancel").status_code == 202
    rig.wait(waits, JobState.CANCELLED)


def test_a_suspension_outlives_the_server(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    root.post(f"{V1}/users/ada/suspend", json={"reason": "away"})
    rig.lab.users.held.refresh()
    assert "away" in rig.lab.held()["ada"].message
    with pytest.raises(Denied, match="away"):
        rig.caller("ada")


def test_a_removed_user_leaves_records_and_no_name(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    runs, waits = rig.submit(ada, resources={"gpus": 2}), rig.submit(ada, resources={"gpus": 2})
    rig.engine.wait_started(runs)
    assert root.delete(f"{V1}/users/ada").json()["cancelled"] == 2
    for job in (runs, waits):
        rig.wait(job, JobState.CANCELLED)
    assert root.get(f"{V1}/jobs/{runs}/record").json()["job"]["owner"] == "ada"
    assert ada.get(f"{V1}/jobs").status_code == 401
    for path, body in (("/users", {"name": "ada"}), ("/users/ada/reset", {}), ("/invitations", {"name": "ada"})):
        answer = root.post(V1 + path, json=body)
        assert (answer.status_code, "carrel user resume ada" in answer.json()["remedy"]) == (409, True)
    root.post(f"{V1}/users/ada/resume")
    assert ada.get(f"{V1}/jobs").status_code == 401  # the old tokens stay void


def test_an_invitation_is_good_for_one_token_and_nothing_else(rig: Rig, url: str, root: httpx.Client) -> None:
    made = root.post(f"{V1}/invitations", json={"name": "Grace Hopper"}).json()
    assert [one["scopes"] for one in root.get(f"{V1}/tokens", params={"all": True}).json()["tokens"]][-1] == ["invitation"]
    with client(url, {"Authorization": f"Bearer {made['code']}"}) as grace:
        assert grace.get(f"{V1}/jobs").status_code == 403
        assert grace.post(f"{V1}/tokens", json={}).status_code == 403
        first = grace.post(f"{V1}/invitations/current/redeem", json={})
        assert first.status_code == 201
        second = grace.post(f"{V1}/invitations/current/redeem", json={})
        assert (second.status_code, "used or taken back" in second.json()["detail"]) == (401, True)
        grace.headers["Authorization"] = f"Bearer {first.json()['token']}"
        assert grace.get(f"{V1}/lab").json()["caller"]["subject"] == "Grace Hopper"
        third = grace.post(f"{V1}/invitations/current/redeem", json={})
        assert (third.status_code, "no invitation" in third.json()["detail"]) == (409, True)


@pytest.mark.parametrize("path", ["/users", "/invitations"])
def test_names_that_look_like_a_users_are_refused(root: httpx.Client, path: str) -> None:
    for name, status in (("Ada", 409), ("ADA", 409), ("аda", 422), ("ada ", 422), ("ada\ufe0f", 422)):
        answer = root.post(V1 + path, json={"name": name})
        assert (answer.status_code, bool(answer.json()["remedy"])) == (status, True), answer.text
    assert "ada" in root.post(V1 + path, json={"name": "Ada"}).json()["detail"]


def test_the_last_administrator_stays(root: httpx.Client) -> None:
    for method, path in (("POST", "/users/root/suspend"), ("DELETE", "/users/root")):
        answer = root.request(method, V1 + path, json={})
        assert (answer.status_code, "only administrator" in answer.json()["detail"]) == (409, True)
    root.post(f"{V1}/users", json={"name": "second", "role": "admin"})
    assert root.delete(f"{V1}/users/root").status_code == 200
