"""`challenge.yaml` is read strictly: what is wrong is told with its line and the nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity import YAML, write_challenge

from carrel.core.challenges.reading import read_challenge
from carrel.core.domain.errors import Invalid

pytestmark = pytest.mark.quick


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    place = write_challenge(tmp_path)
    return [str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()]


def test_what_it_says(paths: list[str]) -> None:
    spec = read_challenge(YAML, paths)
    assert (spec.name, spec.train, spec.splits["public"].reference) == ("parity", "data/train", "data/public/reference")
    assert spec.phases[0].limits.per_day == 3
    assert spec.phase_at(spec.phases[0].begin) is spec.phases[0]
    assert spec.phase_at(spec.phases[0].end) is None


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("title:", "titel:", 2, 'Did you mean "title"'),
        ("rules: pages/rules.md", "rules: pages/rulez.md", 4, '"pages/rules.md"'),
        ("{path: data/train}", "{path: data/none}", 6, "no files"),
        ("{path: data/train}", "{path: ../train}", 6, "leads out"),
        ("{path: data/train}", "{path: /etc}", 6, "leads out"),
        ("reference: data/public/reference", "reference: data/public", 7, "lies in the other"),
        ("{path: data/train}", "{path: data}", 6, "hold what is hidden"),
        ("starter: starter", "starter: data/public", 10, "hold what is hidden"),
        ("ingestion: programs/ingestion", "ingestion: data/public/reference", 8, "hold what is hidden"),
        ("split: public", "split: publik", 12, '"public"'),
        ("end: 2040-01-01", "end: 2025-01-01", 12, "ends before it begins"),
        ("begin: 2026-01-01", "begin: soon", 12, "is not a date"),
        ("better: larger", "better: more", 13, "larger or smaller"),
        ("precision: 2", "precision: 99", 13, "0 to 15"),
        ("per_day: 3", "per_day: 0", 14, "1 to"),
        ("per_day: 3", "per_dey: 3", 14, '"per_day"'),
        ("name: parity", "name: Parity!", 1, "lower-case"),
        ("name: parity\n", "", 1, '"name" is missing'),
    ],
)
def test_what_is_wrong_is_told_with_its_line(paths: list[str], old: str, new: str, line: int, words: str) -> None:
    assert old in YAML
    with pytest.raises(Invalid) as caught:
        read_challenge(YAML.replace(old, new), paths)
    said = f"{caught.value.message} {caught.value.remedy}"
    assert words in said
    assert f"challenge.yaml, line {line}:" in said


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("{input: data/train, reference: data/train}", "lies in the other"),
        ("{input: data/train/i}", 'no "reference"'),
        ("{input: data/train/i, reference: data/public/reference}", "is not in the training data"),
    ],
)
def test_teams_try_their_code_on_training_data_alone(split: str, words: str) -> None:
    text = YAML.replace("  train: {path: data/train}", "  train: {path: data/train}\n  try: " + split)
    with pytest.raises(Invalid, match=words):
        read_challenge(text, None)
    right = read_challenge(text.replace(split, "{input: data/train/i, reference: data/train/r}"), None)
    assert right.dry_run is not None
    assert right.dry_run.reference == "data/train/r"
    assert "try" not in right.splits


def test_a_team_without_a_size_is_an_error(paths: list[str]) -> None:
    with pytest.raises(Invalid, match='"largest" is missing'):
        read_challenge(YAML + "teams: {}\n", paths)


def test_a_zone_that_there_is_not(paths: list[str]) -> None:
    with pytest.raises(Invalid, match="no zone"):
        read_challenge(YAML + "zone: Europe/Nowhere\n", paths)


def test_days_are_those_of_the_zone(paths: list[str]) -> None:
    here, there = read_challenge(YAML, paths), read_challenge(YAML + "zone: Europe/Berlin\n", paths)
    assert here.phases[0].begin - there.phases[0].begin == 3600


def test_phases_do_not_overlap(paths: list[str]) -> None:
    second = "}, {name: final, begin: 2039-01-01, end: 2041-01-01, split: public}]"
    with pytest.raises(Invalid, match="begins before"):
        read_challenge(YAML.replace("split: public}]", "split: public" + second), paths)
