"""What a site enters about its GPUs: a frozen value for each table of the cost file. Every entry has its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from carrel.core.worth.declaring import key
from carrel.core.worth.quantities import Quantity

_SOURCE = "Where the numbers come from: an invoice, a contract, a measurement, a price list with its date."
_YEARS = "The years for which it holds."
_RANGE = "How far the assumptions of this entry may be off, up and down; without it, what [sensitivity] says."
COST_KINDS = ("power", "cooling", "staff", "space", "network", "storage", "software", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The lab that the report is about."""

    name: str = key("text", "What the report calls it.")
    currency: str = key("currency", "The currency of the report.")
    since: date | None = key("date", "When its records begin; the report leaves out what was before.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How far assumptions may be off where their entries do not say it."""

    range: Quantity = key("", "Up and down.")
    source: str = key("text", "Why so far.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Machines that were bought together, with GPUs or without."""

    name: str = key("text", "What they are called.")
    gpus: int = key("count", "How many GPUs they have, as the lab counts them.")
    price: Quantity = key("¤", "What they cost.", varies=True)
    bought: date = key("date", "The day from which they are in service and lose value.")
    life: Quantity = key("year", "For how long they lose value, each year as much.", varies=True)
    retired: date | None = key("date", "The day from which they are not in service any more.", default=None)
    source: str = key("text", _SOURCE)
    life_source: str = key("text", "Why so long: the rule that the site goes by.")
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What another currency is worth."""

    rate: Quantity = key("¤/¤", "Such as 0.92 EUR/USD.", varies=True)
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What machines draw while they are in service, on average."""

    hardware: str = key("text", "Name of the machines.")
    draw: Quantity = key("kW", "At the wall, on average over the year, all machines of that name together.", varies=True)
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Electricity:
    """What a kilowatt-hour costs; one entry for a year."""

    price: Quantity = key("¤/kWh", "With all that is paid for each.", varies=True)
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """What cooling needs beside what the machines draw; one entry for a year."""

    overhead: Quantity = key("", "In percent of what the machines draw: 35 % where the PUE is 1.35.", varies=True)
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What is paid each year."""

    name: str = key("text", "What it is.")
    kind: str = key("text", "Which sum of the report it belongs to.", choices=COST_KINDS)
    cost: Quantity = key("¤/year", "For a year.", varies=True)
    part: Quantity | None = key(
        "", "The part of it that is for the GPUs, in percent; without it, all.", default=None, varies=True
    )
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """GPU-hours that the lab did not offer, such as those of maintenance."""

    name: str = key("text", "What it was.")
    lost: Quantity = key("GPU-hour", "GPUs times hours, in the period of the report.")
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """One offer of a cloud."""

    name: str = key("text", "The cloud, the machine, the place.")
    on_demand: Quantity | None = key("¤/GPU-hour", "For hours that are used.", default=None, varies=True)
    reserved: Quantity | None = key("¤/GPU-hour", "For all hours of a year, used or not.", default=None, varies=True)
    egress: Quantity | None = key("¤/GB", "For data that leave.", default=None, varies=True)
    storage: Quantity | None = key("¤/GB-year", "For data that stay; 0.02 USD/GB/month is understood.", default=None, varies=True)
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """How much data a cloud would have to keep and to give back; one entry for a year."""

    egress: Quantity | None = key("GB/year", "What would leave it.", default=None, varies=True)
    stored: Quantity | None = key("GB", "What would lie there, on average.", default=None, varies=True)
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Something that the lab's staff does for its users beside the GPUs, at what it would cost elsewhere."""

    name: str = key("text", "What it is: consulting, training, software.")
    value: Quantity = key("¤/year", "What it would cost on the market.", varies=True)
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)
    range: Quantity | None = key("", _RANGE, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Some of the people who use the lab, by what they are and where they belong."""

    status: str = key("text", "Such as student, doctoral student, staff.")
    department: str = key("text", "Where they belong.")
    users: tuple[str, ...] = key("names", "Their names in the lab, as `carrel usage` shows them.")
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A grant whose work uses the GPUs."""

    name: str = key("text", "Its name or number.")
    funder: str = key("text", "Who gives it.")
    award: Quantity = key("¤", "All that is given.")
    begin: date = key("date", "Its first day.")
    end: date = key("date", "Its last day.")
    accounts: tuple[str, ...] = key("names", "Accounts of the lab that work for it.", default=())
    source: str = key("text", _SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Something that was published, with jobs behind it."""

    doi: str = key("text", "Such as 10.5555/12345678.")
    title: str = key("text", "Its title.")
    jobs: tuple[int, ...] = key("jobs", "Jobs of the lab that it cites.", default=())
    years: tuple[int, ...] = key("years", "The year in which it appeared.")
    source: str = key("text", _SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A course that was taught with the GPUs."""

    name: str = key("text", "What it is called.")
    people: int = key("count", "How many took part.")
    accounts: tuple[str, ...] = key("names", "Accounts of the lab that are the course's.", default=())
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """Somebody outside who works with the lab."""

    name: str = key("text", "Who.")
    paid: Quantity | None = key("¤/year", "What they pay for GPUs.", default=None)
    accounts: tuple[str, ...] = key("names", "Accounts of the lab that are theirs.", default=())
    years: tuple[int, ...] = key("years", _YEARS)
    source: str = key("text", _SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Casc:
    """Answers that only the site can give to the questions of CASC's survey."""

    years: tuple[int, ...] = key("years", _YEARS)
    reported_to: str | None = key("text", "Who gets such reports.", default=None)
    cloud_use: str | None = key("text", "How the site uses commercial clouds.", default=None)
    national: str | None = key("text", "National projects and infrastructures that the site takes part in.", default=None)
    organisations: str | None = key("text", "Organisations of academic computing that it belongs to.", default=None)
    source: str = key("text", _SOURCE)


#: Tables that may come several times, ``[[name]]``, and those that come once, ``[name]``.
LISTS: Mapping[str, type] = {
    "hardware": Hardware,
    "power": Power,
    "electricity": Electricity,
    "cooling": Cooling,
    "costs": Cost,
    "downtime": Downtime,
    "exchange": Exchange,
    "prices": Prices,
    "data": Data,
    "services": Service,
    "people": People,
    "grants": Grant,
    "publications": Publication,
    "courses": Course,
    "partners": Partner,
    "casc": Casc,
}
SINGLE: Mapping[str, type] = {"lab": Lab, "sensitivity": Sensitivity}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """All that was entered."""

    lab: Lab
    sensitivity: Sensitivity | None = None
    hardware: tuple[Hardware, ...] = ()
    power: tuple[Power, ...] = ()
    electricity: tuple[Electricity, ...] = ()
    cooling: tuple[Cooling, ...] = ()
    costs: tuple[Cost, ...] = ()
    downtime: tuple[Downtime, ...] = ()
    exchange: tuple[Exchange, ...] = ()
    prices: tuple[Prices, ...] = ()
    data: tuple[Data, ...] = ()
    services: tuple[Service, ...] = ()
    people: tuple[People, ...] = ()
    grants: tuple[Grant, ...] = ()
    publications: tuple[Publication, ...] = ()
    courses: tuple[Course, ...] = ()
    partners: tuple[Partner, ...] = ()
    casc: tuple[Casc, ...] = ()


def rate_years(entry: object) -> tuple[int, ...]:
    """The years of whose exchange rates the money of an entry is: those it holds for, or that in which it was paid or given."""
    match entry:
        case Hardware():
            return (entry.bought.year,)
        case Grant():
            return (entry.begin.year,)
        case _:
            years: tuple[int, ...] = getattr(entry, "years", ())
            return years
