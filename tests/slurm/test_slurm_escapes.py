"""A job on a real cluster tries to get at the lab, at another user and at the machine, where Unix users are the walls."""

from __future__ import annotations

import json
import os
import shlex
import socket
from pathlib import Path

import pytest
from test_slurm_deputy import DeputyHome, command_of, deputies, deputy_engine

from carrel.core.domain.job import JobState
from carrel.testing.builders import EngineListener, make_launch
from carrel.testing.engine_contract import TOKEN
from support.attacks import KINDS
from support.escapes import read_table, victims
from support.slurm_site import USERS
from support.tricks import AS_USER, HOSTILE_AS_USER
from support.unix_users import common_ground, run_as

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm-engine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users"),
]
ALICE, BOB = USERS["alice"], USERS["bob"]
#: What every user of a machine may: see which segments there are, and which keys are theirs; have memory that others cannot map.
EVERYBODYS = (
    "System V memory: list what there is",
    "files of root in proc: keys",
    "out of memory: memory that no number shows",
)
ESCAPES = read_table(Path(__file__).parents[1] / "containment" / "escapes.txt")


def test_nothing_gets_out_of_a_job_on_a_cluster(site, everybodys_python):
    with common_ground() as root, victims(BOB) as others:
        hers, his = DeputyHome(root), DeputyHome(root, user=BOB)
        (root / "users").mkdir()
        (root / "users").chmod(0o1777)
        (root / "run").mkdir(mode=0o700)
        (root / "attacks.py").write_text(HOSTILE_AS_USER)
        mine, other = (deputy_engine(home, site, everybodys_python) for home in (hers, his))
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                # What is there to be had: another's job that has ended, their deputy, and what is the lab's.
                launch = make_launch(his, "echo private", job_id=2)
                other.start(launch, token=TOKEN)
                assert EngineListener(other).ended(launch).state is JobState.COMPLETED
                theirs, own = his.attempt(launch), hers.spool.attempt(2, 1)
                listener.bind(str(root / "run" / "s"))
                listener.listen()
                (root / "run" / "s").chmod(0o600)
                about = {
                    **others.about(),
                    "files": {
                        "token and secret": [str(path) for path in (root / "key").iterdir()] + ["/etc/shadow", str(theirs.token)],
                        "another's spool": [str(theirs.journal), str(theirs.launch)],
                        "another's log": [str(theirs.log), str(own.log)],
                    },
                    "directories": [str(root / "key"), str(root / "users" / BOB), str(theirs.path), str(own.path)],
                    "processes": [others.neighbour, *deputies(his), os.getpid()],
                    "sockets": [str(root / "run" / "s")],
                    "devices": ["/dev/nvidia0", "/dev/kmsg", "/dev/mem", "/dev/vda"],
                    "deputies": [
                        ["sudo", "-n", "-u", BOB, *command_of(his, site, everybodys_python)[len(run_as(BOB)) :]],
                        [*run_as(BOB), "true"],
                    ],
                    "users": True,
                    "lab_home": str(Path.home()),
                    "only": [*KINDS, *AS_USER],
                }
                assert len(about["files"]["token and secret"]) >= 3
                assert len(about["processes"]) >= 3
                attack = make_launch(
                    hers, shlex.join([str(everybodys_python), "-I", str(root / "attacks.py"), json.dumps(about)])
                )
                mine.start(attack, token=TOKEN)
                ended = EngineListener(mine).ended(attack)
                said = hers.spool.attempt(1, 1).log.read_text()
                assert ended.state is JobState.COMPLETED, (ended, said)
                # The kernel tells and lets every user do these; it asks whose process it is when the signal is due.
                owned = [f"signals by other ways: by what happens at a socket, {pid}" for pid in about["processes"]]
                ESCAPES.judge("cluster", said, [*EVERYBODYS, *owned])
                assert theirs.log.read_text() == "private\n"
            finally:
                mine.close()
                other.close()
