"""All that a report says: figures, price lists, other assumptions, returns, questions, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from carrel.core.gpu_use import LEAST_PEOPLE
from carrel.core.worth.clouds import Cloud, add_clouds
from carrel.core.worth.costs import add_costs
from carrel.core.worth.entered import Entered
from carrel.core.worth.hours import add_hours
from carrel.core.worth.measured import Measured
from carrel.core.worth.model import CostModel
from carrel.core.worth.period import Period
from carrel.core.worth.questions import Question, questions
from carrel.core.worth.returns import Return, add_returns
from carrel.core.worth.sensitivity import Varied, vary
from carrel.core.worth.sheet import Figure, Sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What the GPUs of a lab cost and were good for in a period."""

    model: CostModel
    period: Period
    sheet: Sheet
    #: The cost by kind, those that there are.
    kinds: Mapping[str, Figure]
    clouds: Sequence[Cloud]
    #: The figure that sensitivity is shown for.
    target: str
    varied: Sequence[Varied]
    returns: Sequence[Return]
    questions: Sequence[Question]
    #: What a reader has to know: what is missing, and what cannot be right.
    notes: Sequence[str]


def assess(model: CostModel, period: Period, measured: Measured) -> Assessment:
    """Calculate all. Raises `Invalid` where the model contradicts itself in that year."""
    entered, kinds, clouds = _calculate(model, period, measured)
    sheet = entered.sheet
    target = "hour.used" if sheet.get("hour.used") is not None else "cost"
    targets = [target, *(cloud.break_even.id for cloud in clouds if cloud.break_even is not None)]
    varied = vary(model, period.year, targets, sheet, lambda changed: _calculate(changed, period, measured)[0].sheet)
    returns = add_returns(entered, measured)
    return Assessment(
        model=model,
        period=period,
        sheet=sheet,
        kinds=kinds,
        clouds=clouds,
        target=target,
        varied=varied,
        returns=returns,
        questions=list(questions(entered, clouds)),
        notes=list(_notes(entered, measured, clouds)),
    )


def _calculate(model: CostModel, period: Period, measured: Measured) -> tuple[Entered, Mapping[str, Figure], Sequence[Cloud]]:
    entered = Entered(model, period, Sheet())
    kinds = add_costs(entered)
    add_hours(entered, measured)
    return entered, kinds, add_clouds(entered)


def _notes(entered: Entered, measured: Measured, clouds: Sequence[Cloud]) -> Iterator[str]:
    model, sheet, year = entered.model, entered.sheet, entered.period.year
    utilisation = sheet.get("utilisation")
    if utilisation is None and sheet["hours.used"].quantity.value:
        yield "GPU-hours were used, and no GPU was in service: hardware is missing in the cost file, or its dates are wrong."
    elif utilisation is None:
        yield "No GPU was in service in the period: there is no utilisation, and no break-even."
    elif utilisation.quantity.value > 1:
        yield "More GPU-hours were used than were offered: hardware is missing in the cost file, or `gpus` is too small."
    if not sheet["hours.used"].quantity.value:
        yield "No GPU-hours were used in the period: there is no cost of one."
    if "hardware" not in {figure.id.partition(".")[0] for figure in sheet}:
        yield "No hardware is in the cost file for the period."
    powered = {power.hardware for _, power in entered.of_year("power")}
    for id, hardware in entered.of_year("hardware"):
        in_service = entered.period.hours(hardware.bought, hardware.retired)
        if in_service and hardware.name not in powered:
            yield f"What {hardware.name} ({id}) draws is not entered for {year}: its electricity and cooling do not count."
    if powered and not list(entered.of_year("cooling")) and not any(c.kind == "cooling" for _, c in entered.of_year("costs")):
        yield f"No cooling is entered for {year}: it does not count."
    for kind in ("staff", "space"):
        if not any(cost.kind == kind for _, cost in entered.of_year("costs")):
            yield f"No cost of {kind} is entered for {year}: it does not count."
    for cloud in clouds:
        if not cloud.data:
            yield f"{cloud.name}: no egress and no storage count: [[data]] or their prices are not entered for {year}."
    if not clouds:
        yield f"No price list of a cloud is entered for {year}: there is no comparison and no break-even."
    if model.sensitivity is None:
        yield "[sensitivity] is not entered: only assumptions with a range of their own were varied."
    small = [people for _, people in entered.of_year("people") if 0 < len(measured.users.keys() & {*people.users}) < LEAST_PEOPLE]
    if small:
        yield f"Groups of fewer than {LEAST_PEOPLE} people are told with others only, and not at all where these are as few."
    those = [one.name for table in ("grants", "courses", "partners") for _, one in entered.of_year(table)
             if measured.small & {*one.accounts}]  # fmt: skip
    if those:
        yield f"{', '.join(those)}: GPU-hours are not told, since fewer than {LEAST_PEOPLE} people used an account of theirs."
    placed = {user for _, people in entered.of_year("people") for user in people.users}
    others = len(measured.users.keys() - placed)
    if placed and others:
        yield f"{others} of {len(measured.users)} people who used the lab are in no entry of [[people]]."
    unknown = sorted(job for job, state in measured.cited.items() if state is None)
    if unknown:
        yield f"Publications cite jobs that the lab does not know: {', '.join(map(str, unknown))}."
