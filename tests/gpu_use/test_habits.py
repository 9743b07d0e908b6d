"""What is said at submission of what the last tasks of a name took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import GIB, parse_duration
from carrel.core.gpu_use.habits import Past, habits

DONE = Past(job=7, state=JobState.COMPLETED, seconds=2400, memory=2 * GIB, gpu_memory=17 * GIB)
FAILED = Past(job=9, state=JobState.FAILED, code="NonZeroExitCode", words="The command ended with exit code 1.")
USUAL = Resources(memory=4 * GIB, time=3600, gpus=1)


@pytest.mark.parametrize(
    ("past", "asked", "said"),
    [
        ([DONE] * 12, replace(USUAL, memory=64 * GIB), ["took at most 2G of memory: `--memory 3G` instead of 64G is enough."]),
        ([DONE] * 4, replace(USUAL, time=24 * 3600), ["at most 40 min: `--time 50min` instead of 1 d can be placed"]),
        ([DONE] * 4, replace(USUAL, gpu_type="h200"), ["17G of their GPU: `--gpu-memory 22G` instead of --gpu-type h200 may"]),
        ([FAILED] * 4, USUAL, ["ended alike: The command ended with exit code 1. `carrel logs 9` has"]),
        # What asks for what it takes, what has few before it, and what failed otherwise, is left alone.
        ([DONE] * 12, USUAL, []),
        ([DONE] * 2, replace(USUAL, memory=64 * GIB, time=24 * 3600), []),
        ([replace(DONE, memory=0)] * 12, replace(USUAL, memory=64 * GIB), []),
        ([FAILED, FAILED, DONE, FAILED], USUAL, []),
        ([FAILED, replace(FAILED, code="OutOfMemory", words="x")] * 3, USUAL, []),
        ([], replace(USUAL, memory=64 * GIB), []),
        ([DONE] * 12, replace(USUAL, gpus=0, gpu_memory=0, memory=4 * GIB), []),
    ],
)  # fmt: skip
def test_what_is_much_more_than_what_was_taken_is_said(past: list[Past], asked: Resources, said: list[str]) -> None:
    found = habits(past, asked)
    assert len(found) == len(said)
    assert all(words in note for words, note in zip(said, found, strict=True)), found


def test_what_is_proposed_can_be_asked_for() -> None:
    (said,) = habits([DONE] * 4, replace(USUAL, time=24 * 3600))
    assert parse_duration(said.split("`--time ")[1].split("`")[0]) == 3000
