"""Where the trace, the machines and the rules of `carrel simulate` come from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.cli.options import open_client
from carrel.client.locate import default_home
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.core.domain.node import Node
    from carrel.core.domain.rules import LabRules
    from carrel.simulate.notebooks.forming import NotebookSession
    from carrel.simulate.report import Comparison
    from carrel.simulate.study import Progress
    from carrel.simulate.trace import Trace
    from carrel.simulate.traces.history import Recorded
    from carrel.wire import v1

#: The name of the lab's own history, in the place of a file.
LAB = "lab"
_CLUSTER = re.compile(r"(\d{1,5})x(\d{1,3})")
#: Machines for work that does not say where it was recorded.
_USUAL = "8x8"
#: More GPUs than any lab has fill the memory before anything is simulated.
_MOST_GPUS = 1_000_000


#: Tasks that are generated, in the place of a file.
GENERATED = "generated"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRules:
    """What is changed for tasks behind notebooks; None: nothing."""

    turn: float | None = None
    share: float | None = None
    #: What lies in host memory may come back on any of the GPUs.
    homes_move: bool = False
    #: Bytes of each GPU state.
    state: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the options say."""

    trace: str | None
    form: str | None
    gpus: str | None
    rules: Path | None
    jobs: int
    load: float
    seed: int
    home: Path | None
    #: Seconds: of the lab's cells only those that were asked for within them.
    last: int | None = None
    #: Seconds that it takes a job to go on after a stop; None: as many as usual.
    move: float | None = None

    def policies(self, names: Sequence[str], progress: Progress) -> Comparison:
        """The trace under these policies, or under all."""
        from carrel.simulate.policies import CARREL, POLICIES, policies_for
        from carrel.simulate.study import compare_policies

        for name in names:
            if name not in POLICIES:
                raise Invalid(f'There is no policy "{name}".', remedy=f"Name one of: {', '.join(POLICIES)}.")
        rules = self._rules()
        trace, nodes = self._work()
        chosen = list(dict.fromkeys(names)) or policies_for(nodes)
        notes = self._notes() if CARREL in chosen else []
        if not names and len(chosen) < len(POLICIES):
            notes.append(f"The nodes are not equal: only {' and '.join(chosen)} take them.")
        trace = replace(trace, notes=(*trace.notes, *notes))
        return compare_policies(trace, nodes, rules, chosen, facts=self._facts(), progress=progress, move=self._move())

    def change(self, changes: Sequence[str], progress: Progress) -> Comparison:
        """The lab's own policy, with and without these changes."""
        from carrel.simulate.study import compare_change
        from carrel.simulate.what_if import read_what_if, with_gpus

        what = read_what_if(changes)
        before, after = self._rules(), self._rules(what.rules)
        trace, nodes = self._work()
        then = with_gpus(nodes, what.gpus) if what.gpus is not None else nodes
        return compare_change(
            replace(trace, notes=(*trace.notes, *self._notes())),
            (nodes, before),
            (then, after),
            ", ".join(changes),
            facts=self._facts(),
            progress=progress,
            move=self._move(),
        )

    def _move(self) -> float:
        from carrel.simulate.policies import MOVE_TIME

        return MOVE_TIME if self.move is None else self.move

    def notebooks(self, progress: Progress, *, broker: bool = False, homes_move: bool = False) -> Comparison:
        """Cells in each mode of notebooks; with `broker` also as a node's broker lends."""
        from carrel.simulate.notebooks.mode import PolicyMode
        from carrel.simulate.study import compare_notebooks

        trace, sessions, gpus = self._cells()
        name = "carrel, homes move" if homes_move else "carrel"
        mode = PolicyMode(name=name, homes_move=homes_move) if broker else None
        return compare_notebooks(trace, sessions, gpus=gpus, facts=self._facts(), broker=mode, progress=progress)

    def _cells(self) -> tuple[Trace, Sequence[NotebookSession], int | None]:
        """The cells, the sessions that they are, and how many GPUs there are."""
        from carrel.simulate.notebooks.forming import form_sessions, named_sessions
        from carrel.simulate.notebooks.generator import generate_week
        from carrel.simulate.traces import read_trace
        from carrel.simulate.traces.cells import names_sessions

        gpus = None
        if self.gpus is not None:
            nodes, per_node = _cluster(self.gpus)
            gpus = nodes * per_node
        if self.trace == LAB:
            from carrel.cli.recorded_cells import lab_sessions

            trace, sessions, here = lab_sessions(self.home, last=self.last)
            # GPUs may have left the lab since.
            widest = max(session.gpus for session in sessions)
            return trace, sessions, gpus if gpus is not None else (here if here >= widest else None)
        if self.trace is None:
            trace = generate_week(self.seed)
            sessions = named_sessions(trace.jobs)
        else:
            trace = read_trace(Path(self.trace), form=self.form or "cells")
            named = self.form in (None, "cells") and names_sessions(Path(self.trace))
            sessions = named_sessions(trace.jobs) if named else form_sessions(trace.jobs)
        return trace, sessions, gpus

    def together(self, tasks: str, changes: TaskRules, progress: Progress) -> Comparison:
        """Cells, and a queue of tasks behind them, on the same GPUs."""
        from carrel.simulate.generator import generate_jobs
        from carrel.simulate.study import compare_together
        from carrel.simulate.together.mode import States, modes_with
        from carrel.simulate.traces import read_trace

        modes = modes_with(task_turn=changes.turn, task_share=changes.share, homes_move=changes.homes_move)
        states = None if changes.state is None else States(cells=(changes.state,), tasks=(changes.state,))
        trace, sessions, gpus = self._cells()
        queue = generate_jobs(self.seed, jobs=self.jobs) if tasks == GENERATED else read_trace(Path(tasks))
        return compare_together(
            trace,
            sessions,
            queue,
            gpus=gpus,
            states=states,
            modes=modes,
            seed=self.seed,
            facts=self._facts(),
            progress=progress,
        )

    def _work(self) -> tuple[Trace, tuple[Node, ...]]:
        """The trace, and the machines that it runs on."""
        from carrel.simulate.generator import generate_jobs
        from carrel.simulate.lab.machines import nodes_of
        from carrel.simulate.trace import Cluster
        from carrel.simulate.traces import read_trace

        if self.trace == LAB:
            return self._history()
        nodes, per_node = _cluster(self.gpus or _USUAL)
        if self.trace is None:
            trace = generate_jobs(self.seed, jobs=self.jobs, gpus=nodes * per_node, load=self.load)
        else:
            trace = read_trace(Path(self.trace), form=self.form)
        recorded = trace.cluster if self.gpus is None else None
        if recorded is not None and recorded.gpus > _MOST_GPUS:
            raise Invalid(f"{trace.name} was recorded on {recorded.gpus:,} GPUs.", remedy="Give fewer with --gpus NODESxGPUS.")
        return trace, nodes_of(recorded or Cluster(nodes=nodes, gpus_per_node=per_node))

    def _history(self) -> tuple[Trace, tuple[Node, ...]]:
        """What has run in the lab, and its nodes."""
        from carrel.simulate.lab.machines import nodes_of
        from carrel.simulate.trace import Cluster
        from carrel.simulate.traces.history import history_trace

        with open_client(self.home) as client:
            everybody = client.lab().caller.role == "admin"
            trace = history_trace(_recorded(client, "all" if everybody else "me"), "this lab" if everybody else "your own jobs")
            if not everybody:
                alone = "Nobody else's jobs are in line here, so waits are shorter than they were."
                trace = replace(trace, notes=(*trace.notes, alone))
            if self.gpus is not None:
                nodes, per_node = _cluster(self.gpus)
                return trace, nodes_of(Cluster(nodes=nodes, gpus_per_node=per_node))
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

    def _notes(self) -> list[str]:
        """What has to be known about the rules."""
        if self._rules_file() is not None:
            return []
        return ['There is no carrel.toml here: the rules are those of the preset "default".']

    def _facts(self) -> dict[str, str]:
        from carrel import __version__

        facts = {"Version": f"carrel {__version__}"}
        if self.trace is None:
            facts["Seed"] = str(self.seed)
        if self.rules is not None:
            facts["Rules"] = str(self.rules)
        return facts


