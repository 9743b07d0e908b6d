"""What is read from the source of a remote cell, and from its first line. No lab."""

from __future__ import annotations

import threading
import types

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from carrel.client.remote import names
from carrel.client.remote.failures import trace_lines
from carrel.client.remote.options import parse
from carrel.client.remote.packing import anchored, load_parts, pack
from carrel.core.domain.errors import Invalid

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("y = x + 1", ["x"]),
        ("x = 1\nx + 1", []),
        ("x += 1", ["x"]),
        ("def f():\n    return a\nf()", ["a"]),
        ("def f(a):\n    b = a\n    return b", []),
        ("import math\nmath.pi + tau", ["tau"]),
        ("import os.path as p\np.join(a)", ["a"]),
        ("from m import (n as k)\nk", []),
        ("[i * w for i in range(3)]", ["range", "w"]),
        ("class A(B):\n    c = d", ["B", "d"]),
        ("class A:\n    def f(self):\n        return A, g", ["A", "g"]),
        ("for i in xs:\n    t = i\nt", ["xs", "t"]),
        ("for i in xs:\n    if c: break\nelse:\n    e\ni", ["xs", "c", "e", "i"]),
        ("with open(p) as f:\n    f.read()", ["open", "p"]),
        ("with a as x, b(x) as (y, z):\n    for t in y:\n        x, y, z, t\nx", ["a", "b", "x"]),
        ("async with s as c:\n    async for m in c:\n        m", ["s"]),
        ("while w:\n    with a as x:\n        x\n        continue\n    x", ["w", "a", "x"]),
        ("try:\n    import m\n    m.a\nexcept E as e:\n    m = b\nm", ["E", "b", "m"]),
        ("match v:\n    case K(k=c.d) if g:\n        with a as x:\n            x", ["v", "K", "c", "g", "a"]),
        ("if c:\n    v = 1\nv", ["c", "v"]),
        ("a, *b = z\na, b", ["z"]),
        ("a[k] = 1", ["a", "k"]),
        ("await g(h)", ["g", "h"]),
        ("x: int = y", ["y"]),
        ("f'{q}' ", ["q"]),
    ],
)
def test_names_that_a_cell_needs(source: str, wanted: list[str]) -> None:
    found = [name for name in names.needed(source) if name != "int"]
    assert set(found) == set(wanted)


def test_names_that_a_cell_makes() -> None:
    assert names.made("x = 1\nfor i in a:\n    y: int = i\nimport os.path\ndef f():\n    z = 1") == {"x", "i", "y", "os", "f"}
    assert names.made("def f():\n    global g\n    g = 1") == {"f", "g"}
    assert names.made("from m import *") is None
    assert names.has_value("x = 1\nx")
    assert not names.has_value("x = 1")


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ("%time f(x)", {"f", "x"}),
        ("%timeit -n 3 f(x)", {"f", "x"}),
        ("%%time\ny = x\ny + z", {"x", "z"}),
        ("%%capture caught\nprint(x)", {"x"}),
        ("%%bash\necho x", set()),
        ("!echo x $y {z + 1}", {"y", "z"}),
        ("lines = !ls {x}", {"x"}),
    ],
)
def test_names_that_magics_and_commands_need(cell: str, wanted: set[str]) -> None:
    source = TransformerManager().transform_cell(cell)
    assert set(names.needed(source)) & {"f", "x", "y", "z"} == wanted
    assert names.made(TransformerManager().transform_cell("%time y = 1")) is None


def test_modules_that_a_cell_means() -> None:
    loaded = ["os", "os.path", "xml", "xml.dom", "xml.dom.minidom", "xml.etree", "xml.sax", "other.dom"]
    source = "def f():\n    return xml.dom.minidom.parse(xml.sax)\nos.path"
    assert names.submodules(source, [types.ModuleType("xml")], loaded) == ["xml.dom", "xml.dom.minidom", "xml.sax"]


@pytest.mark.parametrize("word", ["gpus=one", "cpus=-1", "workers=0"])
def test_a_number_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(Invalid, match=f"{word} is no number of"):
        parse(word)


def test_options() -> None:
    found = parse("gpus=1 memory=8G as=a,b requirements=none idle=2m limit=2G workers=3 # why")
    assert found.pool == {"gpus": 1, "memory": "8G", "requirements": [], "idle_time": 120.0, "max_workers": 3}
    assert parse("reserve=yes").pool == {"reserve": True}
    assert (found.back, found.limit) == (("a", "b"), 2 * 1024**3)
    later = parse("gpus=2").over(found)
    assert (later.pool["gpus"], later.pool["memory"], later.limit, later.back) == (2, "8G", found.limit, ())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpu=1", r"no option \"gpu=1\".*Did you mean gpus="),
        ("gpus", "no option|is no number"),
        ("gpus=many", "gpus=many is no number"),
        ("as=1x", "as=1x names no variables"),
        ("name='x", "quotes"),
        ("limit=much", "much"),
        ("reserve=1", "reserve=1 is neither yes nor no"),
    ],
)
def test_options_that_are_wrong_say_so(line: str, words: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse(line)
    import re

    assert re.search(words, f"{raised.value} {raised.value.remedy}"), raised.value


def test_functions_of_a_notebook_and_the_cell_have_the_same_variables() -> None:
    space: dict[str, object] = {"__name__": "__main__"}
    exec("count = 1\ndef up():\n    global count\n    count += 1\ndef twice():\n    up(); up()", space)
    anchor, variables = load_parts(pack(anchored(space, {"twice": space["twice"]}), {}, 10**6))
    there = anchor.__globals__
    there.update(variables)
    there["twice"]()
    assert there["count"] == 3
    assert space["count"] == 1


def test_what_cannot_travel_is_named_with_the_way_out() -> None:
    variables = {"good": 1, "lock": threading.Lock(), "rows": (n for n in ())}
    with pytest.raises(Invalid, match=r"lock \(lock: .*rows \(generator: ") as raised:
        pack(variables, variables, 10**6)
    assert "good" not in str(raised.value)
    assert "Make it inside" in raised.value.remedy


def test_what_is_too_large_is_named_with_its_size() -> None:
    variables = {"small": 1, "table": bytes(3 * 1024**2)}
    with pytest.raises(Invalid, match=r"limit is 1.*M: table 3.*M, small") as raised:
        pack(variables, variables, 1024**2)
    assert "limit=" in raised.value.remedy


def test_tracebacks_name_cells_and_causes() -> None:
    inner = {"words": ["KeyError: 'a'\n"], "frames": [("f1", 3, "g", "d['a']")], "cause": None, "context": None}
    outer = {"words": ["ValueError: b\n"], "frames": [("f2", 4, "<module>", "g()")], "cause": inner, "context": None}
    found = "\n".join(trace_lines(outer, {"f1": "Cell In[2]"}.get))
    assert found.index("Cell In[2], line 3, in g\n    d['a']\nKeyError: 'a'") < found.index('File "f2", line 4, in <module>')
    assert "direct cause" in found
