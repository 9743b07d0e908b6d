"""Attacks on a challenge: by the code of a team, by its tasks, by its predictions, and by its calls. None gets a reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import hostile
import httpx
import pytest
from parity import INPUT, LABEL, scored

from carrel import Client
from carrel.core.domain.challenge import SubmissionState
from carrel.core.domain.errors import CarrelError
from carrel.wire.v1 import API
from support.lab_process import LabProcess

Person = Callable[[str], Client]
MARK = "mark-of-the-first-5512"


def hostile_code(lab: LabProcess) -> str:
    where = urlsplit(lab.url)
    text = Path(hostile.__file__).read_text()
    for name, value in {
        "LABEL": LABEL,
        "MARK": MARK,
        "LAB": str(lab.home),
        "HOST": str(where.hostname),
        "PORT": str(where.port),
    }.items():
        text = text.replace(f"@{name}@", value)
    return text


@pytest.mark.gate
def test_code_of_a_team_gets_nothing(client: Client, person: Person, published: str, tmp_path: Path, lab: LabProcess) -> None:
    """It looks everywhere it can, twice: the second time for what the first one left."""
    eve = person("eve")
    eve.join_challenge(published, accept_rules=True)
    for _ in range(2):
        done = scored(eve, hostile_code(lab), tmp_path)
        assert done.submission.state is SubmissionState.COMPLETED, done
        # The log that an organiser reads is that of the scoring: of the ingestion, the jobs of the programs' user say it.
        ingestion = next(job for job in client.jobs("all", limit=None) if job.name == f"parity-{done.submission.id}-ingestion")
        log = b"".join(client.log(ingestion.id)).decode()
        assert f"{len(hostile.ATTACKS)} attacks" in log, log
        assert not [line for line in log.splitlines() if line.startswith("GOT")], log


PREDICTIONS = {
    "a link to the references": "os.symlink(os.environ['CARREL_INPUT'] + '/../reference/labels.txt', 'outputs/predictions.txt')",
    "a link to the scoring program": "os.symlink('../score.py', 'outputs/predictions.txt')",
    "the name of the scores": "open('outputs/scores.json', 'w').write('{\"accuracy\": 1.0}')",
    "a pipe": "os.mkfifo('outputs/predictions.txt')",
    "a directory": "os.makedirs('outputs/predictions.txt')",
    "a link in place of all outputs": "os.rename('outputs', 'old'); os.symlink('@REFERENCE@', 'outputs')",
    "a link to the lab's database": "os.symlink('@LAB@/carrel.db', 'outputs/predictions.txt')",
    "a link within a directory": "os.symlink('@REFERENCE@', 'outputs/a'); os.symlink('a/labels.txt', 'outputs/predictions.txt')",
    "a name that leads out": "open('outputs/\\\\..\\\\predictions.txt', 'w').write('0')",
    "a socket": "__import__('socket').socket(1).bind('outputs/predictions.txt')",
}


@pytest.mark.parametrize("what", PREDICTIONS)
def test_predictions_that_are_something_else_score_nothing(
    client: Client, person: Person, published: str, tmp_path: Path, lab: LabProcess, what: str
) -> None:
    """They fail, or are scored as they are; no score comes from the team's own file of scores, and nothing else is stored."""
    ada = person("p" + str(sorted(PREDICTIONS).index(what)))
    ada.join_challenge(published, accept_rules=True)
    code = f"import os\ndef predict(number):\n    {PREDICTIONS[what]}\n    os._exit(0)\n"
    reference = ada.challenge(published).train.replace("/train", "/public/reference")
    done = scored(ada, code.replace("@REFERENCE@", reference).replace("@LAB@", str(lab.home)), tmp_path)
    assert done.submission.state is SubmissionState.FAILED
    assert not done.submission.scores
    ingestion = next(job for job in client.jobs("all", limit=None) if job.name == f"parity-{done.submission.id}-ingestion")
    assert not [one.path for one in client.outputs(ingestion.id) if "labels" in one.path or "carrel.db" in one.path]


