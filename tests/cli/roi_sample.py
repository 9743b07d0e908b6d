"""The samples of a report in the examples: `python tests/cli/roi_sample.py` writes them anew."""

from __future__ import annotations

import hashlib
from datetime import date
from fractions import Fraction
from pathlib import Path

from carrel.cli.roi.page import page
from carrel.cli.roi.pdf import pdf
from carrel.core.worth import Assessment, Measured, Period, assess, read_costs

EXAMPLE = Path(__file__).parents[2] / "examples" / "roi"
SAMPLE = EXAMPLE / "report.html"
PDF = EXAMPLE / "report.pdf"
COSTS = EXAMPLE / "costs.toml"


def sample() -> Assessment:
    """A year of a lab that there is not."""
    known = Measured(
        held={
            "completed": Fraction(58_240),
            "continued": Fraction(6_112),
            "failed": Fraction(4_903),
            "cancelled": Fraction(2_117),
            "lost": Fraction(388),
            "session": Fraction(1_240),
        },
        lent=Fraction(9_731),
        observed=Fraction(61_404),
        busy=Fraction(39_912),
        users={
            "ada": Fraction(31_402),
            "bob": Fraction(20_118),
            "chen": Fraction(12_006),
            "dora": Fraction(10_205),
            "eli": Fraction(5_000),
            "fay": Fraction(2_000),
            "gus": Fraction(1_000),
            "hal": Fraction(600),
            "ida": Fraction(400),
        },
        accounts={"vision": Fraction(53_520), "physics": Fraction(29_211)},
        jobs=4_812,
        cited={1: "COMPLETED"},
        source="Invented, as all numbers of this example are.",
    )
    return assess(read_costs(COSTS.read_text(), COSTS.name), Period(date(2026, 1, 1), date(2027, 1, 1)), known)


def sample_page() -> str:
    """The report of it."""
    return page(sample(), costs=COSTS.name, sha256=hashlib.sha256(COSTS.read_bytes()).hexdigest(), simulated=False)


if __name__ == "__main__":
    SAMPLE.write_text(sample_page(), encoding="utf-8", newline="\n")
    PDF.write_bytes(pdf(sample_page()))
