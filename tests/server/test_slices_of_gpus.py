"""A lab that cuts a GPU into slices for its users, and one whose GPU is cut already: on the fake driver."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.core.domain.composition import Composition, CompositionState
from carrel.core.domain.errors import Invalid
from carrel.core.domain.fabric import BlockKind, Wish
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.core.domain.units import GIB
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest
from support.fake_driver import FakeDriver, FakeGpu, build, find_compiler
from support.small_lab import MortalLab

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C")

RUNNING = CompositionState.RUNNING


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    whole, cut = (FakeGpu(uuid=f"GPU-{uuid.uuid4()}", memory=141 * GIB, mig=mig) for mig in (False, True))
    made = build(tmp_path / "driver", gpus=[whole, cut])
    made.for_all()
    return made


@pytest.fixture
def lab(driver: FakeDriver, tmp_path: Path) -> Iterator[MortalLab]:
    (tmp_path / "fabric.toml").write_text('driver = "mig"\ncpus = 2\nmemory = "1G"\n')
    running = started(driver, tmp_path, f'fabric = "{tmp_path}/fabric.toml"\n')
    yield running
    running.stop()


@pytest.fixture
def classroom(driver: FakeDriver, tmp_path: Path) -> Iterator[MortalLab]:
    """A lab without a fabric, on a machine with a GPU that an administrator has cut in seven, and a whole one."""
    cut = f"[create_slice('{driver.gpus[1].uuid}', '1g.18gb', start) for start in range(7)]"
    code = f"from carrel.node.devices.slices import create_slice; {cut}"
    subprocess.run([sys.executable, "-c", code], env=driver.environment(), check=True)
    running = started(driver, tmp_path)
    yield running
    running.stop()


def started(driver: FakeDriver, place: Path, rules: str = "") -> MortalLab:
    environment = driver.environment()
    variables = {name: environment[name] for name in ("LD_LIBRARY_PATH", "CARREL_FAKE_DRIVER")}
    return MortalLab(place / "lab", "--cpus", "8", rules=rules, variables=variables, python=[sys.executable])


def composed(lab: MortalLab, wish: Wish) -> Composition:
    made = lab.client.add(COMPOSITIONS, Composition(wishes=(wish,), time=3600))

    def there() -> Composition | None:
        one = lab.client.one_of(COMPOSITIONS, made.id)
        return one if one.state is RUNNING else None

    found = wait_until(there, lambda: lab.client.one_of(COMPOSITIONS, made.id))
    assert found is not None
    return found


@pytest.mark.gate
def test_a_slice_is_cut_for_a_user_and_a_job_runs_on_it(lab: MortalLab, driver: FakeDriver) -> None:
    own = next(node for node in lab.client.nodes())
    # The GPU in MIG mode is the fabric's, and so are two processors.
    assert ([device.uuid for device in own.devices], own.cpus) == ([driver.gpus[0].uuid], 6)
    one = composed(lab, Wish(kind=BlockKind.GPU, sliced=True, size=17 * GIB))
    assert one.blocks == ("gpu1/1g.18gb@6",)
    told = {each.profile: (each.free, each.used) for each in lab.client.gpus().slices}
    assert (told["1g.18gb"], told["3g.71gb"]) == ((6, 1), (1, 0))
    lab.kill_and_restart()
    (made,) = (block for block in lab.client.all_of(BLOCKS) if block.of)
    assert (made.composition, made.size) == (one.id, 16 * GIB)
    job = lab.submit(
        "echo $CUDA_VISIBLE_DEVICES", resources=ResourceRequest(gpus=1, gpu_type="h200-1g.18gb", memory="64M", time="10m")
    )
    assert lab.ended(job.id).state == "COMPLETED"
    assert made.uuid in lab.log(job.id)
    assert lab.client.record(job.id)["attempts"][-1]["hardware"]["gpu_0"] == f"h200 1g.18gb, 16G, {made.uuid}"


def test_a_slice_as_large_as_tasks_of_a_name_needed(lab: MortalLab, driver: FakeDriver) -> None:
    like = Wish(kind=BlockKind.GPU, sliced=True, like="digits")
    with pytest.raises(Invalid, match='No task of yours called "digits" has completed'):
        lab.client.add(COMPOSITIONS, Composition(wishes=(like,), time=60))
    first = composed(lab, Wish(kind=BlockKind.GPU, sliced=True, profile="3g.71gb"))
    (slice_of_it,) = (block for block in lab.client.all_of(BLOCKS) if block.of)
    driver.put_on(slice_of_it.uuid, 4711, memory=15 * GIB)
    wanted = ResourceRequest(gpus=1, gpu_type="h200-3g.71gb", memory="64M", time="10m")
    go = lab.home.parent / "go"
    task = lab.submit(f"until [ -e {go} ]; do sleep 0.05; done", name="digits", resources=wanted)
    lab.until(task.id, lambda job: any(each.usage.gpu_memory_peak for each in job.attempts))  # it is looked at every few seconds
    go.touch()
    assert lab.ended(task.id).state == "COMPLETED"
    second = composed(lab, like)
    # 15 GiB and a quarter more: the slice with 16 GiB is too small for the next task that takes a little more.
    assert [name.partition("/")[2].partition("@")[0] for name in second.blocks] == ["1g.35gb"]
    assert second.asked == "1 slice (as digits took, 19G at least)"
    assert first.id != second.id


def test_a_session_holds_the_slice_that_was_cut_for_its_user(lab: MortalLab) -> None:
    one = composed(lab, Wish(kind=BlockKind.GPU, sliced=True, profile="2g.35gb"))
    whole = lab.submit("sleep 1000", resources=ResourceRequest(gpus=1, gpu_type="h200", memory="64M"))
    lab.until(whole.id, lambda job: job.state == "RUNNING")
    asked = SessionRequest(gpus=1, reserve=True, kind="terminal", cpus=1, memory="64M", time="30m")
    session = lab.client.start_session(asked).job.id
    held = lab.until(session, lambda job: job.state == "RUNNING")
    (mine,) = (block for block in lab.client.all_of(BLOCKS) if block.composition == one.id)
    assert held.devices == [mine.uuid]


def test_slices_that_are_there_are_devices_for_tasks_and_for_cells(classroom: MortalLab, driver: FakeDriver) -> None:
    (node,) = classroom.client.nodes()
    kinds = [device.type for device in node.devices]
    assert kinds == ["h200", *["h200-1g.18gb"] * 7]
    # "10 GB, whatever it is": a slice, although only one whole GPU and seven slices are free.
    small = ResourceRequest(gpus=1, gpu_memory="10G", memory="64M")
    large = ResourceRequest(gpus=1, gpu_memory="30G", memory="64M")
    seen = {}
    for name, wanted in (("small", small), ("large", large)):
        job = classroom.submit("echo is $CUDA_VISIBLE_DEVICES", resources=wanted)
        assert classroom.ended(job.id).state == "COMPLETED"
        seen[name] = classroom.log(job.id).partition("is ")[2].strip()
    assert seen["small"].startswith("MIG-")
    assert seen["large"] == driver.gpus[0].uuid
    wait_until(lambda: len(classroom.client.gpus().devices) == 8)
    lending = classroom.client.gpus()
    assert (lending.tier, [device.uuid[:4] for device in lending.devices].count("MIG-")) == ("hold", 7)
