"""A promoted script does what the cells did: compared with a real kernel, which runs the same notebook."""

from __future__ import annotations

from pathlib import Path

import pytest
from promoting import Given, lines, run_notebook, run_script, write_notebook

from carrel.notebooks.promote import promote
from carrel.testing.waiting import PATIENCE

#: One kernel runs them all, one after the other: what one leaves behind must not matter to the next.
SAME: dict[str, tuple[Given, ...]] = {
    "last expressions": (
        "1 + 1",
        "x = 3; x",
        "'text'",
        "None",
        "x;",
        "x  # comment; no semicolon",
        "x, 'y'",
        "(x for _ in ())\n0",
    ),
    "several lines": ("[\n    'a' * 40,\n    'b' * 40,\n]", "{'b': 1, 'a': [1, 2]}", "(1,\n 2)", "('Grüße',\n 'ß')"),
    "many items": ("list(range(1500))", "dict.fromkeys(range(1001), 'x' * 70)", "len([0] * 2000)"),
    "subclasses": ("from collections import Counter, namedtuple\nCounter('aab')", "namedtuple('P', 'x y')(1, 2)"),
    "shell": ("name = 'file'\n!echo {name} $name {1 + 1} $$HOME", "!echo out; echo 'a $name'; exit 3\nprint(_exit_code)"),
    "shell without a name": ("!echo {nowhere} here", "!echo '{braces}' \"it's\""),
    "captured": (
        "found = !printf 'one\\ntwo\\n'\nfound, len(found), found[0], found.n",
        "!!echo direct",
        "a = b = 1\nc = %pwd\ntype(c)",
    ),
    "captured errors": ("found = !ls /nonexistent-place 2>&1 | wc -l\nfound", "x = [1]\nx[0] = !echo element\nx"),
    "slices in braces": ("items = list(range(5))\n!echo {items[1:3]} {items[0]}",),
    "in blocks": (
        "for index in range(2):\n    !echo {index}\n    if index:\n        %env STEP=$index\nimport os\nos.environ['STEP']",
    ),
    "in functions": ("def say(word):\n    !echo {word}\nsay('inside')",),
    "no magic": ("x = '''\n%time\n!ls\n'''\nprint(x)", "y = (7\n% 4)\ny", "z = 7 \\\n% 4\nz", "print('a?')"),
    "directories": (
        "import os\nos.makedirs('below', exist_ok=True)\n%cd -q below\nprint(os.path.basename(os.getcwd()))\n%cd -q ..",
    ),
    "files": (
        "%%writefile greet.py\nimport sys\nwho = 'world'\nprint('hello', sys.argv[1:], __name__)\n",
        "%run greet.py a 'b c'\nwho",
    ),
    "files again": (
        '%%writefile -a notes.txt\nfirst """ and \\n\n',
        "%%writefile -a notes.txt\nsecond\n",
        "print(open('notes.txt').read())",
    ),
    "bash": (
        '%%bash\nfor i in 1 2; do\n  echo "line $i"\ndone\n',
        "%%bash -s one 'two three'\necho \"$2\"",
        "%%sh --no-raise-error\nexit 3",
    ),
    "another python": ("%%script python3\nprint(6 * 7)",),
    "help": ("x = 1\nx?\nprint('after')",),
    "awaiting": (
        "import asyncio\nasync def one():\n    await asyncio.sleep(0)\n    return 1\nresult: int = await one()\nresult",
        "lock = asyncio.Lock()\nasync with lock:\n    text = '''kept\n    as it is'''\nprint(text)\n"
        "[item async for item in agen()] if False else 0",
        "task = asyncio.create_task(one())",
        "await task",
        "def uses():\n    return result + 1\nuses()",
    ),
    "awaiting with names of all kinds": (
        "import asyncio\nfrom math import *\nawait asyncio.sleep(0)\nfor n in range(2):\n    pass\nclass K: pass\n"
        "if (w := 5): pass\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError as fault:\n    kept = str(fault)\n",
        "n, K.__name__, w, kept, floor(2.5)",
    ),
    "the future": ("from __future__ import annotations\nx = 1", "def f(a: Nowhere): return a\nf.__annotations__"),
    "prompts": (">>> x = 2\n... x + 1\n", "In [3]: x * 10\n", "    y = 1\n    y + 1"),
    "numpy and pandas": ("import numpy as np\nimport pandas as pd\nnp.arange(3)", "pd.DataFrame({'a': [1, 2]}).sum()"),
    "display": ("display(1, 'two')\nfor i in range(2):\n    display([i])",),
    "no file of its own": ("try:\n    __file__\nexcept NameError:\n    print('none')", "__name__"),
    "automagic": ("pwd", "env GREETING=hello"),
}


