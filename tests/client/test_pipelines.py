"""Steps that a project declares: the example of docs/pipelines.md, run by the command line in a real lab."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel import Client
from carrel.core.domain.errors import Invalid
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire import v1
from support.lab_process import LabProcess

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
CARREL = Path(sys.executable).parent / "carrel"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "digits"
    place.mkdir()
    text = re.findall(r"```yaml\n# MLproject\n(.*?)```", PAGE, re.DOTALL)[0]
    (place / "MLproject").write_text(text + "  resources: {cpus: 1, memory: 64M}\n")
    (place / "own.txt").write_text(tmp_path.name)  # tests share the lab, and so its earlier jobs
    return place


def carrel(lab: LabProcess, *words: str | Path, code: int = 0) -> str:
    done = subprocess.run([CARREL, *words, "--home", lab.home], capture_output=True, text=True, timeout=4 * PATIENCE, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def steps(said: str) -> dict[str, tuple[int, bool]]:
    """What the command says of each step: its job, and whether that is of an earlier time."""
    found = re.findall(r"^(\w+) +job (\d+)( +from the cache)?$", said, re.MULTILINE)
    return {name: (int(number), bool(cached)) for name, number, cached in found}


@pytest.mark.gate
def test_steps_run_after_each_other_and_are_taken_from_the_cache(lab: LabProcess, client: Client, project: Path) -> None:
    said = carrel(lab, "run", project)
    first = steps(said)
    assert list(first) == ["prepare", "train", "report"]
    assert not any(cached for _, cached in first.values())
    assert "rate 0.1 of 10 numbers" in said
    jobs = {name: client.job(number) for name, (number, _) in first.items()}
    assert [job.name for job in jobs.values()] == ["digits.prepare", "digits.train", "digits.report"]
    assert jobs["train"].dependency == f"afterok:{jobs['prepare'].id}"
    assert [len(job.devices) for job in jobs.values()] == [0, 1, 0]
    again = steps(carrel(lab, "run", project))
    assert again == {name: (number, True) for name, (number, _) in first.items()}


def test_from_a_step_on_and_without_the_cache(lab: LabProcess, project: Path) -> None:
    first = steps(carrel(lab, "run", project))
    later = steps(carrel(lab, "run", "--from", "train", project))
    assert later["prepare"] == (first["prepare"][0], True)
    assert [later[name][0] > first["report"][0] and not later[name][1] for name in ("train", "report")] == [True, True]
    assert not any(cached for _, cached in steps(carrel(lab, "run", "--no-cache", project)).values())
    (project / "own.txt").write_text(f"{project} was mended")
    said = carrel(lab, "run", "--from", "train", project)
    assert {name: cached for name, (_, cached) in steps(said).items()} == {"prepare": True, "train": False, "report": False}
    assert "had the same parameters, environment and inputs; its code was another." in said
    description = project / "MLproject"
    description.write_text(description.read_text().replace("seq {upto}", f"true {project.parent.name}; seq {{upto}}"))
    assert "Run as well: prepare. No earlier job did the same, with this code or other." in carrel(
        lab, "run", "--from", "train", project
    )


def test_a_parameter_is_for_the_steps_that_take_it_and_the_others_stay(lab: LabProcess, project: Path) -> None:
    first = steps(carrel(lab, "run", project))
    said = carrel(lab, "run", "-P", "rate=0.2", project)
    assert {name: cached for name, (_, cached) in steps(said).items()} == {"prepare": True, "train": False, "report": False}
    assert "rate 0.2 of 10 numbers" in said
    assert steps(said)["prepare"][0] == first["prepare"][0]
    assert 'No step takes a parameter "rat"' in carrel(lab, "run", "-P", "rat=0.2", project, code=2)
    assert 'There is no step "trian".' in carrel(lab, "run", "--from", "trian", project, code=2)


def test_a_step_that_fails_ends_those_that_wait_and_the_next_run_goes_on(lab: LabProcess, client: Client, project: Path) -> None:
    description = project / "MLproject"
    right = description.read_text()
    description.write_text(right.replace("cat model.txt &&", "exit 3 #").replace("echo rate", "test -e wrong; echo rate"))
    found = json.loads(carrel(lab, "submit", "--json", project))["steps"]
    client.wait(found["report"]["id"], timeout=PATIENCE)
    assert client.job(found["report"]["id"]).exit_code == 3
    assert client.job(found["train"]["id"]).state == "COMPLETED"
    with httpx.Client(base_url=lab.url, headers={"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}) as browser:
        browser.post("/login", data={"token": lab.token})
        assert "carrel run --from" in browser.get(f"/jobs/{found['report']['id']}").raise_for_status().text
    said = carrel(lab, "run", project, code=3)
    assert [cached for _, cached in steps(said).values()] == [True, True, False]


def test_the_page_of_each_job_has_all_steps(lab: LabProcess, client: Client, project: Path) -> None:
    first = steps(carrel(lab, "run", project))
    later = steps(carrel(lab, "run", "--from", "report", project))
    with httpx.Client(base_url=lab.url, headers={"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}) as browser:
        browser.post("/login", data={"token": lab.token})
        page = browser.get(f"/jobs/{later['report'][0]}").raise_for_status().text
        other = browser.get(f"/jobs/{first['prepare'][0]}").raise_for_status().text
    table = page[page.index(">Pipeline</h2>") :].partition("</table>")[0]
    rows = [re.sub(r"<[^>]+>", "|", row) for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", table)]
    assert [[part for part in row.split("|") if part] for row in rows] == [
        ["prepare", str(first["prepare"][0]), "COMPLETED, from the cache"],
        ["train", str(first["train"][0]), "COMPLETED, from the cache", "prepare"],
        ["report", "this one", "COMPLETED", "train"],
    ]
    assert "this one" in other
    links = re.findall(r'aria-label="([^"]+)"[^>]*class="step', page)
    assert links == [
        f"prepare: COMPLETED, from the cache, job {first['prepare'][0]}",
        f"train: COMPLETED, from the cache, job {first['train'][0]}; after prepare",
        f"report: COMPLETED, job {later['report'][0]}, this one; after train",
    ]


TWO_BRANCHES = """
name: branches
carrel:
  resources: {cpus: 1, memory: 64M}
  steps:
    fails: {command: "until [ -e PLACE/go ]; do sleep 0.1; done; exit 3"}
    slow: {command: "touch PLACE/slow; until [ -e PLACE/end ]; do sleep 0.1; done"}
    last: {command: "true", after: [fails]}
