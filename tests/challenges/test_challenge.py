"""A challenge from beginning to end, with a real lab: checked, published, joined, submitted to, on the board, frozen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from parity import INPUT, LABEL, YAML, checked, scored, write_challenge, write_code

from carrel import Client
from carrel.core.domain.challenge import Fault, SubmissionState
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

ODD = "def predict(number): return number % 2"
Person = Callable[[str], Client]


@pytest.mark.gate
def test_from_a_directory_to_the_board(client: Client, person: Person, tmp_path: Path, lab: LabProcess) -> None:
    """The whole way, with what each sees on it."""
    place = write_challenge(tmp_path / "first", YAML.replace("name: parity", "name: first"))
    assert client.keep_challenge(place).draft
    ada = person("ada")
    assert not ada.challenges().challenges  # a draft is its organisers'
    (zeros,) = checked(client, "first")
    assert zeros.submission.scores == {"accuracy": 0.55}  # 6 of 11 are even, rounded

    client.publish_challenge("first")
    with pytest.raises(Denied, match="rules"):
        ada.join_challenge("first")
    team = ada.join_challenge("first", team="Odds", accept_rules=True)
    assert ada.join_challenge("first") == team  # again changes nothing

    ada.challenge_starter("first", tmp_path / "starter")
    assert (tmp_path / "starter" / "starter.ipynb").is_file()

    done = scored(ada, ODD, tmp_path, "first")
    assert (done.submission.state, done.submission.scores) == (SubmissionState.COMPLETED, {"accuracy": 1.0})
    shown = ada.challenge("first")
    assert (shown.phases[0].today, shown.phases[0].total) == (2, 9)
    assert [(one.rank, one.team or one.baseline) for one in ada.challenge_board("first").places] == [(1, "Odds"), (2, "zeros")]

    client.freeze_challenge("first")
    with pytest.raises(Conflict, match="frozen"):
        ada.submit_to_challenge("first", tmp_path / "code")
    assert len(ada.challenge_board("first").places) == 2


@pytest.mark.gate
def test_training_data_are_there_in_jobs_of_a_team_alone(client: Client, person: Person, published: str, tmp_path: Path) -> None:
    """A task of a member reads them and cannot write; one of somebody else does not see them."""
    member, other = person("mia"), person("otto")
    member.join_challenge(published, accept_rules=True)
    train = member.challenge(published).train
    assert not other.challenge(published).train
    (tmp_path / "look").mkdir()
    script = tmp_path / "look" / "look.py"
    script.write_text(
        f"import os\nplace = {train!r}\nprint('read', open(place + '/numbers.txt').read())\n"
        "try:\n    open(place + '/more', 'w')\nexcept OSError:\n    print('kept')\n"
        "print('beside', [os.path.exists(place + '/../' + name) for name in ('public', 'private')])\n"
    )
    job = member.wait(member.submit_project(script).id)
    log = b"".join(member.log(job.id)).decode()
    assert ("read 1 2 3" in log, "kept" in log, "[False, False]" in log) == (True, True, True), log
    job = other.wait(other.submit_project(script).id)
    assert job.state == "FAILED"
    assert "FileNotFoundError" in b"".join(other.log(job.id)).decode()


def test_what_begins_a_challenge_is_among_the_files_of_sessions(
    person: Person, published: str, lab: LabProcess, tmp_path: Path
) -> None:
    """It comes once, with a link to the data; a file of that name, and a link that leads elsewhere, stay as they are."""
    ada = person("berta")
    ada.join_challenge(published, accept_rules=True)
    place = lab.home / "files" / "berta" / ada.start_challenge(published)
    assert sorted(one.name for one in place.iterdir()) == ["data", "starter.ipynb"]
    assert str((place / "data").readlink()) == ada.challenge(published).train
    (place / "starter.ipynb").write_text("mine")
    ada.start_challenge(published)
    assert (place / "starter.ipynb").read_text() == "mine"

    eve = person("eva")
    eve.join_challenge(published, accept_rules=True)
    (lab.home / "files" / "eva").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (lab.home / "files" / "eva" / published).symlink_to(tmp_path / "elsewhere")
    eve.start_challenge(published)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not list((lab.home / "files").glob(".*"))


def test_teams(person: Person, published: str) -> None:
    """Others join with the code; a person is in one team; names that look alike are one."""
    ada, bob, eve = person("anna"), person("bert"), person("emil")
    team = ada.join_challenge(published, team="The Evens", accept_rules=True)
    assert bob.join_challenge(published, code=team.code, accept_rules=True).members == ("anna", "bert")
    with pytest.raises(Conflict, match="You are in the team"):
        bob.join_challenge(published, team="Mine", accept_rules=True)
    with pytest.raises(Conflict, match="There is a team"):
        eve.join_challenge(published, team="the evens", accept_rules=True)
    with pytest.raises(NotFound, match="No team has this code"):
        eve.join_challenge(published, code="guessed", accept_rules=True)
    with pytest.raises(Invalid, match="cannot be the name"):
        eve.join_challenge(published, team="<b>", accept_rules=True)
    with pytest.raises(Conflict, match="do not take part"):
        eve.challenge_submissions(published)
    assert "code" not in json.dumps(str(eve.challenge(published).team))


def test_what_fails_is_told_without_the_data(client: Client, person: Person, published: str, tmp_path: Path) -> None:
    """The team hears by whom it failed, and pays with a failure; an organiser reads the log."""
    ada = person("fritz")
    ada.join_challenge(published, accept_rules=True)
    done = scored(ada, f"def predict(number): raise SystemExit('{LABEL}' and open('/etc/hostname').read())", tmp_path)
    assert (done.submission.fault, done.submission.message) == (Fault.TEAM, "Its code ended with an error.")
    with pytest.raises(Denied):
        ada.challenge_log(published, done.submission.id)
    assert client.challenge_log(published, done.submission.id)

    short = "import os\ndef predict(number):\n    open('outputs/predictions.txt', 'w').write('1')\n    os._exit(0)"
    done = scored(ada, short, tmp_path)
    assert (done.submission.fault, done.submission.message) == (Fault.TEAM, "The scoring program refused the predictions.")
    assert ada.challenge(published).phases[0].today == 3  # a failure costs none of these
    with pytest.raises(Conflict, match="2 submissions failed today"):
        ada.submit_to_challenge(published, tmp_path / "code")


def test_the_last_line_is_told_as_far_as_the_challenge_allows(client: Client, person: Person, tmp_path: Path) -> None:
    """Where the ingestion ends with exit code 3: no more bytes than that, and nothing of other ends."""
    place = write_challenge(tmp_path / "telling", YAML.replace("name: parity", "name: telling") + "feedback: 20\n")
    client.keep_challenge(place)
    checked(client, "telling")
    client.publish_challenge("telling")
    ada = person("ines")
    ada.join_challenge("telling", accept_rules=True)
    said = "print('first'); print('TypeError at model.py:12 and much more', flush=True)"
    for code, told in ((3, "Its code ended with an error. TypeError at model.p"), (1, "Its code ended with an error.")):
        done = scored(ada, f"import os\ndef predict(number):\n    {said}\n    os._exit({code})", tmp_path, "telling")
        assert done.submission.message == told


def test_a_scoring_program_that_fails_is_the_organisers_fault(client: Client, person: Person, tmp_path: Path) -> None:
    """It keeps the challenge from being published; after that, it costs a team nothing of its day, and counts as a failure."""
    place = write_challenge(tmp_path / "broken", YAML.replace("name: parity", "name: broken"))
    score = place / "programs/scoring/score.py"
    good = score.read_text()
    score.write_text("import sys\nsys.exit(1)")
    client.keep_challenge(place)
    (zeros,) = checked(client, "broken")
    assert (zeros.submission.fault, zeros.submission.message) == (
        Fault.ORGANISER,
        "The scoring program failed. The organisers can see why.",
    )
    with pytest.raises(Conflict, match='The baseline "zeros" is FAILED'):
        client.publish_challenge("broken")

    score.write_text("import sys\nif '1' in open('predictions/predictions.txt').read().split():\n    sys.exit(1)\n" + good)
    client.keep_challenge(place)
    checked(client, "broken")
    client.publish_challenge("broken")
    ada = person("gerda")
    ada.join_challenge("broken", accept_rules=True)
    assert scored(ada, ODD, tmp_path, "broken").submission.fault is Fault.ORGANISER
    assert (ada.challenge("broken").phases[0].today, ada.challenge("broken").phases[0].total) == (3, 10)


def test_a_column_that_comes_later_leaves_boards_readable(client: Client, person: Person, tmp_path: Path) -> None:
    """What was scored before gets its column before the new version is published."""
    yaml = YAML.replace("name: parity", "name: later")
    client.keep_challenge(write_challenge(tmp_path / "later", yaml))
    checked(client, "later")
    client.publish_challenge("later")
    ada = person("karl")
    ada.join_challenge("later", accept_rules=True)
    scored(ada, ODD, tmp_path, "later")
    assert [one.team for one in ada.challenge_board("later").places] == ["karl", ""]
    place = write_challenge(tmp_path / "later", yaml.replace("column: accuracy,", "column: hits,"))
    score = place / "programs/scoring/score.py"
    score.write_text(score.read_text().replace('"accuracy"', '"hits"'))
    client.keep_challenge(place)
    checked(client, "later")
    with pytest.raises(Conflict, match="not scored again yet"):
        client.publish_challenge("later")
    assert [one.scores for one in ada.challenge_board("later").places] == [{"accuracy": 1.0}, {"accuracy": 0.55}]
    client.rescore_challenge("later")
    wait_until(
        lambda: all(one.after and one.after.state.ended for one in client.rescore_challenge("later", ask=False).lines),
        lambda: client.rescore_challenge("later", ask=False),
        timeout=PATIENCE,
    )
    client.publish_challenge("later", reason="Hits are counted.")
    assert [one.scores for one in ada.challenge_board("later").places] == [{"hits": 1.0}, {"hits": 0.55}]


def test_who_may_not_organise_leaves_nothing_on_the_disk(person: Person, published: str, lab: LabProcess, tmp_path: Path) -> None:
    """A directory that a user sends is not unpacked before it is known that the user may."""
    before = sorted(path.name for path in (lab.home / "challenges").rglob("*"))
    with pytest.raises(Denied):
        person("lena").keep_challenge(write_challenge(tmp_path / "own", YAML + "zone: Europe/Rome\n"))
    assert sorted(path.name for path in (lab.home / "challenges").rglob("*")) == before


def test_a_user_without_a_team_or_rights(client: Client, person: Person, published: str, tmp_path: Path) -> None:
    """Who may not organise, and who has no team, is told so; submissions of others are not there."""
    eve, ada = person("gustav"), person("hanna")
    for refused in (
        lambda: eve.keep_challenge(write_challenge(tmp_path / "own", YAML.replace("name: parity", "name: own"))),
        lambda: eve.publish_challenge(published),
        lambda: eve.freeze_challenge(published),
        lambda: eve.challenge_checks(published),
    ):
        with pytest.raises(Denied):
            refused()
    with pytest.raises(NotFound):
        eve.challenge("nothing")
    ada.join_challenge(published, accept_rules=True)
    done = scored(ada, ODD, tmp_path)
    with pytest.raises(NotFound):
        eve.challenge_submission(published, done.submission.id)
    with pytest.raises(Conflict, match="do not take part"):
        eve.submit_to_challenge(published, write_code(tmp_path / "code", ODD))
    # The jobs are of a user of the lab's own, and nothing of them is there for the team.
    assert not list(ada.jobs())
    with pytest.raises(Invalid):
        client.add_user("challenge:eve")
    assert INPUT not in str(ada.challenge(published))


def test_a_version_that_is_sent_again_keeps_its_baselines(client: Client, published: str, tmp_path: Path) -> None:
    """The same directory is the same version: its baselines are not run twice."""
    before = [one.submission.id for one in client.challenge_checks(published).submissions]
    client.keep_challenge(write_challenge(tmp_path / "again"))
    assert [one.submission.id for one in client.challenge_checks(published).submissions] == before
    client.publish_challenge(published)


def test_wrong_directories_are_refused_with_the_line(client: Client, tmp_path: Path) -> None:
    """Before anything is kept."""
    place = write_challenge(tmp_path / "wrong", YAML.replace("scoring: programs/scoring", "scoring: programs/none"))
    with pytest.raises(Invalid, match="line 9"):
        client.keep_challenge(place)
    place = write_challenge(tmp_path / "typo", YAML.replace("name: parity", "name: typo"))
    (place / "programs/scoring/MLproject").write_text("name: x\nentry_points: {main: {comand: python score.py}}\n")
    with pytest.raises(Invalid, match="comand"):
        client.keep_challenge(place)
    with pytest.raises(Invalid, match=r"challenge\.yaml"):
        client.keep_challenge(write_code(tmp_path / "code", ODD))
