"""What a task says beyond resources reaches Slurm, and what Slurm and its modules set reaches the task's command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_lab import Lab, go_on

from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest, SlurmRequest
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]

RULES = """
default_qos = "normal"

[qos.normal]
max_time = "1d"

[accounts.research]
[accounts.mltf_acc]

[partitions.here]

[partitions.cluster]
engine = "slurm"
slurm_partition = "main"

[partitions.fenced]
engine = "slurm"
slurm_partition = "main"
slurm_options = ["--constraint=fast", "--exclude=node3"]

[partitions.soon]
engine = "slurm"
slurm_partition = "main"
slurm_immediate = true
"""


@pytest.fixture
def lab(site: SlurmSite, tmp_path: Path) -> Iterator[Lab]:
    init = tmp_path / "modules" / "init"
    init.mkdir(parents=True)
    (init / "bash").write_text(
        'module() { case "$2" in nosuch*) return 1;; esac; '
        'export LOADED="$LOADED $2" PATH="/opt/$2/bin:$PATH" PYTHONHOME=/nowhere; }\n'
        "export -f module\n"
    )
    lab = Lab(tmp_path / "lab", site, RULES, MODULESHOME=str(init.parent))
    yield lab
    lab.stop()


@pytest.mark.gate
def test_what_a_task_asks_of_slurm_reaches_it(lab: Lab, site: SlurmSite, tmp_path: Path) -> None:
    wait, go = go_on(lab)
    project = tmp_path / "project"
    project.mkdir()
    (project / "MLproject").write_text(
        f"entry_points:\n  main:\n    command: {wait!r}\n"
        "carrel:\n  partition: fenced\n  resources: {memory: 64M, time: 20m}\n"
        "  slurm:\n    constraint: fast\n    exclusive: true\n    mail: ada@example.org\n    options: [--nice=7]\n"
    )
    done = lab.carrel("submit", "--json", "--slurm-option=--nice=9", "--slurm-option=--mail-type=FAIL", str(project))
    assert done.returncode == 0, done.stderr
    job = next(iter(lab.client.jobs(limit=1))).id
    lab.until(job, lambda job: job.state == "RUNNING")
    shown = site.run("scontrol", "-o", "show", "job", lab.number(job)).out
    told = lab.carrel("show", str(job)).stdout
    go.touch()
    for words in (
        "Features=fast",
        "OverSubscribe=NO",
        "Nice=9",
        "MailUser=ada@example.org",
        "MailType=FAIL",
        "ExcNodeList=node3",
    ):
        assert f" {words} " in shown, shown
    assert "--constraint=fast --exclusive=exclusive --mail-user=ada@example.org --mail-type=FAIL --nice=9" in told
    assert lab.ended(job).state == "COMPLETED"


@pytest.mark.parametrize("partition", ["cluster", "soon"])
def test_the_command_sees_its_job_in_slurm_and_what_its_modules_set(lab: Lab, partition: str) -> None:
    script = (
        'echo "job=$SLURM_JOB_ID on=$SLURM_JOB_NODELIST cpus=$SLURM_CPUS_ON_NODE gpus=$SLURM_GPUS_ON_NODE modules=$LOADED"\n'
        'echo "path=${PATH%%:*} rank=${SLURM_PROCID-none} srun=${SRUN_CPUS_PER_TASK-none} home=$PYTHONHOME"\n'
        'module load more; echo "more=$LOADED"; srun --overlap hostname > /dev/null && echo "a step"\n'
    )
    asked = ResourceRequest(memory="64M", time="5m", gpus=1, cpus=2)
    job = lab.submit(script, partition, resources=asked, slurm=SlurmRequest(modules=["gcc/12", "cuda"]))
    ended = lab.ended(job)
    log = lab.log(job)
    number = next(word for word in lab.number(job).split() if word.isdigit())
    assert ended.state == "COMPLETED", log
    assert f"job={number} on=node" in log
    assert "cpus=2 gpus=1 modules= gcc/12 cuda\n" in log
    assert "path=/opt/cuda/bin rank=none srun=none home=/nowhere\n" in log
    assert "more= gcc/12 cuda more\n" in log
    assert "a step\n" in log
    lacks = lab.submit("echo begun", partition, slurm=SlurmRequest(modules=["nosuch/1"]))
    ended = lab.ended(lacks)
    assert (ended.state, ended.reason, "begun" in lab.log(lacks)) == ("FAILED", "LaunchFailed", False)


STEPS = """
trap 'kill $! 2>/dev/null; exit 75' TERM
step=$(cat $CARREL_CHECKPOINT_DIR/step 2>/dev/null || echo 0)
echo "begins at $step in $SLURM_JOB_ID"
if [ $step -ge 1 ]; then exit 0; fi
echo $((step + 1)) > $CARREL_CHECKPOINT_DIR/step
sleep 600 & wait $!
"""


def test_a_job_in_slurm_goes_on_after_its_walltime_as_another_job_of_slurms(lab: Lab) -> None:
    job = lab.submit(STEPS, requeue=3, resources=ResourceRequest(memory="64M", time="6s"))
    ended = lab.ended(job)
    assert (ended.state, ended.attempt, ended.requeues_left) == ("COMPLETED", 2, 2), ended
    first, second = (b"".join(lab.client.log(job, attempt=number)).decode().splitlines()[0] for number in (1, 2))
    assert first.startswith("begins at 0 in ")
    assert second.startswith("begins at 1 in ")
    assert first.split()[-1] != second.split()[-1]
    lasts = lab.submit("sleep 600", requeue=3, resources=ResourceRequest(memory="64M", time="4s"))
    assert (lab.ended(lasts).state, lab.ended(lasts).attempt) == ("TIMEOUT", 1)


#: What users of the MLTF give to `mlflow run`, but for the address.
MLTF = """
{
  "account": "mltf_acc",
  "mem": "4G",
  "partition": "pascal",
  "time": "8:00:00",
  "gres": "gpu:1",
  "mail-user": "somebody@example.org",
  "mail-type": "FAIL",
  "ntasks": "1",
  "job-name": "MG_process_HiggsW",
  "output": "G_NJL_tautau_2J.out",
  "sbatch-script-file": "batchFile",
  "modules": ["GCCcore/.11.3.0", "Python/3.10.4"]
}
"""
PASCAL = """
[partitions.pascal]
engine = "slurm"
slurm_account = "{account}"
"""


@pytest.fixture
def pascal(site: SlurmSite) -> Iterator[None]:
    """The cluster has the partition and the account that the configuration names."""
    site.run("sacctmgr", "-i", "-Q", "add", "account", "mltf_acc")
    site.run("sacctmgr", "-i", "-Q", "add", "user", site.layout.user, "account=mltf_acc")
    site.run("scontrol", "create", "PartitionName=pascal", f"Nodes={','.join(site.layout.nodes)}", "State=UP")
    show = ("scontrol", "-o", "show", "assoc_mgr", "accounts=mltf_acc", "flags=assoc")
    wait_until(lambda: f"UserName={site.layout.user}(" in site.run(*show, check=False).out)
    yield
    site.run("scancel", "--partition=pascal", check=False)
    wait_until(lambda: site.run("scontrol", "delete", "PartitionName=pascal", check=False).code == 0)
    site.run("sacctmgr", "-i", "-Q", "delete", "user", site.layout.user, "account=mltf_acc", check=False)
    site.run("sacctmgr", "-i", "-Q", "delete", "account", "mltf_acc", check=False)


@pytest.mark.mlflow
@pytest.mark.usefixtures("pascal")
def test_mlflow_run_takes_the_configuration_of_the_mltf_as_it_is(lab: Lab, site: SlurmSite, tmp_path: Path) -> None:
    lab.kill()
    (lab.home / "carrel.toml").write_text(RULES + PASCAL)
    lab.start(tracking=True)
    wait, go = go_on(lab)
    project = tmp_path / "project"
    project.mkdir()
    (project / "slurm_config.json").write_text(MLTF)
    (project / "MLproject").write_text(
        "name: higgs\nentry_points:\n  main:\n    parameters: {events: {type: int, default: 10}}\n"
        f"    command: 'echo events {{events}} with $LOADED in $SLURM_JOB_PARTITION; {wait}'\n"
    )
    command = [Path(sys.executable).parent / "mlflow", "run", ".", "--backend", "carrel", "--backend-config", "slurm_config.json"]
    environ = {**os.environ, "CARREL_URL": lab.process.url, "CARREL_TOKEN": lab.process.token, "PATH": os.defpath}
    with subprocess.Popen(
        [*command, "-P", "events=1000"], cwd=project, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            wait_until(lambda: running.poll() is not None or any(lab.client.jobs(limit=1)))
            (job,) = lab.client.jobs(limit=1)
            lab.until(job.id, lambda job: job.state == "RUNNING")
            shown = site.run("scontrol", "-o", "show", "job", lab.number(job.id)).out
            detail = lab.client.job(job.id)
        finally:
            go.touch()
        said, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, said
    for words in (
        "Partition=pascal", "Account=mltf_acc", "TimeLimit=08:01:00", "TresPerNode=gres:gpu:1", "NumTasks=1",
        "MailUser=somebody@example.org", "MailType=FAIL", "JobName=MG_process_HiggsW",
    ):  # fmt: skip
        assert f" {words} " in shown, shown
    assert detail.name == "MG_process_HiggsW"
    assert (detail.resources.memory, detail.resources.gpus, detail.account) == (4 * 1024**3, 1, "mltf_acc")
    assert "events 1000 with GCCcore/.11.3.0 Python/3.10.4 in pascal" in said
    # What has another meaning here is told, to whoever watches and to whoever looks later.
    for note in ('output "G_NJL_tautau_2J.out": no such file is written', 'sbatch-script-file "batchFile": no such file'):
        assert note in said
        assert note in lab.carrel("show", str(job.id)).stdout


def test_show_and_nodes_say_what_slurm_has_chosen(lab: Lab, site: SlurmSite) -> None:
    job = lab.submit("echo $SLURM_JOB_NODELIST", slurm=SlurmRequest(options=["--nodelist=node3"]))
    assert lab.ended(job).state == "COMPLETED"
    (attempt,) = lab.client.job(job).attempts
    assert (attempt.slurm_nodes, str(attempt.slurm_job)) == ("node3", lab.number(job))
    assert f"node3 (job {attempt.slurm_job} of Slurm)" in lab.carrel("show", str(job)).stdout
    nodes = {node.name: node for node in lab.client.machines().cluster}
    assert sorted(nodes) == sorted(site.layout.nodes)
    assert (nodes["node3"].partitions, nodes["node3"].gpus) == (["cluster", "fenced", "soon"], {"fake": 4})
    assert [node.name for node in lab.client.nodes()] != sorted(nodes)
    told = lab.carrel("nodes").stdout
    assert "NODE OF SLURM" in told
    assert "4 fake" in told


def test_who_ends_as_it_likes_when_slurm_ends_it_is_still_said_to_be_preempted(lab: Lab, site: SlurmSite) -> None:
    (lab.home / "carrel.toml").write_text(
        RULES + '[partitions.low]\nengine = "slurm"\nslurm_partition = "main"\nslurm_qos = "lowcancel"\n'
    )
    lab.client.reload_rules()
    script = (
        "if [ $CARREL_ATTEMPT = 2 ]; then exit 0; fi\ntrap 'kill $!; echo saved > $CARREL_CHECKPOINT_DIR/state; exit 75' TERM\n"
        "echo begun; sleep 600 & wait $!\n"
    )
    job = lab.submit(script, "low", slurm=SlurmRequest(options=["--nodelist=node4"]))
    lab.until(job, lambda _: "begun" in lab.log(job))
    taker = site.submit("sleep 600", "--qos=high", "--nodelist=node4", "--exclusive", "--mem=0")
    lab.until(job, lambda job: job.attempts[0].state == "PREEMPTED")
    site.run("scancel", str(taker))
    ended = lab.ended(job)
    assert (ended.state, ended.attempt) == ("COMPLETED", 2), ended