def check_together(trace: str | None, given: Sequence[str], *, notebooks: bool, tasks: bool = False) -> None:
    """Raise `Invalid` for options of those `given` (with their dashes) that would be ignored."""
    one = "Leave out one of the two."
    clashes = (
        (trace is not None, ("--jobs", "--load", "--seed"), "is about what is generated, and a trace is named", one),
        (trace in (None, LAB), ("--form",), "says how to read a file, and none is named", "Name a file, or leave it out."),
        (
            notebooks,
            ("--policy", "--what-if", "--rules", "--jobs", "--load", "--move-time"),
            "is about jobs, and --notebooks is not",
            one,
        ),
        (
            not notebooks or trace != LAB,
            ("--last",),
            "is about cells that a lab recorded",
            "Use it with --notebooks lab, or leave it out.",
        ),
        (not notebooks, ("--tasks",), "puts tasks behind notebooks, and --notebooks is not given", "Add --notebooks."),
        (not tasks, ("--state", "--task-turn", "--task-share"), "is about tasks behind notebooks", "Add --tasks."),
        (
            not tasks and "--broker" not in given,
            ("--homes-move",),
            "is about where the broker brings states back",
            "Add --tasks, or --broker.",
        ),
        (tasks or not notebooks, ("--broker",), "is about notebooks alone", "Use it with --notebooks and without --tasks."),
        ("--what-if" in given, ("--policy",), "is given with --what-if, which is about the lab's own policy", one),
    )
    for met, options, fact, remedy in clashes:
        for option in options:
            if met and option in given:
                raise Invalid(f"{option} {fact}.", remedy=remedy)


