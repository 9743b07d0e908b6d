"""What a challenge holds back from teams, in a real lab: scores by a ladder, ends in steps, and logs that are cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from parity import INPUT, YAML, browser, checked, scored, write_challenge

from carrel import Client
from carrel.core.challenges.seen import ONE_END
from carrel.core.domain.challenge import SubmissionState, SubmissionView
from carrel.core.domain.errors import Conflict, Denied, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import API
from support.lab_process import LabProcess

Person = Callable[[str], Client]
#: Of the eleven numbers, the first `right` ones are told rightly, and the others wrongly.
SOME = "def predict(number): return number % 2 if number < 100 + {right} else 1 - number % 2"


def published(client: Client, tmp_path: Path, name: str, more: str) -> str:
    yaml = YAML.replace("name: parity", f"name: {name}").replace("precision: 2", "precision: 2, range: [0, 1]")
    client.keep_challenge(write_challenge(tmp_path / name, yaml.replace("per_day: 3", "per_day: 9") + more))
    checked(client, name)
    client.publish_challenge(name)
    return name


def test_scores_move_by_steps_and_organisers_see_both(client: Client, person: Person, tmp_path: Path) -> None:
    """In lists, one by one, on boards, and on the page."""
    name = published(client, tmp_path, "ladder", "ladder: {step: 0.2}\n")
    ada = person("ada")
    ada.join_challenge(name, accept_rules=True)
    told, true = [], []
    for right in (5, 6, 9, 7):
        done = scored(ada, SOME.format(right=right), tmp_path, name)
        told.append(done.submission.scores["accuracy"])
        seen = client.challenge_submission(name, done.submission.id)
        true.append(seen.submission.scores["accuracy"])
        assert not done.shown
        assert seen.shown.get("accuracy", true[-1]) == told[-1]
    assert (told, true) == ([0.4, 0.4, 0.8, 0.8], [0.45, 0.55, 0.82, 0.64])
    assert [one.submission.scores["accuracy"] for one in ada.challenge_submissions(name).submissions] == told[::-1]
    assert [one.submission.scores["accuracy"] for one in client.challenge_submissions(name).submissions] == true[::-1]
    for reader in (ada, client):
        place = next(one for one in reader.challenge_board(name).places if one.team)
        assert (place.scores, place.submission) == ({"accuracy": 0.8}, done.submission.id - 1)
    with httpx.Client(base_url=ada.url, headers={"Authorization": f"Bearer {ada.token}"}) as http:
        answers = [http.get(f"{API}/challenges/{name}{part}").text for part in ("", "/board", "/submissions")]
    assert not [text for text in answers if "0.82" in text or "0.64" in text]
    assert "more than 0.2 better" in ada.challenge(name).withheld[0]


def test_an_end_is_shown_when_its_step_is_over(client: Client, person: Person, tmp_path: Path) -> None:
    """Until then it runs, wherever a team looks, and it may not send the next one. Steps of a day end at midnight (UTC)."""
    name = published(client, tmp_path, "steps", "steps: {time: 86400}\n")
    ada = person("berta")
    ada.join_challenge(name, accept_rules=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text(SOME.format(right=11))
    number = ada.submit_to_challenge(name, tmp_path / "code").submission.id

    def ended() -> SubmissionView | None:
        found = client.challenge_submission(name, number)
        return found if found.submission.state.ended else None

    done = wait_until(ended, lambda: client.challenge_submission(name, number), timeout=PATIENCE)
    assert done is not None
    assert done.submission.scores == {"accuracy": 1.0}
    for one in (ada.challenge_submission(name, number), *ada.challenge_submissions(name).submissions):
        told = one.submission
        assert (told.state, told.stage, told.scores, told.ended_at) == (SubmissionState.RUNNING, "ingestion", {}, None)
    assert [one.baseline for one in ada.challenge_board(name).places] == ["zeros"]
    assert ada.challenge(name).phases[0].at_once == 0
    # The same code is the same submission as long as that is shown to run; another one has to wait.
    assert ada.submit_to_challenge(name, tmp_path / "code").submission.id == number
    (tmp_path / "code" / "model.py").write_text(SOME.format(right=10))
    with pytest.raises(Conflict, match="has not ended yet"):
        ada.submit_to_challenge(name, tmp_path / "code")


@pytest.mark.gate
def test_a_team_reads_the_end_of_what_its_code_printed(client: Client, person: Person, tmp_path: Path) -> None:
    """As many bytes as the challenge says, of its own submissions, of the ingestion; and it is told nothing else of a failure."""
    name = published(client, tmp_path, "log", "log: {bytes: 40}\nsteps: {one_end: true}\n")
    ada, bob, eve = person("clara"), person("carl"), person("cora")
    team = ada.join_challenge(name, accept_rules=True)
    bob.join_challenge(name, code=team.code, accept_rules=True)
    eve.join_challenge(name, accept_rules=True)
    done = scored(
        ada, "def predict(number):\n    print('x' * 99)\n    raise SystemExit('\\x1b[2Jthe input is odd')", tmp_path, name
    )
    assert (done.submission.message, done.submission.fault) == (ONE_END, None)
    for reader in (ada, bob):
        assert reader.challenge_log(name, done.submission.id) == "x" * 20 + "\n[2Jthe input is odd"
    with pytest.raises(NotFound):
        eve.challenge_log(name, done.submission.id)
    done = scored(ada, SOME.format(right=11) + f"\nprint({INPUT!r})", tmp_path, name)
    assert ada.challenge_log(name, done.submission.id) == INPUT
    baseline = client.challenge_checks(name).submissions[0].submission.id
    with pytest.raises(NotFound):
        ada.challenge_log(name, baseline)


def test_logs_are_shown_where_the_challenge_says(client: Client, person: Person, tmp_path: Path) -> None:
    """Not of other splits."""
    two = YAML.replace(
        "ingestion: programs", "  private: {input: data/public/input, reference: data/public/reference}\ningestion: programs"
    )
    place = write_challenge(
        tmp_path / "split", two.replace("name: parity", "name: split") + "log: {bytes: 40, splits: [private]}\n"
    )
    client.keep_challenge(place)
    checked(client, "split")
    client.publish_challenge("split")
    ada = person("doris")
    ada.join_challenge("split", accept_rules=True)
    done = scored(ada, SOME.format(right=11), tmp_path, "split")
    with pytest.raises(Denied, match="not shown in this phase"):
        ada.challenge_log("split", done.submission.id)


def test_organisers_are_told_how_much_a_team_can_learn(client: Client, person: Person, tmp_path: Path, lab: LabProcess) -> None:
    """Nobody else is, for it names the size of the references."""
    name = published(client, tmp_path, "bound", "steps: {time: 60}\n")
    (found,) = client.challenge(name).bounds
    assert (found.phase, found.scored) == ("development", 10)
    assert found.reference_bytes == (tmp_path / name / "data/public/reference/labels.txt").stat().st_size
    assert f"at most {found.reference_bits:,} bits" in found.words[0]
    emma = person("emma")
    assert not emma.challenge(name).bounds
    pages = []
    for reader in (client, emma):
        with browser(reader) as http:
            pages.append(http.get(f"/challenges/{name}").text)
    assert ["at most" in page for page in pages] == [True, False]
    assert all("The end of a submission is shown in steps of 1 min" in page for page in pages)


def test_check_says_how_much_a_team_can_learn(client: Client, tmp_path: Path, lab: LabProcess) -> None:
    """At the terminal, after the baselines were run, with what could make it less."""
    place = write_challenge(tmp_path / "told", YAML.replace("name: parity", "name: told") + "ladder: {step: 0.05}\n")
    words = [sys.executable, "-m", "carrel.cli.main", "challenge", "check", str(place), "--home", str(lab.home)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "zeros" in said
    assert "What a team can learn in development:" in said
    assert "has no range" in said
    assert "more than 0.05 better" in said
    # What a new draft will show is told of the draft, and not of what participants have.
    client.publish_challenge("told")
    file = place / "challenge.yaml"
    file.write_text(file.read_text().replace("step: 0.05", "step: 0.25"))
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "more than 0.25 better" in said
    assert "0.05" not in said
    assert client.challenge("told").withheld != client.challenge("told", draft=True).withheld
