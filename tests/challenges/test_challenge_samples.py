"""Training data that may not be copied: single files are shown, so many a day, and submitted code learns from all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from parity import INPUT, LABEL, YAML, browser, checked, scored, write_challenge

from carrel import Client
from carrel.core.domain.challenge import SubmissionState
from carrel.core.domain.errors import CarrelError, Conflict, NotFound
from carrel.wire.v1 import API
from support.lab_process import LabProcess

Person = Callable[[str], Client]
#: In the training data, and nowhere else.
SECRET = "training-data-77c0"
TRAIN = {"even.txt": f"{SECRET} 0 2 4 6 8", "more/odd.txt": f"{SECRET} 1 3 5 7 9", "large.bin": SECRET * 100}
#: It learns from the training data which last digits are odd.
LEARNS = """\
import os
train = os.environ["CARREL_TRAIN"]
odd = set(open(train + "/more/odd.txt").read().split()[1:])
def predict(number): return int(str(number)[-1] in odd)
"""


def samples(client: Client, tmp_path: Path, name: str, *, per_day: int = 3, more: str = "") -> str:
    """Publish a challenge whose training data are shown one by one."""
    declared = f"{{path: data/train, copy: false, samples_per_day: {per_day}, largest_sample: 1K}}"
    yaml = (
        YAML.replace("name: parity", f"name: {name}")
        .replace("per_day: 3,", "per_day: 9,")
        .replace("{path: data/train}", declared)
    )
    place = write_challenge(tmp_path / name, yaml + more)
    (place / "data/train/numbers.txt").unlink()
    for path, text in TRAIN.items():
        (place / "data/train" / path).parent.mkdir(parents=True, exist_ok=True)
        (place / "data/train" / path).write_text(text)
    client.keep_challenge(place)
    checked(client, name)
    client.publish_challenge(name)
    return name


@pytest.mark.gate
def test_a_team_sees_single_files_and_its_code_learns_from_all(client: Client, person: Person, tmp_path: Path) -> None:
    """What it has seen it may see again; the number that is left is that of the whole team. Its jobs have no file of it."""
    name = samples(client, tmp_path, "shown", per_day=2)
    ada, bob, eve = person("ada"), person("bob"), person("eve")
    team = ada.join_challenge(name, accept_rules=True)
    bob.join_challenge(name, code=team.code, accept_rules=True)
    eve.join_challenge(name, accept_rules=True)
    found = ada.challenge_samples(name)
    assert (found.names, found.total, found.left, found.shown) == (("even.txt", "more/odd.txt"), 2, 2, ())
    assert ada.challenge_sample(name, "even.txt").decode() == TRAIN["even.txt"]
    assert bob.challenge_sample(name, "even.txt").decode() == TRAIN["even.txt"]
    assert [one.left for one in (ada.challenge_samples(name), bob.challenge_samples(name), eve.challenge_samples(name))] == [
        1,
        1,
        2,
    ]
    assert bob.challenge_sample(name, "more/odd.txt").decode() == TRAIN["more/odd.txt"]
    (second, first) = client.challenge_samples(name).shown
    assert [(one.team, one.by, one.sample) for one in (first, second)] == [
        ("ada", "ada", "even.txt"),
        ("ada", "bob", "more/odd.txt"),
    ]
    assert not eve.challenge_samples(name).shown
    view = ada.challenge(name)
    assert view.train == ""
    assert view.sampling is not None
    done = scored(ada, LEARNS, tmp_path, name)
    assert done.submission.scores == {"accuracy": 1.0}
    work = tmp_path / "work"
    work.mkdir()
    # Everywhere but among the system's files and installed packages, which take a minute and more to read.
    without = " ".join(f"--exclude-dir={name}" for name in ("proc", "sys", "usr", "lib"))
    (work / "MLproject").write_text(
        f"name: thief\nentry_points: {{main: {{command: 'grep -rls {SECRET} / {without} || true'}}}}\n"
    )
    job = ada.wait(ada.submit_project(work).id)
    log = b"".join(ada.log(job.id)).decode()
    assert f"{name}/" not in log, log


def test_names_that_lead_elsewhere_are_no_samples(client: Client, person: Person, tmp_path: Path, lab: LabProcess) -> None:
    """Out of the directory, into other splits, to files that are too large: each is no file that is there, and costs nothing."""
    name = samples(client, tmp_path, "leads")
    eve = person("erna")
    eve.join_challenge(name, accept_rules=True)
    above = "../" * 12
    for sample in (
        *("../public/reference/labels.txt", "more/../../public/reference/labels.txt", "./even.txt", "more//odd.txt", "more", "."),
        *(
            f"{above}etc/passwd",
            "/etc/passwd",
            f"{above}{lab.home}/lab.db",
            f"{lab.home}/challenges/.names",
            "even.txt/../even.txt",
        ),
        *(
            "%2e%2e/public/input/numbers.txt",
            "..\\public\\input\\numbers.txt",
            "even.txt\x00",
            "even.txt\n",
            "large.bin",
            "EVEN.TXT",
        ),
        *(
            "public/labels.txt",
            "labels.txt",
            "challenge.yaml",
            "../../challenge.yaml",
            "\x1b[2J",
            "even.txt ",
            "ｅven.txt",
            "/even.txt",
        ),
    ):
        with pytest.raises(CarrelError) as caught:
            eve.challenge_sample(name, sample)
        assert caught.type.__name__ in ("NotFound", "Invalid"), sample
        assert "\x1b" not in str(caught.value)
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {eve.token}"}) as http:
        place = f"{API}/challenges/{name}/samples"
        for wrong in (
            {"sample": "even.txt", "split": "public"},
            {"sample": ""},
            {"sample": "a" * 2000},
            {"sample": ["even.txt"]},
            {},
        ):
            assert http.post(place, json=wrong).status_code == 422
        assert {http.get(f"{place}/even.txt").status_code, http.post(f"{place}/even.txt").status_code} <= {404, 405}
    assert eve.challenge_samples(name).left == 3


def test_many_at_once_get_no_more_than_are_left(client: Client, person: Person, tmp_path: Path) -> None:
    """Members of a team that ask for all of them at the same time, and a person who goes to another team."""
    name = samples(client, tmp_path, "at-once", per_day=1)
    ada, bob = person("anne"), person("bert")
    team = ada.join_challenge(name, accept_rules=True)
    bob.join_challenge(name, code=team.code, accept_rules=True)

    def ask(number: int) -> bytes | None:
        try:
            return (ada, bob)[number % 2].challenge_sample(name, ("even.txt", "more/odd.txt")[number // 2 % 2])
        except Conflict as error:
            refused.append(error.message)
            return None

    refused: list[str] = []
    with ThreadPoolExecutor(16) as pool:
        got = {one for one in pool.map(ask, range(32)) if one is not None}
    assert len(got) == 1
    assert all("seen the 1 samples of today" in one for one in refused)
    assert len(client.challenge_samples(name).shown) == 1
    other = next(path for path in ("even.txt", "more/odd.txt") if TRAIN[path].encode() not in got)
    bob.leave_challenge(name)
    bob.join_challenge(name, team="alone", accept_rules=True)
    with pytest.raises(Conflict, match="The next day begins"):
        bob.challenge_sample(name, other)
    assert bob.challenge_samples(name).left == 0


def test_strangers_and_latecomers_get_none(
    client: Client, person: Person, published: str, tmp_path: Path, lab: LabProcess
) -> None:
    """Those who have no team, no token, or not accepted the rules of now; and all of them when it is frozen or over."""
    name = samples(client, tmp_path, "closed")
    ada, eve = person("alma"), person("edna")
    for call in (lambda: eve.challenge_sample(name, "even.txt"), lambda: eve.challenge_samples(name)):
        with pytest.raises(Conflict, match="do not take part"):
            call()
    with pytest.raises(Conflict):  # an organiser has the data, and is in no team
        client.challenge_sample(name, "even.txt")
    assert client.challenge_samples(name).left is None
    assert httpx.post(f"{lab.url}{API}/challenges/{name}/samples", json={"sample": "even.txt"}).status_code == 401
    eve.join_challenge(published, accept_rules=True)
    for call in (lambda: eve.challenge_sample(published, "numbers.txt"), lambda: eve.challenge_samples(published)):
        with pytest.raises(NotFound, match="shows no single samples"):
            call()
    ada.join_challenge(name, accept_rules=True)
    assert ada.challenge_sample(name, "even.txt")
    client.freeze_challenge(name)
    with pytest.raises(Conflict, match="frozen"):
        ada.challenge_sample(name, "even.txt")


def test_a_challenge_that_has_ended_shows_none(client: Client, person: Person, tmp_path: Path) -> None:
    place = tmp_path / "over"
    name = samples(client, tmp_path, "over")
    ada = person("agnes")
    ada.join_challenge(name, accept_rules=True)
    file = place / "challenge.yaml"
    file.write_text(file.read_text().replace("end: 2040-01-01", "end: 2026-01-02"))
    client.keep_challenge(place)
    checked(client, name)
    client.publish_challenge(name, reason="it is over")
    with pytest.raises(Conflict, match="has ended"):
        ada.challenge_sample(name, "even.txt")


def test_what_code_says_of_training_data_is_filtered(client: Client, person: Person, tmp_path: Path) -> None:
    """It may fail with them in its last words, store them, or look from the scoring's side: the team is told of an end."""
    name = samples(client, tmp_path, "filtered")
    eve = person("elsa")
    eve.join_challenge(name, accept_rules=True)
    for code in (
        LEARNS + "raise SystemExit(open(train + '/even.txt').read())",
        LEARNS + "import shutil; shutil.copytree(train, 'outputs/train')",
        LEARNS + "print(open(train + '/even.txt').read())",
        LEARNS + "open(train + '/even.txt', 'a').write('x')",
    ):
        done = scored(eve, code, tmp_path, name)
        assert SECRET not in repr(done)
        assert SECRET not in repr(eve.challenge_record(name, done.submission.id))
    assert done.submission.state is SubmissionState.FAILED  # it is read-only
    theirs = [job for job in client.jobs("all", limit=None) if job.owner == f"challenge:{name}" and "scoring" in job.name]
    for job in theirs:
        assert "CARREL_TRAIN" not in client.job(job.id).model_dump_json()
    with httpx.Client(base_url=eve.url, headers={"Authorization": f"Bearer {eve.token}"}) as http:
        seen = [
            http.get(f"{API}/challenges/{name}{part}").text for part in ("", "/board", "/submissions", "/samples", "/notices")
        ]
    assert not [text for text in seen if SECRET in text or LABEL in text or INPUT in text]


