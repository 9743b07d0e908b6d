"""`carrel compose`: machines from parts, for a time."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK, OTHER
from carrel.cli.nouns import Removal, noun_command, print_records
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import clean, print_json, print_table
from carrel.cli.words import local
from carrel.core.domain.composition import Composition, CompositionState
from carrel.core.domain.errors import Invalid
from carrel.core.domain.fabric import Block, BlockKind
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.units import format_duration, format_size, parse_duration

if TYPE_CHECKING:
    from carrel.client import Client


def _when(one: Composition) -> str:
    if one.state is CompositionState.PENDING:
        return f"from {local(one.expected)}" if one.expected else "–"
    return f"until {local(one.end)}" if one.end else "–"


compose_command = noun_command(
    COMPOSITIONS,
    about="Make a machine from parts of the lab's fabric, keep it for a time, and give the parts back.",
    listed="List machines: one's own, and those of all for operators.",
    key="As `carrel compose list` shows it.",
    columns={
        "ID": lambda one: str(one.id),
        "NAME": lambda one: one.name,
        "STATE": lambda one: one.state.value,
        "OWNER": lambda one: one.owner,
        "ASKED": lambda one: one.asked,
        "ZONE": lambda one: one.zone,
        "WHEN": _when,
        "REASON": lambda one: one.reason,
    },
    removal=Removal(
        name="release",
        word="released",
        help="Give the blocks of a machine back.\n\nWhat runs on it goes on until it ends; nothing new starts there.",
        done="Machine {} is given back.",
    ),
)


@compose_command.callback(invoke_without_command=True)
def compose(
    ctx: typer.Context,
    gpus: Annotated[int, typer.Option(min=0, metavar="N", help="GPUs.")] = 0,
    gpu_type: Annotated[str, typer.Option("--type", metavar="TYPE", help='Their type, such as "a100".')] = "",
    gpu_memory: Annotated[str, typer.Option(metavar="SIZE", help='Memory that each has at least: "40G".')] = "",
    slices: Annotated[
        list[str] | None,
        option(
            "--slice",
            "SLICE",
            'A slice of a GPU: "1g.10gb", its memory: "10G", or what tasks of a name took: "like:NAME". May be repeated.',
        ),
    ] = None,
    island: Annotated[bool, flag("--island", "All GPUs in one NVLink island.")] = False,
    spread: Annotated[bool, flag("--spread", "GPUs over as many racks as there are.")] = False,
    cpus: Annotated[int, typer.Option(min=0, metavar="N", help="Processors that the machine has at least.")] = 0,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory beside that of its processors.")] = "",
    nvme: Annotated[int, typer.Option(min=0, metavar="N", help="NVMe drives.")] = 0,
    nics: Annotated[int, typer.Option(min=0, metavar="N", help="Network interfaces.")] = 0,
    fpgas: Annotated[int, typer.Option(min=0, metavar="N", help="FPGAs.")] = 0,
    blocks: Annotated[
        list[str] | None, option("--block", "NAME", "This very block (`carrel compose blocks`). May be repeated.")
    ] = None,
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="For how long.")] = "1h",
    linger: Annotated[str, option("--linger", "DURATION", "Give it back when no job has used it for so long.")] = "",
    within: Annotated[str, option("--within", "DURATION", "Cancel it when it still waits after so long.")] = "",
    name: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    preview: Annotated[bool, flag("--preview", "Only say what would be taken, from where, and when.")] = False,
    wait: Annotated[bool, flag("--wait", "Wait until the machine is there.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Make a machine from parts of the lab's fabric, keep it for a time, and give the parts back.

    Jobs of its owner run on it until its time is over. Nothing that is in use is ever taken: it waits, with a reason.
    """
    if ctx.invoked_subcommand is not None:
        return OK
    from carrel.client.composing import together_of, told, waited, wishes_of

    together = together_of(island=island, spread=spread)
    with open_client(home) as client:
        wishes = wishes_of(
            client,
            gpus=gpus,
            gpu_type=gpu_type,
            gpu_memory=gpu_memory,
            slices=slices or [],
            together=together,
            cpus=cpus,
            memory=memory,
            nvme=nvme,
            nics=nics,
            fpgas=fpgas,
            blocks=blocks or [],
        )
        asked = Composition(
            wishes=wishes,
            time=parse_duration(duration),
            linger=parse_duration(linger) if linger else 0,
            within=parse_duration(within) if within else 0,
            name=name,
            preview=preview,
        )
        made = client.add(COMPOSITIONS, asked)
        if wait and not preview:
            for one in waited(client, made):
                made = one
                if not as_json and one.state is not CompositionState.RUNNING:
                    print(f"{clean(told(one))}.", flush=True)
    if as_json:
        print_records("compositions", [made])
    else:
        _tell(made, preview=preview)
    return OTHER if made.state is CompositionState.FAILED else OK


