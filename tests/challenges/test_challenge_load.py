"""Many teams submit while server, broker and runners are killed: each submission is scored once, none waits without a word."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from parity import YAML, checked, write_challenge, write_code

from carrel import Client
from carrel.core.domain.challenge import ChallengeSubmission, Fault, SubmissionState
from carrel.core.domain.errors import Conflict, Unavailable
from carrel.core.domain.job import HOLDING
from carrel.core.domain.nouns import SUBMISSIONS
from carrel.core.spool import Spool
from carrel.lab.store import Database, Store
from carrel.testing.waiting import PATIENCE, wait_until
from support.small_lab import MortalLab

pytestmark = pytest.mark.chaos

T = TypeVar("T")
#: Teams, submissions of each that are scored, and kills.
SIZES = [pytest.param(4, 3, 8, id="few"), pytest.param(50, 28, 200, id="many", marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
#: Of ten submissions so many fail.
FAILING = 3
#: Seconds for which a submission may say nothing.
SILENT = 5.0
GOOD = "def predict(number): return number % 2\n# {}\n"
BAD = "raise SystemExit({!r})\n"
LIMITS = "limits: {{per_day: 9999, total: {}, at_once: 1, failures_per_day: 9999}}"


class Team:
    """One user who sends until nothing is left, and looks at what was sent as a page does."""

    def __init__(self, crowd: Crowd, number: int, token: str) -> None:
        self.crowd, self.name = crowd, f"team{number}"
        self.dice = random.Random(f"{number}")
        self.client = Client(url=crowd.lab.process.url, token=token)
        self.sent: list[int] = []
        self.longest_silence = 0.0
        self.refused = ""

    def go_on(self) -> None:
        """Send one after the other until the lab takes no more."""
        answered(lambda: self.client.join_challenge("parity", team=self.name, accept_rules=True))
        while not self.refused:
            text = BAD if self.dice.random() < FAILING / 10 else GOOD
            name = f"{self.name}-{len(self.sent)}"
            code = write_code(self.crowd.place / name, text.format(name))
            number = self._send(code)
            if number:
                self.sent.append(number)
                self._watch(number)

    def _send(self, code: Path) -> int:
        """Its number; 0 when nothing is left."""
        digest = answered(lambda: self.client.upload(code))
        while True:
            try:
                return self.client.submit_to_challenge("parity", code).submission.id
            except Conflict as error:
                self.refused = str(error)
                return 0
            except Unavailable:
                # Whether it arrived, nobody has said.
                there = answered(lambda: self.client.challenge_submissions("parity")).submissions
                if there and there[0].submission.snapshot == digest:
                    return there[0].submission.id

    def _watch(self, number: int) -> None:
        since = None
        while True:
            one = answered(lambda: self.client.challenge_submission("parity", number))
            if one.submission.state.ended:
                self.crowd.ended[number] = one.submission
                return
            # Its job may end between two answers: silent is what says the same, nothing, after no node had its job.
            stage = one.submission.stage
            silent = not one.waits and not self.crowd.works(f"parity-{number}-{stage}")
            if silent:
                one = answered(lambda: self.client.challenge_submission("parity", number))
                silent = not one.waits and not one.submission.state.ended and one.submission.stage == stage
            since = (since or time.monotonic()) if silent else None
            self.longest_silence = max(self.longest_silence, time.monotonic() - (since or time.monotonic()))
            threading.Event().wait(0.02 * len(self.crowd.teams))


class Crowd:
    """Teams, each in a thread of its own."""

    def __init__(self, lab: MortalLab, place: Path, teams: int) -> None:
        self.lab, self.place = lab, place
        self.ended: dict[int, ChallengeSubmission] = {}
        self.teams: list[Team] = []
        self.admin = Client(url=lab.process.url, token=lab.process.token)
        self.teams += [Team(self, number, lab.client.add_user(f"user{number}").token) for number in range(teams)]
        self.threads = [threading.Thread(target=team.go_on, daemon=True) for team in self.teams]

    def has_ended(self, some: int) -> bool:
        """True when so many have ended, or all that there will be."""
        return len(self.ended) >= some or not any(thread.is_alive() for thread in self.threads)

    def works(self, job: str) -> bool:
        """True when a node has the job of this name."""
        found = answered(lambda: list(self.admin.jobs("all", states=sorted(HOLDING), limit=None)))
        return any(one.name == job for one in found)

    def close(self) -> None:
        for one in (self.admin, *(team.client for team in self.teams)):
            one.close()


def answered(ask: Callable[[], T]) -> T:
    """Ask until the lab answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.05)