def test_check_commands_and_page(client: Client, person: Person, tmp_path: Path, lab: LabProcess) -> None:
    """`check` says what participants will see, and how much; the page gives a file as a download, and says what is left."""
    name = samples(client, tmp_path, "words")
    carrel = [sys.executable, "-m", "carrel.cli.main", "challenge"]
    told = subprocess.run(
        [*carrel, "check", str(tmp_path / name), "--home", str(lab.home)], capture_output=True, text=True, check=True
    ).stdout
    assert "of the training data 3 files a day, of up to 1K each, for each team" in told
    assert "single files of the training data" in told
    ada = person("amy")
    ada.join_challenge(name, accept_rules=True)
    environ = {**os.environ, "CARREL_URL": ada.url, "CARREL_TOKEN": str(ada.token)}
    for words in (["sample", name], ["sample", name, "more/odd.txt"], ["show", name]):
        told = subprocess.run([*carrel, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout
        assert {"sample": "odd.txt", "show": "shown one by one"}[words[0]] in told
    assert (tmp_path / "odd.txt").read_text() == TRAIN["more/odd.txt"]
    again = subprocess.run(
        [*carrel, *words[:0], "sample", name, "more/odd.txt"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert "is there already" in again.stderr
    with browser(ada) as http:
        page = http.get(f"/challenges/{name}").text
        assert "yours may see 2 more today" in page
        secret = page.split('name="form_secret" value="')[1].split('"')[0]
        form = {"form_secret": secret, "sample": "even.txt"}
        given = http.post(f"/challenges/{name}/sample", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        assert given.text == TRAIN["even.txt"]
        assert given.headers["content-disposition"].startswith("attachment")
        wrong = http.post(
            f"/challenges/{name}/sample", data={**form, "sample": "../x"}, headers={"Sec-Fetch-Site": "same-origin"}
        )
        assert (wrong.status_code, "There is no sample" in wrong.text) == (404, True)
        assert http.post(f"/challenges/{name}/sample", data={"sample": "even.txt"}).status_code in (400, 403)
