"""Values, packages and modules on their way to a worker; what a call prints on its way back."""

from __future__ import annotations

import itertools
import os
import struct
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.client.executor import pickling
from carrel.client.executor.code import write_worker
from carrel.client.executor.environment import SentModules, copy_modules, installed, own_modules, read_requirements
from carrel.client.executor.future import Printed
from carrel.core.domain.errors import Invalid
from carrel.core.tasks import describe
from carrel.core.tasks.files import DirectoryFiles

pytestmark = pytest.mark.quick


def sent(value: object) -> object:
    return pickling.load(bytearray(b"".join(bytes(part) for part in pickling.dump(value))))


def test_functions_and_values_travel() -> None:
    step = 3
    assert sent(lambda x: x + step)(4) == 7  # type: ignore[operator]
    assert sent({"a": [1, None, "b"]}) == {"a": [1, None, "b"]}


def test_large_buffers_lie_beside_the_pickle_and_are_not_copied() -> None:
    import pickle

    parts = pickling.dump(pickle.PickleBuffer(bytearray(b"x" * 100_000)))
    assert len(parts) == 3
    assert pickling.size_of(parts) == sum(len(part) for part in parts)
    data = bytearray(b"".join(bytes(part) for part in parts))
    found = pickling.load(data)
    data[-1:] = b"y"
    assert bytes(found)[-2:] == b"xy"


def test_what_cannot_be_pickled_is_an_error_here() -> None:
    import threading

    with pytest.raises(TypeError, match="pickle"):
        pickling.dump(threading.Lock())


def test_packages_have_their_versions_and_carrel_is_none_of_them() -> None:
    lines = installed()
    assert any(line.startswith("cloudpickle==") for line in lines)
    assert not any(line.lower().startswith(("carrel", "pip=")) for line in lines)


def test_requirements_come_from_a_file_or_a_list(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("# of mine\nnumpy==2.1.0\n\n  scipy\n")
    assert read_requirements(tmp_path / "r.txt") == ["numpy==2.1.0", "scipy"]
    assert read_requirements(["torch"]) == ["torch"]
    with pytest.raises(Invalid, match=r"no file .*none.txt"):
        read_requirements(tmp_path / "none.txt")


def test_own_modules_are_those_that_no_package_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine_of_a_test"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("x = 1\n")
    (package / "data.json").write_text("{}")
    (package / "__pycache__" / "old.pyc").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import mine_of_a_test.part  # type: ignore[import-not-found]

    try:
        found = own_modules()
        assert found["mine_of_a_test"] == package
        assert not {"pytest", "json", "carrel", "__main__"} & set(found)
        copy_modules({"mine_of_a_test": package}, tmp_path / "there")
        copied = {str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*") if path.is_file()}
        assert copied == {"mine_of_a_test/__init__.py", "mine_of_a_test/part.py", "mine_of_a_test/data.json"}
        assert own_modules([mine_of_a_test]) == {"mine_of_a_test": package}
    finally:
        for name in ("mine_of_a_test.part", "mine_of_a_test"):
            sys.modules.pop(name, None)


def test_a_module_that_was_edited_since_is_named_once(tmp_path: Path) -> None:
    package, alone = tmp_path / "edited_of_a_test", tmp_path / "alone_of_a_test.py"
    (package / "deep").mkdir(parents=True)
    for path in (alone, package / "__init__.py", package / "deep" / "part.py", package / "data.csv"):
        path.touch()
        os.utime(path, (1, 1))
    seconds = itertools.count()
    sent = SentModules({"edited_of_a_test": package, "alone_of_a_test": alone}, monotonic=lambda: float(next(seconds)))
    assert list(sent.edited()) == []
    (package / "data.csv").write_text("1")  # no code
    assert list(sent.edited()) == []
    (package / "deep" / "part.py").write_text("x = 1")
    assert list(sent.edited()) == ["edited_of_a_test"]
    alone.unlink()
    assert list(sent.edited()) == []


def test_modules_without_a_file_do_not_travel() -> None:
    assert own_modules([ModuleType("made_up")]) == {}


@pytest.mark.parametrize("lines", [["numpy==2.1.0", 'a ; python_version > "3"'], [], None])
def test_a_worker_is_a_task_that_the_lab_understands(tmp_path: Path, lines: list[str] | None) -> None:
    write_worker(tmp_path, requirements=lines, modules={}, initializer=None)
    described = describe(
        DirectoryFiles(tmp_path, tmp_path), entry_point="main", script=None, parameters={}, arguments=[], strict=True
    )
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert described.command == f"python -m carrel_worker {own}"
    assert described.environment.python == (None if lines is None else own)
    assert described.environment.requirements == tuple(sorted(lines or ()))


@given(
    text=st.binary(max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    kept=st.integers(0, 60),
    heard=st.integers(0, 6),
)
def test_what_is_heard_live_and_at_the_end_is_said_once(text: bytes, cuts: list[int], kept: int, heard: int) -> None:
    places = sorted({0, *(min(cut, len(text)) for cut in cuts)})
    printed, said = Printed(), b""
    for start, end in list(itertools.pairwise(places))[:heard]:
        said += printed.live(start, text[start:end])
    tail = text[-kept:] if kept else b""
    before = len(said)
    said += printed.ended(struct.pack(">Q", len(text)) + tail if text else b"")
    if before + len(tail) >= len(text):
        assert said == text
    else:
        missing = len(text) - len(tail) - before
        assert said == text[:before] + f"\n[carrel: {missing} bytes were not kept]\n".encode() + tail
    assert printed.text() == said.decode("utf-8", "replace")


def test_a_piece_that_was_lost_comes_with_the_end() -> None:
    printed = Printed()
    assert printed.live(0, b"ab") == b"ab"
    assert printed.live(4, b"ef") == b""
    assert printed.live(2, b"cd") == b""
    assert printed.ended(struct.pack(">Q", 6) + b"abcdef") == b"cdef"
