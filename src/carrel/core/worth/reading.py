"""Reads the cost file: strictly, and with the place and the remedy of everything that is wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import date, datetime
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest
from carrel.core.worth.declaring import KINDS, Key, keys_of, required
from carrel.core.worth.model import LISTS, SINGLE, CostModel, rate_years
from carrel.core.worth.quantities import MONEY, Quantity, parse_quantity, parse_unit

_YEARS = range(1970, 9999)
#: Keys where 0 makes no sense: something is divided by them.
_MORE_THAN_NONE = frozenset(["life", "rate"])
#: ISO 26324, as Crossref and DataCite give them away.
_DOI = re.compile(r"10\.[0-9]{4,9}/\S+")


def read_costs(text: str, file: str) -> CostModel:
    """What a cost file says; `file` is what messages call it. Raises `Invalid`."""
    try:
        # Numbers with decimals are texts with a unit. Where one stands alone, its message shows it as it was written.
        found = tomllib.loads(text, parse_float=str)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{file} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise Invalid(f"{file} is not valid TOML: lists in lists, too deep to be read.") from error
    tables: dict[str, Any] = {}
    for name, value in found.items():
        if name in SINGLE:
            tables[name] = _entry(SINGLE[name], value, f"{file}: [{name}]")
        elif name in LISTS:
            if not isinstance(value, list):
                raise Invalid(f"{file}: {name} is no list of tables.", remedy=f"Write [[{name}]], once for each entry.")
            tables[name] = tuple(
                _entry(LISTS[name], each, f"{file}: [[{name}]] number {number}") for number, each in enumerate(value, start=1)
            )
        else:
            raise Invalid(f'{file}: there is no table "{name}".', remedy=suggest(name, [*SINGLE, *LISTS]))
    if "lab" not in tables:
        raise Invalid(f"{file} does not say what it is about.", remedy='Write [lab] with name = "…" and currency = "EUR".')
    model = CostModel(**tables)
    _check(model, file)
    return model


def _entry(table: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise Invalid(f"{where} is no table.", remedy="Write its keys below it, one a line.")
    if isinstance(value.get("name"), str):
        where = f'{where} ("{value["name"]}")'
    keys = keys_of(table)
    for name in value:
        if name not in keys:
            raise Invalid(f'{where}: there is no key "{name}".', remedy=suggest(name, list(keys)))
    missing = sorted(required(table) - value.keys())
    if missing:
        remedy = f"{missing[0]}: {keys[missing[0]].help} Write {_wanted(keys[missing[0]])}."
        raise Invalid(f"{where} has no {' and no '.join(missing)}.", remedy=remedy)
    return table(**{name: _value(name, keys[name], each, f"{where}: {name}") for name, each in value.items()})


def _value(name: str, key: Key, value: Any, where: str) -> Any:
    if key.is_quantity:
        return _quantity(name, key, value, where)
    found: Any = None
    match key.kind:
        case "text" if isinstance(value, str) and value.strip():
            found = value.strip()
        case "currency" if isinstance(value, str) and _is_currency(value):
            found = value
        case "date" if isinstance(value, date) and not isinstance(value, datetime):
            found = value
        case "count" if _whole(value) and value >= 0:
            found = value
        case "years" if _list(value, int) and all(_whole(year) and year in _YEARS for year in value):
            found = tuple(sorted(set(value)))
        case "names" if _list(value, str) and all(name.strip() for name in value):
            found = tuple(dict.fromkeys(value))
        case "jobs" if _list(value, int) and all(_whole(job) and 0 < job < 2**63 for job in value):
            found = tuple(dict.fromkeys(value))
    if found is None:
        raise Invalid(f"{where} is {_shown(value)}.", remedy=f"Write {_wanted(key)}.")
    if key.choices and found not in key.choices:
        raise Invalid(f'{where} is "{found}".', remedy=suggest(found, key.choices))
    return found


def _quantity(name: str, key: Key, value: Any, where: str) -> Quantity:
    if not isinstance(value, str) or not value.strip().strip("0123456789._"):
        raise Invalid(f"{where} is {_shown(value)}, without a unit.", remedy=f"Write {_wanted(key)}, in quotes.")
    try:
        found = parse_quantity(value)
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}", remedy=error.remedy) from error
    wanted = "" if key.kind == "" else key.kind if MONEY in key.kind else str(parse_unit(key.kind)[1])
    if not _fits(found, wanted):
        raise Invalid(f'{where} is "{value}".', remedy=f"Write {_wanted(key)}.")
    if name in _MORE_THAN_NONE and not found.value:
        raise Invalid(f'{where} is "{value}".', remedy="It has to be more than 0.")
    if (name == "range" and found.value >= 1) or (name == "part" and found.value > 1):
        raise Invalid(f'{where} is "{value}".', remedy="Write less than 100 %." if name == "range" else "Write 100 % or less.")
    return found


def _fits(found: Quantity, wanted: str) -> bool:
    if wanted == "¤/¤":
        return len(found.unit.currencies) == len(found.unit.powers) == 2
    return _ordered(found.unit.like()) == _ordered(wanted)


def _ordered(unit: str) -> tuple[list[str], list[str]]:
    above, _, below = unit.partition("/")
    return sorted(above.split("-")), sorted(below.split("-"))


def _wanted(key: Key) -> str:
    if key.kind in KINDS:
        return f"one of {', '.join(key.choices)}" if key.choices else KINDS[key.kind]
    return 'a number of percent, such as "20 %"' if key.kind == "" else f"a number of {key.kind.replace(MONEY, 'EUR')}"


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else "true" if value is True else "false" if value is False else str(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list(value: Any, of: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, of) for each in value)


def _is_currency(text: str) -> bool:
    return len(text) == 3 and text.isascii() and text.isalpha() and text.isupper() and text not in ("GPU", "KWH")


def _check(model: CostModel, file: str) -> None:
    """What one entry says of another."""
    for table in LISTS:
        _unique(table, getattr(model, table), file)
    machines = [each.name for each in model.hardware]
    for number, power in enumerate(model.power, start=1):
        if power.hardware not in machines:
            raise Invalid(f'{file}: [[power]] number {number}: there is no hardware "{power.hardware}".',
                          remedy=suggest(power.hardware, machines, what="There are"))  # fmt: skip
    for one in model.hardware:
        if one.retired is not None and one.retired <= one.bought:
            raise Invalid(f'{file}: [[hardware]] ("{one.name}"): it is retired before it is bought.', remedy="Correct a date.")
    for grant in model.grants:
        if grant.end < grant.begin:
            raise Invalid(f'{file}: [[grants]] ("{grant.name}"): it ends before it begins.', remedy="Correct a date.")
    for paper in model.publications:
        if not _DOI.fullmatch(paper.doi):
            raise Invalid(
                f'{file}: [[publications]] has "{paper.doi}", which is no DOI.', remedy="Write such as 10.5555/12345678."
            )
    for prices in model.prices:
        if prices.on_demand is None and prices.reserved is None:
            raise Invalid(f'{file}: [[prices]] ("{prices.name}") has no on_demand and no reserved.', remedy="Write one of them.")
    seen: set[tuple[str, int]] = set()
    for people in model.people:
        for user, year in ((user, year) for user in people.users for year in people.years):
            if (user, year) in seen:
                raise Invalid(f'{file}: [[people]] has "{user}" twice for {year}.', remedy="Leave one.")
            seen.add((user, year))
    _check_currencies(model, file)


#: Tables of which one entry holds for a year, or one with the same name.
_ONCE: Mapping[str, str] = {
    "hardware": "name", "power": "hardware", "electricity": "", "cooling": "", "costs": "name", "downtime": "name",
    "exchange": "", "prices": "name", "data": "", "services": "name", "grants": "name",
    "publications": "doi", "courses": "name", "partners": "name",
    "casc": "",
}  # fmt: skip


def _unique(table: str, entries: Sequence[Any], file: str) -> None:
    """Nothing is counted twice."""
    seen: set[tuple[Any, ...]] = set()
    for each in entries:
        if table not in _ONCE:
            return
        name = str(each.rate.unit) if table == "exchange" else getattr(each, _ONCE[table]) if _ONCE[table] else ""
        for year in getattr(each, "years", (0,)):
            if (name, year) in seen:
                what = f'"{name}"' if name else "entry"
                when = f" for {year}" if year else ""
                raise Invalid(
                    f"{file}: [[{table}]] has {what} twice{when}.", remedy="Leave one, or give it another name or year."
                )
            seen.add((name, year))


def _check_currencies(model: CostModel, file: str) -> None:
    own = model.lab.currency
    for table in LISTS:
        for number, each in enumerate(getattr(model, table), start=1):
            for one in fields(each):
                value = getattr(each, one.name)
                if table == "exchange" and one.name == "rate" and not _into(value, own):
                    raise Invalid(
                        f"{file}: [[exchange]] number {number}: rate is in {value.unit}.",
                        remedy=f"Say what one unit of the other currency is in {own}, such as 0.9 {own}/USD.",
                    )
                if table == "exchange" or not isinstance(value, Quantity):
                    continue
                for currency in value.unit.currencies:
                    rates = [rate for rate in model.exchange if rate.rate.unit.powers == _rate(currency, own)]
                    without = [year for year in rate_years(each) if not any(year in rate.years for rate in rates)]
                    if currency != own and without:
                        raise Invalid(
                            f"{file}: [[{table}]] number {number}: {one.name} is in {currency}, and the report is in {own}.",
                            remedy=f"Add [[exchange]] with a rate in {own}/{currency} for {without[0]}.",
                        )


def _into(rate: Quantity, own: str) -> bool:
    return dict(rate.unit.powers).get(own) == 1


def _rate(currency: str, own: str) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(((own, 1), (currency, -1))))
