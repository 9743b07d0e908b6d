"""Many processes use one store: one builds, the others wait; whoever dies leaves nothing wrong; what is used stays."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from environment_lab import Lab
from named_lab import LIMIT, Gate, hear, process_of

from carrel.core.domain.errors import NotFound
from carrel.core.domain.task import EnvironmentRecipe
from carrel.node.environments import EnvironmentStopped, EnvironmentTimeout

Recipe = Callable[..., EnvironmentRecipe]

BUILDER = """
import json, sys
from pathlib import Path
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.environments import EnvironmentSettings, EnvironmentStore
root, uv, code, environ = json.loads(sys.argv[1])
def say(kind, what):
    print(json.dumps([kind, what]), flush=True)
store = EnvironmentStore(Path(root), settings=EnvironmentSettings(uv=Path(uv)), environ=environ)
recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, source="requirements.txt", requirements=("alpha",))
made = store.prepare(recipe, code=Path(code), code_digest="sha256:aa", report=lambda line: say("report", line))
say("ready", made.built)
sys.stdin.read()
"""


def builder(lab: Lab) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Another process that prepares "alpha" and then holds it until its standard input closes."""
    return process_of(BUILDER, [str(lab.root), str(lab.base / "uv"), str(lab.code), lab.environ])


@pytest.mark.gate
def test_of_two_builders_one_builds_and_the_other_waits(lab: Lab) -> None:
    lab.wheel("alpha")
    gate = Gate(lab, "pip sync")
    with builder(lab) as first, builder(lab) as second:
        gate.wait()
        heard: dict[str, object] = {}
        ready = threading.Event()

        def listen(name: str, process: subprocess.Popen[str]) -> None:
            assert process.stdout is not None
            for line in process.stdout:
                kind, value = json.loads(line)
                if kind == "ready":
                    heard[name] = value
                    return
                if "another job" in value:
                    ready.set()

        threads = [threading.Thread(target=listen, args=pair) for pair in (("first", first), ("second", second))]
        for thread in threads:
            thread.start()
        assert ready.wait(LIMIT), "nobody waits"
        gate.open()
        for thread in threads:
            thread.join(LIMIT)
        assert sorted(heard.values()) == [False, True]  # type: ignore[type-var]
    assert len(lab.calls("pip sync")) == 1
    assert len(lab.calls("pip compile")) == 1


