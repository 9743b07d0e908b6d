"""Whose CUDA context leaves a device: states go over the bus and their contexts stay, until contexts themselves are in the way.

The driver's checkpoint then takes those that have been idle longest, of processes that survive it. It costs about a second each
way (an H100), so it is the last thing that is done for room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from carrel.core.domain.lease import ContextPlace, DeviceRoom, LendingRules, Residency, Tenant

_AWAY = (Residency.SUSPENDED, Residency.SPILLED)


@dataclass(frozen=True, slots=True)
class Relief:
    """How contexts make room for a tenant."""

    #: Whose context leaves now, and whose state has to leave before it can.
    contexts: tuple[Tenant, ...] = ()
    states: tuple[Tenant, ...] = ()
    #: Contexts that leave already are part of it.
    leaving: bool = False
    #: Bytes that come free on each device once all of that is done.
    bytes: Mapping[str, int] = field(default_factory=dict)


def comes_with(tenant: Tenant, uuid: str) -> int:
    """Bytes that come to the device with a tenant whose state is off it: its state, and its context where that is away, too."""
    away = tenant.context_at is ContextPlace.AWAY
    return tenant.state.get(uuid, 0) + (tenant.context.get(uuid, 0) if away else 0)


def relief(
    tenant: Tenant,
    devices: Sequence[DeviceRoom],
    others: Iterable[Tenant],
    idle: Mapping[str, Sequence[Tenant]],
    asking: frozenset[str],
    rules: LendingRules,
) -> Relief:
    """What has to leave `devices` because contexts leave `tenant` too little there; nothing where that would not help it.

    `others`: who has a state in host memory or on the disk; `idle`: on each device those whose state can leave it. Who asks for
    its devices itself (`asking`) comes last.
    """
    crowded = [device for device in devices if _short(tenant, device, rules) > 0]
    if not crowded:
        return Relief()
    contexts: dict[str, Tenant] = {}
    states: dict[str, Tenant] = {}
    leaving, freed = False, {}
    away = sorted(
        (one for one in others if one.id != tenant.id and one.residency in _AWAY and one.context_at is not ContextPlace.AWAY),
        key=lambda one: (one.context_at is not ContextPlace.LEAVING, one.id in asking, one.last_used, one.id),
    )
    for device in crowded:
        uuid, short = device.uuid, _short(tenant, device, rules)
        there = sorted(idle.get(uuid, ()), key=lambda one: (one.id in asking, one.last_used, one.id))
        got = 0
        for one in (*away, *there):
            if got >= short:
                break
            size = one.context.get(uuid, 0)
            if not size or not (one.context_leaves or one.context_at is ContextPlace.LEAVING):
                continue
            got += size
            if one.context_at is ContextPlace.LEAVING:
                leaving = True
            else:
                (contexts if one.residency in _AWAY else states)[one.id] = one
        if got < _short(tenant, device, rules, least=True):
            return Relief()
        freed[uuid] = got
    return Relief(tuple(contexts.values()), tuple(states.values()), leaving, freed)


def _short(tenant: Tenant, device: DeviceRoom, rules: LendingRules, *, least: bool = False) -> int:
    """Bytes that the tenant would miss on the device if all states of others were off it.

    With `least` those without which it cannot begin or come back; else also what it has met a full device for.
    """
    size = comes_with(tenant, device.uuid)
    if tenant.residency is Residency.NONE:
        wanted = max(int(device.memory * rules.least_room), 0 if least else tenant.needs)
    elif tenant.residency in _AWAY:
        wanted = size + min(rules.margin, max(0, device.memory - size)) + (0 if least else tenant.needs)
    else:
        wanted = 0 if least or not tenant.needs else tenant.state.get(device.uuid, 0) + tenant.needs
    return min(wanted, device.memory) - (device.memory - device.foreign)
