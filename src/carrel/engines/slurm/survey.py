"""Looks at a Slurm site: what it has, what is missing, and what works without it. Changes nothing but a directory of its own."""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.partition import Partition
from carrel.core.domain.ports import Clock
from carrel.core.domain.resources import Resources
from carrel.core.domain.slurm import read_options
from carrel.core.domain.task import TaskSpec
from carrel.core.spool.trees import remove_tree
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import node_of
from carrel.engines.slurm.errors import SlurmRefused
from carrel.engines.slurm.options import sbatch_arguments
from carrel.engines.slurm.partition import SlurmPartition, slurm_of
from carrel.engines.slurm.probe import ANSWER, AUTHORITY, LOCK, WORD
from carrel.engines.slurm.script import batch_script
from carrel.engines.slurm.site import site_options
from carrel.engines.slurm.task_shards import task_shards

#: The oldest version that Carrel is tried with.
OLDEST = (22, 5)
#: Seconds by which clocks may differ before it is said.
CLOCKS = 2.0
#: Seconds between two looks whether the tiny job has answered.
_LOOK = 0.2
_NAME = "carrel.doctor"
_MEMORY = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found."""

    name: str
    #: "ok", "warn" or "fail".
    status: str
    message: str
    remedy: str = ""


class Survey:
    """One look at a site, for a lab with these partitions."""

    def __init__(
        self,
        commands: SlurmCommands,
        *,
        home: Path,
        url: str,
        partitions: Sequence[Partition],
        interactive: Collection[str] = (),
        broker: str = "",
        lends: int = 0,
        patience: float = 60.0,
        python: str = sys.executable,
        monotonic: Clock = time.monotonic,
        clock: Clock = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`home` is what nodes have to see, `url` how they are to reach the lab ("" when none runs), `partitions` those of the
        lab's that are Slurm's, `interactive` the names of those that take sessions, `broker` where nodes have a broker's socket,
        `lends` for how many percent of its time a task there may be paused for cells; `patience` is how many seconds a tiny job
        may take to start."""
        self._slurm = commands
        self._home = home
        self._url = url
        self._partitions = {one.name: asked for one in partitions if (asked := slurm_of(one)) is not None}
        self._interactive = interactive
        self._broker = broker
        self._lent = lends
        self._patience = patience
        self._python = python
        self._monotonic = monotonic
        self._clock = clock
        self._pause = pause

    def findings(self) -> Iterator[Finding]:
        """Every look, one after the other; where the controller does not answer, no more than that."""
        looks: list[tuple[str, Callable[[], Finding]]] = [
            ("version", self._version),
            ("controller", self._controller),
            ("accounting", self._accounting),
            ("qos", self._qos),
            ("gpus", self._gpus),
            ("sessions", self._sessions),
            *([("lending", self._lending)] if self._lent > 0 else []),
        ]
        for name, look in looks:
            found = self._safely(name, look)
            yield found
            if name == "controller" and found.status == "fail":
                return
        if not self._partitions:
            remedy = 'Write [partitions.NAME] with engine = "slurm" into carrel.toml; docs/slurm.md has an example.'
            yield Finding(
                "partitions", "warn", "No partition of the lab is one of Slurm's, so nothing is tried on a node.", remedy
            )
        for name, partition in self._partitions.items():
            yield from self._partition(name, partition)

    def _safely(self, name: str, look: Callable[[], Finding]) -> Finding:
        try:
            return look()
        except CarrelError as error:
            return Finding(name, "fail", error.message, error.remedy)

    def _version(self) -> Finding:
        major, minor = self._slurm.version()
        if (major, minor) < OLDEST:
            return Finding("version", "warn", f"Slurm {major:02}.{minor:02}", "Carrel is tried with 22.05 and newer.")
        return Finding("version", "ok", f"Slurm {major:02}.{minor:02}")

    def _controller(self) -> Finding:
        config = self._slurm.configuration()
        nodes = self._slurm.nodes()
        away = sum(bool(re.search(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|\*", node.get("State", ""))) for node in nodes)
        message = f"cluster {config.get('ClusterName', '?')} answers; {len(nodes)} node{'' if len(nodes) == 1 else 's'}"
        if away:
            return Finding("controller", "warn", f"{message}, of which {away} take no jobs", "Look at `sinfo -R`.")
        return Finding("controller", "ok", message)

    def _accounting(self) -> Finding:
        kind = self._slurm.configuration().get("AccountingStorageType", "")
        if not kind.endswith("/slurmdbd"):
            message = f"No accounting database (AccountingStorageType is {kind or 'not set'})"
            works = "Works without it; but a job that the controller forgot has no other witness. Install slurmdbd if you can."
            return Finding("accounting", "warn", message, works)
        try:
            self._slurm.history([1])
        except CarrelError as error:
            return Finding("accounting", "fail", error.message, "Start slurmdbd, or look at its log.")
        return Finding("accounting", "ok", "slurmdbd answers")

    def _qos(self) -> Finding:
        asked = {part.qos for part in self._partitions.values() if part.qos not in ("", "{qos}")}
        try:
            there = self._slurm.classes()
        except CarrelError:
            if asked:
                return Finding("qos", "fail", f"{_named(asked)} cannot be looked up.", "QoS need slurmdbd.")
            return Finding("qos", "ok", "none is needed: the lab's own classes of service decide")
        missing = asked - set(there)
        if missing:
            return Finding("qos", "fail", f"There is no QoS {_named(missing)}.", f"There are: {', '.join(there)}.")
        return Finding("qos", "ok", f"Slurm's: {', '.join(there)}")

    def _gpus(self) -> Finding:
        kinds: dict[str, int] = {}
        shards = 0
        for node in self._slurm.nodes():
            for name, kind, number in re.findall(r"(gpu|shard)(?::([^:,()]+))?:(\d+)", node.get("Gres", "")):
                if name == "gpu":
                    kinds[kind or "gpu"] = kinds.get(kind or "gpu", 0) + int(number)
                else:
                    shards += int(number)
        if not kinds:
            return Finding("gpus", "warn", "no node has GPUs (GRES)", "Jobs without GPUs work. For GPUs: gres.conf(5).")
        message = ", ".join(f"{count} of type {kind}" for kind, count in sorted(kinds.items()))
        return Finding("gpus", "ok", f"{message}; {f'{shards} shards' if shards else 'no shards'}")

    def _sessions(self) -> Finding:
        there = {name: part for name, part in self._partitions.items() if name in self._interactive}
        if not there:
            return Finding("sessions", "ok", "no partition of Slurm's takes any: they run on the lab's own machine")
        names = _named(set(there))
        wanted = {name for part in there.values() for name in part.partition.split(",")}
        nodes = [node for node in self._slurm.nodes() if wanted & set(node.get("Partitions", "").split(","))]
        if not any("gpu" in node.get("Gres", "") for node in nodes):
            return Finding("sessions", "ok", f"partition {names} takes them; its nodes have no GPUs")
        if not any("shard" in node.get("Gres", "") for node in nodes):
            message = (
                f"partition {names} takes them, but its nodes have no shards: a session that asks for a GPU holds a whole one"
            )
            return Finding("sessions", "warn", message, "Works without it. To share GPUs: Name=shard in gres.conf(5).")
        slow = {name for name, part in there.items() if not part.immediate}
        if slow:
            message = f"partition {names} takes them, with shards, and each waits for the timer of sbatch"
            return Finding("sessions", "warn", message, f"slurm_immediate = true for partition {_named(slow)}.")
        return Finding("sessions", "ok", f"partition {names} takes them at once, and shares GPUs by shards")

    def _lending(self) -> Finding:
        """What a task of one GPU asks for in each partition, where tasks have to lend to cells."""
        if not self._broker:
            return Finding("lending", "warn", "slurm_lend is set, and slurm_broker is not: no task lends.", "Set both.")
        records = self._slurm.nodes()
        found: dict[str, int] = {}
        for name, partition in self._partitions.items():
            wanted = set(partition.partition.split(","))
            nodes = [node_of(record) for record in records if wanted & set(record.get("Partitions", "").split(","))]
            if any(node.devices for node in nodes):
                task = TaskSpec(entry_point="main", command="", snapshot="")
                found[name] = task_shards(Resources(gpus=1), task, nodes, read_options(partition.options))
        whole = {name for name, shards in found.items() if not shards}
        if whole or not found:
            message = f"partition {_named(whole)}: a task asks for a whole GPU and lends to no cell" if whole else "no GPUs"
            remedy = (
                "Give each GPU three shards or more, as many everywhere: Gres=gpu:4,shard:32; no GPU options in slurm_options."
            )
            return Finding("lending", "warn", message, remedy)
        asks = ", ".join(f'"{name}" {shards}' for name, shards in sorted(found.items()))
        words = f"a task of one GPU asks for shards (partition {asks}) where all nodes have a broker"
        return Finding("lending", "ok", f"{words}, and may be paused for {self._lent} % of its time")

    def _partition(self, name: str, partition: SlurmPartition) -> Iterator[Finding]:
        there, wanted = (
            {record["PartitionName"]: record for record in self._slurm.partitions()},
            partition.partition.split(","),
        )
        missing = [part for part in wanted if part not in there]
        if missing:
            message = f'Slurm has no partition "{missing[0]}", which partition "{name}" of the lab names.'
            yield Finding(name, "fail", message, f"Correct slurm_partition; there are: {', '.join(there)}.")
            return
        down = [part for part in wanted if there[part].get("State") != "UP"]
        if down:
            yield Finding(
                name, "fail", f"Slurm's partition {down[0]} is {there[down[0]].get('State')}.", "Ask its administrator."
            )
            return
        nodes = ", ".join(f"{part} with {there[part].get('TotalNodes', '?')} nodes" for part in wanted)
        yield Finding(name, "ok", f"Slurm's partition {nodes}")
        yield from self._try(name, partition)

    # --- a tiny job -----------------------------------------------------------------------------------------------------------

    def _try(self, name: str, partition: SlurmPartition) -> Iterator[Finding]:
        directory = self._home / f"doctor-{secrets.token_hex(4)}"
        directory.mkdir(mode=0o700)
        try:
            word = secrets.token_hex(8)
            (directory / WORD).write_text(word)
            with suppress(FileNotFoundError):
                (directory / AUTHORITY).write_bytes((self._home / "tls" / AUTHORITY).read_bytes())
            with (directory / LOCK).open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield from self._run(name, partition, directory, word)
        finally:
            remove_tree(directory)

    def _run(self, part: str, partition: SlurmPartition, directory: Path, word: str) -> Iterator[Finding]:
        name = f"{part}: job"
        # The names of the lab's own class and account are those of each job: what they are here is not known.
        options = replace(site_options(partition), time=60, memory=_MEMORY, cpus=1)
        output = directory / "output"
        arguments = sbatch_arguments(options, name=_NAME, comment=_NAME, directory="/", output=str(output))
        command = [self._python, "-P", "-m", "carrel.engines.slurm.probe", str(directory), self._url, self._broker]
        before = self._clock()
        try:
            number = self._slurm.submit(arguments, batch_script(command, options))
        except SlurmRefused as error:
            yield Finding(name, "fail", f"Slurm refused it: {error.reason}", "Correct slurm_qos, slurm_account or slurm_options.")
            return
        except CarrelError as error:
            yield Finding(name, "fail", error.message, error.remedy)
            return
        answer, state = self._wait(directory, number)
        after = self._clock()
        if answer is not None:
            yield from self._judge(part, answer, word, before, after)
        elif state in ("PENDING", "CONFIGURING"):
            self._slurm.cancel(number, name=_NAME)
            message = f"A job of a minute did not start within {self._patience:g} s, so nothing was tried on a node."
            yield Finding(name, "warn", message, "Try again when the cluster is less busy, or with --patience.")
        else:
            self._slurm.cancel(number, name=_NAME)
            yield self._unseen(name, state, output)

    def _unseen(self, name: str, state: str, output: Path) -> Finding:
        said = output.read_text(errors="replace").strip().splitlines() if output.exists() else []
        if said:
            remedy = f"{self._python} with Carrel in it has to be there on all nodes."
            return Finding(name, "fail", f"It ran, but Carrel's Python did not: {said[-1]}", remedy)
        return Finding(
            name,
            "fail",
            f"It ended {state or 'without a trace'}, and nothing of it is seen in {self._home}.",
            "Put the lab's home (CARREL_HOME) on a file system that all nodes see at the same path, as the same user.",
        )

    def _wait(self, directory: Path, number: int) -> tuple[Mapping[str, Any] | None, str]:
        """Return what the job wrote, or None and its state when that is nothing within the time."""
        until = self._monotonic() + self._patience
        asked, state = 0.0, ""
        while True:
            answer = _read(directory / ANSWER)
            if answer is not None:
                return answer, state
            now = self._monotonic()
            if now >= asked:
                asked, state = now + 1.0, self._state(number, state)
            if now >= until:
                return None, state
            if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", ""):
                # It is over. A file system over the network may show a file a little later.
                until = min(until, now + 5.0)
            self._pause(_LOOK)

    def _state(self, number: int, known: str) -> str:
        try:
            job = self._slurm.job(number, "carrel.doctor")
        except CarrelError:
            return known
        return known if job is None else job.state

    def _judge(self, name: str, answer: Mapping[str, Any], word: str, before: float, after: float) -> Iterator[Finding]:
        node = answer["node"]
        if answer["word"] != word or not answer["lock_holds"]:
            message = f"{node} sees {self._home}, but not the locks that this machine holds there."
            remedy = "Mount it with locks that hold across nodes (nfs(5): local_lock=none): they keep a job from running twice."
            yield Finding(f"{name}: files", "fail", message, remedy)
        else:
            yield Finding(f"{name}: files", "ok", f"{node} sees {self._home}, and the locks in it")
        yield Finding(f"{name}: python", "ok", f"{answer['python']} runs Carrel on {node}")
        apart = max(0.0, before - answer["time"], answer["time"] - after)
        if apart > CLOCKS:
            message = f"The clock of {node} differs from this one by {apart:.0f} s or more."
            remedy = "Times of jobs will be wrong, and munge refuses what is too old: let chrony or ntpd run on both."
            yield Finding(f"{name}: clock", "warn", message, remedy)
        else:
            yield Finding(f"{name}: clock", "ok", f"that of {node} agrees with this one")
        if not answer["images"]:
            yield Finding(f"{name}: images", "ok", f"tasks run in images on {node}")
        else:
            yield Finding(f"{name}: images", "ok", *answer["images"])
        if self._broker and name in self._interactive:
            yield self._lends(name, node, answers=answer["broker"])
        if not self._url:
            yield Finding(f"{name}: lab", "ok", "no lab runs here yet: ask again when one does, and a node tries to reach it")
        elif answer["lab"]:
            message = f"{node} does not reach the lab at {self._url}: {answer['lab']}"
            works = "Jobs run without it, but are not tracked. Set host and slurm_url, so that nodes reach the lab."
            yield Finding(f"{name}: lab", "warn", message, works)
        else:
            yield Finding(f"{name}: lab", "ok", f"{node} reaches the lab at {self._url}")

    def _lends(self, name: str, node: str, *, answers: bool) -> Finding:
        if answers:
            return Finding(f"{name}: broker", "ok", f"{node} has a broker, which lends GPUs to cells")
        message = f"{node} has no broker at {self._broker}: sessions there keep their share of a GPU from start to end."
        return Finding(f"{name}: broker", "warn", message, "Start `carrel broker` on each node; docs/slurm.md says how.")


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _named(names: set[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))
