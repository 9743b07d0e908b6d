"""The course of an attempt, read from its journal."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from carrel.core.domain.launch import Paused, Sampled, Started, Usage
from carrel.core.spool import Journal
from carrel.core.spool.course import MOST_SAMPLES, Course, read_course


def journal(path: Path, samples: int) -> Path:
    """The journal of a command that was paused once, with a sample each second."""
    written = Journal(path)
    written.append(0.0, Started(pid=1))
    for second in range(samples):
        written.append(float(second), Sampled(usage=Usage(cpu_seconds=float(second))))
    written.append(float(samples), Paused())
    written.close()
    return path


@pytest.mark.parametrize("samples", [0, 1, 240, 241, 1000, 5000])
def test_samples_are_few_and_even_with_the_first_and_the_last(tmp_path: Path, samples: int) -> None:
    course = read_course(journal(tmp_path / "journal", samples))
    assert [type(entry.record) for entry in course.steps] == [Started, Paused]
    moments = [at for at, _ in course.samples]
    assert len(moments) <= MOST_SAMPLES + 1
    assert len(moments) >= min(samples, MOST_SAMPLES // 2)
    assert moments[:1] == [0.0][:samples]
    assert moments[-1:] == [samples - 1.0][:samples]
    assert len({after - before for before, after in pairwise(moments[:-1])}) <= 1


def test_what_is_damaged_or_not_whole_is_left_out(tmp_path: Path) -> None:
    path = journal(tmp_path / "journal", 3)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = lines[1].replace(b'"cpu_seconds":0.0', b'"cpu_seconds":7.0')
    path.write_bytes(b"".join([lines[0], damaged, b"\0\xff\n", b'00000000 {"at":[[[\n', *lines[2:-1], lines[-1][:-1]]))
    course = read_course(path)
    assert [at for at, _ in course.samples] == [1.0, 2.0]
    assert [type(entry.record) for entry in course.steps] == [Started]


@pytest.mark.parametrize("kind", ["nothing", "link", "pipe", "endless"])
def test_what_a_job_could_put_in_its_place(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "journal"
    if kind == "link":
        path.symlink_to(journal(tmp_path / "other", 3))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.write_bytes(b"x" * 3_000_000)
    assert read_course(path) == Course()
