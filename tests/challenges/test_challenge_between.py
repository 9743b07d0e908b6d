"""What lies between the parts of challenges: ladders, finals, teams that change, quotas, scoring again, what is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from parity import INPUT, LABEL, YAML, browser, checked, scored, write_challenge, write_code
from test_challenge_finals import publish, scored_finals, write
from test_challenge_rescoring import rescored, write_new

from carrel import Client
from carrel.cli.main import main
from carrel.core.challenges.bound import bound
from carrel.core.challenges.seen import seen
from carrel.core.challenges.teams import check_ladder, check_sum, renamed
from carrel.core.domain.challenge import (
    ChallengeSpec,
    ChallengeSubmission,
    Column,
    Final,
    Ladder,
    Limits,
    Phase,
    Split,
    SubmissionState,
    Team,
)
from carrel.core.domain.errors import Conflict, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import API
from support.lab_process import LabProcess

Person = Callable[[str], Client]
#: Right for as many of the 11 numbers as their names say.
SIX, SEVEN, ALL = (f"def predict(number): return {what}" for what in ("0", "int(number == 101)", "number % 2"))
DEVELOPMENT = "{name: development, begin: 2026-01-01, end: 2040-01-01, split: public}"
FINAL = "{name: final, begin: %s, end: 2041-01-01, split: private, final: {from: development, choose: best, number: 1}}"
LATER = YAML.replace(f"[{DEVELOPMENT}]", f"[{DEVELOPMENT}, {FINAL % '2040-01-01'}]")
BEGUN = LATER.replace("end: 2040-01-01", "end: 2026-01-02").replace("begin: 2040-01-01", "begin: 2026-01-02")
DAY = 86_400.0
COLUMN = Column(column="accuracy", title="Accuracy", precision=2, range=(0, 1))
PHASE = Phase(name="one", begin=0, end=2 * DAY, split="public", limits=Limits(per_day=2, total=10))
SPEC = ChallengeSpec(
    name="c",
    title="C",
    pages={},
    splits={"public": Split(input="i", reference="r")},
    ingestion="i",
    scoring="s",
    phases=(PHASE, replace(PHASE, name="final", begin=2 * DAY, end=9 * DAY, final=Final(source="one", number=2))),
    board=(COLUMN,),
    ladder=Ladder(step=0.1, phases=("one",)),
)


def of_team(number: int, team: str, score: float) -> ChallengeSubmission:
    sent = ChallengeSubmission(id=number, challenge="c", phase="one", team=team, snapshot="", scores={"accuracy": score})
    return replace(sent, state=SubmissionState.COMPLETED, ended_at=float(number))


@pytest.mark.quick
def test_a_team_that_merged_twice_is_one() -> None:
    """What the third one sent is the first one's, in whatever order their names are."""
    teams = [
        Team(challenge="c", name="A", merged=("B", "C")),
        Team(challenge="c", name="B", merged=("C",)),
        Team(challenge="c", name="C"),
    ]
    sent = [of_team(number, name, 0.5) for number, name in enumerate("CBA")]
    for order in (teams, teams[::-1]):
        assert {one.team for one in renamed(sent, order)} == {"A"}


@pytest.mark.quick
def test_what_two_teams_were_shown_stays_when_they_merge() -> None:
    """Each has climbed a ladder of its own; a third one over both would tell more."""
    teams = [Team(challenge="c", name="A", merged=("B",)), Team(challenge="c", name="B")]
    sent = [of_team(1, "B", 0.48), of_team(2, "A", 0.56), of_team(3, "B", 0.61), of_team(4, "A", 0.64)]
    told = list(renamed(seen(SPEC, sent, 99), teams))
    assert [one.scores["accuracy"] for one in told] == [0.5, 0.6, 0.6, 0.6]


@pytest.mark.quick
def test_nobody_climbs_a_ladder_from_its_foot_again() -> None:
    """By another team while the phase goes on; in a phase that is over nothing can be sent."""
    check_ladder(SPEC, [], DAY)
    with pytest.raises(Conflict, match='in the phase "one" in another team'):
        check_ladder(SPEC, [of_team(1, "A", 0.5)], DAY)
    check_ladder(SPEC, [of_team(1, "A", 0.5)], 2 * DAY)
    check_ladder(replace(SPEC, ladder=None), [of_team(1, "A", 0.5)], DAY)