def test_tasks_of_a_team_get_nothing_by_their_inputs(
    client: Client, person: Person, published: str, tmp_path: Path, lab: LabProcess
) -> None:
    """Addresses of the lab's own files, of jobs of the programs' user, and of its snapshots."""
    eve = person("ella")
    eve.join_challenge(published, accept_rules=True)
    done = scored(eve, "def predict(number): return 0", tmp_path)
    theirs = [job for job in client.jobs("all", limit=None) if job.name.startswith(f"parity-{done.submission.id}-")]
    assert len(theirs) == 2
    train = eve.challenge(published).train
    hidden = train.replace("/train", "/public/reference/labels.txt")
    addresses = [
        *(f"job:{job.id}/outputs" for job in theirs),
        *(
            hidden,
            f"file://{hidden}",
            train + "/../public/reference/labels.txt",
            f"{lab.home}/carrel.db",
            f"git+file://{lab.home}",
        ),
    ]
    for number, address in enumerate(addresses):
        work = tmp_path / f"work{number}"
        work.mkdir()
        (work / "MLproject").write_text(
            "name: thief\nentry_points: {main: {command: 'cat got got/* got/*/* || true'}}\n"
            f"carrel: {{inputs: {{got: '{address}'}}}}\n"
        )
        try:
            job = eve.wait(eve.submit_project(work).id)
        except CarrelError:
            continue  # refused before it began
        log = b"".join(eve.log(job.id)).decode()
        assert job.state == "FAILED", (address, log)
        assert LABEL not in log
        assert INPUT not in log


def test_calls_of_a_team_get_nothing(client: Client, person: Person, published: str, tmp_path: Path, lab: LabProcess) -> None:
    """Every address about the jobs of the programs, and every answer about the challenge."""
    eve, ada = person("edda"), person("adam")
    for one in (eve, ada):
        one.join_challenge(published, accept_rules=True)
    done = scored(ada, "def predict(number): return 0", tmp_path)
    mine = scored(eve, "def predict(number): return 1", tmp_path)
    jobs = [job.id for job in client.jobs("all", limit=None) if job.owner == f"challenge:{published}"]
    assert len(jobs) >= 6
    headers = {"Authorization": f"Bearer {eve.token}"}
    version = client.challenge_submission(published, mine.submission.id).submission.version
    assert len(version) > 64 > len(mine.submission.version)  # a digest of all data would confirm who guesses the labels
    paths = [
        *(
            f"/jobs/{job}{part}"
            for job in jobs
            for part in ("", "/log", "/outputs", "/outputs/outputs/scores.json", "/record", "/attempts")
        ),
        *(f"/jobs/{jobs[0]}/{part}" for part in ("events", "crate", "explain", "metrics")),
        f"/snapshots/{version}",
        f"/snapshots/{done.submission.snapshot}",
        f"/challenges/{published}/submissions/{done.submission.id}",
        f"/challenges/{published}/submissions/{done.submission.id}/log",
        f"/challenges/{published}/submissions/{mine.submission.id}/log",
        f"/challenges/{published}/submissions/{done.submission.id}/record",
        f"/challenges/{published}/rescore",
        f"/challenges/{published}/checks",
        "/jobs?owner=all",
    ]
    with httpx.Client(base_url=lab.url, headers=headers) as http:
        for path in paths:
            assert http.get(API + path).status_code in (403, 404, 405), path
        for body in (
            {"snapshot": version, "script": "programs/scoring/score.py"},
            {"snapshot": done.submission.snapshot, "script": "model.py"},
        ):
            assert http.post(f"{API}/jobs", json=body).status_code == 404
        assert (
            http.post(f"{API}/challenges/{published}/submissions", json={"snapshot": done.submission.snapshot}).status_code == 404
        )
        assert http.post(f"{API}/jobs/{jobs[0]}/rerun").status_code in (404, 405)
        places = [
            f"/challenges{part}"
            for part in (
                "",
                f"/{published}",
                f"/{published}/board",
                f"/{published}/submissions",
                f"/{published}/submissions/{mine.submission.id}/record",
            )
        ]
        seen = [http.get(API + path).text for path in (*places, "/nodes", "/report/use", "/report/jobs", "/jobs")]
    for text in seen:
        assert LABEL not in text
        assert INPUT not in text
        assert version.removeprefix("sha256:") not in text
    # Scores leave the lab rounded, and nothing else that the scoring program wrote.
    assert mine.submission.scores == {"accuracy": 0.45}
