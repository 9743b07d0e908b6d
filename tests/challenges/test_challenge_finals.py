"""From a phase to its final with a real lab, by command and page: what it costs, what is left, what is chosen and scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parity import YAML, carrel, checked, scored, write_challenge
from playwright.sync_api import Browser, Page, expect

from carrel import Client
from carrel.core.domain.challenge import ChallengeSubmission, SubmissionState
from carrel.testing.waiting import PATIENCE, wait_until
from support.chromium import a_chromium
from support.lab_process import LabProcess, start_lab
from support.small_lab import MortalLab

Person = Callable[[str], Client]
#: Right for as many of the numbers as they can be.
ODD, ZERO, ONE = (f"def predict(number): return {what}" for what in ("number % 2", "0", "1"))
DEVELOPMENT = "{name: development, begin: 2026-01-01, end: 2040-01-01, split: public}"
FINAL = "{name: final, begin: %s, end: 2041-01-01, split: private, final: {from: development, choose: team, number: 2}}"
LATER = YAML.replace(f"[{DEVELOPMENT}]", f"[{DEVELOPMENT}, {FINAL % '2040-01-01'}]").replace(
    "per_day: 3", "per_day: 6, gpu_hours: 2"
)
#: The same when the final has begun.
BEGUN = LATER.replace("end: 2040-01-01", "end: 2026-01-02").replace("begin: 2040-01-01", "begin: 2026-01-02")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab with GPUs that keeps jobs apart."""
    home = tmp_path_factory.mktemp("lab") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\n')
    process = start_lab(home, "--cpus", "8", simulate_gpus=2)
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


def write(place: Path, yaml: str, *, gpus: int = 1) -> Path:
    """A challenge with private data, whose programs ask for GPUs."""
    private = "  private: {input: data/private/input, reference: data/private/reference}\ningestion:"
    write_challenge(place, yaml.replace("ingestion:", private, 1))
    for path, content in {
        "input/numbers.txt": "\n".join(map(str, range(100, 111))),
        "reference/labels.txt": "x " + "1 0 " * 5 + "1",
    }.items():
        (place / "data/private" / path).parent.mkdir(parents=True, exist_ok=True)
        (place / "data/private" / path).write_text(content)
    for program in ("ingestion", "scoring") if gpus else ():
        file = place / "programs" / program / "MLproject"
        file.write_text(file.read_text().replace("memory: 256M", f"memory: 256M, gpus: {gpus}"))
    return place


def publish(client: Client, place: Path, name: str) -> None:
    client.keep_challenge(place)
    assert {one.submission.state for one in checked(client, name)} == {SubmissionState.COMPLETED}
    client.publish_challenge(name, reason="a test")


def in_final(client: Client, name: str) -> list[ChallengeSubmission]:
    return [one.submission for one in client.challenge_submissions(name).submissions if one.submission.phase == "final"]


def scored_finals(client: Client, name: str, number: int) -> list[ChallengeSubmission]:
    """Wait until so many have been scored in the final."""

    def found() -> list[ChallengeSubmission] | None:
        there = in_final(client, name)
        return there if len(there) >= number and all(one.state.ended for one in there) else None

    there = wait_until(found, lambda: in_final(client, name), timeout=PATIENCE)
    assert there is not None
    return there


def signed_in(browser: Browser, lab: LabProcess, token: str) -> Page:
    page = browser.new_page()
    page.goto(lab.url + "/login")
    page.get_by_label("Access token").fill(token)
    page.keyboard.press("Enter")
    page.wait_for_url(lab.url + "/")
    return page