@pytest.mark.quick
def test_a_phase_that_has_ended_at_midnight_has_no_day_more() -> None:
    sent = [of_team(number, "A", 0.5) for number in range(5)]
    for now in (DAY * 1.5, 2 * DAY, 5 * DAY):
        with pytest.raises(Conflict, match="One team could have sent 4: 2 on each of 2 days"):
            check_sum(SPEC, sent, now)


@pytest.mark.quick
def test_of_a_final_a_team_learns_from_what_goes_on() -> None:
    """It sends nothing there, whatever limits say."""
    found = bound(SPEC, SPEC.phases[1], longest=600, reference_bytes=1000)
    assert (found.scored, found.failed) == (2, 2)
    assert "A team of which 2 go on from one learns at most" in found.words[0]
    assert "failures_per_day" not in " ".join(found.words)


def test_who_leaves_sees_no_further_samples(client: Client, person: Person, tmp_path: Path) -> None:
    """Also where nothing was sent: the team that was left stays, and what it saw counts for who was there."""
    train = "{path: data/train, copy: false, samples_per_day: 1, largest_sample: 1K}"
    yaml = YAML.replace("name: parity", "name: seen").replace("{path: data/train}", train)
    place = write_challenge(tmp_path / "seen", yaml)
    (place / "data/train/more.txt").write_text("4 5 6")
    publish(client, place, "seen")
    eve, ada = person("eve"), person("ada")
    eve.join_challenge("seen", team="First", accept_rules=True)
    assert eve.challenge_sample("seen", "numbers.txt") == b"1 2 3"
    for name in ("Second", "Third"):
        eve.leave_challenge("seen")
        eve.join_challenge("seen", team=name, accept_rules=True)
        assert eve.challenge_samples("seen").left == 0
        with pytest.raises(Conflict, match="seen the 1 samples of today"):
            eve.challenge_sample("seen", "more.txt")
    with pytest.raises(Conflict, match='There is a team "First"'):  # somebody else's
        ada.join_challenge("seen", team="First", accept_rules=True)
    eve.leave_challenge("seen")
    assert eve.join_challenge("seen", team="first", accept_rules=True).name == "First"  # nobody is in it: who was comes back


def test_a_ladder_and_what_goes_on(client: Client, person: Person, lab: LabProcess, tmp_path: Path) -> None:
    """A new team begins no new ladder; a final goes by what was shown; and no notice has the digest of a version."""
    name = "climb"
    more = "ladder: {step: 0.2, phases: [development]}\n"
    publish(client, write(tmp_path / "later", LATER.replace("name: parity", f"name: {name}") + more, gpus=0), name)
    ada = person("cleo")
    ada.join_challenge(name, team="A", accept_rules=True)
    first = scored(ada, SIX, tmp_path, name).submission
    second = scored(ada, SEVEN, tmp_path, name).submission
    assert first.scores == second.scores == {"accuracy": 0.6}
    ada.leave_challenge(name)
    with pytest.raises(Conflict, match="scores move in steps"):
        ada.join_challenge(name, team="B", accept_rules=True)
    ada.join_challenge(name, team="A", accept_rules=True)
    assert len(ada.challenge_submissions(name).submissions) == 2

    publish(client, write(tmp_path / "begun", BEGUN.replace("name: parity", f"name: {name}") + more, gpus=0), name)
    assert [one.origin for one in scored_finals(ada, name, 1)] == [first.id]  # not the better one, which nobody was shown
    version = client.challenge_notices(name).notices[0].version
    assert version.startswith("sha256:")
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {ada.token}"}) as http:
        told = http.get(f"{API}/challenges/{name}/notices")
    assert "development: ends" in told.text
    assert version not in told.text
    assert told.json()["notices"][0]["version"] == "2"
    days = client.challenge_report(name).days
    assert sum(one.submissions for one in days) == 2  # what went on was sent once
    with pytest.raises(Conflict, match="no phase now to which teams send"):
        client.change_quota(name, "A", today=1, reason="more")


