"""The cluster that the tests run against is a real one: devices, limits and its own restarts."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from carrel.testing.waiting import wait_until
from support.slurm_site import SiteError, SlurmSite, sweep
from tiers import TESTS

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user takes root")


def test_a_job_runs_on_the_fake_gpus_that_it_asked_for(site):
    job = site.submit('echo "$CUDA_VISIBLE_DEVICES on $SLURMD_NODENAME"', "--gres=gpu:fake:2", "--nodelist=node3")
    assert site.wait_for(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert site.output(job) == "0,1 on node3\n"


def test_a_job_without_gpus_sees_none(site):
    job = site.submit('echo "gpus: $CUDA_VISIBLE_DEVICES."', "--export=ALL,CUDA_VISIBLE_DEVICES=3")
    site.wait_for(job, "COMPLETED")
    assert site.output(job) == "gpus: .\n"


def test_more_gpus_than_a_node_has_are_refused(site):
    with pytest.raises(SiteError, match="Requested node configuration is not available"):
        site.submit("true", "--gres=gpu:fake:5", "--nodes=1")


@as_root
def test_limits_of_a_class_of_service_hold(site):
    first = site.submit("sleep 600", "--qos=short", "--time=1", user="alice")
    site.wait_for(first, "RUNNING")
    second = site.submit("sleep 600", "--qos=short", "--time=1", user="alice")
    wait_until(lambda: site.run("squeue", "-h", "-j", str(second), "-o", "%T %r").out.strip() == "PENDING QOSMaxJobsPerUserLimit")
    other = site.submit("sleep 600", "--qos=short", "--time=1", user="bob")
    site.wait_for(other, "RUNNING")
    with pytest.raises(SiteError, match="QOSMaxWallDurationPerJobLimit"):
        site.submit("true", "--qos=short", "--time=5", user="bob")
    with pytest.raises(SiteError, match="QOSMaxGRESPerUser"):
        site.submit("true", "--qos=short", "--time=1", "--gres=gpu:3", user="bob")


@as_root
def test_a_higher_class_of_service_takes_the_place_of_a_lower_one(site):
    low = site.submit("sleep 600", "--qos=lowcancel", "--gres=gpu:4", "--nodelist=node4", user="alice")
    site.wait_for(low, "RUNNING")
    high = site.submit("sleep 600", "--qos=high", "--gres=gpu:4", "--nodelist=node4", user="bob")
    site.wait_for(high, "RUNNING")
    assert site.wait_for(low, "PREEMPTED", "CANCELLED", "FAILED", "COMPLETED") == "PREEMPTED"


@as_root
def test_one_user_cannot_cancel_the_job_of_another(site):
    job = site.submit("sleep 600", user="alice")
    site.wait_for(job, "RUNNING")
    assert "Access/permission denied" in site.run("scancel", str(job), user="bob", check=False).err
    assert site.state(job) == "RUNNING"


def test_the_controller_is_killed_and_started_again(site):
    job = site.submit(f"read line < {site.shared}/go-on; echo went on")
    os.mkfifo(site.shared / "go-on")
    site.wait_for(job, "RUNNING")
    site.wait_until_saved(job)
    site.kill("slurmctld")
    assert site.run("squeue", check=False, environ={"SLURM_CONF": str(site.layout.hasty_conf)}).code != 0
    (site.shared / "go-on").write_text("go\n")
    site.start_controller()
    assert site.wait_for(job, "COMPLETED", "FAILED", "NODE_FAIL") == "COMPLETED"
    assert site.output(job) == "went on\n"


def test_two_clusters_know_nothing_of_each_other(site):
    with SlurmSite(nodes=1, accounting=False) as other:
        job = other.submit("echo $SLURMD_NODENAME")
        assert other.wait_for(job, "COMPLETED", "FAILED") == "COMPLETED"
        root = other.root
        assert str(root) not in site.run("scontrol", "show", "config").out
    assert not root.exists()
    assert not processes_below(root)


_KILLED = """
import os, signal
from carrel.testing.waiting import wait_until
from support.slurm_site import SlurmSite
from tiers import TESTS
site = SlurmSite(nodes=1, accounting=False)
site.start()
site.submit("touch started; sleep 600")
wait_until(lambda: (site.shared / "started").exists())
print(site.root, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def elsewhere():
    """Where the clusters of others that start meanwhile do not sweep; its path is short, as those of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="carrel-swept-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_cluster_whose_owner_is_killed_is_swept_away_by_the_next(slurm_programs, elsewhere):
    words = [sys.executable, "-c", _KILLED]
    variables = {**os.environ, "TMPDIR": str(elsewhere), "PYTHONPATH": str(TESTS)}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=variables)
    assert done.returncode == -signal.SIGKILL
    root = Path(done.stdout.strip())
    wait_until(lambda: not any("slurmctld" in line or "munged" in line for line in processes_below(root)))
    assert root.exists()
    wait_until(lambda: any("sleep" in line for line in processes_below(root)))
    assert root.parent == elsewhere
    sweep(elsewhere)
    assert not root.exists()
    assert not processes_below(root)


def processes_below(root):
    """Return the command lines of processes that belong to the cluster in `root`."""
    mark = f"SLURM_CONF={root}/etc/slurm.conf".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found
