"""Where the trace, the machines and the rules of `carrel simulate` come from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.cli.options import open_client
from carrel.client.locate import default_home
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.core.domain.node import Node
    from carrel.core.domain.rules import LabRules
    from carrel.simulate.notebooks.cells import NotebookSession
    from carrel.simulate.study import Comparison, Progress
    from carrel.simulate.trace import Trace
    from carrel.wire import v1

#: The name of the lab's own history, in the place of a file.
LAB = "lab"
_CLUSTER = re.compile(r"(\d{1,5})x(\d{1,3})")
#: Machines for work that does not say where it was recorded.
_USUAL = "8x8"
#: More GPUs than any lab has fill the memory before anything is simulated.
_MOST_GPUS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the options say."""

    trace: str
    form: str | None
    gpus: str | None
    rules: Path | None
    home: Path | None
    #: Seconds: of the lab's cells only those that were asked for within them.
    last: int | None
    #: Seconds that it takes a job to go on after a stop; None: as many as usual.
    move: float | None
    #: States of notebooks come back on any GPU.
    homes_move: bool

    def policies(self, progress: Progress) -> Comparison:
        """The trace under the lab's rules, beside EASY."""
        from carrel.simulate.study import compare_policies

        rules, (trace, nodes) = self._rules(), self._work()
        return compare_policies(trace, nodes, rules, facts=self._facts(), progress=progress, move=self._move())

    def change(self, changes: Sequence[str], progress: Progress) -> Comparison:
        """The lab's own policy, with and without these changes."""
        from carrel.simulate.study import compare_change
        from carrel.simulate.what_if import read_what_if, with_gpus

        what = read_what_if(changes)
        before, after = self._rules(), self._rules(what.rules)
        trace, nodes = self._work()
        then = with_gpus(nodes, what.gpus) if what.gpus is not None else nodes
        return compare_change(
            trace,
            (nodes, before),
            (then, after),
            ", ".join(changes),
            facts=self._facts(),
            progress=progress,
            move=self._move(),
        )

    def composed(self, small: float, progress: Progress) -> Comparison:
        """What machines from parts would need for equal waits; a seventh of a GPU does for the part `small` of jobs on one."""
        from carrel.simulate.composed import ATTACH_SECONDS, SLICES, compare_layouts
        from carrel.simulate.study import Comparison

        rules, (trace, nodes) = self._rules(), self._work()
        gpus = sum(len(node.devices) for node in nodes)
        notes = [f"A machine of a pool is made in {ATTACH_SECONDS:g} s, which count as waiting. This is assumed, not measured."]
        if small:
            notes.append(
                f"A slice, a {SLICES}th of a GPU, does for {100 * small:g} % of the jobs on one GPU. This is assumed, too."
            )
        return Comparison(
            title=f"Machines from parts: {trace.name}, on {gpus} GPUs",
            trace=replace(trace, notes=(*trace.notes, *notes)),
            gpus=gpus,
            layouts=compare_layouts(trace, nodes, rules, small=small, progress=progress),
            facts=self._facts(),
        )

    def notebooks(self, progress: Progress) -> Comparison:
        """Cells as the broker of a node lends."""
        from carrel.simulate.study import compare_notebooks

        trace, sessions, gpus = self._cells()
        return compare_notebooks(trace, sessions, homes_move=self.homes_move, gpus=gpus, facts=self._facts(), progress=progress)

    def _move(self) -> float:
        from carrel.simulate.study import MOVE_TIME

        return MOVE_TIME if self.move is None else self.move

    def _cells(self) -> tuple[Trace, Sequence[NotebookSession], int | None]:
        """Where the cells are from, the sessions that they are, and how many GPUs there are."""
        from carrel.simulate.notebooks.cells import notes_of, read_cells, sessions_of
        from carrel.simulate.trace import Trace

        nodes, per_node = (0, 0) if self.gpus is None else _cluster(self.gpus)
        gpus = nodes * per_node or None
        if self.trace == LAB:
            from carrel.cli.recorded_cells import lab_sessions

            trace, sessions, here = lab_sessions(self.home, last=self.last)
            # GPUs may have left the lab since.
            return trace, sessions, gpus or (here if here >= max(session.gpus for session in sessions) else None)
        cells = read_cells(Path(self.trace))
        return Trace(name=Path(self.trace).name, jobs=(), notes=notes_of(cells)), sessions_of(cells), gpus

    def _work(self) -> tuple[Trace, tuple[Node, ...]]:
        """The trace, and the machines that it runs on."""
        from carrel.simulate.lab.machines import nodes_of
        from carrel.simulate.trace import Cluster
        from carrel.simulate.traces import read_trace

        nodes, per_node = _cluster(self.gpus or _USUAL)
        machines = nodes_of(Cluster(nodes=nodes, gpus_per_node=per_node))
        if self.trace == LAB:
            trace, own = self._history()
            machines = machines if self.gpus is not None else own
        else:
            trace = read_trace(Path(self.trace), form=self.form)
            if self.gpus is None and trace.cluster is not None:
                if trace.cluster.gpus > _MOST_GPUS:
                    raise Invalid(
                        f"{trace.name} was recorded on {trace.cluster.gpus:,} GPUs.",
                        remedy="Give fewer with --gpus NODESxGPUS.",
                    )
                machines = nodes_of(trace.cluster)
        if self._rules_file() is None:
            without = 'There is no carrel.toml here: the rules are those of the preset "default".'
            trace = replace(trace, notes=(*trace.notes, without))
        return trace, machines

    def _history(self) -> tuple[Trace, tuple[Node, ...]]:
        """What has run in the lab, and its nodes."""
        from carrel.simulate.traces.history import history_trace

        with open_client(self.home) as client:
            everybody = client.lab().caller.role == "admin"
            jobs = (
                # Only an attempt says when it ran: between them the job had nothing.
                job if job.attempt < 2 else client.job(job.id)
                for job in client.jobs(owner="all" if everybody else "me", limit=None)
            )
            trace = history_trace(jobs, "this lab" if everybody else "your own jobs")
            if not everybody:
                alone = "Nobody else's jobs are in line here, so waits are shorter than they were."
                trace = replace(trace, notes=(*trace.notes, alone))
            return trace, tuple(_node(node) for node in client.nodes())

    def _rules(self, changes: Mapping[str, object] | None = None) -> LabRules:
        from carrel.lab.server.rules import read_lab_rules
        from carrel.lab.server.settings import read_settings

        if self.rules is not None and not self.rules.is_file():
            raise Invalid(f"There is no file {self.rules}.", remedy="Name a carrel.toml, or leave the option out.")
        file = self._rules_file()
        if file is not None:
            read_settings(file, {}, {})  # what the lab would refuse is refused here too, also beside the rules
        return read_lab_rules(file, changes)

    def _rules_file(self) -> Path | None:
        """Where the rules stand; None where no such file is known."""
        if self.rules is not None:
            return self.rules
        if self.trace == LAB and self.home is None and os.environ.get("CARREL_URL"):
            return None  # the home directory of this machine is not that lab's
        file = (self.home or default_home(os.environ)).expanduser() / "carrel.toml"
        return file if file.exists() else None

    def _facts(self) -> dict[str, str]:
        from carrel import __version__

        return {"Version": f"carrel {__version__}", **({} if self.rules is None else {"Rules": str(self.rules)})}


