"""In which part of the lab a job runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from carrel.core.domain.errors import Impossible, Invalid
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.slurm import ENGINE, SlurmRequest
from carrel.core.domain.task import EngineRequest
from carrel.core.policy.qos import choose_qos


def choose_partitions(name: str | None, qos: QoS, partitions: Mapping[str, Partition]) -> Sequence[Partition]:
    """Return the partitions that work of this class may run in: the one called `name`, or all that take it, in order.

    Empty for a lab without partitions. Raises `Invalid`, with what would do, for one that does not exist or does not take it.
    """
    if name is None:
        return [partition for partition in partitions.values() if partition.takes(qos.name)]
    partition = find_partition(name, partitions)
    if not partition.takes(qos.name):
        others = [f'"{other.name}"' for other in partitions.values() if other.takes(qos.name)]
        raise Invalid(
            f'Partition "{name}" does not take QoS "{qos.name}"; it takes {_names(partition.qos)}.',
            remedy=f'Choose one of those, or partition {" or ".join(others)} for QoS "{qos.name}".',
        )
    return [partition]


def choose_qos_in(name: str | None, kind: JobKind, qos: Mapping[str, QoS], partition: Partition | None, *, default: str) -> QoS:
    """Return the QoS called `name`; without a name the `default` one, or the first that `partition` takes for such work."""
    if name is not None or partition is None:
        return choose_qos(name, kind, qos, default=default)
    taken = {key: service for key, service in qos.items() if partition.takes(key) and kind in service.kinds}
    if not taken:
        raise Invalid(
            f'Partition "{partition.name}" takes no {kind}.', remedy=f"Its classes of service are {_names(partition.qos)}."
        )
    return taken[default] if default in taken else next(iter(taken.values()))


def partitions_for(kind: JobKind, qos: Mapping[str, QoS], partitions: Mapping[str, Partition]) -> Sequence[Partition]:
    """Return the partitions that take work of this kind, with any class of service."""
    services = [service.name for service in qos.values() if kind in service.kinds]
    return [partition for partition in partitions.values() if any(partition.takes(name) for name in services)]


def find_partition(name: str, partitions: Mapping[str, Partition]) -> Partition:
    """Return the partition called `name`. Raises `Invalid` with the nearest name."""
    if name in partitions:
        return partitions[name]
    if not partitions:
        raise Invalid(f'There is no partition "{name}": this lab has none.', remedy="Leave it out.")
    near = get_close_matches(name, partitions, n=1)
    meant = f'Did you mean "{near[0]}"? ' if near else ""
    raise Invalid(f'There is no partition "{name}".', remedy=f"{meant}There are {_names(partitions)}.")


def without_harmless(
    asked: SlurmRequest | None, chosen: Partition | None, partitions: Iterable[Partition]
) -> tuple[SlurmRequest | None, tuple[str, ...]]:
    """Return what is asked of Slurm without mail and modules, where this work runs without Slurm, and a sentence for each.

    They change nothing about where and how it runs: nobody is written to, and what modules bring comes with the task's
    environment. A task that was written for a cluster runs on the lab's own machine as it is.
    """
    if asked is None or (chosen.engine == ENGINE if chosen is not None else any(part.engine == ENGINE for part in partitions)):
        return asked, ()
    notes = []
    if asked.mail or asked.mail_events:
        notes.append(f"Nobody is written to{f' ({asked.mail})' if asked.mail else ''}: mail is Slurm's. It was left out.")
    if asked.modules:
        notes.append(f"There are no environment modules here: {', '.join(asked.modules)} left out.")
    rest = replace(asked, mail="", mail_events=(), modules=())
    return rest if rest.asked() else None, tuple(notes)


def refuse_without_engine(asked: Mapping[str, EngineRequest], chosen: Partition | None, partitions: Iterable[Partition]) -> None:
    """Raise `Impossible`, by name, for what is asked of an engine that this work will not find.

    `asked` is by the engine's name, `chosen` the partition that the work names. Nothing is dropped in silence because a task
    moved from a cluster to the lab's own machine.
    """
    parts = list(partitions)
    for engine, request in asked.items():
        able = [partition.name for partition in parts if partition.engine == engine]
        if chosen.engine == engine if chosen is not None else able:
            continue
        title = next((part.capabilities.title for part in parts if part.engine == engine), engine.capitalize())
        names = list(request.asked() if isinstance(request, SlurmRequest) else request)
        another = f", or name a partition of the cluster: {_names(able)}" if able else ""
        where = _where(chosen, parts)
        raise Impossible(
            f"The task asks for {', '.join(names)}, which only a partition of a {title} cluster can do, and {where}.",
            remedy=f"Leave {'them' if len(names) > 1 else 'it'} out{another}.",
            details={"asked": names},
        )


def _where(chosen: Partition | None, partitions: Sequence[Partition]) -> str:
    if chosen is None:
        return "this lab has none of these" if any(part.cluster for part in partitions) else "this lab has no cluster"
    is_what = f"one of a {chosen.capabilities.title} cluster" if chosen.cluster else "the lab's own machine"
    return f'partition "{chosen.name}" is {is_what}'


def _names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(f'"{name}"' for name in names)