@pytest.mark.gate
def test_from_development_to_the_final_by_command(client: Client, person: Person, lab: LabProcess, tmp_path: Path) -> None:
    """What it costs is said before it is sent, what is left after it; what the team chose is scored on private data."""
    publish(client, write(tmp_path / "first", LATER.replace("name: parity", "name: first")), "first")
    ada, bob = person("ada"), person("bob")
    team = ada.join_challenge("first", team="Odds", accept_rules=True)
    bob.join_challenge("first", code=team.code, accept_rules=True)

    told = carrel(lab, ada, "challenge", "submit", "first", str(tmp_path), "--dry-run")
    assert "at most 1 GPU, 1 processor, 10 min (0.17 GPU-hours)." in told
    assert "6 today, 10 in all, 1 at once, 2 that may fail today, 2 GPU-hours. The next day begins at" in told
    assert not ada.challenge_submissions("first").submissions
    best = scored(ada, ODD, tmp_path, "first").submission.id
    worst = scored(bob, ONE, tmp_path, "first").submission.id
    other = scored(bob, ZERO, tmp_path, "first").submission.id
    phase = json.loads(carrel(lab, ada, "challenge", "submissions", "first", "--json"))["phase"]
    assert (phase["today"], phase["total"], phase["at_once"], phase["failures"]) == (3, 7, 1, 2)
    assert 1.5 < phase["gpu_hours"] < 2  # what was taken, and not the most that could have been
    shown = carrel(lab, bob, "challenge", "submissions", "first", "--limit", "1")
    assert "Left in development: 3 today" in shown
    assert "There are older ones" in shown
    two = client.challenge_submissions("first", limit=2)
    assert ([one.submission.id for one in two.submissions], two.next) == ([other, worst], worst)

    assert f"Chosen for the final: {worst}" in carrel(lab, bob, "challenge", "choose", "first", str(worst))
    assert f"{best + 99}" in carrel(lab, bob, "challenge", "choose", "first", str(best + 99), fails=True)
    publish(client, write(tmp_path / "begun", BEGUN.replace("name: parity", "name: first")), "first")
    there = scored_finals(ada, "first", 2)
    assert {one.origin: one.scores["accuracy"] for one in there} == {best: 0.0, worst: 0.55}
    (place,) = (one for one in ada.challenge_board("first", "final").places if one.team)
    assert (place.team, place.scores["accuracy"], place.entries) == ("Odds", 0.55, 2)
    assert other not in {one.origin for one in there}
    refused = carrel(lab, ada, "challenge", "submit", "first", str(tmp_path / "code"), fails=True)
    assert 'takes no submissions: it scores those of "development" again' in refused
    assert "scores those of development again, up to 2 that each team chooses" in carrel(lab, ada, "challenge", "show", "first")


def test_teams_by_command(client: Client, person: Person, lab: LabProcess, tmp_path: Path) -> None:
    """Invite, merge, leave: each has its words, and its JSON."""
    publish(client, write(tmp_path / "teams", LATER.replace("name: parity", "name: teams")), "teams")
    ada, bob = person("anna"), person("bert")
    old = ada.join_challenge("teams", team="A", accept_rules=True).code
    new = json.loads(carrel(lab, ada, "challenge", "invite", "teams", "--json"))["code"]
    assert "No team has this code" in carrel(lab, bob, "challenge", "join", "teams", "--code", old, "--accept-rules", fails=True)
    bob.join_challenge("teams", team="B", accept_rules=True)
    assert "It asks the team A to merge." in carrel(lab, bob, "challenge", "merge", "teams", "--code", new)
    assert "To agree: carrel challenge merge teams --team 'B'" in carrel(lab, ada, "challenge", "show", "teams")
    assert "Your team: A (anna, bert)" in carrel(lab, ada, "challenge", "merge", "teams", "--team", "B")
    assert json.loads(carrel(lab, bob, "challenge", "leave", "teams", "--json")) == {"left": "teams"}
    assert "do not take part" in carrel(lab, bob, "challenge", "submissions", "teams", fails=True)
    refused = carrel(lab, bob, "challenge", "submit", "teams", str(tmp_path), "--dry-run", fails=True)
    assert "it is in no team, or no phase takes submissions" in refused


