"""What a task may ask of Slurm beyond resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from carrel.core.domain.errors import Invalid

#: The engine that understands it.
ENGINE = "slurm"
#: Options of sbatch(1) that have a field of their own, and its name.
_FIELDS = {
    "constraint": "constraint",
    "reservation": "reservation",
    "exclusive": "exclusive",
    "mail-user": "mail",
    "mail-type": "mail_events",
}
#: Signs in a constraint that say more than that each feature must be there.
_NOT_PLAIN = frozenset("|*[]():,")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """What one source asks of Slurm; empty where it says nothing. Whether Slurm understands it is checked with its options."""

    #: Features that the nodes must have.
    constraint: str = ""
    #: "exclusive" for whole nodes, "user" and "mcs" for nodes that are shared with the same user or label only.
    exclusive: str = ""
    reservation: str = ""
    #: Who is written to, and upon which events.
    mail: str = ""
    mail_events: tuple[str, ...] = ()
    #: Environment modules, loaded in this order before the command starts.
    modules: tuple[str, ...] = ()
    #: Further options as sbatch(1) takes them ("--nice=100").
    options: tuple[str, ...] = ()

    def asked(self) -> tuple[str, ...]:
        """The names of what is asked for, as a task has them; options by their own names."""
        named = [field.name for field in fields(self) if field.name != "options" and getattr(self, field.name)]
        return (*named, *(_name(option) for option in self.options))

    def describe(self) -> tuple[str, ...]:
        """What is asked for, as options of sbatch(1), and the modules."""
        values = {field: getattr(self, field) for field in _FIELDS.values()} | {"mail_events": ",".join(self.mail_events)}
        options = tuple(f"--{option}={values[field]}" for option, field in _FIELDS.items() if values[field])
        return (*options, *self.options, *(f"module {name}" for name in self.modules))

    def over(self, other: SlurmRequest) -> SlurmRequest:
        """Return this, with what it leaves open taken from `other`; an option replaces the one of the same name there."""
        said = {field.name: value for field in fields(self) if field.name != "options" and (value := getattr(self, field.name))}
        mine = {_name(option) for option in self.options}
        kept = tuple(option for option in other.options if _name(option) not in mine)
        return replace(other, **said, options=kept + self.options)

    def within(self, site: SlurmRequest) -> SlurmRequest:
        """Return what is asked of Slurm in a partition whose jobs all ask for `site`.

        What the partition says holds for every job. What the task says is added; where both cannot hold, `Invalid` is raised.
        """
        joined = {name: _one(name, getattr(site, name), getattr(self, name)) for name in ("reservation", "exclusive", "mail")}
        given = {_name(option): option for option in site.options}
        for option in self.options:
            if given.get(_name(option), option) != option:
                raise _contradiction(_name(option), given[_name(option)], option)
        return SlurmRequest(
            **joined,
            constraint=_both_constraints(site.constraint, self.constraint),
            mail_events=tuple(dict.fromkeys((*site.mail_events, *self.mail_events))),
            modules=tuple(dict.fromkeys((*site.modules, *self.modules))),
            options=tuple(dict.fromkeys((*site.options, *self.options))),
        )


def read_options(options: Iterable[str], *, modules: Sequence[str] = ()) -> SlurmRequest:
    """Return what options of sbatch(1) ask for: those with a field of their own there, all others as they are."""
    found: dict[str, str] = {}
    others: list[str] = []
    for option in options:
        name, _, value = option.partition("=")
        field = _FIELDS.get(name.removeprefix("--")) if name.startswith("--") else None
        if field is None:
            others.append(option)
            continue
        if field in found:
            raise Invalid(f"{name} is given twice.", remedy="Keep one of them.")
        found[field] = value or ("exclusive" if field == "exclusive" else "")
        if not found[field]:
            raise Invalid(f"{name} has no value.", remedy=f"Write {name}=VALUE, as one word.")
    events = tuple(found.pop("mail_events", "").upper().split(",")) if "mail_events" in found else ()
    return SlurmRequest(**found, mail_events=events, modules=tuple(modules), options=tuple(others))


def _name(option: str) -> str:
    return option.partition("=")[0]


def _one(name: str, site: str, task: str) -> str:
    if site and task and site != task:
        raise _contradiction(name, site, task)
    return site or task


def _both_constraints(site: str, task: str) -> str:
    """Nodes must have what both ask for. Only plain features can be joined: Slurm has no brackets for the rest."""
    if not site or not task or site == task:
        return site or task
    if _NOT_PLAIN & (set(site) | set(task)):
        raise _contradiction("constraint", site, task)
    return "&".join(dict.fromkeys((*site.split("&"), *task.split("&"))))


def _contradiction(name: str, site: str, task: str) -> Invalid:
    return Invalid(
        f'{name} is "{task}", but in this partition it is "{site}" for every job.',
        remedy="Leave it out, or choose another partition.",
    )
