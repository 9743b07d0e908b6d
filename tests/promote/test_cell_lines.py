"""Taking cells apart: nothing gets lost, and what is IPython's is what IPython takes for it."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from carrel.notebooks.promote.lines import Kind, split_cell
from carrel.notebooks.promote.magics import long_text

pytestmark = pytest.mark.quick

WORDS = (
    "x",
    "print(1)",
    "%time f()",
    "!ls",
    "!!ls",
    "y = !ls -l",
    "z = %time 3",
    "a?",
    "?a",
    "%%bash",
    "'''",
    '"""',
    "'",
    "(",
    ")",
    "[1,",
    "]",
    "\\",
    "# !no",
    "if x:",
    "    !ls",
    "\t%cd x",
    "x == !y",
    "s = '%d' % 3",
    "",
    "  ",
    "f'{a!r}'",
    "% b",
    "@decorator",
    "é = !ls",
)
PIECES = st.lists(st.sampled_from(WORDS) | st.text(alphabet="ab%!?=\"'#\\ ()[]{}\n\t:é", max_size=12), max_size=12)


@given(PIECES, st.booleans())
def test_the_pieces_are_the_cell(words: list[str], ends: bool) -> None:
    cell = "\n".join(words) + ("\n" if ends else "")
    pieces = split_cell(cell)
    assert "".join(piece.text for piece in pieces) == cell
    number = 1
    for piece in pieces:
        assert piece.line == number
        number += piece.text.count("\n") + (not piece.text.endswith("\n"))


ESCAPES = {
    Kind.MAGIC: st.builds(
        "%{} {}".format, st.sampled_from(["time", "cd", "pip", "load_ext"]), st.from_regex(r"[a-z0-9 ./'-]{0,12}", fullmatch=True)
    ),
    Kind.SHELL: st.builds("!{}".format, st.from_regex(r"[a-z][a-z0-9 ./|'{}$-]{0,12}", fullmatch=True)),
    Kind.OUTPUT: st.builds(
        "{} = !{}".format, st.sampled_from(["x", "a.b", "a[0]", "a, b"]), st.from_regex(r"[a-z][a-z0-9 |-]{0,9}", fullmatch=True)
    ),
    Kind.HELP: st.builds("{}{}".format, st.sampled_from(["x", "a.b", "%time"]), st.sampled_from(["?", "??"])),
    Kind.PYTHON: st.sampled_from(
        ["x = 1", "print('!ls')", "y = '''\n!no\n%no\n'''", "z = (1\n% 2)", "# %time", "w = 5 \\\n% 3", "s = 'a?'"]
    ),
}


@given(
    st.lists(
        st.sampled_from(sorted(ESCAPES)).flatmap(lambda kind: st.tuples(st.just(kind), ESCAPES[kind])), min_size=1, max_size=6
    )
)
def test_pieces_are_recognised_among_others(parts: list[tuple[Kind, str]]) -> None:
    pieces = split_cell("".join(f"{text}\n" for _, text in parts))
    expected: list[Kind] = []
    for kind, _ in parts:
        if kind is not Kind.PYTHON or not expected or expected[-1] is not Kind.PYTHON:
            expected.append(kind)
    assert [piece.kind for piece in pieces] == expected


CASES = [
    "%matplotlib inline",
    "x = !ls {a} $b",
    "!ls -l",
    "%time x=1",
    "!!ls",
    "foo?",
    "?foo",
    "foo??",
    "a.b??",
    "a = %time 3",
    "%pip install x",
    "if 1:\n    !ls\n    %cd x",
    "!ls \\\n  -l",
    "x = f(\n!ls\n)",
    "%time",
    "x = '''\n%foo\n!ls\n'''",
    "a.b, c = !ls",
    "\n\n%%time\nx",
    "# c\n!ls",
    "a[0] = !ls",
    "a += 1",
    "x: int = !ls",
    "%run -i 'foo bar.py' a",
    "!echo hi # there",
    "x = 5 # ok?",
    "x == 1",
    "f(a=1) % 3",
    "d['='] = !ls",
    "x = y = !ls",
    "for i in y:\n\t!ls",
    "'''\n'''\n!ls",
    "x = 'it''s'\n!ls",
    "f\"{'!'}\"\n%cd",
    "x = {\n'a': 1}\n!ls",
    "%%bash\n!x\n%y",
    "%%time?",
    "@property\ndef f(): pass",
    "x = 1; !ls",
    "lambda x: !y",
    "%cd -q ..\nx",
    "x =!ls",
    "x=%pwd",
    "r'\\\\'\n!ls",
    "b'''\n!x'''",
    "x = 1 \\\n\n!ls",
]


@pytest.mark.parametrize("cell", CASES)
def test_escapes_are_where_ipython_finds_them(cell: str) -> None:
    theirs = TransformerManager().transform_cell(cell)
    expected = theirs.count("get_ipython().")
    assert sum(piece.kind is not Kind.PYTHON for piece in split_cell(cell)) == expected, theirs


@given(st.text(alphabet="ab\\\"'\n\r\t{}é", max_size=30))
def test_long_texts_are_written_as_they_are(text: str) -> None:
    assert ast.literal_eval(long_text(text)) == text