@pytest.mark.browser
def test_teams_and_finals_on_the_page(chromium: Browser, client: Client, person: Person, lab: LabProcess, tmp_path: Path) -> None:
    """What a submission takes and what is left, a new code, two teams that become one, what goes on, and leaving."""
    publish(client, write(tmp_path / "page", LATER.replace("name: parity", "name: page")), "page")
    ada, bob = person("paula"), person("peter")
    ada.join_challenge("page", team="A", accept_rules=True)
    code = bob.join_challenge("page", team="B", accept_rules=True).code
    first, second = scored(ada, ZERO, tmp_path, "page").submission.id, scored(ada, ODD, tmp_path, "page").submission.id
    page = signed_in(chromium, lab, ada.token)
    page.goto(f"{lab.url}/challenges/page")
    expect(
        page.get_by_text("It takes at most 1 GPU, 1 processor, 10 min (0.17 GPU-hours). After that at least 1.8")
    ).to_be_visible()
    expect(
        page.locator("[data-part=phases]").get_by_text("4 today, 8 in all, 1 at once, 2 that may fail today, 1.9")
    ).to_be_visible()

    page.get_by_text("Change the team").click()
    before = page.locator("#work + p code").inner_text()
    page.get_by_role("button", name="New code").click()
    expect(page.locator("#work + p code")).not_to_have_text(before)
    page.get_by_text("Change the team").click()
    page.get_by_label("Code of another team").fill(code)
    page.keyboard.press("Enter")
    expect(page.get_by_text("Your team asks B to merge.")).to_be_visible()

    theirs = signed_in(chromium, lab, bob.token)
    theirs.goto(f"{lab.url}/challenges/page")
    theirs.get_by_role("button", name="Merge with A").click()
    expect(theirs.get_by_text("peter, paula.")).to_be_visible()
    for number in (first, second):
        theirs.locator(f"[name=submission-{number}]").check()
    theirs.get_by_role("button", name="Choose", exact=True).click()
    expect(theirs.locator(f"[name=submission-{first}]")).to_be_checked()
    team = ada.challenge("page").team
    assert team is not None
    assert (team.name, team.chosen) == ("B", (first, second))

    page.reload()
    page.get_by_text("Change the team").click()
    page.get_by_role("button", name="Leave the team").click()
    expect(page.get_by_role("button", name="Take part")).to_be_visible()
    expect(page.locator("[data-part=submissions]")).to_have_count(0)


@pytest.mark.chaos
def test_what_goes_on_is_scored_once_whenever_the_lab_is_killed(tmp_path: Path) -> None:
    """Killed when the final begins, when its submissions are sent, and while they are scored."""
    lab = MortalLab(tmp_path / "home", "--cpus", "8", rules='isolation = "kernel"\n')
    try:
        publish(lab.client, write(tmp_path / "parity", LATER, gpus=0), "parity")
        people = []
        for name in ("ada", "bob", "cora"):
            token = lab.client.add_user(name).token
            people.append(Client(url=lab.process.url, token=token))
            people[-1].join_challenge("parity", accept_rules=True)
            scored(people[-1], ODD, tmp_path / name, "parity")
            scored(people[-1], ZERO, tmp_path / name, "parity")
        lab.client.keep_challenge(write(tmp_path / "begun", BEGUN, gpus=0))
        checked(lab.client)
        lab.client.publish_challenge("parity", reason="a test")
        lab.kill_and_restart()
        for state in (SubmissionState.PENDING, SubmissionState.RUNNING, SubmissionState.COMPLETED):
            states = {state, SubmissionState.COMPLETED}
            wait_until(lambda: any(one.state in states for one in in_final(lab.client, "parity")), timeout=PATIENCE)  # noqa: B023
            lab.kill_and_restart()
        there = scored_finals(lab.client, "parity", 6)
        assert len(there) == len({one.origin for one in there}) == 6
        assert {one.state for one in there} == {SubmissionState.COMPLETED}
        for person in people:
            assert len(in_final(person, "parity")) == 2
            person.close()
    finally:
        lab.stop()