def check_report(report: Path, trace: str | None) -> None:
    """Raise `Invalid` for a file that cannot be written, or that is the trace: before hours are spent on what to write."""
    if report.is_dir() or not report.parent.is_dir():
        why = "Is a directory" if report.is_dir() else "No such file or directory"
        raise Invalid(f"{report} cannot be written: {why}.", remedy="Name a file in a directory that you may write to.")
    if trace not in (None, LAB) and report.exists() and Path(trace).exists() and report.samefile(trace):
        raise Invalid(f"{report} is the trace.", remedy="Name another file for the report.")


def _cluster(text: str) -> tuple[int, int]:
    match = _CLUSTER.fullmatch(text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise Invalid(f'--gpus is "{text}".', remedy="Write nodes and GPUs on each, such as 8x8.")
    nodes, per_node = int(match[1]), int(match[2])
    if nodes * per_node > _MOST_GPUS:
        raise Invalid(f"--gpus {text} is {nodes * per_node:,} GPUs.", remedy=f"Ask for {_MOST_GPUS:,} or fewer.")
    return nodes, per_node


def _recorded(client: Client, owner: str) -> Iterator[Recorded]:
    from carrel.core.domain.qos import JobKind
    from carrel.simulate.traces.history import Recorded

    for job in client.jobs(owner=owner, limit=None):
        # Between the attempts it had nothing: only the last one's times belong together.
        times = job if job.attempt < 2 else client.job(job.id).attempts[-1]
        yield Recorded(
            id=job.id,
            kind=JobKind(job.kind),
            owner=job.owner,
            account=job.account,
            name=job.name,
            qos=job.qos,
            gpus=job.resources.gpus,
            cpus=job.resources.cpus,
            memory=job.resources.memory,
            time=job.resources.time,
            submitted_at=job.submitted_at.timestamp(),
            started_at=None if times.started_at is None else times.started_at.timestamp(),
            ended_at=None if job.ended_at is None or times.ended_at is None else times.ended_at.timestamp(),
            attempts=job.attempt,
            gpu_type=job.resources.gpu_type,
        )


def _node(view: v1.NodeView) -> Node:
    from carrel.core.domain.node import Device, Node

    devices = tuple(
        Device(uuid=device.uuid, index=device.index, type=device.type, name=device.name, memory=device.memory)
        for device in view.devices
    )
    return Node(name=view.name, cpus=view.cpus, memory=view.memory, devices=devices)