def test_a_killed_builder_leaves_nothing_wrong(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    gate = Gate(lab, "pip sync")
    with builder(lab) as first:
        gate.wait()
        first.kill()
        first.wait(LIMIT)
    # Its uv lives on, and could still write into the directory: nobody else may build there yet.
    with builder(lab) as second:
        hear(second, "report", "another job builds this environment; waiting for it")
        lab.uv()
        gate.open()
        assert hear(second, "ready") == "True"
    environment = lab.prepare(needs("alpha"))
    assert not environment.built
    assert subprocess.run([environment.python, "-c", "import alpha"], timeout=LIMIT).returncode == 0


@pytest.fixture
def stuck(lab: Lab) -> Iterator[int]:
    """A uv that hangs while resolving, with a child, both deaf to SIGTERM: the descriptor reads EOF when they are gone."""
    alive = lab.base / "alive"
    os.mkfifo(alive)
    lab.uv(f'case "$*" in "pip compile"*) exec 9> {alive}; trap "" TERM; sleep 600 & wait;; esac')
    fd = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def gone(fd: int) -> bool:
    """True when every process that had the FIFO open is gone."""
    return bool(select.select([fd], [], [], LIMIT)[0]) and os.read(fd, 1) == b""


def test_stop_ends_every_process(lab: Lab, needs: Recipe, stuck: int) -> None:
    called = lambda: bool(lab.calls("pip compile"))  # noqa: E731
    with pytest.raises(EnvironmentStopped):
        lab.prepare(needs("alpha"), stop=called)
    assert gone(stuck)


def test_the_deadline_ends_every_process(lab: Lab, needs: Recipe, stuck: int) -> None:
    with pytest.raises(EnvironmentTimeout, match="time"):
        lab.prepare(needs("alpha"), deadline=time.monotonic() + 1)
    assert gone(stuck)


def test_who_waits_for_another_can_be_stopped(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    gate = Gate(lab, "pip sync")
    with builder(lab) as first:
        gate.wait()
        waits: list[str] = []
        with pytest.raises(EnvironmentStopped):
            lab.prepare(needs("alpha"), report=waits.append, stop=lambda: bool(waits))
        assert waits == ["another job builds this environment; waiting for it"]
        gate.open()
        assert hear(first, "ready") == "True"


def test_collection_removes_what_is_unused_and_nothing_else(lab: Lab, needs: Recipe) -> None:
    for name in ("alpha", "beta", "gamma", "delta"):
        lab.wheel(name)
    store = lab.store()
    held, kept, unused, fresh = (lab.prepare(needs(name)) for name in ("alpha", "beta", "gamma", "delta"))
    for environment in (kept, unused, fresh):
        environment.hold.close()
    now = time.time() + 1000
    guards = {path.name: path for path in (lab.root / "guards").iterdir()}
    os.utime(guards[fresh.path.name], (now, now))

    would = store.collect(unused_for=500, keep=frozenset({kept.digest}), now=now, dry_run=True)
    assert [info.digest for info in would] == [unused.digest]
    assert unused.python.exists()
    removed = store.collect(unused_for=500, keep=frozenset({kept.digest}), now=now)
    assert [info.digest for info in removed] == [unused.digest]
    assert not unused.path.exists()
    assert all(environment.python.exists() for environment in (held, kept, fresh))
    assert {info.digest for info in store.list()} == {held.digest, kept.digest, fresh.digest}
    assert unused.path.name not in {path.name for path in (lab.root / "guards").iterdir()}

    resolved = len(lab.calls("pip compile"))
    again = lab.prepare(needs("gamma"))
    assert again.built
    assert again.digest == unused.digest
    # Its lock went with it: this one was resolved anew.
    assert len(lab.calls("pip compile")) == resolved + 1


def test_an_environment_is_held_by_other_processes_too(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    lab.uv()
    store = lab.store()
    with builder(lab) as user:
        assert hear(user, "ready") == "True"
        assert store.collect(unused_for=0, now=time.time() + 10) == []
        user.send_signal(signal.SIGKILL)
        user.wait(LIMIT)
        assert len(store.collect(unused_for=0, now=time.time() + 10)) == 1


def test_hold_by_digest(lab: Lab) -> None:
    environment = lab.prepare(EnvironmentRecipe())
    lab.release()
    store = lab.store()
    with store.hold(environment.digest):
        assert store.collect(unused_for=0, now=time.time() + 10) == []
    assert len(store.collect(unused_for=0, now=time.time() + 10)) == 1
    with pytest.raises(NotFound):
        store.hold(environment.digest)


def test_a_hold_is_not_inherited_by_the_job(lab: Lab) -> None:
    environment = lab.prepare(EnvironmentRecipe())
    command = [environment.python, "-c", "input('running\\n')"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as job:
        # execve(2) lets the parent of a vfork go on before it has closed the descriptors: the job has to say that it runs.
        assert job.stdout.readline() == b"running\n"
        lab.release()
        assert len(lab.store().collect(unused_for=0, now=time.time() + 10)) == 1
        job.communicate(b"\n", timeout=LIMIT)


def test_listing_tells_what_is_there(lab: Lab, needs: Recipe) -> None:
    assert lab.store().list() == []
    lab.wheel("alpha")
    environment = lab.prepare(needs("alpha"))
    (lab.root / "envs/half").mkdir()
    whole, half = sorted(lab.store().list(), key=lambda info: not info.complete)
    assert (whole.digest, whole.packages, whole.python) == (environment.digest, ("alpha==1.0",), environment.version)
    assert whole.size > 1000
    assert not half.complete
    assert [info.path for info in lab.store().collect(unused_for=1e9, now=time.time())] == [Path(half.path)]
