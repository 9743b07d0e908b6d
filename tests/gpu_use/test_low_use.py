"""What is said of a job that holds GPUs and hardly uses them, from what was seen of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.resources import Resources
from carrel.core.gpu_use import Look, Stack, WaitsFor, low_use, read_stacks

LOADER = Stack(line="train.py:48", function="DataLoader.__next__", waits_for=WaitsFor.INPUT, percent=71, answers=20)
TRAIN = Stack(line="train.py:60", function="step", waits_for=WaitsFor.OTHER, percent=90, answers=20)
SERVER = Stack(line="data.py:7", function="urlopen", waits_for=WaitsFor.NETWORK, percent=80, answers=20)


LOCK = Stack(line="a.py:3", function="", waits_for=WaitsFor.OTHER, percent=100, answers=9)


def seen(*means: float, **about: Any) -> Look:
    return Look(seconds=600.0, gpu_mean={f"GPU-{n}": mean for n, mean in enumerate(means)}, **about)


@pytest.mark.parametrize(
    ("look", "cpus", "code", "said"),
    [
        (seen(4, cpus=1.0), 1, "SlowInput", "Its GPU was busy for 4 % of 10 min. The processor was busy meanwhile"),
        (seen(4, cpus=1.0), 8, "FewWorkers", "About one of its 8 processors was busy meanwhile: one process"),
        (seen(4, cpus=8.0), 8, "SlowInput", "All 8 processors were busy meanwhile"),
        (seen(4, cpus=0.1), 8, "Idle", "Its processors were idle, too: it probably waits for files"),
        (seen(4, cpus=4.0), 8, "SmallSteps", "Its processors were not the limit: steps are probably small for this GPU."),
        (seen(4, cpus=4.0, gpu_memory=0.1), 8, "SmallSteps", "10 % of its memory is in use: Try larger batches"),
        (seen(4, cpus=1.0, stack=TRAIN), 8, "SmallSteps",
         "was in `step` (train.py:60) for 90 % of the time. If that prepares input, give it to worker processes"),
        (seen(0, 25, cpus=4.0), 8, "SomeUnused", "for 12 % of 10 min. One of them was never used: does the program"),
        (seen(0, 0, 30, cpus=4.0), 8, "SomeUnused", "2 of them were never used"),
        (seen(4, cpus=2.0, workers=2, stack=LOADER), 16, "FewWorkers",
         "71 % of the time in `DataLoader.__next__` (train.py:48), 2 worker processes, 14 processors free: try num_workers=8"),
        (seen(4, cpus=16.0, workers=16, stack=LOADER), 16, "SlowInput", "All 16 processors were busy meanwhile, 71 %"),
        (seen(0, cpus=1.0, opened=False), 4, "NeverOpened", "No process has opened it."),
        (seen(0, cpus=1.0, opened=False, torch_without_cuda=True), 4, "NoCudaInTorch", "a build without CUDA"),
        (seen(0, cpus=0.0, opened=True, still=True, silent=True), 4, "Stands", "a call that does not return to Python"),
        (seen(0, cpus=0.0, still=True, stack=LOCK), 4,
         "Stands", "stands in a.py:3"),
        (seen(4, cpus=0.1, faults=400.0, swapped=1 << 30), 4, "Swapping", "again (major faults), and 1G"),
        (seen(4, cpus=0.1, stack=SERVER), 4, "WaitsForNetwork", "80 % of the time in `urlopen` (data.py:7): it"),
        (seen(4, cpus=0.5, disk=70), 4, "WaitsForDisk",
         "waits for the disk for 70 % of the time. Read larger pieces, or have workers read ahead; write"),
        (seen(0, cpus=3.0, opened=True, stack=TRAIN), 4, "OnProcessors", "processors were busy instead, most often in `step`"),
        (seen(0, cpus=0.0, session=True), 4, "IdleReservation", "no cell has used them"),
    ],
)  # fmt: skip
def test_what_it_probably_waits_for_is_named(look: Look, cpus: int, code: str, said: str) -> None:
    advice = low_use(look, Resources(cpus=cpus, gpus=len(look.gpu_mean)))
    assert advice is not None
    assert (advice.code, said in advice.message) == (code, True), advice.message


@given(
    st.lists(st.floats(0, 100), max_size=8), st.floats(0, 64), st.integers(1, 64), st.booleans(),
    st.sampled_from([None, LOADER, TRAIN, SERVER]), st.booleans(), st.floats(0, 1000),
)  # fmt: skip
def test_nothing_is_said_of_what_is_busy_or_was_not_measured(
    means: list[float], cpus: float, has: int, session: bool, stack: Stack | None, still: bool, faults: float
) -> None:
    look = seen(*means, cpus=cpus, stack=stack, still=still, faults=faults, session=session)
    advice = low_use(look, Resources(cpus=has, gpus=max(1, len(means))))
    busy = not means or sum(means) / len(means) >= 15
    if busy:
        assert advice is None
    elif not session:
        assert advice is not None
        assert len(advice.message) < 600


def answer(process: int, *frames: tuple[str, str, int]) -> str:
    return "\x1e".join([str(process), *("\x1f".join((function, file, str(line))) for function, file, line in frames)])


HOME = "/lab/7"
IN_LOADER = [("recv", "/usr/lib/python3.11/connection.py", 9), ("DataLoader.__next__", "/x/site-packages/torch/loader.py", 5),
             ("train", f"{HOME}/train.py", 48), ("<module>", f"{HOME}/train.py", 70)]  # fmt: skip


def test_the_line_of_the_program_that_waits_is_found() -> None:
    step = answer(4, ("step", f"{HOME}/model.py", 3), ("train", f"{HOME}/train.py", 50))
    said = "\n".join([answer(4, *IN_LOADER)] * 15 + [step] * 5 + [answer(5, ("f", "/elsewhere.py", 1))])
    found = read_stacks(said, HOME)
    assert found is not None
    assert found.words == "`DataLoader.__next__` (train.py:48)"
    assert (found.waits_for, found.percent, found.answers) == (WaitsFor.INPUT, 75, 20)


@given(st.text() | st.text(alphabet="\x1e\x1f\n`<a/.1\x1b\u202e"))
def test_answers_may_say_anything(said: str) -> None:
    found = read_stacks(said, HOME)
    if found is not None:
        assert len(found.words) < 200
        assert found.words.isprintable()