def test_quotas_and_notices_of_teams_that_change(client: Client, person: Person, tmp_path: Path) -> None:
    """What was taken away goes with the people; a team under the name that it had reads and has what it was given."""
    name = "moving"
    yaml = YAML.replace("name: parity", f"name: {name}") + "teams: {largest: 3}\n"
    publish(client, write_challenge(tmp_path / name, yaml), name)
    ada, bob, cora, dora = (person(f"m-{one}") for one in ("ada", "bob", "cora", "dora"))
    ada.join_challenge(name, team="A", accept_rules=True)
    client.change_quota(name, "A", total=-6, reason="It was copied.")
    ada.leave_challenge(name)
    ada.join_challenge(name, team="New", accept_rules=True)
    assert ada.challenge(name).phases[0].total == 4
    with pytest.raises(Conflict, match='There is a team "A"'):  # its name is not free for others
        dora.join_challenge(name, team="A", accept_rules=True)

    bob.join_challenge(name, team="B", accept_rules=True)
    code = cora.join_challenge(name, team="C", accept_rules=True).code
    client.change_quota(name, "B", today=1, reason="for B")
    client.change_quota(name, "C", today=1, reason="for C")
    bob.merge_teams(name, code=code)
    cora.merge_teams(name, team="B")
    assert bob.challenge(name).phases[0].today == 4  # what both were given is given once
    client.change_quota(name, "B", today=2, reason="for both")
    for one in (bob, cora):
        assert one.challenge(name).phases[0].today == 6
        assert [notice.text.rpartition(". ")[2] for notice in one.challenge_notices(name).notices] == [
            "for both",
            "for C",
            "for B",
        ]
    assert {one.name for one in client.challenge_report(name).teams} == {"A", "C", "New"}


def test_a_name_that_is_free_again_has_nothing_of_the_team_before(client: Client, person: Person, published: str) -> None:
    """Who takes it agrees to no merging that others wanted."""
    ada, bob, eve = (person(f"n-{one}") for one in ("ada", "bob", "eve"))
    code = bob.join_challenge(published, team="Known", accept_rules=True).code
    ada.join_challenge(published, team="Asking", accept_rules=True)
    assert ada.merge_teams(published, code=code).asked == "Known"
    bob.leave_challenge(published)
    assert eve.join_challenge(published, team="Known", accept_rules=True).asked_by == ()
    with pytest.raises(NotFound, match="asks to merge"):
        eve.merge_teams(published, team="Asking")


def test_who_has_sent_something_joins_as_long_as_teams_merge(client: Client, person: Person, tmp_path: Path) -> None:
    name = "late"
    yaml = YAML.replace("name: parity", f"name: {name}") + "teams: {merge_until: 2026-01-02}\n"
    publish(client, write_challenge(tmp_path / name, yaml), name)
    ada, bob, eve = (person(f"l-{one}") for one in ("ada", "bob", "eve"))
    ada.join_challenge(name, team="A", accept_rules=True)
    code = bob.join_challenge(name, team="B", accept_rules=True).code
    scored(ada, SIX, tmp_path, name)
    ada.leave_challenge(name)
    with pytest.raises(Conflict, match="Teams could merge until"):
        ada.join_challenge(name, code=code, accept_rules=True)
    eve.join_challenge(name, code=code, accept_rules=True)  # she brings nothing
    assert ada.join_challenge(name, team="A", accept_rules=True).members == ("l-ada",)