@compose_command.command("show")
def show(
    number: Annotated[int, argument("ID", "As `carrel compose list` shows it.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show a machine: its blocks, what is left to do, why it waits, and until when it is kept."""
    with open_client(home) as client:
        found = client.one_of(COMPOSITIONS, number)
    if as_json:
        print_records("compositions", [found])
    else:
        _tell(found, preview=False)
    return OK


@compose_command.command("blocks")
def list_blocks(home: Home = None, as_json: AsJson = False) -> int:
    """List the blocks of the fabric: where each is, and whether it is free; of one's own machines also which has it."""
    with open_client(home) as client:
        found = client.all_of(BLOCKS)
    if as_json:
        print_records("blocks", found)
        return OK
    heads = ("BLOCK", "KIND", "TYPE", "SIZE", "ZONE", "OWNER", "MACHINE", "STATE")
    about = ((one.name, one.kind.value, one.title, _size(one), one.zone, _owner(one), one.machine, _state(one)) for one in found)
    print_table(heads, list(about))
    return OK


@compose_command.command("history")
def history(
    block: Annotated[str, argument("BLOCK", "As `carrel compose blocks` shows it.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List the machines that had a block: whose, what for, and for how long. Users see their own, operators all."""
    with open_client(home) as client:
        found = [one for one in client.all_of(COMPOSITIONS) if block in one.blocks and one.begin]
    if as_json:
        print_records("compositions", found)
        return OK
    now = time.time()
    hours = {one.id: max(0.0, min(one.end, now) - one.begin) / 3600 for one in found}
    heads = ("ID", "OWNER", "NAME", "FROM", "UNTIL", "HOURS", "STATE", "REASON")
    ended = ((str(one.id), one.owner, one.name, local(one.begin), local(one.end), one.state.value, one.reason) for one in found)
    print_table(heads, [(*row[:5], f"{hours[one.id]:.2f}", *row[5:]) for one, row in zip(found, ended, strict=True)])
    print(f"{block}: {sum(hours.values()):.2f} hours in {len(found)} machine{'' if len(found) == 1 else 's'}.")
    return OK


@compose_command.command("export")
def export(home: Home = None, as_json: AsJson = False) -> int:  # noqa: ARG001 - it is JSON in any case
    """Print one's machines as JSON for `carrel compose apply`: what was asked for, and the blocks that they got."""
    with open_client(home) as client:
        print_json({"machines": [{name: to_plain(getattr(one, name)) for name in _KEPT} for one in _mine(client)]})
    return OK


@compose_command.command("apply")
def apply(
    file: Annotated[Path, argument("FILE", "What `carrel compose export` printed.")],
    same: Annotated[bool, flag("--same-blocks", "Of the blocks that they had; slices of that size.")] = False,
    preview: Annotated[bool, flag("--preview", "Only say what would be taken, from where, and when.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Make the machines of a file. One that is there as the file has it stays: doing it twice is doing it once."""
    from carrel.client.composing import very

    made = []
    with open_client(home) as client:
        there = list(_mine(client))
        for one in _read(file):
            asked = very(client, one) if same else replace(one, blocks=())
            alike = next((mine for mine in there if (mine.name, mine.wishes) == (asked.name, asked.wishes)), None)
            if alike is not None:
                there.remove(alike)
                if not as_json:
                    print(f"Machine {alike.id} ({alike.asked}) is there already.")
                continue
            made.append(client.add(COMPOSITIONS, replace(asked, preview=preview)))
            if not as_json:
                _tell(made[-1], preview=preview)
    if as_json:
        print_records("compositions", made)
    return OK


#: What a file keeps of a machine.
_KEPT = ("name", "time", "linger", "wishes", "blocks")


def _mine(client: Client) -> Sequence[Composition]:
    me = client.lab().caller.subject
    return [one for one in client.all_of(COMPOSITIONS) if one.owner == me and not one.state.over]


def _read(file: Path) -> Sequence[Composition]:
    try:
        return [from_plain(Composition, {name: one[name] for name in _KEPT}) for one in json.loads(file.read_text())["machines"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        told = f"{file} is not what `carrel compose export` prints: {error}."
        raise Invalid(told, remedy="Export the machines again.") from None


def _tell(one: Composition, *, preview: bool) -> None:
    if preview:
        if one.machine:
            print(f"{one.asked}: free now, in zone {one.zone}.")
            print("It would take " + ", ".join(one.blocks) + ".")
        else:
            when = f"It should be free at {local(one.expected)}." if one.expected else "When it is free is not known."
            print(f"It would wait: {clean(one.reason)}. {when}")
        for step in one.steps:
            print(f"  {step}")
        return
    told = f"Machine {one.id} ({one.asked}) is {one.state.value}"
    if one.state is CompositionState.RUNNING:
        told += f" until {local(one.end)}: {', '.join(one.blocks)}"
    elif one.state is CompositionState.PENDING and one.expected:
        told += f", and should be there at {local(one.expected)}"
    print(f"{told}." + (f" {clean(one.reason[:1].upper() + one.reason[1:])}." if one.reason else ""))
    for step in one.steps:
        print(f"  {step}")


def _size(block: Block) -> str:
    if not block.size:
        return ""
    return str(block.size) if block.kind in (BlockKind.CPU, BlockKind.NIC) else format_size(block.size)


def _owner(block: Block) -> str:
    return f"{block.owner}, lent for {format_duration(block.lent)}" if block.lent else block.owner


def _state(block: Block) -> str:
    if block.fault:
        return block.fault
    if block.used:
        return (f"of machine {block.composition}" if block.composition else "in use") + ("" if block.seen else ", not seen yet")
    return "free" if not block.machine or block.fixed or block.of else f"in {block.machine}"
