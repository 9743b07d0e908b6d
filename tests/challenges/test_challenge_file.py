"""`challenge.yaml` is read strictly: what is wrong is told with its line and the nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity import YAML, write_challenge

from carrel.core.challenges.reading import read_challenge
from carrel.core.domain.challenge import Choice, Final
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
        ("per_day: 3", "gpu_hours: 0", 14, "as in 20 or 0.5"),
        ("per_day: 3", "gpu_hours: 1e3", 14, "as in 20 or 0.5"),
        ("split: public}", "split: public, final: {from: development}}", 12, "no earlier phase"),
        ("split: public}", "split: public, final: {choose: best}}", 12, 'no "from"'),
        ("split: public}", "split: public, final: {from: development, choose: worst}}", 12, "Ways: best, last, team"),
        ("split: public}", "split: public, final: {from: development, number: 11}}", 12, "1 to 10"),
        ("limits:", "teams: {merge_til: 2027-01-01}\nlimits:", 14, '"merge_until"'),
        ("limits:", "teams: {merge_until: soon}\nlimits:", 14, "is not a date"),
        ("name: parity", "name: Parity!", 1, "lower-case"),
        ("name: parity\n", "", 1, '"name" is missing'),
        ("split: public", "split: public, board: hiden", 12, '"hidden"'),
        ("limits:", "intervals: 95\nlimits:", 14, "a level from 0.5"),
        ("limits:", "intervals: nan\nlimits:", 14, "a level from 0.5"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(paths: list[str], old: str, new: str, line: int, words: str) -> None:
    assert old in YAML
    with pytest.raises(Invalid) as caught:
        read_challenge(YAML.replace(old, new), paths)
    said = f"{caught.value.message} {caught.value.remedy}"
    assert words in said
    assert f"challenge.yaml, line {line}:" in said


def test_limits_teams_and_finals(paths: list[str]) -> None:
    final = "begin: 2040-01-01, end: 2041-01-01, split: public, final: {from: development, choose: team}}]"
    yaml = YAML.replace("split: public}]", "split: public, gpu_hours: 1.5}, {name: final, " + final)
    yaml = yaml.replace("per_day: 3", "gpu_hours: 20")
    spec = read_challenge(yaml + "teams: {merge_until: 2027-01-01}\nzone: Europe/Berlin\n", paths)
    assert [phase.limits.gpu_hours for phase in spec.phases] == [1.5, 20]
    assert spec.phases[1].final == Final(source="development", choose=Choice.TEAM, number=1)
    assert (spec.largest_team, spec.merge_until) == (5, 1798758000)


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


def test_a_zone_that_there_is_not(paths: list[str]) -> None:
    with pytest.raises(Invalid, match="no zone"):
        read_challenge(YAML + "zone: Europe/Nowhere\n", paths)


def test_what_people_are_asked_at_joining(paths: list[str]) -> None:
    assert read_challenge(YAML + "asks: {occupation: [student, other]}\n", paths).asks == {"occupation": ("student", "other")}
    with pytest.raises(Invalid, match='line 15: "occupation" has 1 answers'):
        read_challenge(YAML + "asks: {occupation: [student]}\n", paths)


def test_predictions_have_a_size(paths: list[str]) -> None:
    assert read_challenge(YAML + "predictions: 8M\n", paths).predictions == 8 * 1024**2
    with pytest.raises(Invalid, match='line 15: .*"many" is not a size'):
        read_challenge(YAML + "predictions: many\n", paths)


def test_days_are_those_of_the_zone(paths: list[str]) -> None:
    here, there = read_challenge(YAML, paths), read_challenge(YAML + "zone: Europe/Berlin\n", paths)
    assert here.phases[0].begin - there.phases[0].begin == 3600


def test_phases_do_not_overlap(paths: list[str]) -> None:
    second = "}, {name: final, begin: 2039-01-01, end: 2041-01-01, split: public}]"
    with pytest.raises(Invalid, match="begins before"):
        read_challenge(YAML.replace("split: public}]", "split: public" + second), paths)
