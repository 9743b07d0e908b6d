"""What counts as the same call: the digest of function and arguments, in this process and in others."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.client.executor.digest import digest, digest_of_files

pytestmark = pytest.mark.quick

#: A notebook's kind of code: all of it is in `__main__`.
PROGRAM = '''
import abc, collections, dataclasses, enum, functools, math, os.path, sys
from carrel.client.executor.digest import digest

SCALE = {"b": 2, "a": {"x", "y", "z", "w"}}

@functools.lru_cache
def remembered(n):
    return n * 11

class Colour(enum.Enum):
    """Of a colour."""
    RED = 1
    BLUE = 2

class Base(abc.ABC):
    @abc.abstractmethod
    def value(self): ...

@dataclasses.dataclass(frozen=True)
class Point(Base):
    x: float
    y: float = 1.5
    tags: frozenset = frozenset({"one", "two", "three"})

    @property
    def length(self):
        return math.hypot(self.x, self.y)

    def value(self):
        return self.length * SCALE["b"]

def helper(n: int, *, more=3):
    if n in {"p", "q", "r", "s"}:
        return Colour.RED
    return helper(n - 1) if n else [k for k in SCALE] + [Point(1.0)]

def adder(step):
    """What it says."""
    return lambda x, y=(1, 2): x + step + len(os.path.join("a", "b")) + helper(x).__len__()

values = [remembered, adder(2), functools.partial(helper, 3, more=4), Point(1.0, tags=frozenset({"k", "l", "m"})), Colour.BLUE,
          collections.OrderedDict(a=1), collections.Counter("abca"), Point(2.0).value, range(3), slice(1, 2), 1.5, b"x",
          None, ..., 2j]
circle = []
circle.append(circle)
print(digest([*values, circle]).hex())
'''


RUN = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')"


def run(tmp_path: Path, seed: str, *programs: str) -> list[str]:
    """The digest that each program prints; all run in one process."""
    places = [tmp_path / f"program_{seed}_{number}.py" for number in range(len(programs))]
    for place, program in zip(places, programs, strict=True):
        place.write_text(program)
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    words = [sys.executable, "-c", RUN, *map(str, places)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_it_is_the_same_in_every_process_whatever_lines_and_files_are(tmp_path: Path) -> None:
    # A warm function has other instructions in memory.
    warm = PROGRAM.replace("circle = []", "for _ in range(100): adder(1), helper(1)\ncircle = []")
    first, second = run(tmp_path, "1", PROGRAM, warm)
    assert [second] == run(tmp_path, "2", "# another line\n\n\n" + PROGRAM) == [first]


def test_it_is_another_when_something_that_counts_is(tmp_path: Path) -> None:
    changes = {
        '"b": 2': '"b": 3',
        "x + step": "x - step",
        "more=3": "more=5",
        "y: float = 1.5": "y: float = 2.5",
        "math.hypot": "math.dist",
        "RED = 1": "RED = 7",
        "adder(2)": "adder(3)",
        '{"k", "l", "m"}': '{"k", "l"}',
        "return self.length *": "return self.length +",
        '"p", "q"': '"p", "u"',
        "n * 11": "n * 12",
        "n: int": "n: float",
        "Of a colour": "Of a color",
    }
    assert all(old in PROGRAM for old in changes)
    found = run(tmp_path, "1", PROGRAM, *(PROGRAM.replace(old, new) for old, new in changes.items()))
    assert len(set(found)) == len(changes) + 1


def test_equal_values_that_are_other_objects_are_the_same() -> None:
    one, word = ["a", "word"], "".join(["a", "b"])
    assert digest([one, one, word, word]) == digest([["a", "word"], ["a", "word"], "ab", "ab"])
    assert digest({1, 2, 3}) == digest({3, 2, 1})
    assert digest(functools.partial(pow, 2)) == digest(functools.partial(pow, 2))


def test_values_that_differ_differ() -> None:
    import cmath
    import math

    values: list[Any] = [1, True, 1.0, "1", b"1", bytearray(b"1"), (1,), [1], {1}, frozenset({1}), {1: 2}, {2: 1}, None]
    values += [math.sin, cmath.sin, abs, int, len, 0.0, -0.0, [[1], 2], [1, [2]], ["ab", "c"], ["a", "bc"], {"a": 1, "b": 2}]
    values += [{"b": 2, "a": 1}, math, cmath, [], (), "", b"", ..., range(2), range(3), str.upper, "x".upper, "y".upper]
    assert len({digest(value) for value in values}) == len(values)


def test_arrays_count_by_shape_type_and_content() -> None:
    numpy = pytest.importorskip("numpy")
    zeros = numpy.zeros((2, 3))
    assert digest(zeros) == digest(numpy.zeros((2, 3)))
    others = [zeros.T, zeros.astype("f4"), zeros + 1, zeros.reshape(6), numpy.array(["a", None], dtype=object)]
    assert len({digest(one) for one in [zeros, *others]}) == 6
    assert digest(numpy.asfortranarray(zeros)) == digest(zeros)


def test_what_is_masked_counts() -> None:
    numpy = pytest.importorskip("numpy")
    plain, masked = (numpy.ma.array([1, 2, 3], mask=mask, fill_value=2) for mask in ([0, 0, 0], [0, 1, 0]))
    assert digest(plain) != digest(masked)


def test_what_has_another_name_counts_by_it() -> None:
    class Named:
        pass

    def name(value: object) -> str | None:
        return "its name" if isinstance(value, Named) else None

    assert digest([Named()], name) == digest([Named()], name) != digest(["its name"], name)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES, VALUES)
def test_random_values_have_the_same_digest_as_their_copies_and_no_others(one: object, other: object) -> None:
    import pickle

    assert digest(one) == digest(pickle.loads(pickle.dumps(one)))
    assert (digest(one) == digest(other)) == (repr(one) == repr(other))


def test_files_count_by_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "left_out").mkdir()
    (tmp_path / "a.py").write_text("1")
    before = digest_of_files(tmp_path, ["left_out"])
    (tmp_path / "left_out" / "b.py").write_text("2")
    assert digest_of_files(tmp_path, ["left_out"]) == before
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert digest_of_files(tmp_path, ["left_out"]) != before
