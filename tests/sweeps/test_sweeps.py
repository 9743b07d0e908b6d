"""Sweeps in a real lab."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

import httpx
import pytest
from swept import RESOURCES, sweep, task, wait_for_sweep

from carrel import Client
from carrel.cli.main import main
from carrel.core.domain.errors import Conflict, Invalid, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

REPORTS = "carrel.report((float(given.x) - 3) ** 2)\n"


@pytest.mark.gate
def test_a_sweep_finds_the_best_and_says_how_to_run_it(client: Client, tmp_path: Path) -> None:
    begun = sweep(client, task(tmp_path, REPORTS), {"x": "uniform(0, 6)", "n": "int(1, 3)", "c": "categorical(a, 'b c')"})
    assert begun.state == "RUNNING"
    ended = wait_for_sweep(client, begun.id)
    assert (ended.state, ended.counts, ended.message) == ("COMPLETED", {"COMPLETED": 4}, "")
    assert [trial.number for trial in ended.all_trials] == [1, 2, 3, 4]
    for trial in ended.all_trials:
        assert trial.value == pytest.approx((trial.parameters["x"] - 3) ** 2)
        assert trial.parameters["n"] in (1, 2, 3)
        assert trial.parameters["c"] in ("a", "b c")
        job = client.job(trial.job_id or 0)
        assert job.state == "COMPLETED"
        assert job.parameters == {name: str(value) for name, value in trial.parameters.items()}
    best = min(ended.all_trials, key=lambda one: one.value or 0.0)
    assert ended.best == best.number
    assert ended.best_arguments == [
        "-P",
        f"x={best.parameters['x']!r}",
        "-P",
        f"n={best.parameters['n']}",
        "-P",
        f"c={best.parameters['c']}",
    ]
    again = client.submit_project(tmp_path / "train.py", parameters=client.job(best.job_id or 0).parameters)
    for job in (again, client.rerun(best.job_id or 0)):
        assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED", "outside of a sweep a report does nothing"


def test_no_more_than_parallel_run_at_once_and_other_parameters_stay(client: Client, tmp_path: Path, flags: Path) -> None:
    body = "(flags / f'begun-{trial}').touch()\nwait_for('go')\nassert given.c == 'same'\ncarrel.report(float(given.x))\n"
    begun = sweep(
        client,
        task(tmp_path, body),
        {"x": "uniform(0, 1)"},
        parameters={"c": "same", "flags": str(flags)},
        options={"trials": 5, "parallel": 2, "direction": "maximize"},
    )
    wait_until(lambda: len(list(flags.glob("begun-*"))) == 2)
    seen = wait_for_sweep(client, begun.id, lambda one: len(one.all_trials) >= 2)
    assert seen.counts == {"RUNNING": 2}
    (flags / "go").touch()
    ended = wait_for_sweep(client, begun.id)
    assert ended.counts == {"COMPLETED": 5}
    assert ended.best == max(ended.all_trials, key=lambda one: one.value or 0.0).number


def test_a_grid_tries_every_combination_once(client: Client, tmp_path: Path) -> None:
    distributions = {"x": "uniform(0, 1, step=0.5)", "c": "categorical(a, b)"}
    begun = sweep(client, task(tmp_path, REPORTS), distributions, options={"sampler": "grid", "trials": None})
    ended = wait_for_sweep(client, begun.id)
    assert ended.trials == 6
    tried = [(trial.parameters["x"], trial.parameters["c"]) for trial in ended.all_trials]
    assert sorted(tried) == [(x, c) for x in (0.0, 0.5, 1.0) for c in ("a", "b")]
    with pytest.raises(Conflict, match="no more combinations"):
        client.resume_sweep(begun.id)


def test_a_pruned_trial_ends_early_and_has_not_failed(client: Client, tmp_path: Path, flags: Path) -> None:
    # The first two are good. Those after them are bad, and would never end by themselves.
    body = (
        "bad = trial > 2\n"
        "pruned = carrel.report(100.0 if bad else 1.0, 0)\n"
        "while bad:\n    pruned = carrel.report(100.0, 1) or pruned\n    time.sleep(0.05)\n"
    )
    options = {"trials": 7, "parallel": 1, "pruner": "median", "sampler": "random"}
    # The median needs five trials that were carried out; the bad ones end when they are told to until then.
    body = body.replace("bad = trial > 2", "bad = trial > 5")
    begun = sweep(client, task(tmp_path, body), {"x": "uniform(0, 1)"}, options=options)
    ended = wait_for_sweep(client, begun.id)
    assert ended.counts == {"COMPLETED": 5, "PRUNED": 2}
    pruned = ended.all_trials[-1]
    assert pruned.message.startswith("It was pruned at step ")
    job = client.job(pruned.job_id or 0)
    assert job.state == "CANCELLED"
    assert f"sweep {begun.id} (trial 7 was pruned)" in job.message


def test_a_sweep_whose_trials_fail_gives_up_and_can_be_resumed(client: Client, tmp_path: Path, flags: Path) -> None:
    body = "if not (flags / 'well').exists():\n    sys.exit(3)\ncarrel.report(1.0)\n"
    options = {"trials": 5, "parallel": 1}
    begun = sweep(client, task(tmp_path, body), {"x": "uniform(0, 1)"}, parameters={"flags": str(flags)}, options=options)
    ended = wait_for_sweep(client, begun.id)
    assert (ended.state, ended.counts) == ("FAILED", {"FAILED": 3})
    assert "3 trials failed and none has a value" in ended.message
    assert re.search(r"Job \d+ is FAILED", ended.message)
    (flags / "well").touch()
    assert client.resume_sweep(begun.id).state == "RUNNING"
    ended = wait_for_sweep(client, begun.id)
    assert (ended.state, ended.counts) == ("COMPLETED", {"FAILED": 3, "COMPLETED": 2})


def test_a_trial_that_reports_nothing_has_failed_with_words(client: Client, tmp_path: Path) -> None:
    begun = sweep(client, task(tmp_path, "pass\n"), {"x": "uniform(0, 1)"}, options={"trials": 1})
    ended = wait_for_sweep(client, begun.id)
    (trial,) = ended.all_trials
    assert trial.state == "FAILED"
    assert "reported no loss" in trial.message
    assert "mlflow.log_metric('loss', value)" in trial.message


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_trial_that_ends_with_no_number_has_failed_and_is_never_the_best(
    client: Client, tmp_path: Path, direction: str
) -> None:
    # The second diverges after a first value that was better than all others.
    good, ends = ("-1e9", "'nan'") if direction == "minimize" else ("1e9", "'inf'")
    body = (
        f"if trial == 2:\n    carrel.report({good}, 0)\n    carrel.report(float({ends}), 1)\nelse:\n    carrel.report(1.0, 1)\n"
    )
    options = {"trials": 3, "parallel": 1, "direction": direction}
    begun = sweep(client, task(tmp_path, body), {"x": "uniform(0, 1)"}, options=options)
    ended = wait_for_sweep(client, begun.id)
    assert (ended.state, ended.counts, ended.best) == ("COMPLETED", {"COMPLETED": 2, "FAILED": 1}, 1)
    diverged = ended.all_trials[1]
    assert (diverged.state, diverged.value) == ("FAILED", None)
    assert "is no finite number" in diverged.message
    assert client.job(diverged.job_id or 0).state == "COMPLETED"


def test_stopped_and_resumed_without_repeating(client: Client, tmp_path: Path, flags: Path) -> None:
    body = "(flags / f'begun-{trial}').touch()\nif trial > 1:\n    wait_for('go')\ncarrel.report(float(trial))\n"
    options = {"trials": 3, "parallel": 1}
    begun = sweep(client, task(tmp_path, body), {"x": "uniform(0, 1)"}, parameters={"flags": str(flags)}, options=options)
    wait_until(lambda: (flags / "begun-2").exists())
    stopped = client.stop_sweep(begun.id)
    assert stopped.state == "STOPPED"
    assert client.stop_sweep(begun.id).state == "STOPPED"
    stopped = wait_for_sweep(client, begun.id, lambda one: all(trial.ended_at for trial in one.all_trials))
    assert stopped.counts == {"COMPLETED": 1, "CANCELLED": 1}
    assert f"sweep {begun.id}, which was stopped" in client.job(stopped.all_trials[1].job_id or 0).message
    (flags / "go").touch()
    client.resume_sweep(begun.id)
    ended = wait_for_sweep(client, begun.id)
    # The cancelled one does not count, and the first was not repeated.
    assert ended.counts == {"COMPLETED": 3, "CANCELLED": 1}
    assert [trial.value for trial in ended.all_trials if trial.state == "COMPLETED"] == [1.0, 3.0, 4.0]
    with pytest.raises(Conflict, match="its 3 trials have ended"):
        client.resume_sweep(begun.id)
    with pytest.raises(Invalid, match="has 3 trials, and not 2"):
        client.resume_sweep(begun.id, trials=2)
    client.resume_sweep(begun.id, trials=4)
    assert wait_for_sweep(client, begun.id).counts["COMPLETED"] == 4


PROJECT = """
name: declared
entry_points:
  main:
    parameters: {x: float, c: {type: string, default: one}}
    command: "python3 train.py --x {x} --c {c}"
