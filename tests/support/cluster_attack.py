"""An attack on a lab of a cluster: a job of a mapped user tries to be the lab, to act as others, and to see what is theirs."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.launch import Ended, Launch, LaunchPaths, Observation
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.snapshots import pack
from carrel.core.spool import Spool
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.deputy.frames import Signer
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.partition import SlurmPartition
from carrel.engines.slurm.site import site_options
from carrel.lab.server.home import LabHome
from support import break_in
from support.attacking import Attempts

#: What the job of a trial may take.
_MEMORY, _TIME = 256 * 1024**2, 300


def attack_cluster(
    *, home: LabHome, user: str, command: Sequence[str], other: Sequence[str], directory: str, partition: SlurmPartition,
    signer: Signer, patience: float,
) -> Attempts:  # fmt: skip
    """Have a job of the Unix user try, in a partition of the cluster; `command` starts their deputy and `other` another's.

    `directory` is where theirs keeps its files. Raises `Unavailable` where the job did not come to its end in `patience` seconds.
    """
    over = threading.Event()
    ends: list[Ended] = []

    def hear(observations: Sequence[Observation]) -> None:
        ends.extend(entry.record for one in observations for entry in one.entries if isinstance(entry.record, Ended))
        if ends:
            over.set()

    def options(_launch: Launch) -> SlurmOptions:
        return replace(site_options(partition), time=_TIME, memory=_MEMORY, cpus=1)

    with tempfile.TemporaryDirectory(prefix="attack.", dir=home.run) as place:
        root = Path(place)
        launch = _launch(root, [str(home.path), directory, *other])
        engine = DeputyEngine(
            user=user,
            command=command,
            lab="attack",
            spool=Spool(root / "spool"),
            snapshots=root,
            blobs=root,
            log=root / "deputy.log",
            options=options,
            immediate=lambda _launch: False,
            signer=signer,
            environ=os.environ,
            interval=1.0,
        )
        with closing(engine):
            engine.observe(hear)
            engine.start(launch, token=secrets.token_hex(8))
            if not over.wait(patience):
                engine.cancel(launch.job_id, launch.attempt, by="tools/attack.py")
                raise Unavailable(
                    f"The job of {user} did not end within {patience:.0f} s.", remedy="--patience SECONDS waits longer."
                )
            engine.forget(launch.job_id, launch.attempt)
        log = Spool(root / "spool").attempt(launch.job_id, launch.attempt).log
        return _answer(user, ends[0], log.read_text(errors="replace") if log.exists() else "")


def _answer(user: str, ended: Ended, log: str) -> Attempts:
    try:
        found = json.loads(log.strip().splitlines()[-1])
        return Attempts(made=[str(one) for one in found["tried"]], through=dict.fromkeys(map(str, found["through"]), ""))
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"The job of {user} has not told what it could do: {ended.reason.message} {log[-200:]}") from error


def _launch(root: Path, arguments: Sequence[str]) -> Launch:
    """What is tried, as a task; its number is the time, so that it is no other's."""
    code = root / "code"
    code.mkdir()
    shutil.copyfile(break_in.__file__, code / "break_in.py")
    packed = pack(code)
    with (root / f"{packed.digest.removeprefix('sha256:')}.tar").open("wb") as file:
        packed.write(file)
    words = [sys.executable, "-I", "break_in.py", *arguments]
    return Launch(
        job_id=int(time.time()),
        attempt=1,
        kind=JobKind.TASK,
        owner="tools/attack.py",
        name="carrel-attack",
        account="",
        qos="",
        node="",
        task=TaskSpec(entry_point="main", command=shlex.join(words), snapshot=packed.digest),
        resources=Resources(cpus=1, memory=_MEMORY, time=_TIME),
        devices=(),
        paths=LaunchPaths(environments=str(root), snapshots=str(root), blobs=str(root)),
    )
