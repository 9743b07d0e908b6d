"""Any process may be killed at any moment: nothing is lost, nothing runs twice, nothing hangs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from carrel import Client
from carrel.client.transport import LabUnreachable
from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.spool import Spool, read_claim
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess, start_lab
from support.ports import kept_port

PROJECT = """
name: witness
entry_points:
  main:
    parameters: {seconds: float, code: int}
    command: "echo started >> $WITNESS/$CARREL_JOB_ID; sleep {seconds}; echo ended; exit {code}"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "witness"
    directory.mkdir()
    (directory / "MLproject").write_text(PROJECT)
    return directory


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    """Every start of every command leaves a line here, outside of anything that the lab knows."""
    directory = tmp_path / "starts"
    directory.mkdir()
    return directory


@pytest.fixture
def port() -> Iterator[int]:
    with kept_port() as number:
        yield number


class Lab:
    """A lab that is killed and started again at the same address."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port
        self.process = self._start()

    def _start(self) -> LabProcess:
        # Inputs come while their job has its place, where nothing of them is kept.
        return start_lab(self.home, "--port", str(self.port), simulate_gpus=2, variables={"CARREL_INPUT_CACHE": "1K"})

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process = self._start()

    def client(self) -> Client:
        return Client(url=self.process.url, token=self.process.token)


@pytest.fixture
def lab(tmp_path: Path, port: int) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab", port)
    yield lab
    lab.process.stop()


def submit(client: Client, project: Path, witness: Path, *, seconds: float = 0.0, code: int = 0, key: str | None = None) -> int:
    parameters = {"seconds": str(seconds), "code": str(code)}
    return client.submit_project(project, parameters=parameters, variables={"WITNESS": str(witness)}, key=key).id


def starts(witness: Path) -> Counter[int]:
    return Counter({int(path.name): path.read_text().count("started") for path in witness.iterdir()})


@pytest.mark.chaos
def test_a_server_killed_at_random_moments_under_load_loses_nothing(lab: Lab, project: Path, witness: Path) -> None:
    chance = random.Random(20261120)
    wanted = {f"job-{number}": (chance.choice([0.0, 0.0, 0.1, 0.4]), chance.choice([0, 0, 0, 3])) for number in range(80)}
    accepted: dict[str, int] = {}
    half_way = [threading.Event() for _ in range(6)]

    def submit_all() -> None:
        with lab.client() as client:
            for number, (key, (seconds, code)) in enumerate(wanted.items()):
                while key not in accepted:
                    try:
                        accepted[key] = submit(client, project, witness, seconds=seconds, code=code, key=key)
                    except (LabUnreachable, Unavailable):
                        continue  # the same key again: never a second job
                for index, event in enumerate(half_way):
                    if number >= (index + 1) * len(wanted) // (len(half_way) + 1):
                        event.set()

    submitting = threading.Thread(target=submit_all)
    submitting.start()
    for event in half_way:
        assert event.wait(PATIENCE)
        # A moment within the work of a few jobs, never the same: the next line of some job's witness.
        threading.Event().wait(chance.uniform(0, 0.15))
        lab.kill_and_restart()
    submitting.join(timeout=PATIENCE)
    assert not submitting.is_alive()

    with lab.client() as client:
        ends = {key: client.wait(job_id, timeout=PATIENCE) for key, job_id in accepted.items()}
        listed = [job.id for job in client.jobs(limit=None)]
    assert len(ends) == len(wanted)
    assert sorted(listed) == sorted(accepted.values()), "jobs that nobody submitted, or lost ones"
    for key, job in ends.items():
        code = wanted[key][1]
        assert (job.state, job.exit_code) == (("FAILED", 3) if code else ("COMPLETED", 0)), (key, job.message)
    assert starts(witness) == Counter(dict.fromkeys(accepted.values(), 1)), "a command ran twice, or not at all"


@pytest.mark.chaos
def test_a_running_task_goes_on_while_the_server_is_dead(lab: Lab, project: Path, witness: Path) -> None:
    with lab.client() as client:
        job_id = submit(client, project, witness, seconds=1.5)
        for event in client.events(job_id):
            if event.type == "state" and event.data["state"] == "RUNNING":
                break
        lab.process.kill()
        lab.process = start_lab(lab.home, "--port", str(lab.port), simulate_gpus=2)
        job = client.wait(job_id)
        assert (job.state, job.exit_code, job.attempt) == ("COMPLETED", 0, 1)
        assert b"".join(client.log(job_id)) == b"ended\n"
    assert starts(witness) == {job_id: 1}


@pytest.mark.chaos
def test_a_killed_runner_is_node_fail_with_its_output_kept(lab: Lab, tmp_path: Path) -> None:
    project = tmp_path / "long"
    project.mkdir()
    (project / "MLproject").write_text("name: long\nentry_points:\n  main:\n    command: 'echo one; sleep 600 & echo $!; wait'\n")
    with lab.client() as client:
        job_id = client.submit_project(project).id
        said = ""
        for text in client.stream_log(job_id):
            said += text  # the two lines may come in one piece or in two
            if said.count("\n") == 2:
                break
        sleeper = int(said.split()[1])
        claim = Spool(lab.home / "spool").attempt(job_id, 1).claim
        os.kill(_pid_in(claim), signal.SIGKILL)
        job = client.wait(job_id, timeout=PATIENCE)
        assert (job.state, job.reason) == ("NODE_FAIL", "RunnerLost")
        assert b"".join(client.log(job_id)).startswith(b"one\n")
        assert not _alive(sleeper), "the command's own children must not be left behind"


@pytest.mark.chaos
@pytest.mark.parametrize("kills", [1, 4])
def test_a_runner_that_is_killed_before_the_command_begins_costs_no_retry(
    lab: Lab, project: Path, witness: Path, kills: int
) -> None:
    """It is preparing as long as the input that it fetches does not come."""
    with socket.create_server(("127.0.0.1", 0)) as source, contextlib.ExitStack() as open_:
        source.settimeout(120)
        (project / "MLproject").write_text(
            PROJECT + f"carrel: {{inputs: [{{path: data, uri: 'http://127.0.0.1:{source.getsockname()[1]}/data'}}]}}\n"
        )
        client = open_.enter_context(lab.client())
        job_id = submit(client, project, witness)
        for attempt in range(1, kills + 1):
            open_.enter_context(source.accept()[0])
            os.kill(_pid_in(Spool(lab.home / "spool").attempt(job_id, attempt).claim), signal.SIGKILL)
        if kills <= 3:
            asked = open_.enter_context(source.accept()[0])
            asked.recv(65536)
            asked.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx")
        job = client.wait(job_id, timeout=PATIENCE)
        told = ("COMPLETED", "Completed") if kills <= 3 else ("NODE_FAIL", "RunnerLost")
        assert (job.state, job.reason, job.attempt) == (*told, min(kills + 1, 4))
    assert sum(starts(witness).values()) == (1 if kills <= 3 else 0)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, pytest.param(range(50), marks=pytest.mark.soak)])
def test_an_end_that_stands_after_damage_is_told_when_the_lab_comes_back(
    lab: Lab, project: Path, witness: Path, seed: int | range
) -> None:
    chance = random.Random(str(seed))
    rounds = 1 if isinstance(seed, int) else len(seed)
    for _ in range(rounds):
        with lab.client() as client:
            codes = [chance.choice([0, 3]) for _ in range(4)]
            jobs = [submit(client, project, witness, seconds=0.5, code=code) for code in codes]
            for event in client.events(jobs[0]):
                if event.type == "state" and event.data["state"] == "RUNNING":
                    break
        lab.process.kill()
        for job_id in jobs:
            directory = Spool(lab.home / "spool").attempt(job_id, 1)
            if read_claim(directory.claim) is not None:
                wait_until(partial(_is_through, directory.claim))  # its runner goes on to its end
                _damage_all_but_the_end(directory.journal, chance)
        lab.process = lab._start()
        with lab.client() as client:
            for job_id, code in zip(jobs, codes, strict=True):
                job = client.wait(job_id, timeout=PATIENCE)
                assert (job.state, job.exit_code) == (("FAILED", 3) if code else ("COMPLETED", 0)), job.message
    assert set(starts(witness).values()) == {1}


def _is_through(path: Path) -> bool:
    claim = read_claim(path)
    return claim is not None and not claim.held


def _damage_all_but_the_end(journal: Path, chance: random.Random) -> None:
    data = bytearray(journal.read_bytes())
    last = data.rstrip(b"\n").rfind(b"\n")
    for _ in range(5):
        data[chance.randrange(last + 1)] ^= 1 << chance.randrange(8)
    journal.write_bytes(bytes(data))


@pytest.mark.chaos
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_a_clear_error_and_the_lab_goes_on_when_there_is_room(
    tmp_path: Path, port: int, project: Path, witness: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with contextlib.ExitStack() as stack:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "none", disk], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
        lab = Lab(disk / "lab", port)
        stack.callback(lab.process.stop)
        client = stack.enter_context(lab.client())
        before = submit(client, project, witness)
        assert client.wait(before, timeout=PATIENCE).state == "COMPLETED"
        with (disk / "ballast").open("wb", buffering=0) as ballast:
            _fill(ballast)
        with pytest.raises(StorageFull, match=r"(?i)full|no space|room|cannot grow"):
            for number in range(3000):
                submit(client, project, witness, key=f"full-{number}")
        (disk / "ballast").unlink()
        after = submit(client, project, witness)
        assert client.wait(after, timeout=PATIENCE).state == "COMPLETED"
        assert lab.process.stop() == 0


def _fill(file: object) -> None:
    piece = b"\0" * 65536
    while True:
        try:
            file.write(piece)  # type: ignore[attr-defined]
        except OSError:
            return


def _pid_in(claim: Path) -> int:
    return int(claim.read_text().split()[0])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
