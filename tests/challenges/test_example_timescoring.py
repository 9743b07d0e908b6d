"""Any overlap, as the example counts it, beside PyPI's `timescoring` on random recordings, where that is installed (0.0.7 was).

TAES is not in that package: `test_example_programs` has it by hand.
"""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "examples" / "challenge-eeg" / "programs" / "scoring" / "metrics.py"
SECONDS = 600


def times(draw: random.Random) -> list[tuple[int, int]]:
    """Events of whole seconds that do not overlap, nor touch."""
    edges = sorted(draw.sample(range(SECONDS), 2 * draw.randint(0, 12)))
    return list(zip(edges[::2], edges[1::2], strict=True))


def test_any_overlap_is_counted_as_timescoring_does() -> None:
    scoring: Any = pytest.importorskip("timescoring.scoring")
    annotations: Any = pytest.importorskip("timescoring.annotations")
    spec = importlib.util.spec_from_file_location("eeg_metrics", FILE)
    assert spec is not None
    assert spec.loader is not None
    metrics: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(metrics)
    any_overlap = scoring.EventScoring.Parameters(
        toleranceStart=0, toleranceEnd=0, minOverlap=0, maxEventDuration=10 * SECONDS, minDurationBetweenEvents=0
    )
    draw = random.Random(1)
    for _ in range(500):
        labelled, predicted = times(draw), times(draw)
        own = metrics.any_overlap([metrics.Event(*one) for one in labelled], [metrics.Event(*one) for one in predicted])
        reference, hypothesis = (annotations.Annotation(one, 1, SECONDS) for one in (labelled, predicted))
        theirs = scoring.EventScoring(reference, hypothesis, any_overlap)
        counted = (own.hits, own.hits + own.misses, own.false_alarms)
        assert counted == (theirs.tp, theirs.refTrue, theirs.fp), (labelled, predicted)
        if labelled:
            assert own.sensitivity == pytest.approx(theirs.sensitivity)
            assert own.false_alarms * metrics.DAY / SECONDS == pytest.approx(theirs.fpRate)
