"""`carrel nodes`, `carrel lab`, `carrel reload`, `carrel drain` and `carrel version`: what there is, and what takes jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, open_client
from carrel.cli.screen import clean, paint, print_fields, print_json, print_table
from carrel.core.domain.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from carrel.wire.v1 import ClusterNodeView, DeviceView, LabView, NodeView, StartRangesView

_DEVICE_STYLES = {"free": "green", "held": "blue", "withheld": "yellow", "drained": "red"}


def nodes_command(home: Home = None, as_json: AsJson = False) -> int:
    """Show machines and GPUs, and who holds what."""
    with open_client(home) as client:
        machines = client.machines()
    if as_json:
        return print_json(machines)
    for number, node in enumerate(machines.nodes):
        if number:
            print()
        _print_node(node)
    if machines.cluster:
        print()
        _print_cluster(machines.cluster)
    return OK


def _print_node(node: NodeView) -> None:
    memory = f"{format_size(node.memory_free)} of {format_size(node.memory)}"
    free = f"{node.cpus_free} of {format_count(node.cpus, 'CPU')} and {memory} free"
    print(f"{paint(clean(node.name), 'bold')}  {free}{f'  drained: {clean(node.drained)}' if node.drained else ''}")
    if not node.devices:
        print("no GPU")
        return
    rows = [
        (str(device.index), device.name, device.type, format_size(device.memory), device.state, _holder(device))
        for device in node.devices
    ]
    print_table(("GPU", "NAME", "TYPE", "MEMORY", "STATE", "HOLDER"), rows, styles={4: _DEVICE_STYLES}, right=(0,))


def _print_cluster(nodes: Sequence[ClusterNodeView]) -> None:
    rows = [
        (
            clean(node.name),
            ", ".join(node.partitions),
            str(node.cpus),
            format_size(node.memory),
            clean(", ".join(f"{count} {kind}" for kind, count in node.gpus.items())),
            clean(node.drained or ""),
        )
        for node in nodes
    ]
    print_table(("NODE OF SLURM", "PARTITIONS", "CPUS", "MEMORY", "GPUS", "DRAINED"), rows, right=(2,))


def _holder(device: DeviceView) -> str:
    if device.state == "withheld":
        return "cells of notebooks (carrel gpus), or another lab on this machine"
    holder = device.holder
    unknown = "whether it is well is not known" if device.unknown else ""
    drained = f"drained: {device.drained}" if device.drained else unknown
    if holder is None:
        return drained or (f"kept for job {device.kept_for}" if device.kept_for else "")
    who = f"job {holder.job_id} {holder.name} ({holder.owner})" if holder.job_id is not None else "somebody else's job"
    return f"{who}; {drained}" if drained else who


def lab_command(home: Home = None, as_json: AsJson = False) -> int:
    """Show the lab, its classes of service, and oneself in it."""
    with open_client(home) as client:
        lab, url = client.lab(), client.url
    if as_json:
        return print_json({"url": url, **lab.model_dump(mode="json")})
    _print_lab(lab, url)
    return OK


def reload_command(home: Home = None, as_json: AsJson = False) -> int:
    """Put in force the classes of service as carrel.toml says them now, without a restart.

    For administrators. What is wrong in the file is said, and changes nothing. Jobs that are there keep their walltime.
    """
    with open_client(home) as client:
        changed = client.reload_rules()
    if as_json:
        return print_json({"changed": changed})
    print("The rules are in force." if changed else "Nothing has changed.")
    return OK


def drain_command(
    node: Annotated[str, argument("NODE", "Name of the node, or a GPU: NODE:3, or its UUID.")],
    reason: Annotated[str, argument("REASON", "Why: everybody who waits for it reads this.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Start nothing new on a node or a GPU, for maintenance; what runs there goes on.

    For administrators. It outlives a restart of the lab; `carrel undrain` ends it.
    """
    with open_client(home) as client:
        changed = client.drain(node, reason)
        left = sum(device.state == "held" for one in client.nodes() if one.name == node for device in one.devices)
    if as_json:
        return print_json({"node": node, "changed": changed, "gpus_held": left})
    if changed:
        still = f"; {left} of its GPUs {'is' if left == 1 else 'are'} still held" if left else ""
        print(f"Nothing new starts on {node}{still}.")
    else:
        print(f"{node} was drained for that reason already.")
    return OK


