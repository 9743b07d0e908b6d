"""Archives that were made to get out, or that a line has garbled: none writes outside, none fails but with words."""

from __future__ import annotations

import io
import random
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from carrel.core.domain.errors import CarrelError
from carrel.core.snapshots import pack
from carrel.core.snapshots.extraction import extract


def hostile(chance: random.Random, good: bytes) -> bytes:
    """An archive that somebody made to get out, or that a line has garbled."""
    if chance.random() < 0.5:
        data = bytearray(good)
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)
    out = io.BytesIO()
    names = (
        "a",
        "a/b",
        "../out",
        "/tmp/out",
        "a/../../out",
        "./a",
        "a//b",
        "link/out",
        "link",
        "\udcff",
        "a" * 300,
        "x/" * 60 + "y",
    )
    names += (".", "..")
    with tarfile.open(
        fileobj=out, mode="w", format=chance.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    ) as tar:
        for _ in range(chance.randrange(1, 6)):
            info = tarfile.TarInfo(chance.choice(names))
            info.type = chance.choice((b"0", b"0", b"1", b"2", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"\0", b"V"))
            info.linkname = chance.choice(("..", "../..", "/etc", "a", "../../../../../tmp", "", "x" * 200))
            info.mode, info.uid = chance.choice((0o4755, 0o777, 0o644)), 0
            info.size = chance.choice((0, 3)) if info.isreg() else 0
            try:
                tar.addfile(info, io.BytesIO(b"out") if info.size else None)
            except ValueError:
                continue
    return out.getvalue()


def archives(place: Path, count: int) -> Counter[str]:
    chance, ends = random.Random(count), Counter[str]()
    code = place / "code"
    (code / "sub").mkdir(parents=True)
    (code / "MLproject").write_text("name: greeting\n")
    (code / "sub" / ("n" * 150)).write_text("long")
    (code / "link").symlink_to("sub")
    with pack(code).open() as stream:
        good = stream.read()
    (place / "in").mkdir()
    for number in range(count):
        archive = place / "in" / f"{number}.tar"
        archive.write_bytes(hostile(chance, good))
        target = place / "in" / str(number)
        try:
            extract(archive, target)
            ends["taken"] += 1
        except CarrelError:
            ends["refused"] += 1
        inside = target.resolve()
        for path in target.rglob("*"):
            assert path.is_symlink() or path.resolve().is_relative_to(inside), path
            assert path.is_symlink() or not path.stat().st_mode & 0o7000, path
    assert sorted(path.name for path in place.iterdir()) == ["code", "in"]
    assert {path.stem for path in (place / "in").iterdir()} == {str(number) for number in range(count)}
    return ends


def test_no_archive_writes_outside(tmp_path: Path) -> None:
    assert archives(tmp_path / "here", 200).total() == 200


@pytest.mark.soak
def test_none_of_very_many_archives_writes_outside(tmp_path: Path) -> None:
    print(archives(tmp_path / "here", 20_000))
