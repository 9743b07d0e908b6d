"""Everything is killed while jobs wait, run and end: each runs once, to its own end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel import Client
from carrel.client.transport import LabUnreachable
from carrel.core.domain.array import ArrayElement
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.ports import Attempt
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.lab_process import LabProcess, start_lab
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.chaos]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="batch"),
        pytest.param({"array": "1-30"}, id="array"),
        pytest.param({"immediate": lambda _launch: True}, id="immediate"),
        pytest.param({"immediate": lambda _launch: True, "hold": lambda _launch: 60.0}, id="held"),
    ],
)
def test_each_job_runs_once_to_its_own_end(slurm_programs: None, tmp_path: Path, options: dict[str, Any]) -> None:
    """The controller, a node's daemon and the engine itself."""
    home = LabHome(tmp_path)
    options = dict(options)
    array = options.pop("array", "")
    with SlurmSite(nodes=2, node_timeout=300) as site:

        def make() -> SlurmEngine:
            commands = SlurmCommands(environ=site.environ, json=False, timeout=60)
            return SlurmEngine(
                spool=home.spool, run_dir=home.run, lab="chaos", environ=site.environ, commands=commands, interval=1.0, **options
            )

        launches = [
            make_launch(home, f"echo {number} >> {home.root}/ran; sleep {number % 4}; exit {number % 3}", job_id=number)
            for number in range(1, 31)
        ]
        if array:
            launches = [
                replace(
                    launch, name="sweep", element=ArrayElement(array_id=1, index=launch.job_id, array=array), more_elements=True
                )
                for launch in launches
            ]
        first = make()
        listener = EngineListener(first)
        for launch in launches[:20]:
            first.start(launch, token=TOKEN)
        wait_until(lambda: sum(listener.story(launch).ended is not None for launch in launches) >= 4)
        keeper = site.submit("sleep 600")
        site.wait_until_saved(keeper)
        site.kill("slurmctld")
        for launch in launches[20:]:
            first.start(launch, token=TOKEN)
        site.kill("node1")
        offsets = {launch.job_id: listener.story(launch) for launch in launches}
        first.close()
        site.start_controller()
        site.start_node("node1")
        second = make()
        try:
            listener = EngineListener(second)
            left = [launch for launch in launches if offsets[launch.job_id].ended is None]
            second.adopt(
                (Attempt(job_id=launch.job_id, number=1, offset=offsets[launch.job_id].offset), launch, TOKEN) for launch in left
            )
            ends = {launch.job_id: story.ended for launch in launches if (story := offsets[launch.job_id]).ended}
            ends |= {launch.job_id: listener.ended(launch) for launch in left}
        finally:
            second.close()
    assert {number: ended.exit_code for number, ended in ends.items()} == {number: number % 3 for number in range(1, 31)}
    ran = (home.root / "ran").read_text().split()
    assert sorted(map(int, ran)) == list(range(1, 31))


RULES = """
default_qos = "normal"
[qos.normal]
[partitions.batch]
engine = "slurm"
slurm_partition = "main"
[partitions.soon]
engine = "slurm"
slurm_partition = "main"
slurm_immediate = true
"""
MANY = 200