@pytest.mark.parametrize("name", SAME)
def test_a_script_shows_what_the_notebook_showed(tmp_path: Path, name: str) -> None:
    notebook = write_notebook(tmp_path / "nb" / "work.ipynb", *SAME[name])
    made = promote(notebook, target=tmp_path / "task")
    ran = run_script(made.directory, made.program)
    assert ran.code == 0, ran.err
    # Help is shown to nobody, and the two run in different directories.
    away = ("Type:", "String form:", "Docstring:", "int(", "Convert", "are given", "numbers,", str(tmp_path), f"'{tmp_path}")
    theirs = run_notebook(notebook)
    if name == "help":
        theirs = theirs[theirs.index("after") :]
    assert lines(ran.out, away) == lines(theirs, away)


def test_a_failing_cell_ends_the_script_with_its_traceback(tmp_path: Path) -> None:
    notebook = write_notebook(
        tmp_path / "work.ipynb", "print('before')", "def broken():\n    return {}['key']\n", "broken()", "print('after')"
    )
    made = promote(notebook)
    ran = run_script(made.directory, made.program)
    assert (ran.code, ran.out) == (1, "before\n")
    assert "return {}['key']" in ran.err


def test_a_failing_shell_script_raises_as_in_a_notebook(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "%%bash\necho said\nexit 3\n"))
    ran = run_script(made.directory, made.program)
    assert (ran.code, ran.out) == (1, "said\n")
    assert "CalledProcessError" in ran.err


def test_times_are_told(tmp_path: Path) -> None:
    cells = (
        "%time x = sum(range(10))",
        "%time x + 1",
        "y = %time x * 2\nprint(y)",
        "%%time\n%time z = 1\nz",
        "%timeit -n 2 -r 2 x",
        "%%timeit -n1 -r1 a = 1\na + 1",
    )
    made = promote(write_notebook(tmp_path / "work.ipynb", *cells))
    ran = run_script(made.directory, made.program)
    assert ran.code == 0, ran.err
    assert lines(ran.out, ("CPU times", "Wall time"))[:4] == ["46", "90", "1", lines(ran.out, ("CPU", "Wall"))[3]]
    assert ran.out.count("Wall time: ") == 5
    assert ran.out.count(" per loop (mean ± std. dev. of 2 runs, 2 loops each)") == 1
    assert ran.out.count(" per loop") == 2


def test_figures_are_saved_once_each(tmp_path: Path) -> None:
    cells = (
        "%matplotlib inline\nimport matplotlib.pyplot as plt",
        "plt.plot([1, 2])\nplt.show()\nplt.plot([2, 1])\nplt.show()",
        "plt.hist([1, 2, 2]);",
        "figure, axes = plt.subplots()\nfigure",
        "%cd -q ..\ndisplay(figure)",
        "print(plt.get_fignums())",
    )
    made = promote(write_notebook(tmp_path / "nb" / "work.ipynb", *cells))
    ran = run_script(made.directory, made.program)
    assert ran.code == 0, ran.err
    figures = sorted(path.name for path in (made.directory / "outputs").iterdir())
    assert figures == [f"figure-{number}.png" for number in (1, 2, 3, 4, 5)]
    assert lines(ran.out) == [*(f"[{figure}]" for figure in figures), "[]"]
    assert (made.directory / "outputs/figure-1.png").read_bytes().startswith(b"\x89PNG")


