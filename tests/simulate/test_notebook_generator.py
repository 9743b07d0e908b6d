from __future__ import annotations

from math import log

import pytest

from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.fit import HOURS, WEEK, fit
from carrel.simulate.notebooks.fitted_week import FITTED_WEEK
from carrel.simulate.notebooks.forming import NotebookCell, NotebookSession, named_sessions
from carrel.simulate.notebooks.generator import generate_sessions, generate_week
from carrel.simulate.quantiles import PROBABILITIES, Quantiles

pytestmark = pytest.mark.slow


def test_the_same_seed_gives_the_same_week() -> None:
    assert generate_week(7) == generate_week(7)
    assert generate_week(7) != generate_week(8)


def test_a_week_says_which_cell_is_of_which_session() -> None:
    week = generate_week(3, scale=0.5)
    assert [job.id for job in sorted(week.jobs, key=lambda job: job.id)] == list(range(len(week.jobs)))
    assert [job.submitted for job in week.jobs] == sorted(job.submitted for job in week.jobs)
    assert named_sessions(week.jobs) == generate_sessions(3, scale=0.5)


def test_sessions_open_within_the_week_when_the_recorded_ones_did() -> None:
    sessions = generate_sessions(1, scale=20)
    assert all(0 <= session.opens < WEEK for session in sessions)
    measured = fit(sessions).openings
    assert len(measured) == HOURS
    for hour, rate in enumerate(FITTED_WEEK.openings):
        assert measured[hour] == pytest.approx(20 * rate, abs=5 * (20 * rate) ** 0.5)


def test_scale_is_the_number_of_sessions() -> None:
    expected = sum(FITTED_WEEK.openings)
    for scale in (0.5, 10):
        found = sum(len(generate_sessions(seed, scale=scale)) for seed in range(10)) / 10
        assert found == pytest.approx(scale * expected, rel=0.1)


def test_generated_weeks_have_the_quantiles_that_were_measured() -> None:
    """Widths, cells, think times and durations of many sessions, measured again."""
    again = fit(generate_sessions(11, scale=40))
    assert [width.gpus for width in again.widths] == [width.gpus for width in FITTED_WEEK.widths]
    for found, shipped in zip(again.widths, FITTED_WEEK.widths, strict=True):
        assert found.share == pytest.approx(shipped.share, abs=0.03)
        for name, tolerance in (("cells", 0.25), ("thinks", 0.15), ("durations", 0.15)):
            for probability in (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99):
                place = PROBABILITIES.index(probability)
                got, wanted = getattr(found, name).values[place], getattr(shipped, name).values[place]
                assert log(1 + got) == pytest.approx(log(1 + wanted), abs=max(tolerance, tolerance * log(1 + wanted) / 3)), (
                    found.gpus,
                    name,
                    probability,
                )


def test_quantiles_are_exact_where_they_were_measured() -> None:
    quantiles = FITTED_WEEK.widths[1].durations
    for probability, value in zip(PROBABILITIES, quantiles.values, strict=True):
        assert quantiles.at(probability) == pytest.approx(value)


def test_between_quantiles_the_logarithm_is_a_straight_line() -> None:
    values = (0.0,) * (len(PROBABILITIES) - 1) + (99.0,)
    assert Quantiles(values).at((PROBABILITIES[-2] + 1) / 2) == pytest.approx(9)


def test_fitting_a_hand_made_week() -> None:
    def session(number: int, gpus: int, *cells: tuple[float, float]) -> NotebookSession:
        members = tuple(NotebookCell(id=at, submitted=begin, duration=length) for at, (begin, length) in enumerate(cells))
        return NotebookSession(id=number, gpus=gpus, cells=members)

    sessions = [session(0, 1, (3600, 10), (3620, 30)), session(1, 1, (3700, 20)), session(2, 2, (WEEK + 10, 5))]
    found = fit(sessions)
    # Two weeks: two sessions in the second hour of the first, one in the first hour of the second.
    assert found.openings[:3] == (0.5, 1.0, 0.0)
    one, two = found.widths
    assert one.gpus == 1
    assert one.share == pytest.approx(2 / 3)
    assert one.cells.at(0.5) == pytest.approx(1.5)
    assert one.durations.at(0.5) == pytest.approx(20)
    assert one.thinks.at(0.5) == pytest.approx(10)
    assert two.thinks.at(1.0) == 0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_a_number_above_0(scale: float) -> None:
    with pytest.raises(Invalid, match="The scale is"):
        generate_week(0, scale=scale)


def test_quantiles_do_not_fall() -> None:
    with pytest.raises(Invalid, match="There are 2 quantiles"):
        Quantiles((1.0, 2.0))
    with pytest.raises(Invalid, match="not in order"):
        Quantiles((*range(len(PROBABILITIES) - 1), 0.0))
    with pytest.raises(Invalid, match="no sessions to measure"):
        fit([])