def check_options(trace: str, given: Sequence[str], *, notebooks: bool, composed: bool = False) -> None:
    """Raise `Invalid` for options of those `given` (with their dashes) that would be ignored."""
    one = "Leave out one of the two."
    clashes = (
        (
            notebooks,
            ("--form", "--what-if", "--rules", "--move-time", "--composed"),
            "is about jobs, and --notebooks is not",
            one,
        ),
        (composed, ("--what-if", "--move-time"), "compares rules, and --composed compares machines", one),
        (not composed, ("--small",), "is about slices", "Add --composed."),
        (not notebooks, ("--homes-stay", "--last"), "is about cells of notebooks", "Add --notebooks."),
        (trace == LAB, ("--form",), "says how to read a file, and none is named", "Name a file, or leave it out."),
        (trace != LAB, ("--last",), "is about cells that a lab recorded", "Name no file, or leave it out."),
    )
    for met, options, fact, remedy in clashes:
        for option in options:
            if met and option in given:
                raise Invalid(f"{option} {fact}.", remedy=remedy)


def _cluster(text: str) -> tuple[int, int]:
    match = _CLUSTER.fullmatch(text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise Invalid(f'--gpus is "{text}".', remedy="Write nodes and GPUs on each, such as 8x8.")
    nodes, per_node = int(match[1]), int(match[2])
    if nodes * per_node > _MOST_GPUS:
        raise Invalid(f"--gpus {text} is {nodes * per_node:,} GPUs.", remedy=f"Ask for {_MOST_GPUS:,} or fewer.")
    return nodes, per_node


def _node(view: v1.NodeView) -> Node:
    from carrel.core.domain.node import Device, Node

    devices = tuple(
        Device(uuid=device.uuid, index=device.index, type=device.type, name=device.name, memory=device.memory)
        for device in view.devices
    )
    return Node(name=view.name, cpus=view.cpus, memory=view.memory, devices=devices)
