"""`carrel gpus`: who has which GPU now, who waits, for how long, and whose state is where."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import OK, UNAVAILABLE
from carrel.cli.options import AsJson, Home, flag, open_client, option
from carrel.cli.screen import paint, print_json, print_table
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_duration, format_size, parse_duration

if TYPE_CHECKING:
    from carrel.wire.v1 import LeaseRequestView, LendingView, LentDevice, NodeLendingView, TenantView
    from carrel.wire.v1.sessions import Lending


_STATES = {"running": "blue", "held": "yellow", "paused": "magenta", "free": "green", "withheld": "yellow"}
_TIERS = {
    "suspend": "idle GPU state moves to host memory when somebody needs the room",
    "hold": "GPU state cannot be moved here: a notebook that used a GPU keeps it while it is idle, until its timer runs out",
    "simulated": "simulated GPUs: nothing computes on them, moving state is acted out",
}

#: Where states go that move.
_WHERE = {"out": "to host memory", "back": "to the GPU", "to_disk": "to the disk", "from_disk": "from the disk"}


def gpus_command(
    watch: Annotated[bool, flag("--watch -w", "Go on until Ctrl-C.")] = False,
    history: Annotated[bool, flag("--history", "Show the last hour too.")] = False,
    cells: Annotated[bool, flag("--cells", "Write when cells had GPUs, as a file for `carrel simulate --notebooks`.")] = False,
    no_names: Annotated[bool, flag("--no-names", "With --cells: users and sessions have numbers for names.")] = False,
    last: Annotated[
        str | None, option("--last", "TIME", "With --cells: only what was asked for within this time, such as 30d.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show who has which GPU now, who waits, and whose state is where; on a cluster's nodes as their brokers said last."""
    if cells or no_names or last is not None:
        now = [name for name, given in (("--watch", watch), ("--history", history)) if given]
        return print_cells(home, cells=cells, names=not no_names, as_json=as_json, last=last, now=now)
    with open_client(home) as client:
        while True:
            lending = client.gpus()
            if as_json:
                print_json(lending)
            else:
                _print(lending, time.time(), history=history)
            if not watch:
                return OK if lending.available or any(node.current for node in lending.nodes) else UNAVAILABLE
            time.sleep(1.0)
            if not as_json:
                print()


def _print(lending: LendingView, now: float, *, history: bool) -> None:
    if lending.nodes:
        print(paint("The lab's own machine", "bold"))
    if lending.available:
        _print_machine(lending, now, history=history)
    else:
        print("The broker of this node does not answer; it is being started again. Cells that run go on.")
    _print_slices(lending)
    for node in lending.nodes:
        print()
        print(paint(f"Node {node.node}", "bold"), paint(_age(node), "dim" if node.current else "yellow"))
        # Everything as of then, on the clock of the broker that said it.
        _print_machine(node, now - node.age, history=history)


def _print_slices(lending: LendingView) -> None:
    if lending.slices:
        print()
        rows = [
            (one.type, one.profile, format_size(one.memory), str(one.free or "–"), str(one.used or "–")) for one in lending.slices
        ]
        print_table(("GPU", "SLICE", "MEMORY", "FREE NOW", "USED"), rows, right=(3, 4))


def _age(node: NodeLendingView) -> str:
    if node.ended:
        return f"Its broker was ended {_span(node.age)} ago; this is how it was then."
    if node.current:
        return f"as of {_span(node.age)} ago"
    return f"Its broker was heard last {_span(node.age)} ago; this is how it was then, and how it is now nobody has said."


def _print_machine(lending: Lending, now: float, *, history: bool) -> None:
    if not lending.devices:
        print("No GPU.")
        return
    print(paint(_TIERS.get(lending.tier, ""), "dim"))
    rows = [
        (
            str(device.index),
            device.name,
            f"{format_size(device.used)} of {format_size(device.memory)}",
            *_use(lending, device, now),
            _residents(lending, device),
        )
        for device in lending.devices
    ]
    print_table(("GPU", "NAME", "MEMORY", "STATE", "BY", "RESIDENT"), rows, styles={3: _STATES}, right=(0,))
    for device in lending.devices:
        for stranger in device.strangers:
            print(
                f"GPU {device.index}: process {stranger.pid} {stranger.name} uses {format_size(stranger.bytes)} without a lease."
            )
    _print_memory(lending)
    _print_moves(lending, now)
    if lending.queue:
        print()
        print_table(("#", "WAITS", "GPUS", "FOR", "ABOUT", "WHY"), [_waiting(row, now) for row in lending.queue], right=(0, 2))
    away = [
        tenant
        for tenant in lending.tenants
        if tenant.state in ("suspended", "suspending", "spilling", "spilled", "resuming", "lost")
    ]
    if away:
        print()
        states = [(_who(tenant), tenant.state, format_size(tenant.bytes), _context(tenant), tenant.why_not) for tenant in away]
        print_table(("NOT ON A GPU", "STATE", "SIZE", "CONTEXT", "WHY"), states)
    if history:
        _print_history(lending, now)


def _print_memory(lending: Lending) -> None:
    from carrel.cli.gpus_history import memory_bar

    used = [device for device in lending.devices if device.by]
    if used:
        print()
        rows = [(str(device.index), *memory_bar(lending, device, _who)) for device in used]
        print_table(("GPU", "MEMORY (#: STATE, +: CACHE, o: OTHER)", "WHOSE"), rows, right=(0,))
    host = lending.host
    if host is not None and (host.states or host.disk):
        room = "" if host.left is None else f", room for {format_size(host.left)} more"
        disk = host.disk
        behind = "" if disk is None else f"; room for {format_size(disk.left or 0)} of {format_size(disk.limit or 0)} on the disk"
        print(f"Host memory: {format_size(host.states)} of GPU state{room}{behind}.")
    if host is not None and host.disk_problem:
        print(f"No GPU state goes to the disk (state_disk): {host.disk_problem}")
    if host is not None and host.pool is not None:
        pool = host.pool
        print(
            f"Pool of host memory for programs with the residency library: {format_size(pool.given)} given to them, "
            f"{format_size(pool.ready)} ready, at most {format_size(pool.limit)} in all."
        )