def test_a_final_waits_for_what_is_scored_again(client: Client, person: Person, tmp_path: Path) -> None:
    """What was under way when another program was published, and the final began, goes on if it is the best."""
    name = "waiting"
    later, begun = (yaml.replace("name: parity", f"name: {name}").replace("at_once: 1", "at_once: 2") for yaml in (LATER, BEGUN))
    publish(client, write(tmp_path / "later", later, gpus=0), name)
    ada = person("waldo")
    ada.join_challenge(name, accept_rules=True)
    scored(ada, SIX, tmp_path, name)
    place = write_new(tmp_path / "begun", begun)
    score = (place / "programs/scoring/score.py").read_text()
    write(place, begun, gpus=0)
    (place / "programs/scoring/score.py").write_text(f"import time\ntime.sleep(4)\n{score}")
    client.keep_challenge(place)
    checked(client, name)
    rescored(client, name)
    slow = "import time\ndef predict(number):\n    time.sleep(0.5)\n    return number % 2\n"
    best = ada.submit_to_challenge(name, write_code(tmp_path / "slow", slow)).submission
    client.publish_challenge(name, reason="a test")
    assert [one.origin for one in scored_finals(ada, name, 1)] == [best.id]
    (entry,) = (one for one in client.challenge_board(name, "final").places if one.team)
    assert entry.scores == {"accuracy": 0.0}


def test_a_baseline_that_the_lab_could_not_carry_out_is_run_again(client: Client, tmp_path: Path) -> None:
    """By another check of the same directory; then it is published."""
    name = "retried"
    place = write_challenge(tmp_path / name, YAML.replace("name: parity", f"name: {name}"))
    baseline = place / "baselines/zeros/model.py"
    baseline.write_text(f"import time\ntime.sleep(600)\n{baseline.read_text()}")
    client.keep_challenge(place)

    def job() -> int | None:
        return next((one.id for one in client.jobs("all", limit=None) if one.name.startswith(f"{name}-")), None)

    found = wait_until(job, timeout=PATIENCE)
    assert found is not None
    client.cancel(found)
    (failed,) = checked(client, name)
    assert failed.submission.fault == "lab"
    with pytest.raises(Conflict, match='The baseline "zeros" is FAILED'):
        client.publish_challenge(name)
    client.keep_challenge(place)
    (again,) = client.challenge_checks(name).submissions
    assert again.submission.id > failed.submission.id
    assert not again.submission.state.ended
    found = wait_until(lambda: (one := job()) != found and one, timeout=PATIENCE)
    client.cancel(found)


#: Everything that holds something back, at once.
WITHHELD = """\
ladder: {step: 0.2, phases: [development]}
steps: {time: 3, one_end: true}
log: {bytes: 60}
intervals: 0.9
asks: {occupation: [student, other]}
teams: {largest: 3}
"""
EIGHT = "def predict(number): return int(number in (101, 103))  # word-of-cora-51ce"
FAILS = "def predict(number): raise ValueError(number)"


def write_all(place: Path, yaml: str, *, two: bool = False) -> Path:
    """A challenge with it, whose scoring writes resamples; `two`: it looks at the first two numbers only."""
    train = "{path: data/train, copy: false, samples_per_day: 1, largest_sample: 1K}"
    yaml = yaml.replace("{path: data/train}", train).replace("end: 2041-01-01", "end: 2041-01-01, board: hidden")
    (write_new if two else write_challenge)(place, yaml)
    score = (place / "programs/scoring/score.py").read_text()
    write(place, yaml + WITHHELD, gpus=0)
    resamples = 'json.dump({"accuracy": [n / 100 for n in range(20)]}, open("outputs/replicates.json", "w"))\n'
    (place / "programs/scoring/score.py").write_text(score + resamples)
    return place


def all_that_is_told(lab: LabProcess, reader: Client, name: str, numbers: range) -> str:
    """Answers of all calls and pages about the challenge, to one person."""
    one = f"{API}/challenges/{name}"
    parts = ["", "/board", "/submissions", "/notices", "/samples", "/report", "/likeness", "/rescore", "/checks", "?draft=true"]
    parts += [f"/{what}?phase={phase}" for what in ("board", "likeness") for phase in ("development", "final")]
    parts += [f"/submissions/{number}{what}" for number in numbers for what in ("", "/record", "/log")]
    pages = [f"/challenges/{name}{rest}" for rest in ("", "?part=live", "?phase=final", "?phase=development", "/organise")]
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {reader.token}"}) as http:
        told = [http.get(path).text for path in (f"{API}/challenges", f"{API}/jobs", *(one + part for part in parts))]
    with browser(reader) as http:
        return "\n".join([*told, *(http.get(page).text for page in ("/challenges", *pages))])


