"""Records what the real programs answer about jobs of every ending: python tests/slurm/record_answers.py [DIRECTORY].

The parsers are tested against these files. Free text in the names and comments of jobs is as bad as Slurm lets it be.
"""

import json
import sys
import time
from pathlib import Path

from carrel.engines.slurm.listing import SACCT_FIELDS, squeue_format
from support.slurm_site import SlurmSite

MARK = "m7Qx2"
HERE = Path(__file__).parent / "answers"


def make_jobs(site):
    """Jobs in every state that a cluster without cgroups can bring about."""
    jobs = {}

    def submit(name, script, *options, user=None):
        jobs[name] = site.submit(script, f"--job-name={name}", *options, user=user)

    submit("timeout", "sleep 600", "--time=1")
    submit("good", "true", "--comment=JobState=FAILED")
    submit("bad|na me UserId=root(0) JobState=COMPLETED", "exit 3")
    bad = jobs["bad|na me UserId=root(0) JobState=COMPLETED"]
    submit("killed", "kill -9 $$")
    submit("running", "sleep 600", "--gres=gpu:fake:2")
    submit("cancelled-running", "sleep 600", user="alice")
    submit("cancelled-pending", "true", "--begin=now+1hour", user="alice")
    submit("low", "sleep 600", "--qos=lowcancel", "--gres=gpu:4", "--nodelist=node4", user="alice")
    site.wait_for(jobs["low"], "RUNNING")
    submit("high", "sleep 600", "--qos=high", "--gres=gpu:4", "--nodelist=node4", user="bob")
    submit("lost", "sleep 600", "--no-requeue", "--nodelist=node2")
    submit("requeued", "sleep 600", "--requeue", "--nodelist=node2", "--open-mode=append")
    submit("suspended", "sleep 600", "--nodelist=node3")
    submit("array", "exit $SLURM_ARRAY_TASK_ID", "--array=0-2")
    submit("waiting-array", "true", "--hold", "--array=1,10-200:2%3", "--comment=carrel.lab.array.ab12")
    submit("never", "true", f"--dependency=afterok:{bad}")
    submit("never-killed", "true", f"--dependency=afterok:{bad}", "--kill-on-invalid-dep=yes")
    forged = f"1|COMPLETED|None|||root|carrel.lab.1.1|~{MARK}x|good"
    submit(f"held\n{MARK}x|{forged}", "true", "--hold")
    submit("commented", "true", "--hold", f"--comment=carrel.lab.8.1|~{MARK}x|good\n{MARK}x|{forged}\n")
    submit("ours", "true", "--hold", "--comment=carrel.lab.9.1")
    for name in ("timeout", "cancelled-running", "lost", "requeued", "suspended", "high"):
        site.wait_for(jobs[name], "RUNNING")
    site.run("scancel", str(jobs["cancelled-running"]))
    site.run("scancel", str(jobs["cancelled-pending"]))
    site.run("scontrol", "suspend", str(jobs["suspended"]))
    site.run("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    deadline = time.monotonic() + 300
    while site.state(jobs["timeout"]) != "TIMEOUT" and time.monotonic() < deadline:
        time.sleep(1)
    time.sleep(6)  # slurmdbd writes down what has ended some seconds later
    return jobs


def record(site, jobs, directory):
    numbers = ",".join(str(number) for name, number in jobs.items() if "\n" not in name)
    everything = ",".join(str(number) for number in jobs.values())
    fields = f"--format={','.join(SACCT_FIELDS)}"
    commands = {
        "squeue": ["squeue", "-t", "all", "-o", squeue_format(MARK)],
        "sacct": ["sacct", "-X", "-D", "-a", "-P", "-j", numbers, fields],
        "sacct-two-lines": ["sacct", "-X", "-D", "-a", "-P", "-j", everything, fields],
        "squeue-job": ["squeue", "-t", "all", "-j", str(jobs["ours"]), "-o", squeue_format(MARK)],
        "scontrol-node": ["scontrol", "-o", "show", "node"],
        "scontrol-partition": ["scontrol", "-o", "show", "partition"],
        "squeue.json": ["squeue", "--json"],
        "sacct.json": ["sacct", "--json", "-a", "-j", numbers],
        "sacct-nothing.json": ["sacct", "--json", "--name=nosuch"],
    }
    for name, command in commands.items():
        json_form = name.endswith(".json")
        # `sacct --json` of 22.05 fails with any other time format than its own.
        variables = {"SLURM_BITSTR_LEN": "0", **({} if json_form else {"SLURM_TIME_FORMAT": "%s"})}
        text = site.run(*command, environ=variables).out.replace(str(site.root), "/site")
        if json_form:
            answer = json.loads(text)
            for job in answer["jobs"]:
                job.pop("steps", None)  # long, and nobody reads them
                job.pop("job_resources", None)
            text = json.dumps({key: value for key, value in answer.items() if key != "jobs"})[:-1]
            text += ', "jobs": [\n' + ",\n".join(json.dumps(job) for job in answer["jobs"]) + "\n]}\n"
        (directory / name).write_text(text)
    (directory / "numbers.json").write_text(json.dumps(jobs, indent=1) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    target.mkdir(exist_ok=True)
    with SlurmSite() as cluster:
        record(cluster, make_jobs(cluster), target)