def _print_moves(lending: Lending, now: float) -> None:
    if not lending.moves:
        return
    rows = []
    for move in lending.moves:
        if move.done is not None:
            part: float | None = move.done / max(1, move.bytes)
        elif move.ends is not None and move.ends > move.since:
            part = min(0.95, max(0.0, (now - move.since) / (move.ends - move.since)))
        else:
            part = None
        bar = "" if part is None else f"[{('#' * round(20 * part)).ljust(20, '.')}]{'' if move.done is not None else ' about'}"
        left = "" if move.ends is None else f"about {_span(move.ends - now)} more"
        who = _job(move.job, move.owner) + (f": {move.label}" if move.label else "")
        where = _WHERE.get(move.direction, move.direction)
        rows.append((who, where, format_size(move.bytes), bar, _span(now - move.since), left))
    print()
    print_table(("MOVES", "WHERE", "SIZE", "DONE", "FOR", "LEFT"), rows)


def _print_history(lending: Lending, now: float) -> None:
    from carrel.cli.gpus_history import LEGEND, hour_lines, hour_sums

    print()
    print(paint("The last hour", "bold"))
    for device in lending.devices:
        has, beside = hour_lines(lending, device, now)
        print(f"GPU {device.index:<3} {has} now")
        if beside:
            print(f"{'':7} {beside}")
    print(paint(LEGEND, "dim"))
    sums = hour_sums(lending, now)
    if sums:
        print_table(("GPU", "WHO", "COMPUTED", "KEPT", "PAUSED", "MOVED"), sums, right=(0,))


def _use(lending: Lending, device: LentDevice, now: float) -> tuple[str, str]:
    if device.withheld:
        return "withheld", device.withheld
    lease = next((lease for lease in lending.leases if device.uuid in lease.devices and lease.id == device.lease), None)
    if lease is None:
        return "free", f"kept for job {device.kept_for}" if device.kept_for else ""
    tenant = next((tenant for tenant in lending.tenants if tenant.id == lease.tenant), None)
    who = _who(tenant) if tenant is not None else _job(lease.job, lease.owner)
    state = {"active": "running"}.get(lease.state, lease.state)
    until = f", until {_span(lease.held_until - now)} from now" if lease.held_until is not None else ""
    return state, f"{who} for {_span(now - lease.since)}{until}"


def _residents(lending: Lending, device: LentDevice) -> str:
    known = {tenant.id: tenant for tenant in lending.tenants}
    told = lending.tier != "simulated"
    return ", ".join(_who(known[name]) + (_way(known[name]) if told else "") for name in device.residents if name in known)


def _way(tenant: TenantView) -> str:
    """How its state leaves the device when others need the room: " [bus]", " [driver]", " [hold: CUDA IPC]"."""
    if not tenant.way:
        return ""
    why = (tenant.why_not or tenant.not_bus) if tenant.way == "hold" else ""
    return f" [{tenant.way}: {why}]" if why else f" [{tenant.way}]"


def _context(tenant: TenantView) -> str:
    """Where the CUDA contexts of a process are whose state has left the device: "on the GPU (0.5G)"."""
    where = {"device": "on the GPU", "leaving": "is leaving", "away": "away too"}.get(tenant.context, "")
    return f"{where} ({format_size(tenant.context_bytes)})" if where and tenant.context_bytes else where


def _waiting(row: LeaseRequestView, now: float) -> tuple[str, ...]:
    about = "" if row.estimate is None else _span(row.estimate)
    return (str(row.position), _job(row.job, row.owner), str(row.gpus), _span(now - row.since), about, row.message)


def _who(tenant: TenantView) -> str:
    what = _job(tenant.job, tenant.owner)
    return f"{what}: {tenant.label}" if tenant.label else what


def _job(job: int | None, owner: str) -> str:
    return "somebody else" if job is None else f"job {job}{f' ({owner})' if owner else ''}"


def _span(seconds: float) -> str:
    return format_duration(max(0, round(seconds)))


def print_cells(home: Path | None, *, cells: bool, names: bool, as_json: bool, last: str | None, now: Sequence[str]) -> int:
    """Write them: as a file of cells, or with all that the lab knows of each. `now`: options that are about what is so now."""
    from carrel.cli.recorded_cells import read_cells_of
    from carrel.simulate.notebooks.cells import file_of, lab_cells
    from carrel.wire.v1 import show

    if not cells:
        raise Invalid(f"{'--last' if names else '--no-names'} is about recorded cells.", remedy="Add --cells.")
    if now:
        raise Invalid(
            f"{now[0]} is about what GPUs do now, and --cells is about what is over.", remedy="Leave out one of the two."
        )
    if as_json and not names:
        raise Invalid("--json has all that the lab knows of cells, names too.", remedy="Leave out --json or --no-names.")
    with open_client(home) as client:
        found = read_cells_of(client, last=None if last is None else parse_duration(last))
    if as_json:
        return print_json({"cells": [show(view).model_dump(mode="json") for view in found.views], "missing": found.missing})
    for line in file_of(lab_cells(found.views, names=names)):
        print(line)
    if found.missing:
        print(f"The lab did not hear of {found.missing:,} more.", file=sys.stderr)
    return OK
