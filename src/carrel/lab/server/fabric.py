"""The fabric of a lab: what makes and takes apart machines, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrel.core.control.composing import Composer, Fabric
from carrel.core.control.compositions import Blocks, ComposedMachines, Compositions, FabricBlocks
from carrel.core.control.job_machines import JobMachines
from carrel.core.control.keeper import Keeper
from carrel.core.domain.composition import MachineRules
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.core.domain.ports import Clock
from carrel.core.domain.units import format_size
from carrel.core.domain.user import Caller
from carrel.engines.fabric import FabricFile, Host, MigFabric, SimulatedFabric, read_fabric
from carrel.lab.store import Store

_log = logging.getLogger(__name__)

#: Seconds between two looks while nothing is asked for: machines whose time is over, blocks that were late.
LOOK_SECONDS = 5.0
#: The same while there is no machine: a change whose answer was lost may be made late.
REST_SECONDS = 60.0
#: Zones in which changes are made at the same time.
_ZONES = 8


class LabFabric:
    """The machines of a lab that are made from parts; without a fabric there are none. Thread-safe."""

    def __init__(
        self,
        path: str | None,
        home: Path,
        store: Store,
        clock: Clock,
        *,
        node: Node,
        took: Callable[[str, str], int] = lambda _owner, _name: 0,
        grace: int = 0,
    ) -> None:
        """`path` is the file that says what there is, or how it is found on `node`; drivers keep what they have to in `home`.

        `took` says how much of a GPU tasks of a user and a name took; `grace`: seconds that a job may take to end when its
        walltime is over. Raises `Invalid`.
        """
        self._file: FabricFile | None = None if path is None else read_fabric(Path(path))
        self._records, self._took = store.of(COMPOSITIONS), took
        #: The machine whose GPUs are cut.
        self._host: Host | None = None
        self._wake, self._closing = threading.Event(), threading.Event()
        self._used: Callable[[str], bool] = lambda _node: True
        self._changed: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self.composer: Composer | None = None
        if self._file is not None:
            self._pool = ThreadPoolExecutor(_ZONES, thread_name_prefix="fabric")
            self.composer = Composer(
                fabric=self._driver(self._file, home, node),
                records=self._records,
                clock=clock,
                fence=store.next_number("fabric"),
                used=lambda node: self._used(node),
                changed=lambda: self._changed(),
                each=self._pool.map,
            )
        self.machines = ComposedMachines(self.composer)
        rules = self._file or MachineRules()
        #: Machines for jobs.
        self.jobs = JobMachines(self.composer, rules, grace=grace, wake=self._wake.set)
        self._job = store.jobs.get
        self._clock = clock

    def _driver(self, file: FabricFile, home: Path, node: Node) -> Fabric:
        if file.driver != "mig":
            return SimulatedFabric(home / "fabric.json", file.blocks, file.faults)
        cpus, memory = file.cpus or node.cpus // 2, file.memory or node.memory // 2
        if cpus >= node.cpus or memory >= node.memory:
            raise Invalid(
                f"Jobs on slices are to have {cpus} processors and {format_size(memory)} of {node.name}.",
                remedy=f"It has {node.cpus} and {format_size(node.memory)} in all; leave some for others.",
            )
        self._host = Host(name=node.name, cpus=cpus, memory=memory, gpus=file.gpus)
        return MigFabric(home / "fabric-fence", self._host)

    def rest(self, node: Node) -> Node:
        """Return the lab's own machine without what is given to those who have slices."""
        if self._host is None or self.composer is None:
            return node
        try:
            mine = {block.uuid for block in self.composer.blocks()}
        except CarrelError as error:  # the same driver then tells of no GPU either
            _log.warning("The fabric: %s", error)
            mine = set()
        devices = tuple(device for device in node.devices if device.uuid not in mine)
        return replace(node, cpus=node.cpus - self._host.cpus, memory=node.memory - self._host.memory, devices=devices)

    def keepers(self, account: Callable[[Caller], str]) -> Iterable[Keeper[Any]]:
        """What callers do with it."""
        about = self._file or MachineRules()
        yield Compositions(
            noun=COMPOSITIONS,
            records=self._records,
            clock=self._clock,
            composer=self.composer,
            rules=about,
            account=account,
            took=self._took,
            wake=self._wake.set,
        )
        yield Blocks(noun=BLOCKS, records=FabricBlocks(composer=self.composer), clock=self._clock)

    def start(self, used: Callable[[str], bool], changed: Callable[[], None]) -> None:
        """Begin to make changes. `used` says whether a job has its place on a node; `changed` is called when one came or went."""
        self._used, self._changed = used, changed
        if self.composer is not None:
            self._thread = threading.Thread(target=self._run, args=(self.composer,), name="fabric", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Make no more changes; those under way are waited for."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._pool is not None:
            self._pool.shutdown()

    def _run(self, composer: Composer) -> None:
        said = ""
        while not self._closing.is_set():
            self._wake.clear()
            moved = False
            try:
                if self.jobs.turn(self._job):
                    self._changed()
                moved, trouble = composer.turn(), ""
            except CarrelError as error:
                trouble = str(error)
            except Exception:  # noqa: BLE001 - the next look may go well
                trouble = "a fault of the lab's"
                _log.exception("Machines could not be looked after.")
            if trouble and trouble != said:
                _log.warning("The fabric: %s", trouble)
            said = trouble
            if not moved:
                self._wake.wait(LOOK_SECONDS if composer.living() else REST_SECONDS)
