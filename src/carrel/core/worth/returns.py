"""What the GPUs were good for: people, grants, publications, courses, partners. Counted, never turned into money."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from carrel.core.gpu_use import LEAST_PEOPLE
from carrel.core.worth.costs import period_years
from carrel.core.worth.entered import Entered
from carrel.core.worth.hours import GPU_HOUR
from carrel.core.worth.measured import Measured
from carrel.core.worth.quantities import Quantity, Unit
from carrel.core.worth.sheet import Figure

_PERSON = Unit((("person", 1),))
_PUBLICATION = Unit((("publication", 1),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """One row: a group of people, a grant, a publication, a course or a partner."""

    #: Its table in the cost file.
    table: str
    #: What it is called, and what else is known in words.
    words: Sequence[str]
    figures: Sequence[Figure]
    source: str


def add_returns(entered: Entered, measured: Measured) -> Sequence[Return]:
    """Add them to the sheet, and return them in the order of the file."""
    users = Quantity(Fraction(len(measured.users)), _PERSON)
    entered.sheet.given("people", "People who used the lab", users, measured.source)
    found: list[Return] = []
    found += _people(entered, measured)
    for table, row in _ROWS.items():
        for id, entry in entered.of_year(table):
            made = row(entered, measured, id, entry)
            found += [] if made is None else [made]
    _add_sums(entered, found)
    return found


def _people(entered: Entered, measured: Measured) -> Sequence[Return]:
    """Groups of at least so many people who used the lab, and all smaller ones together, with a large one where they are few."""
    groups = [(id, entry, {user for user in entry.users if user in measured.users}) for id, entry in entered.of_year("people")]
    rest = measured.users.keys() - {user for _, _, users in groups for user in users}
    told = [group for group in groups if len(group[2]) >= LEAST_PEOPLE]
    few = sorted((group for group in groups if 0 < len(group[2]) < LEAST_PEOPLE), key=lambda group: group[0])
    while (few or rest) and told and sum(len(users) for _, _, users in few) + len(rest) < LEAST_PEOPLE:
        few.append(told.pop(min(range(len(told)), key=lambda place: len(told[place][2]))))
    rows = [_group(entered, measured, id, (one.status, one.department), users, one.source) for id, one, users in told]
    others = rest | {user for _, _, users in few for user in users}
    if few and len(others) >= LEAST_PEOPLE:
        sources = "; ".join(dict.fromkeys(one.source for _, one, _ in few))
        rows.append(_group(entered, measured, "people.others", ("others", ""), others, sources))
    return rows


def _group(
    entered: Entered, measured: Measured, id: str, words: Sequence[str], users: Collection[str], source: str
) -> Return:  # fmt: skip
    who, of = ", ".join(filter(None, words)), f"{measured.source} Who they are: {source}"
    figures = [
        entered.sheet.given(f"{id}.users", f"{who}: who used the lab", Quantity(Fraction(len(users)), _PERSON), of),
        _used(entered, f"{id}.hours", who, measured.users, users, of),
    ]
    return Return(table="people", words=words, figures=figures, source=source)


def _grant(entered: Entered, measured: Measured, id: str, entry: Any) -> Return | None:
    part = entered.period.part_of(entry.begin, entry.end)
    if not part:
        return None
    award = entered.figure(id, entry, "award", f"{entry.name}: award")
    days = f"The calendar: {entry.begin} to {entry.end}. {entry.source}"
    share = entered.sheet.given(f"{id}.part", f"{entry.name}: its days in the period", Quantity(part), days)
    figures = [award, entered.sheet.product(f"{id}.period", f"{entry.name}: award, spread over its days", [award, share])]
    figures += _of_accounts(entered, measured, id, entry)
    return Return(table="grants", words=[entry.name, entry.funder], figures=figures, source=entry.source)


def _publication(entered: Entered, measured: Measured, id: str, entry: Any) -> Return:
    del entered, id
    states = [(job, measured.cited.get(job)) for job in entry.jobs]
    jobs = ", ".join(f"job {job} ({state.lower() if state else 'not known to the lab'})" for job, state in states)
    return Return(table="publications", words=[entry.title, entry.doi, jobs], figures=[], source=entry.source)


def _course(entered: Entered, measured: Measured, id: str, entry: Any) -> Return:
    people = Quantity(Fraction(entry.people), _PERSON)
    figures = [entered.sheet.given(f"{id}.people", f"{entry.name}: people", people, entry.source)]
    figures += _of_accounts(entered, measured, id, entry)
    return Return(table="courses", words=[entry.name], figures=figures, source=entry.source)


def _partner(entered: Entered, measured: Measured, id: str, entry: Any) -> Return:
    figures = []
    if entry.paid is not None:
        paid = entered.figure(id, entry, "paid", f"{entry.name}: pays for a year")
        figures.append(entered.sheet.product(f"{id}.period", f"{entry.name}: paid in the period", [paid, period_years(entered)]))
    figures += _of_accounts(entered, measured, id, entry)
    return Return(table="partners", words=[entry.name], figures=figures, source=entry.source)


_ROWS: Mapping[str, Callable[[Entered, Measured, str, Any], Return | None]] = {
    "grants": _grant,
    "publications": _publication,
    "courses": _course,
    "partners": _partner,
}


def _of_accounts(entered: Entered, measured: Measured, id: str, entry: Any) -> Sequence[Figure]:
    if not entry.accounts or measured.small & {*entry.accounts}:
        return []
    source = f"{measured.source} Accounts {', '.join(entry.accounts)}: {entry.source}"
    return [_used(entered, f"{id}.hours", entry.name, measured.accounts, entry.accounts, source)]


def _used(
    entered: Entered, id: str, who: str, hours: Mapping[str, Fraction], names: Collection[str], source: str
) -> Figure:  # fmt: skip
    found = sum((hours.get(name, Fraction(0)) for name in names), Fraction(0))
    return entered.sheet.given(id, f"{who}: GPU-hours used", Quantity(found, GPU_HOUR), source)


def _add_sums(entered: Entered, rows: Sequence[Return]) -> None:
    sheet, cost = entered.sheet, entered.sheet["cost"]
    grants = [row for row in rows if row.table == "grants"]
    if grants:
        sheet.sum("grants.award", "Awards of grants", [row.figures[0] for row in grants], entered.money)
        period = sheet.sum("grants.period", "Awards of grants, in the period", [row.figures[1] for row in grants], entered.money)
        if cost.quantity.value:
            sheet.product("grants.for_cost", "Awards in the period, of the cost", [period], [cost])
    courses = [row.figures[0] for row in rows if row.table == "courses"]
    if courses:
        sheet.sum("courses.people", "People in courses", courses, _PERSON)
    papers = [row for row in rows if row.table == "publications"]
    if papers:
        sources = "; ".join(dict.fromkeys(row.source for row in papers))
        sheet.given("publications", "Publications", Quantity(Fraction(len(papers)), _PUBLICATION), sources)