"""


@pytest.fixture
def branches(tmp_path: Path) -> Path:
    (tmp_path / "branches").mkdir()
    (tmp_path / "branches" / "MLproject").write_text(TWO_BRANCHES.replace("PLACE", str(tmp_path)))
    return tmp_path / "branches"


def test_it_is_said_what_becomes_of_the_others_when_a_step_fails(
    lab: LabProcess, client: Client, tmp_path: Path, branches: Path
) -> None:
    (tmp_path / "go").touch()
    said = carrel(lab, "run", branches, code=3)
    found = steps(said)
    assert "Not run without fails: last." in said
    assert f"Going on: slow (job {found['slow'][0]})." in said
    (tmp_path / "end").touch()
    assert client.wait(found["slow"][0], timeout=PATIENCE).state == "COMPLETED"


def test_ctrl_c_ends_all_steps(lab: LabProcess, client: Client, tmp_path: Path, branches: Path) -> None:
    words = [CARREL, "run", branches, "--home", lab.home]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as command:
        wait_until((tmp_path / "slow").exists, "the second step", PATIENCE)
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130, said
    assert f"Cancelled, too: slow (job {steps(said)['slow'][0]})." in said
    assert {client.wait(number, timeout=PATIENCE).state for number, _ in steps(said).values()} == {"CANCELLED"}


def test_programs_are_told_of_all_steps_and_when_is_not_foreseen(lab: LabProcess, project: Path) -> None:
    carrel(lab, "run", project)
    lines = [json.loads(line) for line in carrel(lab, "run", "--json", project).splitlines()]
    assert [(line["type"], line["step"], line["job"]["cached"]) for line in lines] == [
        ("submitted", name, True) for name in ("prepare", "train", "report")
    ]
    assert "Steps start after each other" in carrel(lab, "submit", "--dry-run", project, code=2)


def test_what_is_not_cached_is_said(lab: LabProcess, project: Path, tmp_path: Path) -> None:
    (tmp_path / "data.txt").touch()
    text = (
        (project / "MLproject")
        .read_text()
        .replace("data: prepare/outputs", f"data: prepare/outputs\n        x: file://{tmp_path}/data.txt")
    )
    (project / "MLproject").write_text(text)
    assert "Not cached: file://" in carrel(lab, "run", project)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (("data: prepare/outputs", "data: report/outputs"), "the steps wait for each other"),
        (("data: prepare/outputs", "data: prepaer/outputs"), '"prepaer/outputs" is not a URI'),
        (("    train:\n      inputs", "    training:\n      inputs"), 'runs the entry point "training", which is not there'),
        (("resources: {gpus: 1}", "resource: {gpus: 1}"), '"resource" is not a key of carrel.steps.train'),
        (("  train:\n    parameters", "  main:\n    parameters"), "it is not clear what is to run"),
        (("seq {upto}", "seq {up}"), "up"),
    ],
)
def test_what_is_wrong_with_a_step_is_said(client: Client, project: Path, change: tuple[str, str], fact: str) -> None:
    description = project / "MLproject"
    text = description.read_text()
    assert change[0] in text
    description.write_text(text.replace(*change))
    with pytest.raises(Invalid, match="MLproject, line") as raised:
        client.submit_pipeline(project)
    assert fact in str(raised.value)


def test_a_step_that_the_lab_refuses_is_named_and_those_before_it_do_not_go_on(
    lab: LabProcess, client: Client, branches: Path
) -> None:
    description = branches / "MLproject"
    description.write_text(description.read_text().replace("after: [fails]", "after: [slow], resources: {gpus: 99}"))
    said = carrel(lab, "run", branches, code=2)
    assert "Step last: The job asks for 99 GPUs" in said
    ended = [client.wait(job.id, timeout=PATIENCE) for job in client.jobs(limit=2)]
    assert {(job.name, job.state) for job in ended} == {("branches.fails", "CANCELLED"), ("branches.slow", "CANCELLED")}


def test_a_step_whose_first_has_failed_before_it_was_submitted_ends_as_the_others_do(client: Client, branches: Path) -> None:
    (branches.parent / "go").touch()
    pipeline = "1" * 32
    first = client.submit_project(branches, step=v1.StepRequest(name="fails", pipeline=pipeline))
    assert client.wait(first.id, timeout=PATIENCE).exit_code == 3
    step = v1.StepRequest(name="last", pipeline=pipeline, jobs={"fails": first.id})
    last = client.submit_project(branches, step=step, dependency=f"afterok:{first.id}")
    ended = client.wait(last.id, timeout=PATIENCE)
    assert (ended.state, ended.reason) == ("CANCELLED", "DependencyNeverSatisfied")


def test_a_step_without_the_jobs_that_it_needs_is_refused(client: Client, project: Path) -> None:
    step: Any = v1.StepRequest(name="train", pipeline="0" * 32)
    with pytest.raises(Invalid, match="needs the job of prepare"):
        client.submit_project(project, step=step)


WAITS_FOR = """
import os, sys
import carrel

with carrel.Client() as lab:
    number = int(sys.argv[1]) if sys.argv[1:] else lab.submit_project("waits.py", arguments=[os.environ["CARREL_JOB_ID"]]).id
    print(lab.wait(number).state)
"""


def test_two_jobs_that_would_wait_for_each_other_are_told_at_once(client: Client, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS_FOR)
    parent = client.submit_project(tmp_path / "waits.py", resources=v1.ResourceRequest(cpus=1, memory="128M"))
    assert client.wait(parent.id, timeout=PATIENCE).state in ("COMPLETED", "FAILED")
    (child,) = client.jobs(limit=1)
    said = [b"".join(client.log(number)).decode() for number in (parent.id, child.id)]
    assert sum("which would wait for it for ever" in one for one in said) == 1, said
