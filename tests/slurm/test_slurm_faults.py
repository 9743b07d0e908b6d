"""A site's faults are the lab's to bear: what never began is submitted again, elsewhere; only a person cancels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from slurm_engines import said
from slurm_lab import Lab

from carrel.core.domain.job import JobState
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import options_for
from carrel.engines.slurm.errors import SlurmRefused
from carrel.engines.slurm.faults import SiteFaults, elsewhere, fault_of, may_be_the_sites, was_held
from carrel.engines.slurm.listing import SlurmJob, parse_events, parse_out_of_use
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.states import end_of
from carrel.testing.builders import EngineListener, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.waiting import wait_until
from support.slurm_site import SlurmSite

DRAINED = {"node1": "Prolog error"}
ROOT = frozenset({"root", "slurm"})


def job(state, **more):
    return SlurmJob(id=7, state=state, **{"nodes": "node1", **more})


def fault(one, out_of_use=None, **more):
    return fault_of(one, end_of(one), out_of_use or {}, **more)


def test_a_cancellation_is_the_sites_when_its_node_was_taken_out_of_use():
    assert "node1: Prolog error" in fault(job("CANCELLED", cancelled_by="root"), DRAINED)
    assert fault(job("CANCELLED", cancelled_by="root")) == ""


@pytest.mark.parametrize(("by", "may"), [("root", True), ("slurm", True), ("", True), ("alice", False)])
def test_only_a_daemon_may_have_cancelled_for_a_node(by, may):
    assert may_be_the_sites(job("CANCELLED", cancelled_by=by), ROOT) is may


@pytest.mark.parametrize(
    ("one", "site"),
    [
        (job("NODE_FAIL"), True),
        (job("BOOT_FAIL"), True),
        (job("FAILED", reason="JobLaunchFailure"), True),
        (job("FAILED", reason="NonZeroExitCode", exit_code=127), True),
        (job("FAILED", reason="RaisedSignal:53(Real-time_signal_19)", signal=53), True),
        (job("FAILED", reason="BadConstraints", nodes=""), False),
        (job("TIMEOUT"), False),
        (job("OUT_OF_MEMORY"), False),
        (job("PREEMPTED"), False),
    ],
)
def test_other_ends_of_what_never_began(one, site):
    assert bool(fault(one)) is site


def test_modules_that_cannot_be_loaded_are_the_tasks_own_trouble():
    assert fault(job("FAILED", reason="NonZeroExitCode", exit_code=1), modules_failed=True) == ""


@pytest.mark.parametrize("words", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_job_that_slurm_holds_after_a_launch_that_failed(words):
    assert was_held(job("PENDING", reason=words, nodes=""))
    assert not was_held(job("PENDING", reason="JobHeldAdmin", nodes=""))


def test_nodes_are_excluded_beside_those_that_are_already():
    there = SlurmOptions(passed=("--exclude=node9", "--nice=7"))
    assert elsewhere(there, ["node1", "node2"]).passed == ("--nice=7", "--exclude=node9,node1,node2")
    assert elsewhere(there, []) is there


def test_why_nodes_take_no_jobs():
    line = "NodeName={} Arch=x86_64 State={} Port=1 AveWatts=0{}"
    drained = line.format("node1", "IDLE+DRAIN", " Reason=Prolog error [root@2026-11-22T22:29:05]")
    down = line.format("node2", "DOWN*", " Reason=Not responding [slurm@2026-11-22T22:29:05] Comment=x y")
    text = "\n".join([drained, down, line.format("node3", "IDLE", ""), line.format("node4", "DRAIN", ""), ""])
    assert parse_out_of_use(text) == {"node1": "Prolog error", "node2": "Not responding", "node4": "DRAIN"}


def test_why_nodes_took_none_when_a_job_began():
    text = "node1|1000|DRAIN|Prolog error\nnode2|99|DRAIN|before\nnode3|5001|DOWN|after\nnode4|1001|DOWN|\nnode1|2000|DOWN|x\n"
    assert parse_events(text, 990, 5000) == {"node1": "Prolog error", "node4": "DOWN"}


def test_a_node_that_is_just_coming_back_was_taken_out_of_use_for_what_accounting_says(tmp_path):
    answers = {
        "scontrol": "NodeName=node1 State=IDLE+NOT_RESPONDING Port=1\nNodeName=node2 State=DRAIN Port=1 Reason=disk [root@1]",
        "sacctmgr": "node1|1000|DRAIN|Prolog error",
    }
    for name, answer in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        (tmp_path / name).chmod(0o755)
    commands = SlurmCommands(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"}, json=False)
    assert commands.out_of_use("node[1-2]", 1000) == {"node1": "Prolog error", "node2": "disk"}
    (tmp_path / "sacctmgr").unlink()
    assert commands.out_of_use("node[1-2]", 1000) == {"node1": "IDLE+NOT_RESPONDING", "node2": "disk"}


class Silent:
    """A Slurm that shows its users no nodes."""

    def daemons(self):
        return ROOT

    def out_of_use(self, nodes, since):
        raise SlurmRefused("scontrol failed: Access/permission denied", reason="Access/permission denied")


def test_where_nodes_are_hidden_nobody_can_tell(tmp_path):
    one = job("CANCELLED", cancelled_by="root")
    found = SiteFaults(Silent()).of(None, one, end_of(one), modules=False)
    assert (found.message, found.doubtful) == ("", True)


# --- on the cluster ---------------------------------------------------------------------------------------------------------


def only_on(*nodes):
    """Options by which jobs go to these nodes alone."""
    others = sorted({"node1", "node2", "node3", "node4"} - set(nodes))
    return lambda launch: elsewhere(options_for(launch), others)


def first_on_node1():
    """Options by which the first attempt of job 1 goes to node1 and every other one past it.

    Job 1 may use both nodes when it is submitted again. The others never ask for node1: one that came there first would drain it,
    and job 1 would wait for it without an end.
    """
    asked = []

    def options(launch):
        asked.append(launch.job_id)
        if launch.job_id != 1:
            return only_on("node2")(launch)
        return only_on(*(("node1",) if asked.count(1) == 1 else ("node1", "node2")))(launch)

    return options


class TestOnTheCluster:
    pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

    @pytest.mark.parametrize("immediate", [False, True], ids=["batch", "immediate"])
    def test_a_prolog_that_fails_costs_a_job_nothing(self, site, home, engines, immediate):
        site.break_node("node1")
        engine = engines(site.environ, options=first_on_node1(), immediate=lambda _launch: immediate)
        listener = EngineListener(engine)
        launches = [make_launch(home, f"echo $SLURMD_NODENAME >> {home.root}/ran", job_id=number) for number in range(1, 4)]
        for launch in launches:
            engine.start(launch, token=TOKEN)
        for launch in launches:
            assert listener.ended(launch).state is JobState.COMPLETED
        assert (home.root / "ran").read_text().split() == ["node2"] * 3
        if not immediate:
            assert said(listener.story(launches[0]), "node1: Prolog error")

    def test_a_node_that_was_mended_since_is_still_the_reason(self, site, home, engines):
        first = engines(site.environ, interval=600, options=only_on("node1"))  # nobody looks while the node fails and is mended
        EngineListener(first)
        site.break_node("node1")
        launch = make_launch(home, "true")
        first.start(launch, token=TOKEN)
        path = home.attempt(launch).path / "slurm"
        wait_until(lambda: path.exists() and path.read_text().strip())
        first.close()
        number = int(path.read_text())
        site.wait_for(number, "CANCELLED")
        wait_until(lambda: "node1" in site.run("sinfo", "-h", "-R", "-o", "%N").out)
        site.mend_nodes()
        wait_until(lambda: "node1" not in site.run("sinfo", "-h", "-R", "-o", "%N").out)
        second = engines(site.environ, run_dir=home.run / "second", options=only_on("node1", "node2"))
        listener = EngineListener(second)
        second.start(launch, token=TOKEN)
        assert listener.ended(launch).state is JobState.COMPLETED
        assert said(listener.story(launch), "Prolog error")

    def test_it_is_tried_a_few_times_and_then_has_failed(self, site, home, engines):
        nodes = ("node1", "node2", "node3", "node4")
        for node in nodes:
            site.break_node(node)
        engine = engines(site.environ)
        listener = EngineListener(engine)
        launch = make_launch(home, f"touch {home.root}/ran")
        engine.start(launch, token=TOKEN)
        ended = listener.ended(launch)
        assert (ended.state, ended.reason.code, ended.retryable) == (JobState.FAILED, "LaunchFailed", True)
        assert "Prolog error" in ended.reason.message
        assert "4 times" in ended.reason.message
        assert not (home.root / "ran").exists()

    def test_an_administrator_who_cancels_is_a_person(self, site, home, engines):
        engine = engines(site.environ, python="/nowhere/python")
        listener = EngineListener(engine)
        launch = make_launch(home, "true")
        site.run("scontrol", "update", "partitionname=main", "state=down")
        try:
            engine.start(launch, token=TOKEN)
            path = home.attempt(launch).path / "slurm"
            wait_until(lambda: path.exists() and path.read_text().strip())
            site.run("scancel", path.read_text().strip())
            ended = listener.ended(launch)
        finally:
            site.run("scontrol", "update", "partitionname=main", "state=up")
        assert ended.state is JobState.CANCELLED
        assert f"Cancelled in Slurm by {site.layout.user}" in ended.reason.message


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-engine")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_every_job_ends_as_its_marker_says(limited: SlurmSite, lab: Lab, tmp_path: Path, size: int) -> None:
    """One node's prolog fails, another one's disk is full, Slurm takes three jobs, and nobody cancels anything."""
    limited.break_node("node1")
    if os.geteuid() == 0:
        limited.fill_spool("node2")
    markers = tmp_path / "markers"
    markers.mkdir()
    code = "$((SLURM_ARRAY_TASK_ID % 3))"
    first = lab.submit(f"echo {code} >> {markers}/$SLURM_ARRAY_TASK_ID; exit {code}", array=f"0-{size - 1}")
    jobs = list(lab.client.wait_array(first, timeout=1500))
    untrue = []
    for index, job in enumerate(jobs):
        marker = markers / f"{index}"
        written = marker.read_text().split() if marker.exists() else []
        state = "FAILED" if index % 3 else "COMPLETED"
        if (job.state, job.exit_code, written) != (state, index % 3, [f"{index % 3}"]):
            untrue.append((index, job.state, job.exit_code, job.message, written))
    assert untrue == []
    assert len(jobs) == size
