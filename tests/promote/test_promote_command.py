"""`carrel promote` as a command, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from promoting import PATIENCE, Ran, run_script, write_notebook

from carrel.core.domain.errors import Conflict, Invalid, NotFound
from carrel.notebooks.promote import Severity, promote


def command(*words: str, cwd: Path) -> Ran:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CARREL_")}
    done = subprocess.run(
        [sys.executable, "-m", "carrel.cli.main", "promote", *words],
        cwd=cwd,
        env={**environment, "CARREL_HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.gate
def test_it_says_what_it_made_guessed_and_wants_checked(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1\n")
    cells = (
        ("n = 3  # how many", "parameters"),
        "%load_ext autoreload\nimport yaml\nopen('data.csv')",
        "print(model)",
        ("model = 1", "skip"),
    )
    write_notebook(tmp_path / "My work (2).ipynb", *cells)
    done = command("My work (2).ipynb", cwd=tmp_path)
    assert done.code == 0, done.err
    said = done.out.splitlines()
    assert said[0] == "Made My_work_2/ of My work (2).ipynb"
    assert said[-1] == "Run it: carrel run My_work_2 -P n=3"
    for text in (
        "My_work_2.py: cells 1-3",
        "n=3 (int)",
        "pyyaml (guessed from imports",
        "data.csv",
        "outputs/**",
        "Changed:",
        "Guessed:",
        "cell 2, line 1: %load_ext autoreload is left out",
        "cell 4: has the tag skip",
        "pyyaml, for `import yaml`",
        "Please check:",
        "cell 3, line 1: model comes from cell 4, which is left out",
    ):
        assert text in done.out
    assert sorted(path.name for path in (tmp_path / "My_work_2").iterdir()) == sorted(
        [".gitignore", "MLproject", "My_work_2.py", "data.csv", "notebook_support.py", "python_env.yaml", "requirements.txt"]
    )


def test_json_tells_the_same(tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "work.ipynb", ("n = 3", "parameters"), "import numpy\nprint(numpy.ones(n), nowhere)", "%gpu 2\nx = n"
    )
    done = command(
        "work.ipynb", "--json", "--cells", "1-2", "-o", "task", "--name", "job", "--environment", sys.prefix, cwd=tmp_path
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["directory"], found["name"], found["program"]) == (str(tmp_path / "task"), "job", "job.py")
    assert (found["cells"], found["left_out"], found["gpus"]) == ([1, 2], [3], None)
    assert found["parameters"] == [{"name": "n", "type": "int", "default": 3, "help": ""}]
    assert found["environment"]["locked"]
    assert found["environment"]["source"] == sys.prefix
    assert {"kind": "check", "cell": 2, "line": 2, "text": "nowhere is defined in no cell"} in found["notes"]
    assert set(found["files"]) == {path.name for path in (tmp_path / "task").iterdir()}


def test_a_target_that_exists_is_kept_unless_force_is_used(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "work.ipynb", "print(1)")
    assert command("work.ipynb", cwd=tmp_path).code == 0
    (tmp_path / "work" / "mine.txt").write_text("kept")
    write_notebook(notebook, "print(2)")
    done = command("work.ipynb", "--json", cwd=tmp_path)
    assert (done.code, done.out) == (5, "")
    assert "--force" in json.loads(done.err)["remedy"]
    assert run_script(tmp_path / "work", "work.py").out == "1\n"
    assert command("work.ipynb", "--force", cwd=tmp_path).code == 0
    assert run_script(tmp_path / "work", "work.py").out == "2\n"
    assert (tmp_path / "work" / "mine.txt").read_text() == "kept"
    write_notebook(notebook, "%unheard_of")
    assert command("work.ipynb", "--force", cwd=tmp_path).code == 2
    assert run_script(tmp_path / "work", "work.py").out == "2\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work", "work.ipynb"]


def test_an_empty_directory_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    assert command(str(write_notebook(tmp_path / "work.ipynb", "1")), "-o", "task", cwd=tmp_path).code == 0
    assert (tmp_path / "task" / "MLproject").exists()


def test_the_notebooks_own_directory_is_no_target(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "nb" / "work.ipynb", "1")
    for target in (tmp_path / "nb", tmp_path, tmp_path / "nb" / ".." / "nb"):
        with pytest.raises(Invalid, match="holds the notebook"):
            promote(notebook, target=target, force=True)
    with pytest.raises(Conflict, match="no directory"):
        promote(notebook, target=notebook, force=True)


BAD = [
    ("not JSON", "", "not JSON"),
    ("no notebook", "{}", "no nbformat"),
    ("a list", "[1]", "no nbformat"),
    ("old", '{"nbformat": 3, "worksheets": []}', "format 3"),
    ("no cells", '{"nbformat": 4, "metadata": {}}', "no list of cells"),
    ("empty", '{"nbformat": 4, "metadata": {}, "cells": []}', "no code cells"),
    (
        "only text",
        '{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "source": ""}]}',
        "no code cells",
    ),
    ("a cell that is none", '{"nbformat": 4, "cells": [7]}', "item 1"),
    ("no source", '{"nbformat": 4, "cells": [{"cell_type": "code"}]}', "no source"),
    (
        "another language",
        '{"nbformat": 4, "metadata": {"kernelspec": {"language": "R"}}, "cells": []}',
        "notebook of r",
    ),
    ("deep", "[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("text", "fact"), [item[1:] for item in BAD], ids=[item[0] for item in BAD])
def test_what_is_no_notebook_is_refused(tmp_path: Path, text: str, fact: str) -> None:
    (tmp_path / "work.ipynb").write_text(text)
    done = command("work.ipynb", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert fact in done.err.splitlines()[0]
    assert len(done.err.splitlines()) == 2
    assert not (tmp_path / "work").exists()


def test_what_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        promote(tmp_path / "nowhere.ipynb")
    with pytest.raises(Invalid, match="directory"):
        promote(tmp_path)
    (tmp_path / "work.ipynb").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="UTF-8"):
        promote(tmp_path / "work.ipynb")


@pytest.mark.parametrize(
    ("cells", "place", "words"),
    [
        (("x = 1", "y = 2\n%sql SELECT 1"), "cell 2, line 2", "%sql"),
        (("%%cython\nx",), "cell 1, line 1", "%%cython"),
        (("%%time\nx = 1\n%debug",), "cell 1, line 3", "%debug"),
        (("x = %store y",), "cell 1, line 1", "%store"),
        (("x = (\n1",), "cell 1, line 1", "is not Python"),
        (("x = 1\n!ls\nreturn x",), "cell 1, line 3", "'return' outside function"),
        (("if x:\n    %pip install numpy\n  y",), "cell 1, line 3", "is not Python"),
        (("%run other.ipynb",), "cell 1, line 1", "another notebook"),
        (("%%capture seen\nprint(1)", "seen.stdout"), "cell 1, line 1", "captures"),
        (("%gpu many",), "cell 1, line 1", "%gpu many"),
        (("%%bash --bg\nls",), "cell 1, line 1", "--bg"),
        (("%%script\nls",), "cell 1, line 1", "no program"),
        (("x = '\\ud800'; !y",), "cell 1, line 1", "is not Python"),
    ],
)
def test_what_cannot_be_said_in_a_script_is_an_error_with_its_place(
    tmp_path: Path, cells: tuple[str, ...], place: str, words: str
) -> None:
    with pytest.raises(Invalid) as caught:
        promote(write_notebook(tmp_path / "work.ipynb", *cells))
    assert f"{place}: " in caught.value.message
    assert words in caught.value.message
    assert "--cells" in caught.value.remedy
    assert not (tmp_path / "work").exists()


def test_all_faults_are_told_at_once_and_left_out_cells_have_none(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "work.ipynb", "x = 1", "%sql a", ("%sql b", "skip"), "%sql c\n%sql d", "print(x)")
    with pytest.raises(Invalid) as caught:
        promote(notebook)
    assert caught.value.details["cells"] == [2, 4]
    assert caught.value.message.count("%sql") == 3
    made = promote(notebook, cells="1,3,5")
    assert (made.cells, made.left_out) == ((1, 5), (2, 3, 4))
    assert run_script(made.directory, made.program).out == "1\n"
    made = promote(notebook, keep_notebook=True, name="kept")
    assert made.program == "kept.ipynb"


def test_a_selection_is_checked(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "work.ipynb", "1", "", "2", ("3", "remove"))
    assert promote(notebook, cells="2", name="two").cells == (2,)
    for cells, fact in (("4", "has 3 with code"), ("x", "names no cells"), ("3", "No cell is left")):
        with pytest.raises(Invalid, match=fact):
            promote(notebook, cells=cells, name="other")
    with pytest.raises(Invalid, match="no name"):
        promote(notebook, name="a b")


def test_names_that_nothing_defines_are_said(tmp_path: Path) -> None:
    cells = (
        "import numpy as np\nlimit = 3",
        "def f(a):\n    return a + limit + later + nowhere\nf(1)",
        "later = 4\nlater, Out, __name__",
        "[i for i in range(limit)]",
    )
    made = promote(write_notebook(tmp_path / "work.ipynb", *cells), cells="2-")
    said = [(note.cell, note.text) for note in made.notes if note.weight is Severity.CHECK]
    assert said == [
        (2, "limit comes from cell 1, which is left out"),
        (2, "nowhere is defined in no cell"),
        (3, "Out is IPython's memory of earlier cells, which a script does not have"),
    ]


def test_it_is_cheap_to_import() -> None:
    code = (
        "import sys; before = set(sys.modules); import carrel.notebooks.promote\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    heavy = {
        "IPython",
        "jupyter_client",
        "nbformat",
        "nbclient",
        "httpx",
        "pydantic",
        "fastapi",
        "asyncio",
        "mlflow",
        "sqlalchemy",
        "uv",
    }
    assert not heavy & set(done.stdout.split())


def test_the_result_is_a_path(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "1"), None, tmp_path / "elsewhere" / "deep")
    assert Path(made) == tmp_path / "elsewhere" / "deep"
    assert Path(made, "MLproject").exists()
