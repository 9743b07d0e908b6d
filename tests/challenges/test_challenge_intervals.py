"""Intervals of scores by resamples, and neighbours on a board that do not differ."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from parity import YAML, checked, scored, write_challenge

from carrel import Client
from carrel.core.challenges.intervals import intervals, neighbours, read_replicates
from carrel.core.domain.challenge import Column, Fault
from carrel.core.domain.errors import Invalid
from support.lab_process import LabProcess

COLUMNS = (Column(column="a", title="A", precision=1), Column(column="b", title="B", larger=False, precision=0))
NUMBERS = [number / 1000 for number in range(1001)]


@pytest.mark.quick
def test_intervals_are_percentiles_rounded_as_scores_are() -> None:
    """Of 0, 0.001 … 1, 95 % lie between 0.025 and 0.975; a column without resamples has no interval."""
    random.Random(1).shuffle(NUMBERS)
    found = read_replicates(json.dumps({"a": NUMBERS, "more": [1]}).encode(), COLUMNS)
    assert intervals(found, (Column(column="a", title="A", precision=3),), 0.95) == {"a": (0.025, 0.975)}
    assert intervals(found, COLUMNS, 0.95) == {"a": (0.0, 1.0)}
    assert intervals({"b": [-0.4] * 20}, COLUMNS, 0.95) == {"b": (0.0, 0.0)}


@pytest.mark.quick
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b'{"b": [1]}', b'{"a": 1}', b'{"a": [1, 2]}', b"[" * 100_000),
        *(
            pytest.param(json.dumps({"a": [*[1] * 20, wrong]}).encode(), id=str(wrong)[:9])
            for wrong in (True, "1", None, [1], float("nan"), 10**400)
        ),
        pytest.param(json.dumps({"a": [0] * 2001}).encode(), id="too many"),
        pytest.param(json.dumps({"a": [0] * 20, "b": [0]}).encode(), id="too few"),
        pytest.param(json.dumps({"a": [0] * 20, "more": "x" * 3_000_000}).encode(), id="too large"),
    ],
)
def test_what_is_no_list_of_resamples(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_replicates(data, COLUMNS)


@pytest.mark.quick
def test_neighbours_are_compared_resample_by_resample() -> None:
    """Scores that move together differ, however wide their intervals are; what turns in more than 2.5 % of resamples does not."""
    wide = [random.Random(2).random() for _ in range(20)] * 50
    better = [value + 0.01 for value in wide]
    turned = [value + (0.02 if number < 26 else -0.01) for number, value in enumerate(wide)]
    hardly = [value + (0.02 if number < 25 else -0.01) for number, value in enumerate(wide)]
    above = [better, wide, turned, None, wide, wide[:20]]
    assert neighbours(above, larger=True, level=0.95) == [None, True, False, None, None, None]
    assert neighbours([wide, hardly], larger=True, level=0.95) == [None, True]
    assert neighbours([wide, better], larger=False, level=0.95) == [None, True]
    assert neighbours([wide, wide], larger=True, level=0.95) == [None, False]


#: Resamples the numbers, the same for each submission.
RESAMPLING = """
import random
draw = random.Random(7)
hits = [a == b for a, b in zip(said, truth)]
found = [sum(draw.choices(hits, k=len(hits))) / len(hits) for _ in range(500)]
json.dump({"accuracy": found}, open("outputs/replicates.json", "w"))
"""


@pytest.mark.gate
def test_a_board_with_intervals(client: Client, person: Callable[[str], Client], tmp_path: Path, lab: LabProcess) -> None:
    """Asked for, resampled by the scoring program, shown; a program that does not is found out by the check."""
    yaml = YAML.replace("name: parity", "name: wide") + "intervals: 0.9\n"
    place = write_challenge(tmp_path / "wide", yaml)
    client.keep_challenge(place)
    (zeros,) = checked(client, "wide")
    assert zeros.submission.fault is Fault.ORGANISER
    score = place / "programs/scoring/score.py"
    score.write_text(score.read_text() + RESAMPLING)
    client.keep_challenge(place)
    checked(client, "wide")
    client.publish_challenge("wide")
    for name, code in (("good", "number % 2"), ("near", "0 if number == 101 else number % 2")):
        one = person(f"wide-{name}")
        one.join_challenge("wide", accept_rules=True)
        done = scored(one, f"def predict(number): return {code}", tmp_path / name, "wide").submission
    board = one.challenge_board("wide")
    assert [(place.team or place.baseline, place.differs) for place in board.places] == [
        ("wide-good", None),
        ("wide-near", False),
        ("zeros", True),
    ]
    assert (board.intervals, board.places[0].intervals) == (0.9, {"accuracy": (1.0, 1.0)})
    low, high = board.places[1].intervals["accuracy"]
    assert low < board.places[1].scores["accuracy"] == 0.91 < high == 1.0
    assert done.intervals == board.places[1].intervals
    assert len(str(low)) <= 4  # rounded
    with httpx.Client(base_url=lab.url, follow_redirects=True, headers={"Sec-Fetch-Site": "same-origin"}) as browser:
        browser.post("/login", data={"token": one.token}).raise_for_status()
        page = browser.get("/challenges/wide").text
    assert "Ranges are 90 % intervals" in page
    assert page.count("does not differ from the line above") == 2  # the place, and the words below
    command = [str(Path(sys.executable).with_name("carrel")), "challenge", "board", "wide"]
    environment = {"CARREL_URL": lab.url, "CARREL_TOKEN": one.token, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"0.91 [{low:.2f}, 1.00]" in said
    assert "~2" in said