def test_figures_drawn_by_pandas_are_saved_too(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "import pandas as pd", "pd.Series([1, 3]).plot();"))
    ran = run_script(made.directory, made.program)
    assert ran.code == 0, ran.err
    assert (made.directory / "outputs/figure-1.png").exists()
    assert "matplotlib" in (made.directory / "requirements.txt").read_text()


def test_pictures_are_saved(tmp_path: Path) -> None:
    cells = ("class Picture:\n    def _repr_png_(self):\n        return b'png'\nPicture()", "Picture")
    made = promote(write_notebook(tmp_path / "work.ipynb", *cells))
    ran = run_script(made.directory, made.program)
    assert lines(ran.out) == ["[figure-1.png]", "__main__.Picture"]
    assert (made.directory / "outputs/figure-1.png").read_bytes() == b"png"


def test_processes_do_not_run_the_cells_again(tmp_path: Path) -> None:
    cells = (
        "print('once')\nimport multiprocessing\nfrom helper import double",
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n    print(pool.map(double, [1, 2]))",
    )
    notebook = write_notebook(tmp_path / "work.ipynb", *cells)
    (tmp_path / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    made = promote(notebook)
    ran = run_script(made.directory, made.program)
    assert (ran.code, ran.out) == (0, "once\n[2, 4]\n"), ran.err


@pytest.mark.parametrize(
    ("value", "type_", "given", "arrives"),
    [
        ("5", "int", "-3", "-3"),
        ("0.5", "float", "-1e-3", "-0.001"),
        ("1e-05", "float", "nan", "nan"),
        ("True", "bool", "no", "False"),
        ("'text'", "string", "a 'b' \"c\" $HOME {d} %s", repr("a 'b' \"c\" $HOME {d} %s")),
        ("'- a: {b}\\n#'", "string", "", "''"),
        ("None", "string", "7", "7"),
        ("None", "string", "some words", "'some words'"),
        ("[1, 2]", "string", "[3]", "[3]"),
        ("{'a': (1,)}", "string", "{}", "{}"),
        ("-2", "int", "+4", "4"),
    ],
)
def test_parameters_arrive_as_what_they_are(tmp_path: Path, value: str, type_: str, given: str, arrives: str) -> None:
    from carrel.core.tasks import describe

    notebook = write_notebook(
        tmp_path / "work.ipynb", (f"p = {value}  # 100% of what is wanted\nq = p", "parameters"), "print(repr(p))"
    )
    made = promote(notebook)
    assert [(item.name, item.type, item.help) for item in made.parameters] == [("p", type_, "100% of what is wanted")]
    assert shell(describe(made.directory).command, made.directory) == f"{eval(value)!r}\n"
    assert shell(describe(made.directory, parameters={"p": given}).command, made.directory) == f"{arrives}\n"


def shell(command: str, directory: Path) -> str:
    import subprocess
    import sys

    python = f'python() {{ {sys.executable} "$@"; }}; '
    return subprocess.run(
        ["sh", "-c", python + command], cwd=directory, capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout


def test_what_is_no_parameter_stays(tmp_path: Path) -> None:
    cell = "import math\na: int = 1\nb = a + 1\nc = d = 2\nhelp = 'x'\n_x = 3\na_b = 4\nprint(a, b, c, help, _x, a_b)"
    made = promote(write_notebook(tmp_path / "work.ipynb", (cell, "parameters")))
    assert [item.name for item in made.parameters] == ["a", "help", "_x", "a_b"]
    ran = run_script(made.directory, made.program, "--a=5", "--help=y", "--_x=6", "--a-b=7")
    assert ran.out == "5 6 2 y 6 7\n", ran.err
    assert [(note.line, note.text.split()[0]) for note in made.notes if note.line] == [(3, "b"), (4, "is"), (8, "is")]


def test_an_unknown_parameter_is_refused(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "import sys\nprint(sys.argv[1:])"))
    assert run_script(made.directory, made.program).out == "[]\n"
    ran = run_script(made.directory, made.program, "--epochs", "3")
    assert (ran.code, ran.out) == (2, "")
    assert "unrecognized arguments: --epochs 3" in ran.err
