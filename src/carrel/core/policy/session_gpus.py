"""What of GPUs a session gets, by where it is to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.core.domain.errors import Impossible, Invalid
from carrel.core.domain.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGpus:
    """GPUs of a session."""

    #: That a cell may use.
    gpus: int
    #: That are the session's own from start to end.
    whole: int = 0
    #: Slurm's shards of GPUs, which many sessions have at the same time.
    shards: int = 0


def check_gpus(gpus: int | None, *, reserve: bool) -> None:
    """Raise `Invalid` for a number of GPUs that no session can have."""
    if gpus is not None and gpus < 0:
        raise Invalid(f"gpus is {gpus}.", remedy="Ask for 0 or more.")
    if reserve and gpus == 0:
        raise Invalid("A reservation of 0 GPUs.", remedy="Leave --reserve out, or ask for GPUs.")


def gpus_on_own_nodes(gpus: int | None, nodes: Sequence[Node], *, reserve: bool) -> SessionGpus:
    """Return what a session gets where the lab's own brokers lend GPUs; None asks for one where there is one.

    Raises `Impossible` for more than a node has.
    """
    most = max((len(node.devices) for node in nodes), default=0)
    wanted = (1 if reserve or most else 0) if gpus is None else gpus
    if wanted > most:
        raise Impossible(f"The session asks for {wanted} GPUs, but no node has more than {most}.", remedy=f"Ask for {most}.")
    return SessionGpus(gpus=wanted, whole=wanted if reserve else 0)


def gpus_of_engine(gpus: int | None, nodes: Sequence[Node], *, reserve: bool) -> SessionGpus:
    """Return what a session gets where an engine chooses among these nodes (none: they are not known).

    One GPU is a shard of one where nodes have shards, else a whole one from start to end; so is one of several, as Slurm gives a
    job the shards of one GPU only (gres.conf(5)). Who asks for nothing in particular gets a shard where there are some, and
    otherwise none: a whole GPU for a session that may need it for minutes is something to be asked for.
    """
    sharded = any(node.shards for node in nodes)
    wanted = (1 if reserve or sharded else 0) if gpus is None else gpus
    if wanted == 1 and sharded and not reserve:
        return SessionGpus(gpus=1, shards=1)
    return SessionGpus(gpus=wanted, whole=wanted)
