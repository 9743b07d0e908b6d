"""Reservations over REST."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from gateway_lab import V1, Rig

from carrel.core.domain.nouns import RESERVATIONS
from carrel.core.domain.reservation import Reservation


def at(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


def submit(rig: Rig, name: str, who: httpx.Client, minutes: int = 60) -> int:
    answer = who.post(f"{V1}/jobs", json={"snapshot": rig.upload(name), "resources": {"gpus": 1, "time": f"{minutes}m"}})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def reserve(who: httpx.Client, name: str = "course", begin: float = 1800, end: float = 7200, **more: Any) -> httpx.Response:
    body = {"begin": at(begin), "end": at(end), "reason": "the course on Friday", **more}
    return who.put(f"{V1}/reservations/{name}", json=body)


def test_everybody_sees_when_and_only_those_it_is_for_see_whose(ada: httpx.Client, bob: httpx.Client, root: httpx.Client) -> None:
    reserve(root, users=["bob"], nodes=["ben*"])
    reserve(root, "power", begin=9000, end=9900, reason="the power is off")
    seen = {
        name: who.get(f"{V1}/reservations").json()["reservations"] for name, who in (("ada", ada), ("bob", bob), ("root", root))
    }
    for found in seen.values():
        assert [(one["name"], one["nodes"]) for one in found] == [("course", ["bench"]), ("power", ["bench"])]
        assert [one["reason"] for one in found] == ["the course on Friday", "the power is off"]
    assert [(found[0]["users"], found[0]["admits_me"]) for found in seen.values()] == [
        ([], False),
        (["bob"], True),
        (["bob"], False),
    ]


def test_it_outlives_the_server_and_is_forgotten_when_it_is_over(rig: Rig, root: httpx.Client) -> None:
    rig.store.of(RESERVATIONS).put(Reservation(name="past", begin=1.0, end=2.0))
    reserve(root)
    assert [one["name"] for one in root.get(f"{V1}/reservations").json()["reservations"]] == ["course"]
    (course,) = rig.store.of(RESERVATIONS).all()
    assert (course.name, course.by) == ("course", "root")
    rig.store.of(RESERVATIONS).put(Reservation(name="past", begin=1.0, end=2.0))
    reserve(root, "next", begin=9000, end=9100)
    assert [one.name for one in rig.store.of(RESERVATIONS).all()] == ["course", "next"]


def test_one_of_the_same_name_is_replaced(root: httpx.Client) -> None:
    body = {"begin": at(100), "end": at(200), "reason": "first"}
    assert root.put(f"{V1}/reservations/a", json=body).json()["changed"] is True
    assert root.put(f"{V1}/reservations/a", json=body).json()["changed"] is False
    assert root.put(f"{V1}/reservations/a", json={**body, "reason": "second"}).json()["changed"] is True
    assert [one["reason"] for one in root.get(f"{V1}/reservations").json()["reservations"]] == ["second"]


@pytest.mark.parametrize("body", [{}, {"begin": None}])
def test_without_a_begin_it_begins_now(root: httpx.Client, body: dict[str, Any]) -> None:
    before = datetime.now(UTC)
    made = root.put(f"{V1}/reservations/a", json={"end": at(60), "reason": "why", **body}).json()["reservation"]
    assert before <= datetime.fromisoformat(made["begin"]) <= datetime.now(UTC)
    assert "by" not in made


@pytest.mark.parametrize(
    ("name", "body", "status", "words"),
    [
        ("a b", {}, 422, "cannot be the name"),
        ("a", {"begin": at(10), "end": at(5)}, 422, "ends before it begins"),
        ("a", {"begin": at(-10), "end": at(-5)}, 422, "over already"),
        ("a", {"end": "2026-12-01T09:00:00"}, 422, "no zone"),
        ("a", {"nodes": ["gpu["]}, 422, "names no nodes"),
        ("a", {"nodes": ["elsewhere"]}, 404, "There are: bench"),
        ("a", {"users": ["nobody"]}, 404, 'no user "nobody"'),
        ("a", {"reason": " "}, 422, "The reason has 0 characters"),
        ("a", {"who": "me"}, 422, "who"),
    ],
)
def test_what_would_keep_nothing_is_refused(root: httpx.Client, name: str, body: dict[str, Any], status: int, words: str) -> None:
    answer = root.put(f"{V1}/reservations/{name}", json={"begin": at(0), "end": at(60), "reason": "why", **body})
    assert answer.status_code == status, answer.text
    assert words in answer.text.replace('\\"', '"')


@pytest.mark.gate
def test_jobs_that_would_reach_into_it_wait_and_shorter_ones_start(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    answer = reserve(root, users=["bob"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["changed"] is True
    long, short = submit(rig, "ada", ada, minutes=60), submit(rig, "ada", ada, minutes=20)
    rig.engine.wait_started(short)
    rig.wait_for(lambda: "course" in ada.get(f"{V1}/jobs/{long}").json()["message"])
    message = ada.get(f"{V1}/jobs/{long}").json()["message"]
    assert 'bench is kept for reservation "course" (the course on Friday) in ' in message
    assert "a job of at most " in message
    assert root.delete(f"{V1}/reservations/course").status_code == 204
    rig.engine.wait_started(long)


def test_those_it_is_for_run_in_it(rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client) -> None:
    reserve(root, begin=-60, users=["bob"])
    shut_out, let_in = submit(rig, "ada", ada, minutes=5), submit(rig, "bob", bob, minutes=5)
    rig.engine.wait_started(let_in)
    assert ada.get(f"{V1}/jobs/{shut_out}").json()["state"] == "PENDING"
