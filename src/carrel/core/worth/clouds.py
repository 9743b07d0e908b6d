"""What the same GPU-hours would have cost at the price lists that the site has entered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from carrel.core.worth.costs import period_years
from carrel.core.worth.entered import Entered
from carrel.core.worth.sheet import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One price list. Figures are None where there is no such price, or nothing to pay it for."""

    id: str
    name: str
    source: str
    #: For data that leave and that stay, in the period.
    data: Sequence[Figure]
    #: All that would be paid for the GPU-hours that were used, and for the data; and that less the lab's own cost.
    on_demand: Figure | None
    on_demand_difference: Figure | None
    #: The same for all GPUs in service, reserved for the whole period, used or not.
    reserved: Figure | None
    reserved_difference: Figure | None
    #: The utilisation from which on the lab costs less than on demand.
    break_even: Figure | None
    #: What the market takes for the hours on demand, the data and the services, over the lab's cost: XSEDE's return.
    value_for_cost: Figure | None


def add_clouds(entered: Entered) -> Sequence[Cloud]:
    """Add all price lists of the year to the sheet, which has costs and hours already."""
    return [_add(entered, id, prices) for id, prices in entered.of_year("prices")]


def _add(entered: Entered, id: str, prices: Any) -> Cloud:
    sheet, name = entered.sheet, prices.name
    data = _data(entered, id, prices)
    cost, offered, used = sheet["cost"], sheet["hours.offered"], sheet["hours.used"]
    on_demand = reserved = break_even = None
    if prices.on_demand is not None:
        price = entered.figure(id, prices, "on_demand", f"{name}: a GPU-hour on demand")
        hours = sheet.product(f"{id}.on_demand.hours", f"{name}: GPU-hours used, on demand", [price, used])
        on_demand = sheet.sum(f"{id}.on_demand.cost", f"{name}, on demand", [hours, *data], entered.money)
        if price.quantity.value and offered.quantity.value:
            full = sheet.product(f"{id}.on_demand.full", f"{name}: all GPU-hours offered, on demand", [price, offered])
            rest = sheet.difference(f"{id}.on_demand.rest", f"Cost of the period without data at {name}", cost, *data)
            break_even = sheet.product(f"{id}.break_even", f"Break-even utilisation with {name}", [rest], [full])
    if prices.reserved is not None:
        price = entered.figure(id, prices, "reserved", f"{name}: a GPU-hour, reserved")
        hours = sheet.product(f"{id}.reserved.hours", f"{name}: GPUs in service, reserved", [price, sheet["hours.in_service"]])
        reserved = sheet.sum(f"{id}.reserved.cost", f"{name}, reserved", [hours, *data], entered.money)
    return Cloud(
        id=id,
        name=name,
        source=prices.source,
        data=data,
        on_demand=on_demand,
        on_demand_difference=_difference(entered, id, "on_demand", on_demand),
        reserved=reserved,
        reserved_difference=_difference(entered, id, "reserved", reserved),
        break_even=break_even,
        value_for_cost=_value(entered, id, on_demand),
    )


def _value(entered: Entered, id: str, on_demand: Figure | None) -> Figure | None:
    sheet, cost = entered.sheet, entered.sheet["cost"]
    if on_demand is None or not cost.quantity.value:
        return None
    services = []
    for service_id, service in entered.of_year("services"):
        price = entered.figure(service_id, service, "value", f"{service.name}: market value of a year")
        known = sheet.get(f"{service_id}.period")
        services.append(
            known or sheet.product(f"{service_id}.period", f"{service.name}: market value", [price, period_years(entered)])
        )
    value = sheet.sum(f"{id}.value", f"Market value by {on_demand.name}", [on_demand, *services], entered.money)
    return sheet.product(f"{id}.value_for_cost", f"{value.name}, over cost", [value], [cost])


def _difference(entered: Entered, id: str, kind: str, cloud: Figure | None) -> Figure | None:
    if cloud is None:
        return None
    return entered.sheet.difference(f"{id}.{kind}.difference", f"{cloud.name}, less the lab's cost", cloud, entered.sheet["cost"])


def _data(entered: Entered, id: str, prices: Any) -> Sequence[Figure]:
    sheet, found = entered.sheet, []
    for data_id, data in entered.of_year("data"):
        years = period_years(entered)
        if prices.egress is not None and data.egress is not None:
            price = entered.figure(id, prices, "egress", f"{prices.name}: a GB that leaves")
            much = entered.figure(data_id, data, "egress", "Data that would leave, in a year")
            found.append(sheet.product(f"{id}.egress.cost", f"{prices.name}: egress", [price, much, years]))
        if prices.storage is not None and data.stored is not None:
            price = entered.figure(id, prices, "storage", f"{prices.name}: a GB that stays for a year")
            much = entered.figure(data_id, data, "stored", "Data that would lie there")
            found.append(sheet.product(f"{id}.storage.cost", f"{prices.name}: storage", [price, much, years]))
    return found
