"""The commands that look at jobs, machines and people, and change them."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from command_line import PATIENCE, CommandLine, script

from carrel.client import Client
from carrel.testing.waiting import wait_until
from carrel.wire import v1
from support.lab_process import LabProcess

STORES = "mkdir -p outputs/deep; echo result > outputs/deep/r.txt; : > outputs/empty; echo 'log line'\n"


@pytest.fixture
def done(client: Client, tmp_path: Path) -> v1.JobDetail:
    """A job that has ended and stored two files."""
    job = client.submit_project(script(tmp_path / "done", STORES), name="stored", resources=v1.ResourceRequest(gpus=1))
    return client.wait(job.id, timeout=PATIENCE)


@pytest.mark.gate
def test_ps_shows_active_jobs_and_the_last_that_ended(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    ended = [client.submit_project(script(tmp_path / "a", "true\n"), name="short").id for _ in range(7)]
    for job_id in ended:
        client.wait(job_id, timeout=PATIENCE)
    active = client.submit_project(script(tmp_path / "b", "exec sleep 600\n"), name="long").id
    shown = [v1.JobView.model_validate(job).id for job in carrel("ps", "--json").json["jobs"]]
    assert shown == [active, *sorted(ended, reverse=True)[:5]]
    assert len(carrel("ps", "--all", "--name", "short", "--json").json["jobs"]) == 7
    assert len(carrel("ps", "--all", "--name", "short", "--limit", "2", "--json").json["jobs"]) == 2
    assert {job["state"] for job in carrel("ps", "--state", "completed", "--json").json["jobs"]} == {"COMPLETED"}
    client.cancel(active)
    client.wait(active, timeout=PATIENCE)


def test_ps_lines_up_and_says_simulated(carrel: CommandLine, done: v1.JobDetail) -> None:
    head, *rows = carrel("ps").out.splitlines()
    row = next(row for row in rows if row.split()[0] == str(done.id))
    assert row[head.index("NAME") :].startswith("stored ")
    assert row[head.index("STATE") :].startswith("COMPLETED ")
    assert row[head.index("GPUS") :].startswith("1 simulated ")
    assert "\x1b" not in head


@pytest.mark.gate
def test_a_wait_says_what_would_end_it(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    """With what `carrel show` says the same task starts at once."""
    task = script(tmp_path / "a", "exec sleep 600\n")
    first = client.submit_project(task, name="first", resources=v1.ResourceRequest(gpus=1)).id
    wait_until(lambda: client.job(first).state == "RUNNING", timeout=PATIENCE)
    large = client.submit_project(task, name="large", resources=v1.ResourceRequest(gpus=2)).id
    wait_until(lambda: client.job(large).queue is not None, timeout=PATIENCE)
    assert "; with 1 GPU instead of 2 GPUs: now" in carrel("show", str(large)).out
    assert "; with 1 GPU instead of 2 GPUs: now" in carrel("ps", "--name", "large").out
    asked = ("submit", task, "--gpus", "2", "--time", "10m", "--dry-run")
    assert "It would wait (2 GPUs, " in carrel(*asked).out
    assert carrel(*asked, "--json").json["queue"]["alternatives"][0]["value"] == "1 GPU"
    assert "It would start now (1 GPU, " in carrel("submit", task, "--gpus", "1", "--time", "10m", "--dry-run").out
    small = client.submit_project(task, name="small", resources=v1.ResourceRequest(gpus=1, time="10m")).id
    wait_until(lambda: client.job(small).state == "RUNNING", timeout=PATIENCE)
    for job_id in (first, large, small):
        client.cancel(job_id)
        client.wait(job_id, timeout=PATIENCE)


def test_an_unknown_state_names_the_nearest(carrel: CommandLine) -> None:
    wrong = carrel("ps", "--state", "runing")
    assert wrong.code == 2
    assert 'Did you mean "RUNNING"?' in wrong.err


def test_show(carrel: CommandLine, done: v1.JobDetail) -> None:
    assert v1.JobDetail.model_validate(carrel("show", str(done.id), "--json").json) == done
    text = carrel("show", str(done.id)).out
    for fact in ("stored", "COMPLETED", "1 simulated GPU", "bash task.sh", done.snapshot[:19], "ATTEMPT"):
        assert fact in text


def test_logs(carrel: CommandLine, done: v1.JobDetail) -> None:
    assert carrel("logs", str(done.id)).out == "log line\n"
    assert carrel("logs", "-f", str(done.id)).out == "log line\n"
    assert carrel("logs", str(done.id), "--attempt", "1").out == "log line\n"
    assert carrel("logs", str(done.id), "--json").json == {"job_id": done.id, "attempt": 1, "text": "log line\n"}
    events = [v1.EventView.model_validate_json(line) for line in carrel("logs", "-f", str(done.id), "--json").out.splitlines()]
    assert [event.data["text"] for event in events if event.type == "log"] == ["log line\n"]
    assert carrel("logs", str(done.id), "-f", "--attempt", "1").code == 2
    assert carrel("logs", str(done.id), "--attempt", "9").code == 3


def test_outputs(carrel: CommandLine, done: v1.JobDetail, tmp_path: Path) -> None:
    target = tmp_path / "fetched"
    listed = v1.OutputList.model_validate(carrel("outputs", str(done.id), "--list", "--json").json)
    assert [(output.path, output.size) for output in listed.outputs] == [("outputs/deep/r.txt", 7), ("outputs/empty", 0)]
    first = carrel("outputs", str(done.id), str(target), "--json").json
    assert (target / "outputs/deep/r.txt").read_text() == "result\n"
    assert [output["fetched"] for output in first["outputs"]] == [True, True]
    (target / "outputs/deep/r.txt").write_text("changed")
    again = carrel("outputs", str(done.id), str(target), "--json").json
    assert [(output["path"], output["fetched"]) for output in again["outputs"]] == [
        ("outputs/deep/r.txt", True),
        ("outputs/empty", False),
    ]
    assert (target / "outputs/deep/r.txt").read_text() == "result\n"
    assert carrel("outputs", str(done.id)).code == 2
    assert "7 B" in carrel("outputs", str(done.id), "--list").out


#: What files may be called, and as what they are fetched.
NAMES = rb"""two\nlines end\n \n a\r\nb tab\tq quo"t'es 100% a%2Fb %0A #h q?x=1&y back\\ \x20lead trail\x20
\x01\x1b[31m \x7f \xff\xfe -dash ;semi, ~ a:b +p ... dir\nname/in\x20it $(x)`y` *?[a] {b} <i>"""
STRANGE = {
    name: name.decode(errors="backslashreplace")
    for name in (*(one.decode("unicode_escape").encode("latin-1") for one in NAMES.split()), "é\u2028…".encode())
}


def test_outputs_are_fetched_whatever_they_are_called(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    project = tmp_path / "names"
    project.mkdir()
    (project / "names.py").write_text(
        "import os\n"
        f"for number, name in enumerate({list(STRANGE)!r}):\n"
        "    path = b'outputs/' + name\n"
        "    os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "    open(path, 'w').write(str(number))\n"
        "open('outputs/' + chr(92) + 'xff' + chr(92) + 'xfe', 'w').write('reads like another one')\n"
    )
    job = client.wait(client.submit_project(project, entry_point="names.py").id, timeout=PATIENCE)
    assert job.state == "COMPLETED", job.message
    assert "1 outputs were not kept because others read the same" in job.message
    fetched = carrel("outputs", str(job.id), str(tmp_path / "fetched"), "--json")
    assert fetched.code == 0, fetched.err
    assert fetched.json["failed"] == []
    found = {
        str(path.relative_to(tmp_path / "fetched/outputs")): path.read_text()
        for path in (tmp_path / "fetched").rglob("*")
        if path.is_file()
    }
    wanted = {name: str(number) for number, name in enumerate(STRANGE.values())}
    different = STRANGE[b"\xff\xfe"]
    assert found.keys() == wanted.keys()
    assert {name: text for name, text in found.items() if name != different} == {
        name: text for name, text in wanted.items() if name != different
    }
    listed = carrel("outputs", str(job.id), "--list").out
    assert len(listed.splitlines()) == len(STRANGE) + 1, "one line for each, whatever it is called"
    assert "\x1b" not in listed


def test_an_output_that_cannot_be_fetched_is_named_and_does_not_stop_the_others(
    carrel: CommandLine, client: Client, lab_home: Path, tmp_path: Path
) -> None:
    text = "mkdir -p outputs; for name in a b c; do echo $name-$CARREL_JOB_ID > outputs/$name; done\n"
    job = client.wait(client.submit_project(script(tmp_path / "three", text)).id, timeout=PATIENCE)
    digest = next(output.digest for output in client.outputs(job.id) if output.path == "outputs/b").removeprefix("sha256:")
    (lab_home / "blobs" / digest[:2] / digest).unlink()
    fetched = carrel("outputs", str(job.id), str(tmp_path / "fetched"))
    assert fetched.code == 3
    assert "outputs/b" in fetched.err
    assert "not stored any more" in fetched.err
    assert sorted(path.name for path in (tmp_path / "fetched/outputs").iterdir()) == ["a", "c"]
    assert "2 files" in fetched.out
    told = carrel("outputs", str(job.id), str(tmp_path / "fetched"), "--json")
    assert told.code == 3
    assert [output["path"] for output in told.json["failed"]] == ["outputs/b"]


def test_outputs_into_a_place_that_cannot_be_written(carrel: CommandLine, done: v1.JobDetail, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken/outputs/deep/r.txt").mkdir(parents=True)
    for place in ("file", "taken"):
        refused = carrel("outputs", str(done.id), str(tmp_path / place))
        assert refused.code == 2, refused.err
        assert "cannot be written" in refused.err.splitlines()[0]
    assert [path.name for path in (tmp_path / "taken/outputs/deep").iterdir()] == ["r.txt"]


def test_what_others_wrote_does_not_command_the_terminal(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    task = script(tmp_path / "code", "mkdir outputs; : > \"outputs/$(printf 'a\\033]0;owned\\007')\"\n")
    job = client.submit_project(task, arguments=["\x1b]0;owned\x07"])
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    for words in (("show",), ("outputs", "--list"), ("outputs", str(tmp_path / "fetched"))):
        shown = carrel(words[0], str(job.id), *words[1:])
        assert "owned" in shown.out
        assert "\x1b" not in shown.out
        assert "\x07" not in shown.out


def test_rerun_repeats_without_the_code_at_hand(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    task = script(tmp_path / "gone", "echo again\n")
    first = client.submit_project(task)
    client.wait(first.id, timeout=PATIENCE)
    Path(task).unlink()
    second = v1.JobView.model_validate(carrel("rerun", str(first.id), "--json").json)
    assert client.wait(second.id, timeout=PATIENCE).rerun_of == first.id
    assert carrel("logs", str(second.id)).out == "again\n"


def test_a_record_fits_on_a_screen(carrel: CommandLine, done: v1.JobDetail) -> None:
    shown = carrel("record", str(done.id)).out
    fields = {line[:13].strip(): line[13:] for line in shown.splitlines() if line[:1].strip()}
    assert fields["job"].startswith(f"{done.id} {done.name}, of ")
    assert fields["result"].startswith("COMPLETED: Exit code 0 after")
    assert fields["code"] == done.snapshot.removeprefix("sha256:")[:12]
    assert "outputs/deep/r.txt  " in shown
    assert "PYTHONHASHSEED = " in shown
    assert len(shown.splitlines()) < 40


def test_record(carrel: CommandLine, done: v1.JobDetail, tmp_path: Path) -> None:
    record = carrel("record", str(done.id), "--json").json
    assert record["task"]["snapshot"] == done.snapshot
    assert {output["path"] for output in record["attempts"][0]["outputs"]} == {"outputs/deep/r.txt", "outputs/empty"}
    assert carrel("record", str(done.id), "-o", str(tmp_path / "record.json")).out == ""
    assert json.loads((tmp_path / "record.json").read_text()) == record


def test_cancel_goes_on_after_a_job_that_is_not_there(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    jobs = [client.submit_project(script(tmp_path / "code", "exec sleep 600\n")).id for _ in range(2)]
    ended = carrel("cancel", str(jobs[0]), "999999", str(jobs[1]), "--json")
    assert ended.code == 3
    assert [v1.JobView.model_validate(job).id for job in ended.json["jobs"]] == jobs
    assert v1.Problem.model_validate(ended.problem).type == "urn:carrel:problem:not_found"
    assert {client.wait(job_id, timeout=PATIENCE).state for job_id in jobs} == {"CANCELLED"}
    assert "is cancelled" in carrel("cancel", str(jobs[0])).out


def test_nodes_lab_and_version(carrel: CommandLine, lab: LabProcess) -> None:
    (node,) = v1.NodeList.model_validate(carrel("nodes", "--json").json).nodes
    assert [device.simulated for device in node.devices] == [True, True]
    assert carrel("nodes").out.count("simulated GPU (no hardware)") == 2
    found = carrel("lab", "--json").json
    assert (v1.LabView.model_validate(found).simulated, found["url"]) == (True, lab.url)
    assert "normal*" in carrel("lab").out
    assert "start ranges" in carrel("lab").out  # for administrators
    assert set(carrel("version", "--json").json) == {"version", "packages"}


def test_another_user_sees_and_touches_nothing(
    carrel: CommandLine, other: CommandLine, done: v1.JobDetail, tmp_path: Path
) -> None:
    number = str(done.id)
    assert other("lab", "--json").json["caller"]["role"] == "user"
    assert "start ranges" not in other("lab").out
    assert other("ps", "--all", "--json").json == {"jobs": []}
    for words in (("show",), ("logs",), ("logs", "-f"), ("cancel",), ("rerun",), ("record",), ("outputs", "--list")):
        refused = other(*words, number, "--json")
        assert (refused.code, refused.out) == (3, ""), words
        assert refused.problem["detail"] == f"There is no job {number}."
    assert other("outputs", number, str(tmp_path / "theft")).code == 3
    assert not (tmp_path / "theft").exists()
    for words in (("ps", "--all-users"), ("user", "list"), ("user", "add", "friend"), ("user", "revoke", "root")):
        assert other(*words).code == 4, words
    own = other("run", script(tmp_path / "own", "echo mine\n"), "--name", "theirs")
    assert (own.code, own.out) == (0, "mine\n")
    assert [job["name"] for job in carrel("ps", "--all-users", "--name", "theirs", "--json").json["jobs"]] == ["theirs"]
    assert carrel("ps", "--name", "theirs", "--json").json == {"jobs": []}


def test_users_come_and_go(carrel: CommandLine, lab: LabProcess, tmp_path: Path) -> None:
    made = v1.NewUser.model_validate(carrel("user", "add", "visitor", "--json").json)
    assert made.user.subject in carrel("user", "list").out
    file = tmp_path / "token"
    file.write_text(made.token)
    file.chmod(stat.S_IRUSR)
    visitor = CommandLine({"CARREL_URL": lab.url, "CARREL_TOKEN_FILE": str(file)})
    assert visitor("lab").code == 0
    assert carrel("user", "revoke", made.user.subject, "--json").json == {"revoked": made.user.subject}
    assert visitor("lab").code == 4
    file.chmod(0o644)
    assert "chmod 600" in visitor("lab").err
    text = carrel("user", "add", "second").out
    assert f"export CARREL_URL={lab.url}" in text
    assert "export CARREL_TOKEN=" in text


def test_environments(carrel: CommandLine, lab_home: Path) -> None:
    listed = carrel("env", "list", "--json").json
    assert (listed["environments"], listed["named"]) == ([], [])
    left = lab_home / "environments" / "envs" / "half-built"
    left.mkdir(parents=True)
    assert [info["complete"] for info in carrel("env", "list", "--json").json["environments"]] == [False]
    would = carrel("env", "gc", "--dry-run", "--json").json
    assert ([info["digest"] for info in would["removed"]], would["dry_run"]) == (["half-built"], True)
    assert left.exists()
    assert "Removed 1 environment" in carrel("env", "gc", "--unused-for", "1h").out
    assert not left.exists()
    assert carrel("env", "gc", "--unused-for", "5").code == 2


def test_share_says_what_giving_back_would_do(carrel: CommandLine, tmp_path: Path) -> None:
    text = "import time\ntime.sleep(600)\n"
    job = carrel("submit", script(tmp_path / "hold", text, "hold.py"), "--gpus", "1", "--json").json["id"]
    wait_until(lambda: carrel("show", str(job), "--json").json["state"] == "RUNNING", "the job to run")
    found = carrel("share", "--json").json
    assert found["held"] >= 1
    me = carrel("lab", "--json").json["caller"]["subject"]
    mine = next(row for row in found["standings"] if (row["account"], row["user"]) == ("default", me))
    assert 0 < mine["factor"] <= 1
    said = carrel("share").out
    assert "GPU-HOURS" in said
    assert "Standing 1 is ahead of 0 by 7 d of waiting. Use counts half after 1 d." in said
    assert re.search(r"In an hour, on default: [01]\.\d\d if you keep what you hold, [01]\.\d\d if you release it now\.", said)
    carrel("cancel", str(job))


def test_rules_are_read_again(carrel: CommandLine, lab_home: Path) -> None:
    file = lab_home / "carrel.toml"
    assert carrel("reload").out == "Nothing has changed.\n"
    file.write_text("[priority]\nshare_weight = '2h'\n")
    assert carrel("reload", "--json").json == {"changed": True}
    file.write_text("[priority]\nshare_wait = '2h'\n")
    refused = carrel("reload")
    assert refused.code == 2
    assert 'Did you mean "share_weight"?' in refused.err
    file.unlink()
    assert carrel("reload").out == "The rules are in force.\n"


def test_lists_name_the_account_that_is_charged(carrel: CommandLine, other: CommandLine, lab_home: Path) -> None:
    me, them = (one("lab", "--json").json["caller"] for one in (carrel, other))
    assert (me["account"], them["account"]) == ("default", "default")
    file = lab_home / "carrel.toml"
    before = file.read_text() if file.exists() else ""
    limits = '[qos.normal]\nmax_gpus = 7\nidle_time = "3h"\n'
    file.write_text(f'{before}{limits}[accounts.optics]\nusers = ["{them["subject"]}"]\n')
    try:
        carrel("reload")
        assert "(user, account optics)" in other("lab").out
        accounts = other("lab").out.rpartition("\n\n")[2].split()
        assert accounts == ["ACCOUNT", "SHARES", "YOURS", "optics", "1", "yes"]
        (normal,) = [line.split() for line in other("lab").out.splitlines() if line.startswith("normal")]
        assert normal[normal.index("7") + 1 :][:2] == ["3", "h"]
        charged = {user["subject"]: user["account"] for user in carrel("user", "list", "--json").json["users"]}
        assert (charged[them["subject"]], charged[me["subject"]]) == ("optics", "")
        # Who runs the lab sees it, though no account admits them.
        assert (carrel("share").code, "in no account" in carrel("lab").out) == (0, True)
    finally:
        file.write_text(before)
        carrel("reload")


def test_doctor_with_a_lab(carrel: CommandLine, lab: LabProcess) -> None:
    found = carrel("doctor", "--json")
    checks = {check["name"]: check for check in found.json["checks"]}
    assert found.code == (0 if found.json["ok"] else 1)
    assert {"python", "uv", "git", "home", "token", "lab", "gpus", "memory", "nursery", "labs"} <= set(checks)
    assert checks["lab"]["status"] == "ok"
    assert "tracking off" in checks["lab"]["message"]
    assert checks["nursery"]["status"] == "ok"
    assert (checks["gpus"]["status"], "2 simulated GPUs" in checks["gpus"]["message"]) == ("ok", True)
    pid = json.loads((lab.home / "address.json").read_text())["pid"]
    several = checks["labs"]["status"] == "warn"
    assert str(pid) in checks["labs"]["message"] if several else "one lab" in checks["labs"]["message"]


def test_a_second_lab_in_the_same_home_is_refused(carrel: CommandLine) -> None:
    second = carrel("up", "--port", "0", "--no-tracking", "--json")
    assert second.code == 5
    assert second.problem["type"] == "urn:carrel:problem:conflict"


def test_a_node_is_drained_and_takes_jobs_again(carrel: CommandLine, other: CommandLine, client: Client) -> None:
    (node,) = [one.name for one in client.nodes()]
    try:
        assert carrel("drain", node, "new GPUs").out == f"Nothing new starts on {node}.\n"
        assert f"{node}  " in carrel("nodes").out
        assert "drained: new GPUs" in other("nodes").out
        assert carrel("drain", node, "new GPUs").out == f"{node} was drained for that reason already.\n"
        refused = other("drain", node, "mine")
        assert refused.code != 0
        assert "may not drain nodes" in refused.err
        unknown = carrel("drain", "nowhere", "why not")
        assert (unknown.code != 0, 'There is no node "nowhere".' in unknown.err) == (True, True)
    finally:
        assert carrel("undrain", node).out == f"{node} takes jobs again.\n"
    assert carrel("undrain", node, "--json").json == {"node": node, "changed": False}


def test_gc_says_what_would_go_and_who_has_how_much(carrel: CommandLine, done: v1.JobDetail) -> None:
    dry = carrel("gc", "--dry-run", "--json").json
    assert [one["kind"] for one in dry["collected"]] == [
        "work",
        "logs",
        "code",
        "outputs",
        "artifacts",
        "audit",
        "cells",
        "calls",
    ]
    assert dry["dry_run"]
    assert "Would free" in carrel("gc", "--dry-run", "--kind", "logs").out
    assert "OUTPUTS" in carrel("gc", "--usage").out
    assert carrel("gc", "--usage", "--json").json["mine"]["outputs"] >= 7
    wrong = carrel("gc", "--kind", "dust")
    assert (wrong.code, "dust" in wrong.err) == (2, True)


def test_outputs_are_given_up(carrel: CommandLine, done: v1.JobDetail, tmp_path: Path) -> None:
    wrong = carrel("outputs", str(done.id), str(tmp_path / "x"), "--remove")
    assert (wrong.code, "--remove" in wrong.err) == (2, True)
    assert "2 files less" in carrel("outputs", str(done.id), "--remove").out
    assert carrel("outputs", str(done.id), "--remove").out == f"Job {done.id} stores nothing.\n"
    assert carrel("outputs", str(done.id), "--list").out.count("(given up)") == 2


def test_rules_are_changed_where_they_are_written(carrel: CommandLine, lab_home: Path, tmp_path: Path) -> None:
    file = lab_home / "carrel.toml"
    before = file.read_text() if file.exists() else None
    try:
        job = carrel("run", script(tmp_path / "short", "print(1)\n", "short.py"))
        assert job.code == 0
        asked = ("rules", "qos.batch.max_gpus_per_user=3", "qos.batch.short_first=1.5")
        found = carrel(*asked, "--preview", "--json").json
        assert (found["changed"]["qos.batch.max_gpus_per_user"], found["jobs"] > 0) == ("none → 3", True)
        said = carrel(*asked, "--preview", "--days", "30").out
        assert "Nothing is changed yet." in said
        assert re.search(r"^CLASS +JOBS +MEAN WAIT +THEN", said, re.M)
        assert "max_gpus_per_user" not in (file.read_text() if file.exists() else "")
        assert carrel(*asked).out.endswith("The rules are in force.\n")
        assert "max_gpus_per_user = 3" in file.read_text()
        taken_out = carrel("rules", "qos.batch.max_gpus_per_user=", "--json").json
        assert taken_out == {"changed": {"qos.batch.max_gpus_per_user": "3 → none"}}
        refused = carrel("rules", "qos.batch.max_gpu=3")
        assert (refused.code, 'Did you mean "max_gpus"?' in refused.err) == (2, True)
        assert "is no rule" in carrel("rules", "gpus=+4").err
    finally:
        if before is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(before)
        carrel("reload")