@pytest.mark.soak
def test_two_hundred_jobs_outlive_everything(slurm_programs: None, tmp_path: Path) -> None:
    """slurmctld, slurmdbd, both nodes' slurmd and the lab, killed again and again while 200 jobs are submitted and run."""
    home, witness = tmp_path / "lab", tmp_path / "witness"
    home.mkdir()
    (home / "carrel.toml").write_text(RULES)
    work = tmp_path / "work"
    work.mkdir()
    through = tmp_path / "through"
    line = 'echo "$CARREL_JOB_ID" >>'
    (work / "work.sh").write_text(f'{line} {witness}; sleep "$SECONDS_"; {line} {through}; exit "$CODE"\n')
    chance = random.Random(20261122)
    wanted = {f"job-{number}": (chance.choice(["0", "0.3", "1"]), chance.choice([0, 0, 0, 3])) for number in range(MANY)}
    accepted: dict[str, int] = {}
    over = threading.Event()
    with SlurmSite(nodes=2, node_timeout=300) as site:
        variables = {"SLURM_CONF": str(site.layout.conf)}

        def start() -> LabProcess:
            return start_lab(home, "--cpus", "2", simulate_gpus=0, variables=variables)

        processes = [start()]

        def submit_all() -> None:
            for number, (key, (seconds, code)) in enumerate(wanted.items()):
                while key not in accepted and not over.is_set():
                    process = processes[-1]
                    try:
                        with Client(url=process.url, token=process.token) as client:
                            accepted[key] = client.submit_project(
                                work / "work.sh",
                                partition=("batch", "soon")[number % 2],
                                resources=ResourceRequest(memory="64M", time="5m"),
                                variables={"SECONDS_": seconds, "CODE": str(code)},
                                key=key,
                            ).id
                    except (LabUnreachable, Unavailable):
                        continue  # the same key again: never a second job

        def ran() -> Counter[str]:
            return Counter(witness.read_text().split()) if witness.exists() else Counter()

        def situation() -> str:
            with Client(url=processes[-1].url, token=processes[-1].token) as client:
                told = Counter(f"{job.state}: {job.message}" for job in client.jobs("all", limit=None))
            listed = site.run("squeue", "-h", "-o", "%T %r %N %j", check=False).out
            nodes = site.run("sinfo", "-h", "-N", "-o", "%N %T %E", check=False).out
            return f"{len(accepted)} accepted\n{told}\n{listed}\n{nodes}"

        def resumed() -> bool:
            """Numbers that a killed controller gives again make it drain nodes, which an administrator resumes."""
            site.run("scontrol", "update", "nodename=ALL", "state=resume", check=False)
            return True

        def kill_lab() -> None:
            processes[-1].kill()
            processes.append(start())

        def kill(daemon: str, again: Callable[[], None]) -> None:
            site.kill(daemon)
            threading.Event().wait(chance.uniform(0, 1))
            again()

        kills: list[Callable[[], None]] = [
            lambda: kill("slurmctld", site.start_controller),
            lambda: kill("node1", lambda: site.start_node("node1")),
            lambda: kill("slurmdbd", site.start_accounting),
            kill_lab,
            lambda: kill("node2", lambda: site.start_node("node2")),
            lambda: kill("slurmctld", site.start_controller),
            kill_lab,
            lambda: kill("slurmctld", lambda: (kill_lab(), site.start_controller())),  # type: ignore[func-returns-value]
        ]
        submitting = threading.Thread(target=submit_all)
        submitting.start()
        try:
            for index, one in enumerate(kills, 1):
                # Spread over the work: it goes on when so many have begun.
                begun = index * MANY // (len(kills) + 2)
                try:
                    wait_until(lambda begun=begun: resumed() and len(ran()) >= begun)  # type: ignore[misc]
                except AssertionError as error:
                    raise AssertionError(f"{len(ran())} of {begun} had begun before kill {index}: {situation()}") from error
                one()
            submitting.join(timeout=PATIENCE)
            assert not submitting.is_alive()
            with Client(url=processes[-1].url, token=processes[-1].token) as client:
                for job in accepted.values():
                    try:
                        wait_until(lambda job=job: resumed() and client.job(job).ended)  # type: ignore[misc]
                    except AssertionError as error:
                        raise AssertionError(f"job {job} did not end: {situation()}") from error
                ends: dict[str, JobDetail] = {key: client.job(job) for key, job in accepted.items()}
        finally:
            over.set()
            submitting.join()
            processes[-1].end_jobs()
            processes[-1].stop()
    assert len(ends) == MANY
    assert set(ran()) <= {str(job) for job in accepted.values()}
    assert set(ran().values()) == {1}, "a command ran twice"
    through_to_its_end = set(through.read_text().split())
    for key, (_, code) in wanted.items():
        job = ends[key]
        if job.state in ("COMPLETED", "FAILED"):
            assert (job.state, job.exit_code) == (("FAILED", 3) if code else ("COMPLETED", 0)), (key, job.message)
            assert str(job.id) in through_to_its_end, (key, job.message)
        else:
            # A controller that was killed gives numbers again, and then ends what has them: that is told, and nothing else.
            assert job.state in ("NODE_FAIL", "CANCELLED"), (key, job.state, job.message)
    assert sum(job.state in ("COMPLETED", "FAILED") for job in ends.values()) >= MANY * 9 // 10
