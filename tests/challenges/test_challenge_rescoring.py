"""A changed scoring program scores all again, from kept predictions, before any board changes; and what explains a score."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from parity import LABEL, YAML, checked, scored, write_challenge, write_code

from carrel import Client
from carrel.cli.main import main
from carrel.core.domain.challenge import RescoredLine, SubmissionState
from carrel.core.domain.errors import Conflict, Denied, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess
from support.small_lab import MortalLab

ODD = "def predict(number): return number % 2"
Person = Callable[[str], Client]


def write_new(place: Path, yaml: str) -> Path:
    """Write the challenge with a scoring program that looks at the first two numbers only."""
    shutil.rmtree(place, ignore_errors=True)
    score = write_challenge(place, yaml) / "programs/scoring/score.py"
    score.write_text(score.read_text().replace("zip(said, truth)) / len(truth)", "list(zip(said, truth))[:2]) / 2"))
    return place


def begun(client: Client, name: str, tmp_path: Path, more: str = "") -> str:
    yaml = YAML.replace("name: parity", f"name: {name}") + more
    client.keep_challenge(write_challenge(tmp_path / name, yaml))
    checked(client, name)
    client.publish_challenge(name)
    return yaml


def drafted(client: Client, name: str, place: Path) -> None:
    client.keep_challenge(place)
    checked(client, name)


def rescored(client: Client, name: str) -> list[RescoredLine]:
    client.rescore_challenge(name)

    def ended() -> list[RescoredLine] | None:
        found = client.rescore_challenge(name, ask=False).lines
        return list(found) if all(one.after and one.after.state.ended for one in found) else None

    found = wait_until(ended, lambda: client.rescore_challenge(name, ask=False), timeout=PATIENCE)
    assert found is not None
    return found


def places(client: Client, name: str) -> list[tuple[int, str, float]]:
    return [(one.rank, one.team or one.baseline, one.scores["accuracy"]) for one in client.challenge_board(name).places]


@pytest.mark.gate
def test_a_changed_scoring_program_scores_all_again_before_boards_change(
    client: Client, person: Person, tmp_path: Path, lab: LabProcess
) -> None:
    """Old beside new, who moves, and then all at once, with the reason; nothing is run a second time, and nothing is counted."""
    yaml = begun(client, "again", tmp_path)
    ada, bob = person("again-ada"), person("again-bob")
    for one in (ada, bob):
        one.join_challenge("again", accept_rules=True)
    ones = scored(ada, "def predict(number): return int(number > 100)", tmp_path / "ada", "again").submission
    assert scored(bob, "def predict(number): return int(number == 101)", tmp_path / "bob", "again").submission.scores
    old = places(ada, "again")
    assert old == [(1, "again-bob", 0.64), (2, "zeros", 0.55), (2, "again-ada", 0.55)]

    drafted(client, "again", write_new(tmp_path / "again", yaml))
    with pytest.raises(Conflict, match="2 submissions were not scored again yet"):
        client.publish_challenge("again", reason="a fault")
    with pytest.raises(Denied):
        ada.rescore_challenge("again")
    lines = {one.before.id: one for one in rescored(client, "again")}
    assert [(one.before.scores["accuracy"], one.after and one.after.scores["accuracy"]) for one in lines.values()] == [
        (0.55, 1.0),
        (0.64, 1.0),
        (0.55, 0.5),
    ]
    assert [(one.rank, one.new_rank) for one in lines.values()] == [(2, 1), (1, 1), (2, 3)]
    assert (places(ada, "again"), ada.challenge_submission("again", ones.id).submission) == (old, ones)  # nobody sees it yet
    again = [one.after.id for one in lines.values() if one.after and not one.before.baseline]
    assert [one.after.id for one in rescored(client, "again") if one.after and not one.before.baseline] == again  # each once
    with pytest.raises(NotFound):
        ada.challenge_submission("again", again[0])

    command = [str(Path(sys.executable).with_name("carrel")), "challenge", "rescore", "again"]
    environment = {"CARREL_URL": lab.url, "CARREL_TOKEN": lab.token, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert [line.split()[-3:-1] for line in said.splitlines()[1:4]] == [["2", "1"], ["1", "1"], ["2", "3"]]
    assert said.splitlines()[1].split()[2:7] == ["again-ada", "accuracy", "0.55", "accuracy", "1"]
    assert "carrel challenge publish again --reason" in said

    with pytest.raises(Conflict, match="told why"):
        client.publish_challenge("again")
    client.publish_challenge("again", reason="The old program looked at all numbers.")
    assert places(ada, "again") == [(1, "again-ada", 1.0), (1, "again-bob", 1.0), (3, "zeros", 0.5)]
    board = ada.challenge_board("again")
    assert board.rescored is not None
    assert board.rescored.reason == "The old program looked at all numbers."
    assert ada.challenge_submission("again", ones.id).submission.scores == {"accuracy": 1.0}
    phase = ada.challenge("again").phases[0]
    assert (phase.today, phase.total, len(ada.challenge_submissions("again").submissions)) == (2, 9, 1)
    jobs = sorted(job.name for job in client.jobs("all", limit=None) if job.name.startswith("again-"))
    assert len([name for name in jobs if name.endswith("ingestion")]) == 4  # two baselines, two teams
    assert len([name for name in jobs if name.endswith("scoring")]) == 6


def test_predictions_that_are_gone(client: Client, person: Person, tmp_path: Path) -> None:
    """What cannot be scored again keeps a draft from being published, and loses its place only where organisers say so."""
    yaml = begun(client, "gone", tmp_path)
    ada = person("gone-ada")
    ada.join_challenge("gone", accept_rules=True)
    lost = scored(ada, ODD, tmp_path, "gone").submission
    job = next(job for job in client.jobs("all", limit=None) if job.name == f"gone-{lost.id}-ingestion")
    client.remove_outputs(job.id)
    drafted(client, "gone", write_new(tmp_path / "gone", yaml))
    (line, _) = rescored(client, "gone")
    assert line.after is not None
    assert (line.after.state, line.new_rank) == (SubmissionState.FAILED, None)
    assert client.challenge_log("gone", line.after.id) is not None
    with pytest.raises(Conflict, match="could not be scored again"):
        client.publish_challenge("gone", reason="new")
    client.publish_challenge("gone", reason="new", without_failed=True)
    assert [one.baseline for one in ada.challenge_board("gone").places] == ["zeros"]
    assert "could not score it" in ada.challenge_submission("gone", lost.id).submission.message


def test_other_inputs_need_a_phase_of_their_own(
    client: Client, person: Person, tmp_path: Path, lab: LabProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Predictions for other inputs are never scored on one board. Who freezes a challenge hears of what is under way."""
    yaml = begun(client, "inputs", tmp_path)
    ada = person("inputs-ada")
    ada.join_challenge("inputs", accept_rules=True)
    place = write_new(tmp_path / "inputs", yaml)
    (place / "data/public/input/numbers.txt").write_text("word 1 2 3 4 5 6 7 8 9 10 11")
    drafted(client, "inputs", place)
    # Also while it is under way: it will be scored.
    ada.submit_to_challenge("inputs", write_code(tmp_path / "code", f"import time\ntime.sleep(20)\n{ODD}"))
    for refused in (client.rescore_challenge, client.publish_challenge):
        with pytest.raises(Conflict, match="would see other data than those that were sent before"):
            refused("inputs")
    assert main(["challenge", "freeze", "inputs", "--home", str(lab.home)]) == 0
    assert "1 of its submissions have not ended" in capsys.readouterr().out


