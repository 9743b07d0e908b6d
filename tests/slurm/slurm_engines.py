"""Engines for Slurm on the cluster of the tests, and what their tests ask of them."""

import os

from carrel.core.domain.launch import Preparing
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.testing.builders import make_launch
from carrel.testing.engine_contract import TOKEN

#: Options by which each job has an allocation at once.
AT_ONCE = {"immediate": lambda _launch: True}


def lab_of(home):
    """Tests reuse the numbers of jobs; a lab of its own keeps their jobs in Slurm apart."""
    return f"t{abs(hash(str(home.root))):x}"


def slurm_engine(home, environ, timeout=60, **options):
    commands = SlurmCommands(environ=environ, json=False, timeout=timeout)
    options = {"run_dir": home.run, "lab": lab_of(home), "interval": 0.3, **options}
    return SlurmEngine(spool=home.spool, environ=environ, commands=commands, **options)


def running(home, engine, listener, command, **more):
    """An attempt whose command has said that it is ready, and goes on."""
    launch = make_launch(home, f"echo ready; {command}", **more)
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    return launch


def go_on(home, name="go"):
    os.mkfifo(home.root / name)
    return f"read line < {home.root / name}"


def said(story, words):
    return any(isinstance(record, Preparing) and words in record.message for record in story.records)
