"""What tests submit by the package submitit itself; the module travels."""

from __future__ import annotations

import os
import time
from pathlib import Path

import submitit


class Steps(submitit.helpers.Checkpointable):
    """Begins again after a checkpoint, and remembers how often it has begun."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.begun = 0

    def __call__(self, word: str) -> tuple[str, int, str]:
        self.begun += 1
        where = Path(self.place)
        if self.begun == 1:
            (where / "begun").touch()
            while not (where / "go").exists():
                time.sleep(0.01)
        return word, self.begun, submitit.JobEnvironment().job_id

    def checkpoint(self, word: str) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(self, word + "!")


def place() -> dict[str, object]:
    """What scripts ask for, in a job of several processes."""
    here = submitit.JobEnvironment()
    torch = submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    return {
        "cluster": here.cluster,
        "job": here.job_id,
        "rank": here.global_rank,
        "tasks": here.num_tasks,
        "environment": {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")},
        "master": (torch.master_addr, torch.master_port),
        "folder": str(here.paths.folder.name),
    }