def test_what_is_under_way_when_another_version_is_published(client: Client, person: Person, tmp_path: Path) -> None:
    """It is scored again by the new program, and has no score of the old one on the way."""
    yaml = begun(client, "way", tmp_path)
    ada = person("way-ada")
    ada.join_challenge("way", accept_rules=True)
    drafted(client, "way", write_new(tmp_path / "way", yaml))
    slow = "import time\ndef predict(number):\n    time.sleep(0.3)\n    return 1"
    number = ada.submit_to_challenge("way", write_code(tmp_path / "code", slow)).submission.id
    client.publish_challenge("way")
    seen: set[float] = set()

    def ended() -> bool:
        seen.update(ada.challenge_submission("way", number).submission.scores.values())
        return bool(seen)

    wait_until(ended, lambda: ada.challenge_submission("way", number), timeout=PATIENCE)
    assert seen == {0.5}  # 0.45 by the old one


def test_the_record_of_a_submission(client: Client, person: Person, published: str, tmp_path: Path) -> None:
    """Organisers get digests and the records of both jobs; a team gets nothing by which labels could be guessed and confirmed."""
    ada, eve = person("record-ada"), person("record-eve")
    ada.join_challenge(published, accept_rules=True)
    done = scored(ada, ODD, tmp_path).submission
    full = client.challenge_record(published, done.id)
    (scoring,) = full["scorings"]
    assert set(scoring["digests"]) == {"ingestion", "scoring", "CARREL_INPUT", "CARREL_REFERENCE"}
    assert [full["jobs"][stage]["job"]["state"] for stage in ("ingestion", "scoring")] == ["COMPLETED", "COMPLETED"]
    told = ada.challenge_record(published, done.id)
    assert (told["submission"]["snapshot"], told["submission"]["scores"]) == (done.snapshot, {"accuracy": 1.0})
    assert set(told) == {"submission", "environment"}
    hidden = [scoring["version"], scoring["scoring"], *scoring["digests"].values(), LABEL]
    assert not [one for one in hidden if one.removeprefix("sha256:") in str(told)]
    assert (done.version, client.challenge_submission(published, done.id).submission.version) == ("1", scoring["version"])
    with pytest.raises(NotFound):
        eve.challenge_record(published, done.id)


@pytest.mark.chaos
def test_each_is_scored_again_once_whenever_the_lab_is_killed(tmp_path: Path) -> None:
    """While it is scored again, and just after the new version was published."""
    lab = MortalLab(tmp_path / "home", "--cpus", "8", rules='isolation = "kernel"\n')
    try:
        yaml = begun(lab.client, "parity", tmp_path)
        ada = Client(url=lab.process.url, token=lab.client.add_user("ada").token)
        ada.join_challenge("parity", accept_rules=True)
        for name in ("one", "two"):
            scored(ada, f"{ODD}  # {name}", tmp_path / name)
        drafted(lab.client, "parity", write_new(tmp_path / "parity", yaml))
        lab.client.rescore_challenge("parity")
        lab.kill_and_restart()
        assert len(rescored(lab.client, "parity")) == 3
        lab.client.publish_challenge("parity", reason="new")
        lab.kill_and_restart()
        board = ada.challenge_board("parity")
        assert (board.places[0].scores, board.places[0].entries, board.rescored is None) == ({"accuracy": 1.0}, 2, False)
        scorings = [job.name for job in lab.client.jobs("all", limit=None) if job.name.endswith("-scoring")]
        assert len(scorings) == len(set(scorings)) == 6
        ada.close()
    finally:
        lab.stop()
