"""The engines that one lab has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Node
from carrel.core.domain.partition import LOCAL, Partition, read_cluster
from carrel.core.domain.task import EngineRequest
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.router import Router
from carrel.lab.server.engine import LabContext, LabEngine
from carrel.lab.server.engine_factories import factories
from carrel.node.environments import is_built


class LabEngines:
    """The engines of one lab. Each is opened when it is needed: rules that name it may come while the lab runs. Thread-safe."""

    def __init__(self, lab: LabContext) -> None:
        self._lab = lab
        self._open: dict[str, LabEngine] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> LabEngine:
        """Return the engine of that name ("": the lab's own machine). Raises `Unavailable` for one that is not installed."""
        name = name or LOCAL
        with self._lock:
            if name not in self._open:
                factory = factories().get(name)
                if factory is None:
                    whose = "Carrel" if name == LOCAL else "its package"
                    raise Unavailable(f'The engine "{name}" is not installed.', remedy=f"Install {whose} again.")
                self._open[name] = factory.open(self._lab)
            return self._open[name]

    def nodes(self, partition: Partition) -> Sequence[Node]:
        """The nodes that the partition's engine may choose; none while they are not known."""
        return self.of(partition.engine).nodes(partition)

    def user(self, partition: Partition, subject: str) -> str:
        """The Unix user as whom a person's jobs run there, as `LabEngine.user` says."""
        return self.of(partition.engine).user(subject)

    def is_built(self, launch: Launch, environ: Mapping[str, str]) -> bool:
        """Whether the environment of a launch is there, as far as the lab can see: a user's own directory it cannot look into."""
        engine = self.of(read_cluster(launch.node)[0])
        return not engine.user(launch.owner) and is_built(launch, engine.passed(environ))

    def check(self, partition: Partition, asked: EngineRequest) -> None:
        """Raise `Invalid` for what a task cannot ask for there."""
        self.of(partition.engine).check(partition, asked)

    def addresses(self, own: Callable[[Job], bytes | None]) -> Callable[[Job], bytes | None]:
        """Return what reads where a session of an engine's is: the lab itself (`own`), or the engine where only that can."""

        def read(job: Job) -> bytes | None:
            theirs = self.of(read_cluster(job.node)[0]).read_address(job)
            return own(job) if theirs is None else theirs

        return read

    def deputy_of(self, job: Job, *, router: Router) -> DeputyEngine | None:
        """In whose hands the files of a job's last attempt are; None when they are the lab's own. `router` is the lab's."""
        name = read_cluster(job.node)[0]
        if not name:
            return None
        router.engine(name)  # what is made by then is closed with it
        return self.of(name).deputy_of(job)

    def state(self) -> Sequence[tuple[str, str]]:
        """What there is to tell of engines that the rules name: the engine's title, and a sentence."""
        names = dict.fromkeys(part.engine for part in self._lab.rules.current.partitions.values() if part.cluster)
        return [(factories()[name].title, line) for name in names for line in self.of(name).state()]