def test_all_that_holds_something_back_at_once(client: Client, person: Person, lab: LabProcess, tmp_path: Path) -> None:
    """Whatever happens to teams, programs and phases, nobody reads another team's code, a hidden score, a label or a digest."""
    name = "every"
    later, begun = (yaml.replace("name: parity", f"name: {name}") for yaml in (LATER, BEGUN))
    publish(client, write_all(tmp_path / "later", later), name)
    ada, bob, cora, eve = (person(f"e-{one}") for one in ("ada", "bob", "cora", "eve"))
    ada.join_challenge(name, team="A", accept_rules=True, answers={"occupation": "student"})
    code = bob.join_challenge(name, team="B", accept_rules=True).code
    cora.join_challenge(name, team="C", accept_rules=True)
    first = scored(ada, SIX, tmp_path / "1", name).submission
    better = scored(ada, SEVEN, tmp_path / "2", name).submission
    theirs = scored(cora, EIGHT, tmp_path / "3", name).submission
    failed = scored(cora, FAILS, tmp_path / "4", name).submission
    numbers = range(first.id - 4, failed.id + 12)
    assert [one.scores for one in (first, better, theirs)] == [{"accuracy": 0.6}, {"accuracy": 0.6}, {"accuracy": 0.8}]
    assert (failed.message, failed.fault, failed.intervals) == ("It failed. The organisers can see why.", None, {})
    assert ada.merge_teams(name, code=code).asked == "B"
    assert bob.merge_teams(name, team="A").members == ("e-bob", "e-ada")
    ask = cora.ask_in_challenge(name, "question-of-cora")
    client.answer_in_challenge(name, ask.id, "answer-to-cora")
    client.change_quota(name, "C", today=1, reason="quota-of-cora")
    version = client.challenge_submission(name, first.id).submission.version

    #: What nobody but organisers reads: true scores, labels, inputs, digests; and what is cora's alone.
    hidden = ["0.64", "0.73", LABEL, INPUT, version.removeprefix("sha256:")]
    of_cora = ["word-of-cora", "question-of-cora", "answer-to-cora", "quota-of-cora", theirs.snapshot, failed.snapshot]

    def check(*also: str) -> None:
        for reader in (ada, bob, cora, eve):
            told = all_that_is_told(lab, reader, name, numbers)
            strangers = [] if reader is cora else of_cora
            assert not [word for word in (*hidden, *strangers, *also) if word in told], reader
            assert "Odd or even" in told

    check()
    client.keep_challenge(write_all(tmp_path / "begun", begun, two=True))
    checked(client, name)
    rescored(client, name)
    draft = client.challenge_checks(name).submissions[0].submission.version
    hidden.append(draft.removeprefix("sha256:"))
    check()
    client.publish_challenge(name, reason="another program")
    finals = {one.team: one for one in scored_finals(client, name, 2)}
    assert {team: one.origin for team, one in finals.items()} == {"B": better.id, "C": theirs.id}
    check()
    for reader, team in ((ada, "B"), (cora, "C")):
        (one,) = (it.submission for it in reader.challenge_submissions(name).submissions if it.submission.phase == "final")
        assert (one.id, one.state, one.scores, one.intervals) == (finals[team].id, SubmissionState.COMPLETED, {}, {})
    assert not ada.challenge_board(name, "final").places
    report, found = client.challenge_report(name), client.challenge_likeness(name, "development")
    assert {one.name: (one.submissions, one.scored, one.failed) for one in report.teams} == {"B": (3, 3, 0), "C": (3, 2, 1)}
    assert [(one.submissions, one.scored, one.failed) for one in report.days] == [(4, 3, 1)]
    assert found.compared == 2
    site = tmp_path / "site"
    assert main(["challenge", "freeze", name, "--output", str(site), "--home", str(lab.home)]) == 0
    public = "".join(file.read_text() for file in site.iterdir())
    assert not [word for word in (*hidden, *of_cora, "e-ada", "another program") if word in public]
    assert ada.challenge_board(name, "final").places
    check()
