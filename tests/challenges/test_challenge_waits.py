"""What a submission waits for is said at each moment of its life: by the lab, on the page and by the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from parity import YAML, checked, scored, write_challenge, write_code

from carrel import Client
from carrel.core.domain.challenge import Fault, SubmissionView
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire import v1
from support.lab_process import LabProcess
from support.small_lab import MortalLab

Person = Callable[[str], Client]
ODD = "def predict(number): return number % 2"
FULL = "There is no room on the lab's disk for the challenge. Its organisers see this too; it goes on when there is room."


def until(client: Client, number: int, happened: Callable[[SubmissionView], bool]) -> SubmissionView:
    """Wait until something is true of a submission."""

    def found() -> SubmissionView | None:
        one = client.challenge_submission("parity", number)
        return one if happened(one) else None

    one = wait_until(found, lambda: client.challenge_submission("parity", number), timeout=PATIENCE)
    assert one is not None
    return one


@pytest.mark.gate
def test_one_in_line_has_reason_and_place(
    client: Client, person: Person, published: str, lab: LabProcess, tmp_path: Path
) -> None:
    """By the lab, on the page and by the command. Sent again while it waits it is the same submission."""
    (tmp_path / "long.sh").write_text("sleep 600")
    long = client.submit_project(tmp_path / "long.sh", resources=v1.ResourceRequest(cpus=8, memory="64M"))
    wait_until(lambda: client.job(long.id).state == "RUNNING")
    ada = person("willa")
    ada.join_challenge(published, accept_rules=True)
    sent = ada.submit_to_challenge(published, write_code(tmp_path / "code", ODD))
    assert sent.waits == "Its job is being made."
    waiting = until(ada, sent.submission.id, lambda one: one.position is not None)
    assert waiting.waits
    assert waiting.position == 1
    assert ada.submit_to_challenge(published, tmp_path / "code").submission.id == sent.submission.id

    link = httpx.post(f"{lab.url}/api/v1/tokens/current/link", headers={"Authorization": f"Bearer {ada.token}"}).json()["url"]
    with httpx.Client(base_url=lab.url, headers={"Accept": "text/html", "Sec-Fetch-Site": "none"}, follow_redirects=True) as http:
        http.get(link)
        assert "Place 1 in line" in http.get(f"/challenges/{published}?part=live").text
    words = [sys.executable, "-m", "carrel.cli.main", "challenge", "submissions", published]
    variables = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": ada.token}
    said = subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stdout
    assert waiting.waits.split(".")[0][:20] in " ".join(said.split())
    client.cancel(long.id)
    assert until(ada, sent.submission.id, lambda one: one.submission.state.ended).submission.scores == {"accuracy": 1.0}
    assert ada.challenge(published).phases[0].total == 9


def test_predictions_beyond_their_size_are_a_failure_of_the_team(client: Client, person: Person, tmp_path: Path) -> None:
    """They are given up at once: nobody fills the challenge's part of the disk."""
    client.keep_challenge(write_challenge(tmp_path / "small", YAML.replace("name: parity", "name: small") + "predictions: 1M\n"))
    checked(client, "small")
    client.publish_challenge("small")
    ada = person("wanda")
    ada.join_challenge("small", accept_rules=True)
    done = scored(ada, f'open("outputs/left", "wb").write(bytes(2_000_000))\n{ODD}', tmp_path, "small").submission
    assert (done.fault, done.message) == (Fault.TEAM, "It left more than 1M for the scoring program.")
    stored = client.storage().users["challenge:small"]
    assert stored.outputs < 1_000_000


@pytest.mark.gate
def test_the_programs_are_no_person(client: Client, published: str) -> None:
    """Lists of users leave them out, unless asked."""
    programs = f"challenge:{published}"
    assert programs not in {one.subject for one in client.users()}
    assert {one.subject: one.name for one in client.users(programs=True)}[programs] == f"programs of the challenge {published}"


def test_a_challenge_without_room_waits_and_says_so(tmp_path: Path) -> None:
    """Teams read nothing of the lab's disk, organisers do; it goes on by itself when there is room."""
    rules = 'isolation = "kernel"\nuser_quota = "{}"\n'
    lab = MortalLab(tmp_path / "home", "--cpus", "8", rules=rules.format("2M"))
    try:
        lab.client.keep_challenge(write_challenge(tmp_path / "parity"))
        checked(lab.client)
        lab.client.publish_challenge("parity")
        ada = Client(url=lab.process.url, token=lab.client.add_user("ada").token)
        ada.join_challenge("parity", accept_rules=True)
        code = write_code(tmp_path / "code", f'open("outputs/left", "wb").write(bytes(3_000_000))\n{ODD}')
        number = ada.submit_to_challenge("parity", code).submission.id
        full = until(ada, number, lambda one: "room" in one.waits)
        assert full.waits == FULL
        assert "2.9M of outputs" in lab.client.challenge_submission("parity", number).waits
        (lab.home / "carrel.toml").write_text(rules.format("1G"))
        lab.kill_and_restart()
        assert until(ada, number, lambda one: one.submission.state.ended).submission.scores == {"accuracy": 1.0}
        ada.close()
    finally:
        lab.stop()
