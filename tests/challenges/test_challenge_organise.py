"""The organiser's day, with a real lab: what is told and asked, quotas, changes, what failed, likeness, report, export, site."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from parity import LABEL, YAML, checked, scored, write_challenge, write_code
from playwright.sync_api import Browser, expect
from test_challenge_pages import HTML, signed_in

from carrel import Client
from carrel.cli.main import main
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound
from support.chromium import a_chromium
from support.lab_process import LabProcess

Person = Callable[[str], Client]
#: Long enough to be compared.
CODE = """\
def digits(number):
    found = []
    while number > 0:
        found.append(number % 10)
        number = number // 10
    return found[::-1] or [0]

def predict(number):
    last = digits(number)[-1]
    if last in (1, 3, 5, 7, 9) and not last == 0:
        return 1
    for value in range(0, 10, 2):
        if value == last:
            return {zero}
    raise ValueError("a digit that there is not")
"""


def made(client: Client, place: Path, name: str, more: str = "") -> Path:
    """Publish a challenge; return its directory."""
    client.keep_challenge(write_challenge(place / name, YAML.replace("name: parity", f"name: {name}") + more))
    checked(client, name)
    client.publish_challenge(name)
    return place / name


@pytest.mark.gate
def test_the_organisers_day(
    client: Client, person: Person, lab: LabProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the API and the commands: announce, ask, answer, give more, see what failed and who is alike, report and export."""
    made(client, tmp_path, "day", "asks: {occupation: [student, other]}\n")
    ada, bob = person("ada"), person("bob")
    with pytest.raises(Invalid, match='"occupation" cannot be answered with "king"'):
        ada.join_challenge("day", accept_rules=True, answers={"occupation": "king"})
    ada.join_challenge("day", team="Odd", accept_rules=True, answers={"occupation": "student"})
    bob.join_challenge("day", accept_rules=True)

    at = ["--home", str(lab.home)]
    assert main(["challenge", "announce", "day", "The data\nare \x1b[31mnew", *at]) == 0
    (told,) = bob.challenge_notices("day").notices
    assert (told.text, told.by) == ("The data are ^[[31mnew", "root")
    question = ada.ask_in_challenge("day", "May I?")
    assert len(bob.challenge_notices("day").notices) == 1  # it is ada's
    assert main(["challenge", "answer", "day", str(question.id), "You may.", "--publish", *at]) == 0
    first, _ = bob.challenge_notices("day").notices
    assert (first.text, first.by, first.answer) == ("May I?", "", "You may.")

    assert main(["challenge", "quota", "day", "Odd", "--today", "2", "--total", "-1", "--reason", "a fault of ours", *at]) == 0
    phase = ada.challenge("day").phases[0]
    assert (phase.today, phase.total) == (5, 9)
    assert "a fault of ours" in ada.challenge_notices("day").notices[0].text
    assert bob.challenge("day").phases[0].today == 3
    assert len(bob.challenge_notices("day").notices) == 2

    scored(ada, CODE.format(zero=0), tmp_path / "a", "day")
    scored(bob, CODE.format(zero=1).replace("digits", "parts").replace("found", "list"), tmp_path / "b", "day")
    failed = scored(bob, "def predict(number): return {}[number]", tmp_path / "c", "day").submission

    report = client.challenge_report("day")
    assert [(one.kind, one.count, dict(one.teams), one.newest) for one in report.failures] == [
        ("code: KeyError", 1, {"bob": 1}, failed.id)
    ]
    assert {one.name: (one.submissions, one.scored, one.failed, one.today) for one in report.teams} == {
        "Odd": (1, 1, 0, 4),
        "bob": (2, 1, 1, 2),
    }
    assert report.answers == {"occupation": {"student": 1, "other": 0}}
    assert (report.days[0].teams, report.days[0].submissions) == (2, 3)

    found = client.challenge_likeness("day")
    assert [(set(one.teams), one.code, one.predictions < 0.95) for one in found.pairs] == [({"Odd", "bob"}, 1.0, True)]

    capsys.readouterr()
    for command in ("report", "likeness", "notices", "show"):
        assert main(["challenge", command, "day", *at]) == 0
    said = capsys.readouterr().out
    assert f"carrel challenge log day {failed.id}" in said
    assert "proves nothing" in said
    assert "\x1b" not in said
    assert main(["challenge", "export", "day", str(tmp_path / "out"), "--json", *at]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files == ["board-development.csv", "failures.csv", "report.json", "submissions.csv", "teams.csv"]
    with (tmp_path / "out" / "submissions.csv").open() as file:
        assert [(one["team"], one["state"], one["accuracy"]) for one in csv.DictReader(file)] == [
            ("bob", "FAILED", ""),
            ("bob", "COMPLETED", "0.45"),
            ("Odd", "COMPLETED", "1.0"),
        ]
    for ending, words in (
        (".md", "| code\\: KeyError | 1 |"),
        (".html", "<td>code: KeyError</td>"),
        (".json", '"code: KeyError"'),
    ):
        assert main(["challenge", "report", "day", "--output", str(tmp_path / f"r{ending}"), *at]) == 0
        assert words in (tmp_path / f"r{ending}").read_text()
    assert main(["challenge", "report", "day", "--output", str(tmp_path / "r.pdf"), *at]) == 2


def test_what_others_may_not(client: Client, person: Person, tmp_path: Path) -> None:
    """Reports, likeness and quotas are the organisers'; questions are those of teams, and ten of them wait at most."""
    made(client, tmp_path, "closed")
    eve, ada = person("eve"), person("agnes")
    for refused in (
        lambda: eve.challenge_report("closed"),
        lambda: eve.challenge_likeness("closed"),
        lambda: eve.announce_in_challenge("closed", "me"),
        lambda: eve.change_quota("closed", "agnes", today=1, reason="mine"),
        lambda: eve.answer_in_challenge("closed", 1, "me"),
    ):
        with pytest.raises(Denied):
            refused()
    with pytest.raises(Conflict, match="do not take part"):
        eve.ask_in_challenge("closed", "why?")
    ada.join_challenge("closed", accept_rules=True)
    for number in range(10):
        last = ada.ask_in_challenge("closed", f"why {number}?")
    with pytest.raises(Conflict, match="10 of your questions"):
        ada.ask_in_challenge("closed", "why?")
    client.answer_in_challenge("closed", last.id, "so")
    assert not eve.challenge_notices("closed").notices  # it was answered to its asker
    ada.ask_in_challenge("closed", "and now?")
    with pytest.raises(NotFound, match="no team"):
        client.change_quota("closed", "nobody", today=1, reason="x")
    with pytest.raises(Invalid, match="Nothing is given"):
        client.change_quota("closed", "agnes", reason="x")
    told = client.announce_in_challenge("closed", "this is none")
    with pytest.raises(NotFound, match="no question"):
        client.answer_in_challenge("closed", told.id, "so")


def test_a_change_after_the_start_is_told_and_other_rules_are_accepted_again(
    client: Client, person: Person, tmp_path: Path
) -> None:
    """Old and new, by whom and why; nothing is taken from who has not read the new rules."""
    place = made(client, tmp_path, "moved")
    ada = person("alma")
    ada.join_challenge("moved", accept_rules=True)
    yaml = (place / "challenge.yaml").read_text()
    (place / "challenge.yaml").write_text(yaml.replace("end: 2040-01-01", "end: 2041-01-01").replace("per_day: 3", "per_day: 4"))
    (place / "pages/rules.md").write_text("Be fair, and kind.")
    client.keep_challenge(place)
    checked(client, "moved")
    with pytest.raises(Invalid, match="2040-01-01 00:00 UTC → 2041-01-01 00:00 UTC"):
        client.publish_challenge("moved")
    assert ada.challenge("moved").phases[0].limits.per_day == 3
    client.publish_challenge("moved", reason="the lab was down")
    (told,) = ada.challenge_notices("moved").notices
    assert (told.kind, told.by) == ("change", "root")
    assert "a day 3 → 4; the rules are others" in told.text
    assert told.text.endswith("Reason: the lab was down")

    code = write_code(tmp_path / "code", "def predict(number): return 0")
    assert not ada.challenge("moved").rules_accepted
    with pytest.raises(Denied, match="rules have changed"):
        ada.submit_to_challenge("moved", code)
    ada.join_challenge("moved", accept_rules=True)
    assert ada.challenge("moved").rules_accepted
    scored(ada, code, tmp_path, "moved")

    (place / "pages/overview.md").write_text("Other words.")  # nobody has to be told
    client.keep_challenge(place)
    checked(client, "moved")
    client.publish_challenge("moved")
    assert len(ada.challenge_notices("moved").notices) == 1


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


@pytest.mark.browser
def test_the_page_of_organisers(chromium: Browser, client: Client, person: Person, lab: LabProcess, tmp_path: Path) -> None:
    """One question, its answer and one submission more, in a real browser; hostile words are shown as they are written."""
    made(client, tmp_path, "desk", "asks: {occupation: [student, other]}\n")
    ada = person("ella")
    page = signed_in(chromium, lab, ada.token)
    page.goto(f"{lab.url}/challenges/desk")
    page.get_by_label("occupation").select_option("student")
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Take part").click()
    page.get_by_label("Your question").fill(HTML)
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("[data-part=notices]")).to_contain_text("question")
    assert page.goto(f"{lab.url}/challenges/desk/organise").status == 403  # type: ignore[union-attr]
    scored(ada, CODE.format(zero=0), tmp_path / "a", "desk")
    bob = person("emma")
    bob.join_challenge("desk", accept_rules=True)
    scored(bob, CODE.format(zero=0), tmp_path / "b", "desk")
    scored(bob, "def predict(number): return {}[number]", tmp_path / "c", "desk")

    organiser = signed_in(chromium, lab, lab.token)
    organiser.goto(f"{lab.url}/challenges/desk")
    organiser.get_by_role("link", name="Organise").click()
    organiser.get_by_role("button", name="Today for ella").click()
    expect(organiser.locator("tr", has_text="ella").first).to_contain_text("3 today, 9 in all")
    organiser.get_by_label("Answer to question").fill("Yes.")
    organiser.get_by_role("button", name="Answer question").click()
    expect(organiser.get_by_text("Answer again")).to_be_visible()
    expect(organiser.locator("[aria-labelledby=failures]")).to_contain_text("code: KeyError")
    organiser.get_by_role("link", name="development").click()
    expect(organiser.locator("[aria-labelledby=likeness]")).to_contain_text("100 %")
    for width, scheme in ((1280, "light"), (390, "dark")):
        organiser.set_viewport_size({"width": width, "height": 900})
        organiser.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert organiser.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        violations = Axe().run(organiser).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in violations] == []
    assert organiser.title() != "ran"
    assert not organiser.locator("main b, main script, main img, main a[href^=javascript]").count()
    organiser.get_by_label("Number for ella").fill("0")
    organiser.get_by_role("button", name="Today for ella").click()
    expect(organiser.get_by_role("alert")).to_contain_text("Nothing is given")
    page.goto(f"{lab.url}/challenges/desk")
    expect(page.locator("[data-part=notices]")).to_contain_text("Yes.")
    expect(page.locator("[data-part=notices]")).to_contain_text("+1 today")

    (tmp_path / "desk/pages/rules.md").write_text("Other rules.")
    client.keep_challenge(tmp_path / "desk")
    checked(client, "desk")
    client.publish_challenge("desk", reason="they were too short")
    page.reload()
    expect(page.locator("[data-part=notices]")).to_contain_text("they were too short")
    page.get_by_label("I have read the rules again").check()
    page.get_by_role("button", name="Accept").click()
    expect(page.get_by_role("heading", name="The rules have changed")).not_to_be_attached()
    assert Axe().run(page).response["violations"] == []


