"""Whatever is in a notebook: it becomes a script that is Python, or an error that says where it cannot."""

from __future__ import annotations

import ast
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promoting import write_notebook

from carrel.core.domain.errors import CarrelError, Invalid
from carrel.notebooks.promote import Promoted, promote
from support.examples import examples

pytestmark = pytest.mark.quick

STATEMENTS = (
    "x = 1",
    "print(x)",
    "x",
    "x;",
    "x, 'y'  # why",
    "if x:\n    pass",
    "def f(a):\n    return a",
    "'''a\n  b'''",
    "f'''{x}\n  {x!r}'''",
    "await f(x)",
    "async with x as y:\n    z: int = 1",
    "[i async for i in x]",
    "from math import *",
    "import numpy as np",
    "from __future__ import annotations",
    "!ls {x}",
    "y = !ls '$x'",
    "%time x = 1",
    "%time x",
    "z = %time x",
    "%%time\nx",
    '%%bash\nls "$x"\n',
    "%cd -q ..",
    "%env A=b",
    "%pip install numpy",
    "for i in x:\n    !echo {i}\n    %pip install q",
    "x?",
    "%nothing here",
    "return 1",
    "x = (",
    '%%writefile a.py\n"""it\'s\\n"""\n',
    "open('work.ipynb')",
    "open(f'{x}.txt', 'w')",
    "global x\nx = 2",
    "class A:\n    b: int = 1",
    "try:\n    import q\nexcept ImportError as e:\n    raise",
    "lambda: (yield)",
    "del x",
    "é = 'ü'; é",
    "x = \\\n  2",
    "with open('a') as f: f.read()",
    "match x:\n    case {'a': b, **c}:\n        pass",
    "nonlocal x",
    "\tx",
    "@f\nclass B: ...",
    "(w := 3)",
    "print(*x, **y)",
    "*x, = y",
    "%run a",
    "%gpu 2",
    "# carrel: gpus=3",
    "%timeit -n 1 x",
    "%%timeit a = 1\na",
    "%%capture c\nx",
    "c.stdout",
    "!pip install a && ls",
    "%matplotlib",
)
CELLS = st.lists(st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4).map("\n".join), min_size=1, max_size=5)


def promoted(cells: list[str], **options: bool) -> Promoted | CarrelError:
    with tempfile.TemporaryDirectory() as place:
        notebook = write_notebook(Path(place) / "work.ipynb", *((cell, "parameters") for cell in cells[:1]), *cells[1:])
        try:
            made = promote(notebook, environ={}, **options)
        except CarrelError as error:
            assert sorted(path.name for path in Path(place).iterdir()) == ["work.ipynb"]
            return error
        if made.program.endswith(".py"):
            text = (made.directory / made.program).read_text()
            compile(text, made.program, "exec", dont_inherit=True)
            assert re.findall(r"^# %% \[cell (\d+)\]$", text, re.MULTILINE) == [str(number) for number in made.cells]
        return made


@settings(max_examples=examples(300))
@given(CELLS)
def test_a_notebook_becomes_python_or_an_error_with_places(cells: list[str]) -> None:
    found = promoted(cells)
    if isinstance(found, CarrelError):
        assert isinstance(found, Invalid)
        assert re.search(r"^cell \d+, line \d+: ", found.message, re.MULTILINE), found.message


@settings(max_examples=examples(100))
@given(CELLS)
def test_the_notebook_itself_can_always_be_the_task(cells: list[str]) -> None:
    found = promoted(cells, keep_notebook=True)
    assert isinstance(found, Promoted), found


@pytest.mark.filterwarnings("ignore:invalid escape")
@settings(max_examples=examples(200))
@given(st.text(alphabet="ab01 =()[]{}'\"#\\\n:.,+-%!?_\tü", max_size=80))
def test_plain_python_stays_as_it_is(text: str) -> None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    if not text.strip() or text[0].isspace() or not tree.body or isinstance(tree.body[-1], ast.Expr):
        return
    with tempfile.TemporaryDirectory() as place:
        made = promote(write_notebook(Path(place) / "work.ipynb", text), environ={})
        assert text.strip("\n") in (made.directory / made.program).read_text()
