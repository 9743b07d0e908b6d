"""Runs in an environment of its own, with one of the libraries that `slurm.py` compares with: submitit or psij-python.

``slurm_peers.py <library> <directory>``. A line with a number on standard input: submit so many jobs, wait until all are done,
and answer with one line of JSON: when each was submitted, when its user's code ran its first line, and when its end was known.
"""

import importlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path


def stamp():
    return time.time()


class Submitit:
    """Functions in pickles; it looks for the file with the result."""

    def __init__(self, directory):
        library = importlib.import_module("submitit")
        self._executor = library.AutoExecutor(folder=directory, cluster="slurm")
        self._executor.update_parameters(timeout_min=5)

    def submit(self, _number):
        return self._executor.submit(stamp)

    def wait(self, job):
        return job.result()


class Psij:
    """Programs; it asks squeue every 30 s unless it is told to do so every second, as here."""

    def __init__(self, directory):
        self._library = importlib.import_module("psij")
        slurm = importlib.import_module("psij.executors.batch.slurm")
        config = slurm.SlurmExecutorConfig(queue_polling_interval=1, initial_queue_polling_delay=0)
        self._executor = self._library.JobExecutor.get_instance("slurm", config=config)
        self._directory = Path(directory)

    def submit(self, number):
        library = self._library
        job = library.Job(
            library.JobSpec(
                executable="/bin/bash",
                arguments=["-c", "echo $EPOCHREALTIME"],
                stdout_path=self._directory / f"{number}.out",
                attributes=library.JobAttributes(duration=timedelta(minutes=5)),
            )
        )
        self._executor.submit(job)
        return job

    def wait(self, job):
        job.wait()
        return float(job.spec.stdout_path.read_text())


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the libraries and what they run have something to say, too
    peer = {"submitit": Submitit, "psij": Psij}[sys.argv[1]](sys.argv[2])
    number = 0
    for line in sys.stdin:
        jobs, began, first, seen = [], [], [], []
        for _ in range(int(line)):
            number += 1
            began.append(time.time())
            jobs.append(peer.submit(number))
        for job in jobs:
            first.append(peer.wait(job))
            seen.append(time.time())
        print(json.dumps({"began": began, "first": first, "seen": seen}), file=answers, flush=True)


if __name__ == "__main__":
    main()
