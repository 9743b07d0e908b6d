"""`examples/challenge-eeg` in a lab: from its directory to the board, with its data, environments and baselines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from parity import checked, scored

from carrel import Client
from carrel.core.domain.challenge import SubmissionState

EXAMPLE = Path(__file__).parents[2] / "examples" / "challenge-eeg"
#: Finds one seizure in every recording, in its first seconds.
ALWAYS = "def predict(signal, rate):\n    return [(0.0, 10.0, 1.0)]\n"


def test_the_example_from_its_directory_to_the_board(client: Client, person: Callable[[str], Client], tmp_path: Path) -> None:
    """Baselines in both phases, a submission that scores, and one whose error is told with its place."""
    place = tmp_path / "eeg"
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("data", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=place, check=True)
    client.keep_challenge(place)
    found = {(one.submission.phase, one.submission.baseline): one.submission for one in checked(client, "eeg")}
    assert {name for _, name in found} == {"zeros", "energy"}
    assert all(one.state is SubmissionState.COMPLETED for one in found.values()), found
    assert found["development", "zeros"].scores["taes"] == 0 < found["development", "energy"].scores["taes"]
    client.publish_challenge("eeg")

    ada = person("ada")
    ada.join_challenge("eeg", accept_rules=True)
    done = scored(ada, ALWAYS, tmp_path, "eeg")
    assert done.submission.state is SubmissionState.COMPLETED
    assert done.submission.scores["false_alarms_per_24h"] > 0
    wrong = scored(ada, "def predict(signal, rate):\n    return signal.nothing\n", tmp_path, "eeg")
    assert wrong.submission.message.endswith("AttributeError at submission/model.py:2")
    assert next(one.baseline or one.team for one in ada.challenge_board("eeg").places) == "energy"
