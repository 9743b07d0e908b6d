"""A cost file with all kinds of numbers, and what a lab has measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path

from hypothesis import strategies as st

from carrel.core.worth import Measured

EXAMPLE = Path(__file__).parents[2] / "examples" / "roi" / "costs.toml"

_TEXT = """
[lab]
name = "Lab"
currency = "EUR"

[sensitivity]
range = "{range} %"
source = "s"

[[hardware]]
name = "a"
gpus = {gpus}
price = "{price} EUR"
bought = {bought}
life = "{life} months"
source = "s"
life_source = "s"

[[power]]
hardware = "a"
draw = "{draw} W"
years = [2023, 2024]
source = "s"

[[electricity]]
price = "{electricity} EUR/kWh"
years = [2023, 2024]
source = "s"

[[cooling]]
overhead = "{cooling} %"
years = [2023, 2024]
source = "s"

[[costs]]
name = "b"
kind = "staff"
cost = "{staff} EUR/year"
part = "{part} %"
years = [2023, 2024]
source = "s"

[[exchange]]
rate = "{rate} EUR/USD"
years = [2023, 2024]
source = "s"

[[prices]]
name = "c"
on_demand = "{on_demand} USD/GPU-hour"
reserved = "{reserved} EUR/GPU-hour"
egress = "0.08 USD/GB"
storage = "0.02 USD/GB/month"
years = [2023, 2024]
source = "s"

[[data]]
egress = "{egress} TB/year"
stored = "5 TB"
years = [2023, 2024]
source = "s"
"""


@dataclass(frozen=True)
class CostFile:
    """Numbers as they stand in the file; a `year` and the hours that were `used` in it."""

    year: int
    used: int
    numbers: dict[str, object]

    @property
    def text(self) -> str:
        return _TEXT.format(**self.numbers)

    def changed(self, **numbers: object) -> str:
        return _TEXT.format(**{**self.numbers, **numbers})


def measured(used: Fraction | int, lent: Fraction | int = 0) -> Measured:
    return Measured(held={"completed": Fraction(used)}, lent=Fraction(lent), users={"ada": Fraction(used)}, source="the lab")


def _decimal(least: int, most: int) -> st.SearchStrategy[str]:
    return st.integers(least * 100, most * 100).map(lambda cents: f"{cents // 100}.{cents % 100:02}")


@st.composite
def cost_files(draw: st.DrawFn) -> CostFile:
    numbers: dict[str, object] = {
        "range": draw(st.integers(1, 99)),
        "gpus": draw(st.integers(1, 64)),
        "price": draw(_decimal(0, 1_000_000)),
        "bought": date(2019, 1, 1) + timedelta(days=draw(st.integers(0, 365 * 5))),
        "life": draw(st.integers(1, 120)),
        "draw": draw(st.integers(0, 50_000)),
        "electricity": draw(_decimal(0, 1)),
        "cooling": draw(st.integers(0, 150)),
        "staff": draw(_decimal(0, 200_000)),
        "part": draw(st.integers(0, 100)),
        "rate": draw(_decimal(1, 2)),
        "on_demand": draw(_decimal(1, 10)),
        "reserved": draw(_decimal(0, 10)),
        "egress": draw(st.integers(0, 100)),
    }
    return CostFile(draw(st.sampled_from([2023, 2024])), draw(st.integers(0, 500_000)), numbers)