def kill_something(lab: MortalLab, dice: random.Random) -> str:
    """Kill the server, the broker, or the runner of a job of the challenge's; return which."""
    what = dice.choice(("server", "broker", "runner"))
    if what == "server":
        lab.kill_and_restart()
    elif what == "broker":
        with suppress(ProcessLookupError):
            os.kill(json.loads((lab.home / "broker" / "broker.lock").read_text())["pid"], signal.SIGKILL)
    else:
        held = answered(lambda: list(lab.client.jobs("all", states=sorted(HOLDING), limit=None)))
        if not held:
            return "nothing"
        job = dice.choice(held)
        claim = Spool(lab.home / "spool").attempt(job.id, job.attempt).claim
        with suppress(OSError, ValueError, IndexError):
            os.kill(int(claim.read_text().split()[0]), signal.SIGKILL)
    return what


@pytest.mark.parametrize(("teams", "each", "kills"), SIZES)
def test_each_is_scored_once_whatever_is_killed(tmp_path: Path, teams: int, each: int, kills: int) -> None:
    dice = random.Random(20261129)
    lab = MortalLab(tmp_path / "home", "--cpus", "8", rules='isolation = "kernel"\n', simulate_gpus=2)
    killed: Counter[str] = Counter()
    try:
        challenge = write_challenge(tmp_path / "parity", "\n".join([*YAML.splitlines()[:-1], LIMITS.format(each)]))
        project = challenge / "programs" / "ingestion" / "MLproject"
        project.write_text(project.read_text().replace("memory: 256M", "memory: 256M, gpus: 1"))
        lab.client.keep_challenge(challenge)
        checked(lab.client)
        lab.client.publish_challenge("parity")
        crowd = Crowd(lab, tmp_path / "code", teams)
        for thread in crowd.threads:
            thread.start()
        for round_ in range(kills):
            # When some more have ended, at a moment within the work of the next ones.
            wait_until(partial(crowd.has_ended, round_ * teams * each // kills), timeout=1800)
            threading.Event().wait(dice.uniform(0, 1))
            killed[kill_something(lab, dice)] += 1
        for thread in crowd.threads:
            thread.join(timeout=PATIENCE * teams)
        assert not any(thread.is_alive() for thread in crowd.threads)
        crowd.close()
        boards = {place.team: place.entries for place in lab.client.challenge_board("parity").places if place.team}
        names = Counter(job.name for job in lab.client.jobs("all", limit=None))
        told = {one.submission.id: one.submission for one in lab.client.challenge_submissions("parity").submissions}
        database = Database.at(lab.home / "lab.db")
        kept = {one.id: one for one in Store(database).of(SUBMISSIONS).all() if one.team}
        database.close()
    finally:
        lab.stop()

    print(
        f"{len(kept)} submissions, killed: {dict(killed)}", Counter((one.state, one.fault, one.message) for one in kept.values())
    )
    assert {number for team in crowd.teams for number in team.sent} == set(kept), "lost, or sent twice"
    # Teams see the number of a version, organisers its digest.
    assert {number: replace(one, version="") for number, one in crowd.ended.items()} == {
        number: replace(one, version="") for number, one in told.items()
    }, "one that has ended is another one later"
    assert {one: (told[one].state, told[one].scores) for one in told} == {
        one: (kept[one].state, kept[one].scores) for one in kept
    }
    for number, one in kept.items():
        scoring = 1 if one.state is SubmissionState.COMPLETED else min(1, one.scoring_job)
        assert (names[f"parity-{number}-ingestion"], names[f"parity-{number}-scoring"]) == (1, scoring), one
    for team in crowd.teams:
        scored = [one for one in kept.values() if one.team == team.name and one.state is SubmissionState.COMPLETED]
        assert len(scored) == boards[team.name] == each, "the limit, to the submission"
        assert "used up" in team.refused
        assert team.longest_silence < SILENT
    failed = Counter(one.fault for one in kept.values() if one.state is SubmissionState.FAILED)
    assert failed[Fault.ORGANISER] == 0
    assert failed[Fault.LAB] <= killed["runner"]
