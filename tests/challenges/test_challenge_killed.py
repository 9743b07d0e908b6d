"""The lab is killed while submissions are scored: each is scored once, by one job for each program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from parity import YAML, checked, write_challenge, write_code

from carrel import Client
from carrel.core.domain.challenge import ChallengeSubmission, SubmissionState
from carrel.testing.waiting import PATIENCE, wait_until
from support.small_lab import MortalLab

pytestmark = pytest.mark.chaos

#: Long enough that the lab can be killed while it runs.
SLOW = "import time\ndef predict(number):\n    time.sleep(0.05)\n    return number % 2\n"


def until(client: Client, number: int, happened: Callable[[ChallengeSubmission], bool]) -> ChallengeSubmission:
    """Wait until something is true of a submission."""

    def found() -> ChallengeSubmission | None:
        one = client.challenge_submission("parity", number).submission
        return one if happened(one) else None

    one = wait_until(found, lambda: client.challenge_submission("parity", number), timeout=PATIENCE)
    assert one is not None
    return one


def test_a_submission_is_scored_once_whenever_the_lab_is_killed(tmp_path: Path) -> None:
    """Before its job is made, while its code runs, and while it is scored."""
    lab = MortalLab(tmp_path / "home", "--cpus", "8", rules='isolation = "kernel"\n')
    try:
        lab.client.keep_challenge(write_challenge(tmp_path / "parity", YAML.replace("per_day: 3", "per_day: 9")))
        checked(lab.client)
        lab.client.publish_challenge("parity")
        ada = Client(url=lab.process.url, token=lab.client.add_user("ada").token)
        ada.join_challenge("parity", accept_rules=True)
        for stage in ("", "ingestion", "scoring"):
            code = write_code(tmp_path / f"code{stage}", SLOW + f"# {stage}")
            number = ada.submit_to_challenge("parity", code).submission.id
            until(ada, number, lambda one, stage=stage: not stage or one.stage == stage or one.state.ended)
            lab.kill_and_restart()
            one = until(ada, number, lambda one: one.state.ended)
            assert (one.state, one.scores) == (SubmissionState.COMPLETED, {"accuracy": 1.0})
            names = sorted(job.name for job in lab.client.jobs("all", limit=None) if f"-{number}-" in job.name)
            assert names == [f"parity-{number}-ingestion", f"parity-{number}-scoring"]
        assert (ada.challenge("parity").phases[0].total, ada.challenge_board("parity").places[0].entries) == (7, 3)
        ada.close()
    finally:
        lab.stop()
