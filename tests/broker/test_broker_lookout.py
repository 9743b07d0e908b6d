"""Who is on the devices: sorting what the driver says by tenants and strangers."""

from __future__ import annotations

import os
import subprocess
import sys

from carrel.core.domain.units import GIB
from carrel.node.broker.core.device_scans import sort_out
from carrel.node.broker.processes import ProcessGone, find, name_of, roots, start_time
from carrel.node.suspension.ports import Use


def test_tenants_their_children_and_strangers_are_told_apart() -> None:
    use = Use(processes={"gpu0": {10: 4 * GIB, 11: GIB, 99: 2 * GIB}, "gpu1": {}}, used={"gpu0": 8 * GIB, "gpu1": GIB})
    seen = sort_out(use, {10: 10, 11: 10})
    assert seen.tenants == {10: {"gpu0": 5 * GIB}}
    assert seen.strangers == {"gpu0": {99: 2 * GIB}}
    assert seen.foreign == {"gpu0": 3 * GIB, "gpu1": GIB}, "what the driver takes for itself belongs to nobody"


def test_a_size_that_the_driver_does_not_tell_is_nobody_elses() -> None:
    use = Use(processes={"gpu0": {10: 0, 99: GIB}}, used={"gpu0": 8 * GIB})
    assert sort_out(use, {10: 10}).foreign == {"gpu0": GIB}


def test_a_device_that_does_not_answer_says_nothing() -> None:
    assert sort_out(Use(), {}).foreign == {}


def test_descendants_are_found() -> None:
    script = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(1, flush=True); sys.stdin.read()'])"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    with open(f"/proc/{child.pid}/task/{child.pid}/children") as file:
        grandchild = int(file.read().split()[0])
    assert roots([grandchild, 1, os.getpid()], [child.pid]) == {grandchild: child.pid}
    assert roots([grandchild], [os.getpid()]) == {grandchild: os.getpid()}
    start = start_time(child.pid)
    assert start is not None
    found = find(child.pid, start, os.getuid())
    assert found.name == f"{child.pid}-{start}"
    assert name_of(child.pid)
    child.communicate()
    found.close()
    try:
        find(child.pid, start, os.getuid())
    except ProcessGone:
        return
    raise AssertionError("a process that ended was found")
