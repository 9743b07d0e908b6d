"""The questions that CASC's first survey of return on investment was about, as its abstract tells them, answered from a sheet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from carrel.core.worth.clouds import Cloud
from carrel.core.worth.entered import Entered
from carrel.core.worth.model import Casc
from carrel.core.worth.sheet import Figure
from carrel.core.worth.words import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question."""

    text: str
    #: "" where nobody has entered or measured it.
    answer: str
    #: Ids of figures, or what the cost file names as source; of no answer, what to enter.
    source: str


def questions(entered: Entered, clouds: Sequence[Cloud]) -> Iterator[Question]:
    """All of them, in the order of the abstract."""
    sheet = entered.sheet
    site: Casc | None = next((entry for _, entry in entered.of_year("casc")), None)
    yield Question(
        text="Is the return of investments in research computing analysed?",
        answer=f"Yes, by this report, from {entered.period.begin} to {entered.period.last}.",
        source="This report; its methods are at its end.",
    )
    yield _said("Are the results reported to the upper administration?", site, "reported_to")
    yield _said("Are commercial clouds used?", site, "cloud_use")
    yield _clouds(clouds)
    yield _figures("How much is invested in research computing?", [sheet["cost"]], "Only what the cost file has.")
    yield _figures(
        "How much computing is delivered?",
        [each for each in (sheet["hours.used"], sheet.get("utilisation")) if each is not None],
        "Core-hours of processors are not measured.",
    )
    if sheet.get("grants.award") is not None:
        yield _figures("What are the research grants worth that it supports?", [sheet["grants.award"], sheet["grants.period"]])
    else:
        yield Question(
            text="What are the research grants worth that it supports?", answer="", source="Enter [[grants]] of the year."
        )
    yield _said("Does the site take part in national projects or infrastructures of computing?", site, "national")
    yield _said("Does it belong to organisations of academic computing?", site, "organisations")


def _said(text: str, site: Casc | None, name: str) -> Question:
    answer: str | None = getattr(site, name, None)
    if site is None or answer is None:
        return Question(text=text, answer="", source=f"Enter {name} in [[casc]].")
    return Question(text=text, answer=answer, source=site.source)


def _figures(text: str, figures: Sequence[Figure], more: str = "") -> Question:
    told = "; ".join(f"{each.name}: {show(each.quantity)}" for each in figures) + "."
    return Question(text=text, answer=f"{told} {more}".strip(), source=", ".join(each.id for each in figures))


def _clouds(clouds: Sequence[Cloud]) -> Question:
    text = "Do they save money, compared with the site's own machines?"
    found = [
        (cloud_cost, difference)
        for cloud in clouds
        for cloud_cost, difference in (
            (cloud.on_demand, cloud.on_demand_difference),
            (cloud.reserved, cloud.reserved_difference),
        )
        if cloud_cost is not None and difference is not None
    ]
    if not found:
        return Question(text=text, answer="", source="Enter [[prices]] of the year.")
    told = [f"{cost.name} would have cost {difference_in_words(difference)}." for cost, difference in found]
    return Question(text=text, answer=" ".join(told), source=", ".join(difference.id for _, difference in found))


def difference_in_words(difference: Figure) -> str:
    """What a cloud costs beside the lab: "1,200 EUR more"."""
    quantity = difference.quantity
    if not quantity.value:
        return "as much"
    return (
        f"{show(quantity if quantity.value > 0 else quantity - quantity - quantity)} {'more' if quantity.value > 0 else 'less'}"
    )
