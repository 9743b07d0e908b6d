"""What a deputy's pipe may carry: whoever has the user's rights can write to it, and no other user's job notices."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from carrel.core.control.news import interpret
from carrel.core.control.ports import NewJob, StartOrder
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import (
    Continued,
    Ended,
    EnvironmentReady,
    Launch,
    Observation,
    Preparing,
    Resumed,
    Sampled,
    Started,
    StoredFile,
    Usage,
)
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import User
from carrel.core.spool import Spool, entry_to_plain
from carrel.core.spool.foreign import is_digest
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.deputy.followed import Followed
from carrel.engines.deputy.frames import FrameReader, NotAFrame, frame
from carrel.engines.slurm.options import SlurmOptions
from carrel.lab.gateway.views import job_detail, output_view
from carrel.lab.store import Database, Store
from carrel.testing.builders import LabHome, make_launch

DIGEST = f"sha256:{7:064x}"
STRANGE: list[Any] = [None, True, -1, 0, 10**30, 2**63, 1e308, 1e300, float("nan"), float("inf")]
STRANGE += ["", "\ud800", "a\0b", "9" * 5000, "../x", "/etc/passwd", "sha256:../token", "x" * 70_000, "RUNNING", "PENDING"]
STRANGE += [[], {}, [[]], [None], {"a": 1}, [DIGEST]]
RECORDS = [
    Preparing(message="Waiting."),
    EnvironmentReady(digest="sha256:e", lock=DIGEST, python="3", built=False, seconds=1.0),
    Started(pid=3, hardware={"cpu": "x", "slurm_job": "7"}, seeds={"a": "1"}),
    Sampled(usage=Usage(cpu_seconds=1.0, memory=5, gpu_mean={"a": 1.0})),
    Resumed(seconds=2.0),
    Continued(seconds=1.0, people=2),
    Ended(
        state=JobState.COMPLETED,
        reason=Reason(code="Completed", message="Exit code 0."),
        exit_code=0,
        outputs=(StoredFile(path="outputs/a", size=1, digest=DIGEST),),
    ),
]


def changed(plain: Any, dice: random.Random) -> Any:
    """Return a copy in which one value, at any depth, is another."""
    if isinstance(plain, dict) and plain and dice.random() < 0.9:
        name = dice.choice(list(plain))
        if dice.random() < 0.05:
            return {key: value for key, value in plain.items() if key != name}
        return {**plain, name: changed(plain[name], dice)}
    if isinstance(plain, list) and plain and dice.random() < 0.9:
        return [changed(plain[0], dice), *plain[1:]]
    return dice.choice(STRANGE)


@dataclass
class TwoUsers:
    """A lab with a job of alice's and one of bob's, and the lab's side of bob's deputy."""

    root: Path
    dice: random.Random
    taken: int = 0

    def __post_init__(self) -> None:
        home = LabHome(self.root)
        self.store = Store(Database.at(self.root / "lab.db"), clock=lambda: 50.0)
        for name in ("alice", "bob"):
            self.store.people.add(User(subject=name, name=name), now=1)
        self.launch = make_launch(home, "true")
        self.hers = self.job_of("alice")
        self.engine = DeputyEngine(
            user="bob",
            command=["false"],
            lab="l",
            spool=Spool(self.root / "spool"),
            snapshots=self.root / "snapshots",
            blobs=self.root / "blobs",
            log=self.root / "log",
            options=lambda _launch: SlurmOptions(),
            immediate=lambda _launch: False,
            environ={},
        )
        self.engine._receivers.append(lambda observations: [self.take(one) for one in observations])
        self.next_job()

    def job_of(self, owner: str) -> Job:
        new = NewJob(
            kind=JobKind.TASK, owner=owner, account="default", name="n", qos="normal", resources=Resources(), retries=0,
            task=TaskSpec(entry_point="main", command="true", snapshot=DIGEST),
        )  # fmt: skip
        job = self.store.jobs.submit(new, now=10.0, key=None, request="r", outbox=lambda _job: ()).job
        ((started, _task),) = self.store.jobs.start([StartOrder(job_id=job.id, node="n1", devices=())], now=20.0)
        return started

    def next_job(self) -> None:
        self.his, self.log_size = self.job_of("bob"), 0
        launch: Launch = replace(self.launch, job_id=self.his.id, attempt=self.his.attempt)
        self.engine._followed.clear()
        self.engine._followed[self.his.id, self.his.attempt] = Followed(launch, "token", 0)

    def frames(self) -> list[tuple[dict[str, Any], bytes]]:
        """What an honest deputy says."""
        job = {"job": self.his.id, "attempt": self.his.attempt}
        entries = [entry_to_plain(30.0, record) for record in self.dice.sample(RECORDS[:-1], 2)]
        entries += [entry_to_plain(31.0, RECORDS[-1])] * (self.dice.random() < 0.2)
        news = {"job_id": self.his.id, "attempt": self.his.attempt, "entries": entries, "offset": 9, "beside": False}
        news |= {"log_size": 3, "gone": False, "unbegun": False}
        return [
            ({"is": "news", "observation": news, "lost": []}, b""),
            ({"is": "news", "observation": news, "lost": [DIGEST]}, b""),
            ({"is": "log", **job, "at": 0}, b"abc"),
            ({"is": "offer", **job, "digests": [DIGEST]}, b""),
            ({"is": "blob", "digest": DIGEST, "last": True}, b"abc"),
            ({"is": "list", "id": 1, "since": 1.0}, b""),
            ({"is": "file", "id": 1, "found": True}, b"x"),
            ({"is": "collected", **job, "stored": {"files": [], "notes": []}}, b""),
            ({"is": "collected", **job, "error": {"code": "x", "message": "y", "remedy": "z"}}, b""),
            ({"is": "ready", "directory": "/", "code": [DIGEST]}, b""),
            ({"is": "hello", "version": 1, "carrel": "1", "user": "bob", "nonce": "n"}, b""),
        ]

    def speak(self) -> None:
        head, body = self.dice.choice(self.frames())
        head = changed(head, self.dice) if self.dice.random() < 0.9 else head
        if self.dice.random() < 0.1 and "attempt" in str(head):  # of another's job
            head = json.loads(json.dumps(head).replace(f'"job": {self.his.id}', f'"job": {self.hers.id}'))
        if not isinstance(head, dict):
            return
        try:
            for heard in FrameReader().feed(frame(head, body)):
                self.engine._hear(*heard)
        except (NotAFrame, Unavailable):
            pass  # the conversation is over, and with it nothing else
        except Exception as error:
            error.add_note(repr(head)[:2000])
            raise

    def take(self, observation: Observation) -> None:
        """Write it down, and show it, as the control loop and the pages do."""
        self.taken += 1
        assert (observation.job_id, observation.attempt) == (self.his.id, self.his.attempt)
        (job,) = self.store.jobs.change([interpret(self.his, observation, log_size=self.log_size, now=40.0)], now=40.0)
        task, attempts = self.store.jobs.task(job.id), self.store.jobs.attempts(job.id)
        assert task is not None
        job_detail(job, None, None, task, attempts, reasons={}).model_dump_json()
        for file in self.store.jobs.outputs(job.id, 1):
            output_view(file).model_dump_json()
            assert is_digest(file.digest)
        self.his = job
        if job.state.ended or job.state is JobState.PENDING:
            self.next_job()


@pytest.mark.parametrize("frames", [pytest.param(1000, marks=pytest.mark.gate), 100_000])
def test_what_a_deputy_says_costs_its_own_users_jobs_at_most(tmp_path: Path, frames: int) -> None:
    lab = TwoUsers(tmp_path, random.Random(frames))
    for _ in range(frames):
        lab.speak()
    assert lab.taken > frames / 50
    assert lab.store.jobs.get(lab.hers.id) == lab.hers
    assert not list((tmp_path / "spool" / str(lab.hers.id)).glob("*/log"))
    lab.store.close()