def undrain_command(
    node: Annotated[str, argument("NODE", "Name of the node, or a GPU: NODE:3, or its UUID.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Let a drained node or GPU take jobs again.

    For administrators. Jobs that waited for it are placed at once. A GPU that the lab has drained for a fault is not drained
    again for it as long as it lasts.
    """
    with open_client(home) as client:
        changed = client.undrain(node)
    if as_json:
        return print_json({"node": node, "changed": changed})
    print(f"{node} takes jobs again." if changed else f"{node} was not drained.")
    return OK


def _print_lab(lab: LabView, url: str) -> None:
    state = ": ".join(part for part in (lab.tracking, lab.tracking_message) if part)
    tracking = ", ".join(part for part in (state, lab.tracking_url) if part)
    caller = lab.caller
    print_fields(
        [
            ("lab", url),
            ("version", lab.version),
            ("id", lab.lab_id),
            ("devices", "simulated" if lab.simulated else ""),
            ("you", f"{caller.name} ({caller.role}, {f'account {caller.account}' if caller.account else 'in no account'})"),
            ("tracking", tracking),
            *[("disk", f"{one.message}") for one in lab.storage],
            ("start ranges", _start_ranges(lab.start_ranges)),
        ]
    )
    print()
    rows = [
        (
            qos.name + ("*" if qos.default else ""),
            ", ".join(qos.kinds),
            format_duration(qos.default_time),
            format_duration(qos.max_time) if qos.max_time is not None else "",
            "" if qos.max_jobs_per_user is None else str(qos.max_jobs_per_user),
            "" if qos.max_gpus_per_user is None else str(qos.max_gpus_per_user),
            "" if qos.max_jobs_per_account is None else str(qos.max_jobs_per_account),
            "" if qos.max_gpus_per_account is None else str(qos.max_gpus_per_account),
            "" if qos.max_gpus is None else str(qos.max_gpus),
            "" if qos.idle_time is None else format_duration(qos.idle_time),
            str(qos.priority),
        )
        for qos in lab.qos
    ]
    limits = ("JOBS/USER", "GPUS/USER", "JOBS/ACCOUNT", "GPUS/ACCOUNT", "GPUS/LAB")
    heads = ("QOS", "KINDS", "TIME", "MOST", *limits, "IDLE", "PRIORITY")
    print_table(heads, rows, right=(4, 5, 6, 7, 8, 10))
    if lab.partitions:
        print()
        parts = [
            (part.name, ", ".join(part.qos), part.place or ", ".join(part.nodes) or "none is there") for part in lab.partitions
        ]
        print_table(("PARTITION", "QOS", "NODES"), parts)
    if lab.accounts:
        print()
        accounts = [(one.name, one.parent, str(one.shares), "yes" if one.yours else "no") for one in lab.accounts]
        print_table(("ACCOUNT", "PART OF", "SHARES", "YOURS"), accounts, right=(2,))


def _start_ranges(found: StartRangesView | None) -> str:
    if found is None:
        return ""
    if not found.starts:
        return "no job with a range has started yet"
    share = f"{found.held / found.starts:.0%} of the last {found.starts} starts within the range that was shown"
    return f"{share} ({found.early} before it, {found.late} after it); it should be 80%"


def version_command(as_json: AsJson = False) -> int:
    """Print versions of this program and what it stands on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from carrel import __version__

    parts = {"python": platform.python_version()}
    for package in ("httpx", "pydantic", "typer", "fastapi", "sqlalchemy", "mlflow", "uv"):
        try:
            parts[package] = version(package)
        except PackageNotFoundError:
            continue
    if as_json:
        return print_json({"version": __version__, "packages": parts})
    print(f"carrel {__version__}")
    print("  " + "  ".join(f"{name} {number}" for name, number in parts.items()))
    return OK