carrel:
  resources: {memory: 128M, cpus: 1}
  sweep:
    metric: loss
    direction: maximize
    trials: 3
    parallel: 2
    sampler: random
    parameters: {x: "uniform(0, 1)", c: "categorical(one, two)"}
"""


def test_what_is_not_said_comes_from_the_project(client: Client, tmp_path: Path) -> None:
    task(tmp_path / "project", "carrel.report(float(given.x))\n")
    (tmp_path / "project" / "MLproject").write_text(PROJECT)
    begun = client.sweep_project(tmp_path / "project", options={"trials": 2}, parameters={"c": "two"})
    assert (begun.name, begun.trials, begun.parallel, begun.direction, begun.sampler) == ("declared", 2, 2, "maximize", "random")
    assert begun.parameters == {"x": "uniform(0.0, 1.0)"}
    ended = wait_for_sweep(client, begun.id)
    assert ended.counts == {"COMPLETED": 2}
    assert ended.best_arguments[:2] == ["-P", "c=two"]


def test_each_trial_is_carried_out_also_where_results_are_kept(client: Client, tmp_path: Path) -> None:
    task(tmp_path / "project", "carrel.report(1.0)\n")
    (tmp_path / "project" / "MLproject").write_text(PROJECT.replace("carrel:\n", "carrel:\n  cache: true\n"))
    grid = {"x": "uniform(0, 1, step=1)", "c": "categorical(one)"}
    begun = [
        client.sweep_project(tmp_path / "project", distributions=grid, options={"sampler": "grid", "trials": 2}).id
        for _ in range(2)
    ]
    ended = [wait_for_sweep(client, number) for number in begun]
    assert [one.counts for one in ended] == [{"COMPLETED": 2}] * 2
    assert len({trial.job_id for one in ended for trial in one.all_trials}) == 4
    with pytest.raises(Invalid, match="takes no earlier job's result"):
        sweep(client, task(tmp_path, REPORTS), {"x": "uniform(0, 1)"}, cache=True)


@pytest.mark.parametrize(
    ("distributions", "options", "words"),
    [
        ({}, {}, "No parameter has a distribution"),
        ({"x": "uniform(1, 0)"}, {}, "the smallest value 1 is larger than the largest, 0"),
        ({"x": "loguniform(0, 1)"}, {}, "needs a value above 0"),
        ({"x": "unifrom(0, 1)"}, {}, "Did you mean uniform"),
        ({"x": "uniform(0, 1)"}, {"metric": None}, "Nothing says which metric decides"),
        ({"x": "uniform(0, 1)"}, {"sampler": "grid"}, "no end of them"),
        ({"x": "uniform(0, 1)"}, {"trials": 100_000}, "trials is 100000. Ask for 1 to 10000"),
    ],
)
def test_what_cannot_be_is_refused_with_words(
    client: Client, tmp_path: Path, distributions: dict[str, str], options: dict[str, object], words: str
) -> None:
    before = len(client.sweeps())
    with pytest.raises(Invalid) as refused:
        sweep(client, task(tmp_path, REPORTS), distributions, options=options)
    assert words in str(refused.value)
    assert len(client.sweeps()) == before


def test_sweeps_of_others_are_not_there(client: Client, lab: LabProcess, tmp_path: Path) -> None:
    begun = sweep(client, task(tmp_path, REPORTS), {"x": "uniform(0, 1)"}, options={"trials": 1})
    token = client.add_user(f"bob-{secrets.token_hex(4)}").token
    with Client(url=lab.url, token=token) as bob:
        assert bob.sweeps() == []
        for call in (bob.sweep, bob.stop_sweep, bob.resume_sweep):
            with pytest.raises(NotFound) as theirs:
                call(begun.id)
            with pytest.raises(NotFound) as missing:
                call(10_000_000)
            assert str(theirs.value).replace(str(begun.id), "N") == str(missing.value).replace("10000000", "N")
    wait_for_sweep(client, begun.id)


def test_only_the_trial_itself_reports_for_it(client: Client, lab: LabProcess, tmp_path: Path, flags: Path) -> None:
    # Trial 2 tries to speak for trial 1.
    body = (
        "(flags / f'begun-{trial}').touch()\nwait_for('begun-1')\nwait_for('begun-2')\n"
        "if trial == 2:\n"
        "    os.environ['CARREL_TRIAL'] = '1'\n"
        "    try:\n        carrel.report(-1000.0)\n"
        "    except RuntimeError as error:\n        print('refused:', error)\n"
        "    os.environ['CARREL_TRIAL'] = '2'\n    (flags / 'tried').touch()\n"
        "wait_for('tried')\ncarrel.report(5.0)\n"
    )
    options = {"trials": 2, "parallel": 2}
    begun = sweep(client, task(tmp_path, body), {"x": "uniform(0, 1)"}, parameters={"flags": str(flags)}, options=options)
    ended = wait_for_sweep(client, begun.id)
    assert [trial.value for trial in ended.all_trials] == [5.0, 5.0]
    assert b"refused: The lab refused the value -1000.0: No trial 1" in b"".join(client.log(ended.all_trials[1].job_id or 0))
    answer = httpx.post(
        f"{lab.url}/api/v1/sweeps/{begun.id}/trials/1/values",
        json={"values": [{"step": 0, "value": 1.0}]},
        headers={"Authorization": f"Bearer {lab.token}"},
    )
    assert answer.status_code == 404, "not even an administrator"


def test_the_command_line(lab: LabProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], client: Client) -> None:
    script = str(task(tmp_path, REPORTS))
    at = ["--home", str(lab.home)]
    distribution = "x=loguniform(1e-2,1e1)"
    code = main(
        ["sweep", script, "-P", distribution, "-P", "n=1", "--trials", "2", "--metric", "loss", "--memory", "128M", "--json", *at]
    )
    begun = json.loads(capsys.readouterr().out)
    assert code == 0
    assert begun["parameters"] == {"x": "loguniform(0.01, 10.0)"}
    ended = wait_for_sweep(client, begun["id"])
    assert main(["sweep", "show", str(begun["id"]), *at]) == 0
    shown = capsys.readouterr().out
    best = ended.all_trials[(ended.best or 0) - 1]
    assert f"The best is trial {best.number}: -P n=1 -P x={best.parameters['x']!r}\n" in shown
    assert shown.endswith(f"To run it again: carrel rerun {best.job_id}\n")
    assert "2 COMPLETED; 2 altogether" in shown
    assert main(["sweep", "list", *at]) == 0
    assert re.search(rf"^{begun['id']} +train +COMPLETED +2 of 2", capsys.readouterr().out, re.MULTILINE)
    assert main(["sweep", script, "-P", "x=uniform(1)", "--metric", "loss", *at]) == 2
    assert "uniform takes a smallest and a largest value, and got 1" in capsys.readouterr().err
    assert main(["sweep", "resume", str(begun["id"]), *at]) == 5
    assert "--trials N" in capsys.readouterr().err
    assert main(["sweep", "stop", str(begun["id"]), *at]) == 0
    assert f"Sweep {begun['id']} is COMPLETED" in capsys.readouterr().out


def test_older_sweeps_are_listed_page_by_page(
    client: Client, lab: LabProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = task(tmp_path, REPORTS)
    begun = [sweep(client, script, {"x": "uniform(0, 1)"}, options={"trials": 1}).id for _ in range(3)]
    for number in begun:
        wait_for_sweep(client, number)
    page = client.sweep_page(limit=2)
    assert [one.id for one in page.sweeps] == begun[:0:-1]
    assert page.next == begun[1]
    assert client.sweep_page(limit=1, before=page.next).sweeps[0].id == begun[0]
    assert client.sweep_page(limit=500).next is None
    assert main(["sweep", "list", "--limit", "1", "--before", str(begun[2]), "--home", str(lab.home)]) == 0
    shown = capsys.readouterr().out
    assert f"carrel sweep list --before {begun[1]} --limit 1" in shown
    assert str(begun[2]) not in re.findall(r"^\d+", shown, re.MULTILINE)


def test_trials_of_a_sweep_that_a_job_starts_come_from_that_job(client: Client, tmp_path: Path) -> None:
    """So they count for the limit of the session from which the job comes."""
    body = """
import json, urllib.request
url, headers = os.environ["CARREL_URL"] + "/api/v1", {"Authorization": "Bearer " + os.environ["CARREL_TOKEN"]}


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {**headers, "Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=120))


if trial:
    carrel.report(1.0)
else:
    own = ask("/jobs/" + os.environ["CARREL_JOB_ID"])
    again = {"snapshot": own["snapshot"], "script": "train.py", "resources": {"memory": "128M", "cpus": 1}}
    found = ask("/sweeps", {"task": again, "parameters": {"x": "uniform(0, 1)"}, "metric": "loss", "trials": 1})
    print("sweep", found["id"])
"""
    job = client.submit_project(task(tmp_path, body), resources=RESOURCES)
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED", b"".join(client.log(job.id))
    said = re.search(rb"sweep (\d+)", b"".join(client.log(job.id)))
    ended = wait_for_sweep(client, int(said[1]))
    assert [client.job(trial.job_id or 0).parent for trial in ended.all_trials] == [job.id]
