"""A lab with a machine of its own and a real cluster: the same commands, and Slurm chooses the nodes of some jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_lab import RULES, Lab, go_on

from carrel.testing.waiting import wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]


@pytest.mark.gate
def test_the_same_command_runs_here_and_on_the_cluster(lab: Lab, site: SlurmSite, tmp_path: Path) -> None:
    work = tmp_path / "work" / "both.sh"
    work.parent.mkdir()
    work.write_text('echo "gpus $CUDA_VISIBLE_DEVICES"; mkdir outputs; echo kept > outputs/file; exit 7')
    found = {}
    for partition in ("here", "cluster"):
        done = lab.carrel("run", "--partition", partition, "--gpus", "1", "--memory", "64M", str(work))
        assert done.returncode == 7, done.stderr
        (found[partition],) = re.findall(r"gpus (\S+)", done.stdout)
    assert found["cluster"] in ("0", "1", "2", "3")
    newest, before = (lab.client.job(job.id) for job in lab.client.jobs(limit=2))
    lab_id = lab.client.lab().lab_id
    # In Slurm it has its own name.
    (line,) = site.run("squeue", "-h", "-t", "all", "--name=both", "-o", "%A %k").out.splitlines()
    assert line == f"{lab.number(newest.id)} carrel.{lab_id}.{newest.id}.1"
    wait_until(lambda: site.run("sacct", "-n", "-X", "-j", lab.number(newest.id), "-o", "jobname%80").out.split() == ["both"])
    assert (newest.partition, newest.node, newest.exit_code, newest.reason) == ("cluster", "slurm:cluster", 7, "NonZeroExitCode")
    assert (before.partition, before.exit_code) == ("here", 7)
    assert [file.path for file in lab.client.outputs(newest.id)] == ["outputs/file"]
    # Work that names none goes to the first partition that takes it.
    assert lab.ended(lab.submit("true", partition=None)).partition == "here"


def test_what_a_task_says_reaches_sbatch(lab: Lab, site: SlurmSite) -> None:
    wait, go = go_on(lab)
    config = {
        "partition": "exact", "qos": "high", "account": "research", "time": "00:20:00", "mem": "300", "gres": "gpu:fake:2",
        "cpus_per_task": 2,
    }  # fmt: skip
    job = lab.submit(wait, partition=None, backend_config=config, resources=ResourceRequest())
    lab.until(job, lambda job: job.state == "RUNNING")
    shown = site.run("scontrol", "-o", "show", "job", lab.number(job)).out
    go.touch()
    for words in (
        "Partition=main", "QOS=high", "Account=research", "TimeLimit=00:21:00", "MinMemoryNode=428M", "CPUs/Task=2",
        "TresPerNode=gres:gpu:fake:2", "Features=fast", "Nice=7",
    ):  # fmt: skip
        assert f" {words} " in shown, shown
    assert lab.ended(job).state == "COMPLETED"


def test_jobs_in_slurm_outlive_the_lab(lab: Lab) -> None:
    wait, go = go_on(lab)
    witness = lab.home.parent / "witness"
    jobs = [lab.submit(f"echo ran >> {witness}; {wait}; echo after") for _ in range(3)]
    over = lab.submit(f"echo ran >> {witness}; sleep 1; echo over")
    for job in jobs:
        lab.until(job, lambda job: job.state == "RUNNING")
    lab.kill()
    lab.start()
    assert lab.ended(over).state == "COMPLETED"
    assert [lab.client.job(job).state for job in jobs] == ["RUNNING"] * 3
    lab.client.cancel(jobs[0])
    assert lab.ended(jobs[0]).state == "CANCELLED"
    lab.kill()
    go.touch()
    lab.start()
    assert [lab.ended(job).state for job in jobs[1:]] == ["COMPLETED"] * 2
    assert "after" in lab.log(jobs[1])
    assert witness.read_text() == "ran\n" * 4


def test_short_jobs_have_an_allocation_at_once_where_the_partition_says_so(lab: Lab, site: SlurmSite) -> None:
    wait, go = go_on(lab)
    short = lab.submit(wait, partition="soon", resources=ResourceRequest(memory="64M", time="1m"))
    long = lab.submit(wait, partition="soon", resources=ResourceRequest(memory="64M", time="8h"))
    for job in (short, long):
        lab.until(job, lambda job: job.state == "RUNNING")
    batch = {line.split()[0]: line.split()[1] for line in site.run("squeue", "-h", "-o", "%k %F").out.splitlines()}
    shown = {name: site.run("scontrol", "-o", "show", "job", number).out for name, number in batch.items()}
    go.touch()
    flags = {name.split(".")[2]: "BatchFlag=1" in text for name, text in shown.items()}
    assert flags == {"hold": False, str(long): True}
    assert [lab.ended(job).state for job in (short, long)] == ["COMPLETED"] * 2
    # It stays for the next one, as long as the partition says; everybody can see that.
    again = lab.submit("true", partition="soon", resources=ResourceRequest(memory="64M", time="2m"))
    assert lab.ended(again).state == "COMPLETED"
    assert lab.number(again) == lab.number(short)
    assert "Slurm: main (short tasks: an allocation at once, kept 5 min for the next)" in lab.carrel("lab").stdout


def test_without_slurms_programs_the_own_machine_works_and_the_others_wait(lab: Lab, tmp_path: Path) -> None:
    wait, go = go_on(lab)
    lab.kill()
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("sh", "bash", "sleep", "git"):
        (bare / name).symlink_to(f"/usr/bin/{name}")
    lab.variables = {**lab.variables, "PATH": str(bare)}
    lab.start()
    assert lab.ended(lab.submit("echo fine", partition="here")).state == "COMPLETED"
    job = lab.submit(wait)
    told = lab.until(job, lambda job: "sbatch" in job.message)
    assert "Install Slurm's commands" in told.message
    assert "sbatch, squeue, scontrol, scancel, sacct not found" in (lab.home / "logs" / "server.log").read_text()
    given_up = lab.submit(wait)
    lab.until(given_up, lambda job: "sbatch" in job.message)
    lab.client.cancel(given_up)
    assert lab.ended(given_up).state == "CANCELLED"
    lab.kill()
    del lab.variables["PATH"]
    go.touch()
    lab.start()
    assert lab.ended(job).state == "COMPLETED"


def test_without_shards_a_session_has_whole_gpus_or_none(lab: Lab, site: SlurmSite) -> None:
    whole = lab.client.start_session(SessionRequest(partition="cluster", gpus=1, memory="256M"))
    assert 'holds a whole GPU from start to end: partition "cluster" has no shards' in whole.note
    assert (whole.gpus, whole.reserve, whole.job.resources.gpus) == (1, False, 1)
    lab.until(whole.job.id, lambda job: job.state == "RUNNING")
    assert "TresPerNode=gres:gpu:1 " in site.run("scontrol", "-o", "show", "job", lab.number(whole.job.id)).out
    # One that nobody asked for would be held for nothing.
    none = lab.client.start_session(SessionRequest(partition="cluster", memory="256M"))
    assert (none.gpus, none.note, none.job.resources.gpus) == (0, "", 0)


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def doctor(lab: Lab, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "carrel.cli.main", "doctor", "slurm", "--json", "--home", str(lab.home), *words],
        env={**os.environ, **lab.variables, **variables},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def test_doctor_tries_a_node_of_every_partition(lab: Lab, site: SlurmSite) -> None:
    rules = RULES.split("[partitions.exact]")[0]
    (lab.home / "carrel.toml").write_text(rules)
    done = doctor(lab)
    found = checks(done)
    assert done.returncode == 0
    assert [name for name, check in found.items() if check["status"] != "ok"] == ["sessions"], found
    assert "holds a whole one" in found["sessions"]["message"]
    assert found["version"]["message"].startswith("Slurm ")
    assert found["accounting"]["message"] == "slurmdbd answers"
    assert "low" in found["qos"]["message"]
    assert "16 of type fake" in found["gpus"]["message"]
    assert "no shards" in found["gpus"]["message"]
    assert "main with 4 nodes" in found["cluster"]["message"]
    for look in ("files", "python", "clock", "lab"):
        assert re.search(r"node\d", found[f"cluster: {look}"]["message"])
    assert lab.process.url in found["cluster: lab"]["message"]
    assert not list(lab.home.glob("doctor-*"))

    # What is wrong is said, with what to do.
    (lab.home / "carrel.toml").write_text(
        f'{rules}slurm_qos = "lw"\n[partitions.gone]\nengine = "slurm"\n[partitions.odd]\nengine = "slurm"\n'
        'slurm_partition = "main"\nslurm_options = ["--constraint=purple"]\n'
    )
    done = doctor(lab, CARREL_SLURM_URL="http://127.0.0.1:9")
    found = checks(done)
    assert done.returncode == 1
    assert found["qos"]["message"] == 'There is no QoS "lw".'
    assert "Invalid qos specification" in found["cluster: job"]["message"]
    assert found["gone"]["message"] == 'Slurm has no partition "gone", which partition "gone" of the lab names.'
    assert found["odd: job"]["status"] == "fail"

    (lab.home / "carrel.toml").write_text(rules)
    found = checks(doctor(lab, CARREL_SLURM_URL="http://127.0.0.1:9"))
    assert found["cluster: lab"]["status"] == "warn"
    full = site.submit("sleep 600", "--partition=main", "--nodes=4", "--exclusive", "--mem=0")
    site.wait_for(full, "RUNNING")
    found = checks(doctor(lab, "--patience", "1"))
    assert (found["cluster: job"]["status"], "cluster: files" in found) == ("warn", False)
    assert "carrel.doctor" not in site.run("squeue", "-h", "-o", "%j").out
    site.run("scancel", str(full))

    # Asked before there is a lab, as docs/slurm.md has it, it does not complain that nodes do not reach any.
    lab.kill()
    found = checks(doctor(lab, CARREL_SLURM_URL="http://127.0.0.1:9"))
    assert (found["cluster: lab"]["status"], found["cluster: files"]["status"]) == ("ok", "ok")
    assert "no lab runs here yet" in found["cluster: lab"]["message"]
    lab.start()


def test_doctor_says_that_programs_or_the_controller_are_missing(lab: Lab, site: SlurmSite, tmp_path: Path) -> None:
    bare = tmp_path / "empty"
    bare.mkdir()
    done = doctor(lab, PATH=str(bare))
    assert done.returncode == 1
    assert checks(done)["programs"]["remedy"].startswith("Install Slurm's commands here")
    site.kill("slurmctld")
    done = doctor(lab, SLURM_CONF=str(site.layout.hasty_conf))
    assert (done.returncode, list(checks(done))[-1]) == (1, "controller")


ASKING = """
import json, os, ssl, urllib.error, urllib.request
address = os.environ["CARREL_URL"] + "/api/v1/jobs/" + os.environ["CARREL_JOB_ID"]
request = urllib.request.Request(address, headers={"Authorization": "Bearer " + os.environ["CARREL_TOKEN"]})
trusting = ssl.create_default_context(cafile=os.environ["CARREL_CA_FILE"])
print(json.load(urllib.request.urlopen(request, context=trusting))["state"])
try:
    urllib.request.urlopen(request)
except urllib.error.URLError as error:
    print("without:", "refused" if isinstance(error.reason, ssl.SSLError) else error)
"""


def test_nodes_ask_a_lab_that_signs_its_own_certificates(site: SlurmSite, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", site, RULES.split("[partitions.exact]")[0], CARREL_TLS_OWN="1")
    try:
        assert lab.process.url.startswith("https://")
        (tmp_path / "ask.py").write_text(ASKING)
        job = lab.submit(f"exec python3 {tmp_path / 'ask.py'}")
        assert lab.ended(job).state == "COMPLETED", lab.log(job)
        state, without = lab.log(job).splitlines()[-2:]
        assert state in ("CONFIGURING", "RUNNING")  # the lab may not have read yet that it runs
        assert without == "without: refused"
        found = checks(doctor(lab))["cluster: lab"]
        assert (found["status"], lab.process.url in found["message"]) == ("ok", True), found
    finally:
        lab.stop()