@pytest.mark.browser
def test_a_frozen_challenge_as_files(chromium: Browser, client: Client, person: Person, lab: LabProcess, tmp_path: Path) -> None:
    """Pages that load nothing and run nothing, with what everybody may read; a directory with files in it stays as it is."""
    place = write_challenge(tmp_path / "files", YAML.replace("name: parity", "name: files"))
    (place / "pages/overview.md").write_text(f"{HTML}\n\n![](https://example.org/spy.png)\n\n    {'a long line of code, ' * 20}")
    client.keep_challenge(place)
    checked(client, "files")
    client.publish_challenge("files")
    ada = person("edith")
    ada.join_challenge("files", team="Odds", accept_rules=True)
    scored(ada, CODE.format(zero=0), tmp_path, "files")
    client.announce_in_challenge("files", "soon over")
    ada.ask_in_challenge("files", "who is edith?")
    at = ["--home", str(lab.home)]
    assert main(["challenge", "freeze", "files", "--output", str(place), *at]) == 5
    assert client.challenge("files").state == "published"
    site = tmp_path / "site"
    assert main(["challenge", "freeze", "files", "--output", str(site), *at]) == 0
    assert sorted(one.name for one in site.iterdir()) == ["index.html", "results.html"]
    reader = signed_in(chromium, lab, ada.token)
    reader.set_viewport_size({"width": 390, "height": 900})
    reader.goto(f"{lab.url}/challenges/files")
    assert reader.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context = chromium.new_context(offline=True, viewport={"width": 390, "height": 900})
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto((site / "index.html").as_uri())
    expect(page.get_by_text("Be fair.")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not page.locator("script, img, main b").count()
    page.get_by_role("link", name="Boards and participation").click()
    expect(page.locator("tr", has_text="Odds")).to_contain_text("1.00")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert said == []
    assert Axe().run(page).response["violations"] == []
    text = "".join(one.read_text() for one in site.iterdir())
    with pytest.raises(Conflict, match="frozen"):
        client.change_quota("files", "Odds", today=1, reason="late")
    code = ada.challenge("files").team
    assert code is not None
    assert not [word for word in ("edith", code.code, LABEL, str(lab.home), "<script") if word in text]
    context.close()
