"""A challenge of 50 teams and 2,000 submissions: what its calls and its page take, alone and with 50 browsers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import httpx

import reads
from carrel import Client
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, Fault, SubmissionState, Team
from carrel.core.domain.nouns import CHALLENGES, SUBMISSIONS, TEAMS
from carrel.lab.gateway.challenge_sent import SentSubmissions
from carrel.lab.store import Database, Store
from figure import Figure, percentile
from support.lab_process import LabProcess, start_lab

TEAMS_, EACH = 50, 40
#: Other challenges of the lab, as large.
OTHERS = 5
_ASKED = 40
_SECONDS = 15.0
_YAML = """\
name: bench{}
title: A challenge
pages: {{Overview: page.md}}
data: {{public: {{input: data/input, reference: data/reference}}}}
ingestion: ingestion
scoring: scoring
phases: [{{name: development, begin: 2026-01-01, end: 2040-01-01, split: public}}]
board: [{{column: accuracy, title: Accuracy, better: larger, precision: 3}}]
limits: {{per_day: 50, total: 100}}
"""
_PROGRAM = "name: x\nentry_points: {main: {command: 'true'}}\n"


def measure(scratch: Path) -> list[Figure]:
    """The figures of all calls."""
    home = scratch / "lab"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\n')
    lab = start_lab(home, simulate_gpus=0)
    with Client(url=lab.url, token=lab.token) as client:
        tokens = [client.add_user(f"user{number}").token for number in range(TEAMS_)]
        for number in range(OTHERS + 1):
            client.keep_challenge(_directory(scratch / f"challenge{number}", number))
            client.publish_challenge(f"bench{number}")
    lab.stop()
    _fill(home)
    lab = start_lab(home, simulate_gpus=0)
    try:
        alone = _calls(lab, tokens[0], "")
        organiser = _calls(lab, lab.token, ", an organiser’s")
        return [*alone, *organiser, *_crowd(lab, tokens), *_writes(home)]
    finally:
        lab.stop()


def _directory(place: Path, number: int) -> Path:
    texts = {
        "challenge.yaml": _YAML.format(number),
        "page.md": "word " * 2000,
        "data/input/x": "1",
        "data/reference/x": "1",
        "ingestion/MLproject": _PROGRAM,
        "scoring/MLproject": _PROGRAM,
    }
    for path, text in texts.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def _fill(home: Path) -> None:
    database = Database.at(home / "lab.db")
    store, now = Store(database), time.time()
    for challenge in store.of(CHALLENGES).all():
        for number in range(TEAMS_):
            store.of(TEAMS).put(
                Team(challenge=challenge.name, name=f"team{number}", members=(f"user{number}",), code=f"{number}")
            )
        for number in range(TEAMS_ * EACH):
            store.of(SUBMISSIONS).put(_submission(challenge, number, now))
    database.close()


def _submission(challenge: Challenge, number: int, now: float) -> ChallengeSubmission:
    made = ChallengeSubmission(
        challenge=challenge.name, version=challenge.version, phase="development", team=f"team{number % TEAMS_}",
        by=f"user{number % TEAMS_}", snapshot="sha256:" + "0" * 64, made_at=now - 100 * (TEAMS_ * EACH - number), ended_at=now,
    )  # fmt: skip
    if number % 10 < 3:
        return replace(made, state=SubmissionState.FAILED, fault=Fault.TEAM, message="Its code ended with an error.")
    return replace(made, state=SubmissionState.COMPLETED, scores={"accuracy": (number * 7919 % 1000) / 1000})


def _calls(lab: LabProcess, token: str, whose: str) -> list[Figure]:
    return [
        percentile(f"{name}{whose}, p95", _waits(ask, _ASKED), "ms", 95, at_most=100) for name, ask in _asks(lab, token).items()
    ]


def _asks(lab: LabProcess, token: str) -> dict[str, Callable[[], object]]:
    http = httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
    link = http.post("/api/v1/tokens/current/link").raise_for_status().json()["url"]
    browser = httpx.Client(base_url=lab.url, headers={"Accept": "text/html", "Sec-Fetch-Site": "none"}, timeout=60)
    browser.get(link)
    name = "/api/v1/challenges/bench0"
    return {
        "challenge": lambda: http.get(name).raise_for_status(),
        "board": lambda: http.get(f"{name}/board").raise_for_status(),
        "submissions": lambda: http.get(f"{name}/submissions").raise_for_status(),
        "submissions, 500 a page": lambda: http.get(f"{name}/submissions?limit=500").raise_for_status(),
        "page, what changes": lambda: browser.get("/challenges/bench0?part=live").raise_for_status(),
    }


def _waits(ask: Callable[[], object], times: int) -> Sequence[float]:
    ask()
    waits = []
    for _ in range(times):
        began = time.perf_counter()
        ask()
        waits.append(1000 * (time.perf_counter() - began))
    return waits


def _crowd(lab: LabProcess, tokens: Sequence[str]) -> list[Figure]:
    """50 browsers, each of another team, ask for the part that changes once a second, as they do while a submission goes on."""
    pages = [_asks(lab, token)["page, what changes"] for token in tokens]
    waits: list[float] = []

    def browse(page: Callable[[], object], first: float) -> None:
        began = time.monotonic()
        for turn in range(int(_SECONDS)):
            time.sleep(max(0.0, began + first + turn - time.monotonic()))
            waits.extend(_waits(page, 1)[:1])

    threads = [threading.Thread(target=browse, args=(page, number / len(pages))) for number, page in enumerate(pages)]
    before = reads.processor_time(lab.process.pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = reads.processor_time(lab.process.pid) - before
    return [
        percentile(f"page, what changes, {len(pages)} browsers each second, p95", waits, "ms", 95, at_most=200),
        Figure(name="the same, processor time of the lab for each", value=1000 * spent / len(waits), unit="ms"),
    ]


def _writes(home: Path) -> list[Figure]:
    """A submission ends, and the next page asks for those of its team, and for all."""
    database = Database.at(home / "lab.db")
    sent = SentSubmissions(Store(database).of(SUBMISSIONS))
    last = sent.of("bench0", "team7")[-1]
    waits = []
    for _ in range(_ASKED):
        sent.put(last)
        began = time.perf_counter()
        assert len(sent.of("bench0", "team7")) == EACH
        assert len(sent.of("bench0")) == EACH * TEAMS_
        waits.append(1000 * (time.perf_counter() - began))
    database.close()
    return [percentile("submissions of a team and of all, after a write, p95", waits, "ms", 95)]
