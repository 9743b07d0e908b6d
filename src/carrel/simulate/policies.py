"""Every policy that a trace can be run under: the field's, and the lab's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.baselines import BASELINES, Piece, simulate_baseline
from carrel.simulate.lab import simulate_lab
from carrel.simulate.outcome import Outcome
from carrel.simulate.trace import Cluster, Trace

CARREL, EASY = "carrel", "easy"
#: Seconds for which a job that was stopped has its GPUs before it goes on, where nothing else is said: 80 GB of state go to host
#: memory and come back by the driver's checkpoint (`together.mode.DRIVER`).
MOVE_TIME = 60.0
#: By name, with one line each; the order is that of a report.
POLICIES: Mapping[str, str] = MappingProxyType(
    {
        **{name: BASELINES[name].description for name in ("fifo", "first-fit")},
        EASY: "In the order of submission; later jobs start early where they do not delay the first that waits (EASY backfill).",
        **{name: BASELINES[name].description for name in BASELINES if name not in ("fifo", "first-fit")},
        CARREL: "The lab's own rules: classes of service, fair share, ageing, EASY backfill.",
    }
)
#: The same scheduler as the lab's with nothing in it but the order of submission.
_EASY_RULES = LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all", share_weight=0.0)


def policies_for(nodes: Sequence[Node]) -> Sequence[str]:
    """Return those of `POLICIES` that take `nodes`."""
    return list(POLICIES) if len(_sizes(nodes)) == 1 else [EASY, CARREL]


def run_policy(
    name: str,
    trace: Trace,
    nodes: tuple[Node, ...],
    rules: LabRules,
    *,
    progress: Callable[[float], None] | None = None,
    pieces: Callable[[Piece], None] | None = None,
    note: Callable[[str], None] | None = None,
    move: float = 0.0,
) -> Outcome:
    """Run `trace` on `nodes` under the policy `name` of `POLICIES`; `rules` are those of the lab.

    A job that was stopped has its GPUs for `move` seconds before it goes on.

    The field's policies know equal nodes and nothing but GPUs. `note` gets what a reader has to know. Raises `Invalid` for a
    name that there is not, and for nodes that a policy does not take.
    """
    if name == CARREL:
        return simulate_lab(rules, trace, nodes, policy=CARREL, progress=progress, note=note, move=move)
    if name == EASY:
        return simulate_lab(_EASY_RULES, trace, nodes, policy=EASY, progress=progress)
    if name not in BASELINES:
        raise Invalid(f'There is no policy "{name}".', remedy=f"Name one of: {', '.join(POLICIES)}.")
    return simulate_baseline(name, trace, _as_cluster(name, nodes), progress=progress, pieces=pieces, move=move)


def _as_cluster(policy: str, nodes: Sequence[Node]) -> Cluster:
    sizes = _sizes(nodes)
    if len(sizes) != 1:
        said = " and ".join(map(str, sizes)) or "no"
        raise Invalid(
            f'The policy "{policy}" knows equal nodes only; these have {said} GPUs.',
            remedy=f"Give --gpus NODESxGPUS, or compare {EASY} and {CARREL} alone.",
        )
    return Cluster(nodes=sum(bool(node.devices) for node in nodes), gpus_per_node=sizes[0])


def _sizes(nodes: Sequence[Node]) -> Sequence[int]:
    """GPUs on a node, each number once, of the nodes that have some."""
    return sorted({len(node.devices) for node in nodes if node.devices})
