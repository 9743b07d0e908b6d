"""A board that is hidden until its phase ends: no way out tells a team a score or a place, and then it opens by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from parity import YAML, checked, scored, write_challenge

from carrel import Client
from carrel.core.challenges.reading import read_challenge
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import API
from support.lab_process import LabProcess

#: 8 of 11: nothing else in a lab says 0.73.
CODE = "def predict(number): return int(number in (101, 103))"
SCORE = "0.73"
Person = Callable[[str], Client]


def begun(client: Client, name: str, tmp_path: Path, rule: str, end: str = "2040-01-01") -> None:
    yaml = (
        YAML.replace("name: parity", f"name: {name}")
        .replace("2040-01-01", end)
        .replace("split: public", f"split: public, {rule}")
    )
    client.keep_challenge(write_challenge(tmp_path / name, yaml))
    checked(client, name)
    client.publish_challenge(name)


@pytest.mark.gate
def test_no_way_out_tells_a_team_its_score(client: Client, person: Person, tmp_path: Path, lab: LabProcess) -> None:
    """API, events, pages, commands, record, message: all of them. Organisers see it; freezing the challenge opens it."""
    begun(client, "secret", tmp_path, "board: hidden")
    ada = person("secret-ada")
    ada.join_challenge("secret", accept_rules=True)
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {ada.token}"}) as http:
        done = scored(ada, CODE, tmp_path, "secret").submission
        assert (done.state, done.scores) == ("COMPLETED", {})
        assert "when the board opens" in done.message
        one = f"{API}/challenges/secret"
        texts = {
            path: http.get(path).text
            for path in (
                *(f"{API}/challenges", one, f"{one}/board", f"{one}/submissions", f"{one}/submissions/{done.id}"),
                *(f"{one}/submissions/{done.id}/record", f"{API}/jobs", f"{API}/report/use", f"{API}/report/jobs"),
            )
        }
    with httpx.Client(base_url=lab.url, follow_redirects=True, headers={"Sec-Fetch-Site": "same-origin"}) as browser:
        browser.post("/login", data={"token": ada.token}).raise_for_status()
        for path in ("/challenges", "/challenges/secret", "/challenges/secret?part=live"):
            texts[path] = browser.get(path).text
        assert "Teams see this board from" in texts["/challenges/secret"]
    environment = {"CARREL_URL": lab.url, "CARREL_TOKEN": ada.token, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for words in (["submissions"], ["submissions", "--json"], ["board"], ["board", "--json"], ["show"], ["record"]):
        command = [str(Path(sys.executable).with_name("carrel")), "challenge", words[0], "secret", *words[1:]]
        command += [str(done.id)] if words == ["record"] else []
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        texts[" ".join(words)] = said.stdout + said.stderr
    texts["events"] = str(list(ada.events(timeout=0.5)))
    for path, text in texts.items():
        assert SCORE not in text, path
        assert "0.55" not in text, path  # that of the baseline
    assert ada.challenge_board("secret").places == ()
    assert json.loads(texts["board --json"])["opens"].startswith("2040-01-01")

    assert client.challenge_submission("secret", done.id).submission.scores == {"accuracy": 0.73}
    assert [one.scores["accuracy"] for one in client.challenge_board("secret").places] == [0.73, 0.55]
    client.freeze_challenge("secret")
    assert [one.scores["accuracy"] for one in ada.challenge_board("secret").places] == [0.73, 0.55]
    assert ada.challenge_submission("secret", done.id).submission.scores == {"accuracy": 0.73}


def test_it_opens_by_itself(client: Client, person: Person, tmp_path: Path) -> None:
    """When the phase has ended."""
    end = datetime.now(UTC) + timedelta(seconds=25)
    begun(client, "opening", tmp_path, "board: hidden", f"'{end.isoformat()}'")
    ada = person("opening-ada")
    ada.join_challenge("opening", accept_rules=True)
    done = scored(ada, CODE, tmp_path, "opening").submission
    if datetime.now(UTC) < end:  # a machine under load is too late to see it hidden, and the other test has that
        assert not done.scores
    wait_until(lambda: bool(ada.challenge_board("opening").places), lambda: ada.challenge_board("opening"), timeout=PATIENCE)
    assert ada.challenge_submission("opening", done.id).submission.scores == {"accuracy": 0.73}


@pytest.mark.quick
def test_when_boards_open() -> None:
    """At once, at the end of the phase, at the end of the last one."""
    phases = ", ".join(
        f"{{name: p{year}, begin: {year}-01-01, end: {year + 1}-01-01, split: public, board: {rule}}}"
        for year, rule in ((2026, "shown"), (2027, "hidden"), (2028, "hidden-until-the-end"), (2029, "hidden"))
    )
    old = YAML.split("phases: [")[1].split("]")[0]
    spec = read_challenge(YAML.replace(old, phases), None)
    year = {phase.name: phase.end for phase in spec.phases}
    assert [spec.opens(name) for name in ("p2026", "p2027", "p2028", "none")] == [0, year["p2027"], year["p2029"], 0]
