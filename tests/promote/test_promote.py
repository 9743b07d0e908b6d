"""What `carrel promote` makes of a notebook, and what it refuses."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from promoting import write_notebook

from carrel.client import Client
from carrel.core.domain.errors import Conflict, Invalid, NotFound
from carrel.core.snapshots import pack
from carrel.core.tasks import describe
from carrel.notebooks.promote import Environment, Promoted, installed, locked, promote
from carrel.testing.waiting import PATIENCE

pytestmark = pytest.mark.quick

LOCK = """# Made by uv
numpy==2.1.0 \\
    --hash=sha256:aa --hash=sha256:bb
torch==2.13.0+cpu
ipykernel==6.29.5
requests @ git+https://example.org/requests@abc
-e file:///home/ada/mine
"""


def made_of(notebook: Path, target: Path | None = None, **options: Any) -> Promoted:
    return promote(notebook, target, **{"environ": {}, **options})


def test_a_directory_that_runs_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import deeper\n")
    (tmp_path / "deeper.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    for name in ("data/a.csv", "data/b.csv", "other.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    cells = (
        ("epochs = 3\nrate: float = 0.5\nname = 'a b'\nsizes = [1, 2]\nfast = True\nend = epochs * 2", "parameters"),
        "files = !ls\nimport helper",
        "%%bash\nnot Python",
        "x = await f('other.txt')\n%gpu 2",
    )
    notebook = write_notebook(tmp_path / "My work {2}.ipynb", *cells, language_info={"name": "python", "version": "3.12.1"})
    made = made_of(notebook, include=[tmp_path / "data"])
    assert made.directory == tmp_path / "My_work_2"
    assert {path for path in made.files if path.endswith((".py", ".csv", ".txt", ".ipynb"))} == {
        *("My_work_2.ipynb", "notebook_parameters.py", "notebook_runner.py", "requirements.txt"),
        *("helper.py", "deeper.py", "data/a.csv", "data/b.csv"),
    }
    assert [note for note in made.notes if "other.txt" in note and "--with other.txt" in note]
    task = describe(made.directory, parameters={"epochs": "4", "more": "x"})
    assert task.command == (
        "python notebook_runner.py My_work_2.ipynb --epochs=4 --rate=0.5 --name='a b' --sizes='[1, 2]' --fast=True --more x"
    )
    assert task.options.resources.gpus == 2
    assert task.environment.python is None
    with pytest.raises(Invalid, match="whole number"):
        describe(made.directory, parameters={"epochs": "many"})
    document = json.loads((made.directory / "My_work_2.ipynb").read_text())
    assert [cell["source"] for cell in document["cells"]] == [cell if isinstance(cell, str) else cell[0] for cell in cells]
    assert all(not cell["outputs"] for cell in document["cells"])


@pytest.mark.parametrize("cell", ["# carrel: gpus=2\nx = 1", "%gpu 2"])
def test_the_most_gpus_that_a_cell_asks_for(tmp_path: Path, cell: str) -> None:
    made = made_of(write_notebook(tmp_path / "work.ipynb", ("1", "gpus=1"), cell, ("1", "other")))
    assert describe(made.directory).options.resources.gpus == 2


def test_files_travel_although_a_gitignore_excludes_them(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("*.csv\ndata\n*.ipynb\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "[a] b.csv").write_text("1")
    made = made_of(write_notebook(tmp_path / "work.ipynb", "1"), include=[tmp_path / "data"])
    assert {entry.path for entry in pack(made.directory).files} == set(made.files)


# --- packages


def requirements(made: Promoted) -> list[str]:
    return list(describe(made.directory).environment.requirements)


def test_a_lock_gives_exact_versions_and_says_what_does_not_travel(tmp_path: Path) -> None:
    made = made_of(write_notebook(tmp_path / "work.ipynb", "1"), environment=locked(LOCK, "3.11", "mine"))
    exact = [
        "ipykernel==6.29.5",
        "nbclient",
        "numpy==2.1.0",
        "requests @ git+https://example.org/requests@abc",
        "torch==2.13.0+cpu",
    ]
    assert requirements(made) == exact
    assert describe(made.directory).environment.python == "3.11"
    assert [note.split(" ")[0] for note in made.notes] == ["torch==2.13.0+cpu:", "-e"]
    with pytest.raises(Invalid, match="numpy>=2"):
        locked("numpy>=2\n", None, "mine")


def test_a_sessions_environment_gives_its_versions(tmp_path: Path) -> None:
    made = made_of(write_notebook(tmp_path / "work.ipynb", "1"), environ={"CARREL_SESSION_ENVIRONMENT": sys.prefix})
    assert f"numpy=={importlib.metadata.version('numpy')}" in requirements(made)
    assert describe(made.directory).environment.python == f"3.{sys.version_info.minor}"
    assert made.environment == installed(Path(sys.prefix))
    with pytest.raises(NotFound, match="no Python environment"):
        installed(tmp_path)


def test_an_environment_on_top_of_another_gives_the_versions_of_both(tmp_path: Path) -> None:
    venv.create(tmp_path / "top", system_site_packages=False)
    (site,) = (tmp_path / "top" / "lib").glob("python3*/site-packages")
    (base,) = (Path(sys.prefix) / "lib").glob("python3*/site-packages")
    (site / "base.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n")
    info = site / "mine-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.5\n")
    found = installed(tmp_path / "top").requirements
    assert {"mine==1.5", f"numpy=={importlib.metadata.version('numpy')}"} <= set(found)


def test_without_a_session_the_files_beside_it_tell(tmp_path: Path) -> None:
    notebook = write_notebook(
        tmp_path / "work.ipynb", "import numpy, beside.part, os.path\nfrom torch.nn import Linear", "%time 1"
    )
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "part.py").touch()
    made = made_of(notebook)
    assert requirements(made) == ["ipykernel", "nbclient"]
    (note,) = made.notes
    assert note.startswith("The notebook imports numpy, torch, and no packages are known: name the environment")
    (tmp_path / "requirements.txt").write_text("-c limits.txt\n-r more.txt\nNbclient<1\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    (tmp_path / "more.txt").write_text("numpy\n")
    made = made_of(notebook, force=True)
    assert sorted(requirements(made)) == ["-c limits.txt", "ipykernel", "nbclient<1", "numpy"]
    assert (made.environment.source, made.notes) == ("requirements.txt", ())
    (tmp_path / "conda.yaml").write_text("dependencies: [cudatoolkit]\n")
    with pytest.raises(Invalid, match=r"conda\.yaml cannot be completed"):
        made_of(notebook, force=True)
    assert made_of(notebook, force=True, environment=Environment(requirements=(), python=None, source="x"))


def test_a_notebook_that_needs_no_packages_is_told_nothing(tmp_path: Path) -> None:
    made = made_of(write_notebook(tmp_path / "work.ipynb", "import json, os.path", "import own", "1 +"))
    assert "imports own," in made.notes[0]
    (tmp_path / "own.py").touch()
    made = made_of(tmp_path / "work.ipynb", force=True)
    assert (requirements(made), made.notes) == (["ipykernel", "nbclient"], ())


# --- where it is written


def test_a_target_that_exists_is_kept_unless_force_is_used(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "work.ipynb", ("n = 1", "parameters"))
    made = made_of(notebook)
    (made.directory / "mine.txt").write_text("kept")
    write_notebook(notebook, ("n = 2", "parameters"))
    with pytest.raises(Conflict, match="exists") as caught:
        made_of(notebook)
    assert "--force" in caught.value.remedy
    assert describe(made.directory).parameters == {"n": "1"}
    made_of(notebook, force=True)
    assert describe(made.directory).parameters == {"n": "2"}
    assert (made.directory / "mine.txt").read_text() == "kept"
    write_notebook(notebook, ("n = ", "parameters"))
    with pytest.raises(Invalid, match="is not Python"):
        made_of(notebook, force=True)
    assert describe(made.directory).parameters == {"n": "2"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work", "work.ipynb"]


def test_where_it_must_not_be_written(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "nb" / "work.ipynb", "1")
    for target in (tmp_path / "nb", tmp_path, tmp_path / "nb" / ".." / "nb"):
        with pytest.raises(Invalid, match="holds the notebook"):
            made_of(notebook, target, force=True)
    with pytest.raises(Conflict, match="no directory"):
        made_of(notebook, notebook, force=True)
    (notebook.parent / "MLproject").write_text("name: other\n")
    with pytest.raises(Invalid, match="MLproject is beside"):
        made_of(notebook, include=["MLproject"])
    with pytest.raises(Invalid, match="no name"):
        made_of(notebook, name="a b")
    assert [path.name for path in notebook.parent.iterdir() if path.is_dir()] == []


BAD = {
    "not JSON": ("", "not JSON"),
    "no notebook": ("{}", "no nbformat"),
    "a list": ("[1]", "no nbformat"),
    "old": ('{"nbformat": 3, "worksheets": []}', "format 3"),
    "no cells": ('{"nbformat": 4, "metadata": {}}', "no list of cells"),
    "empty": ('{"nbformat": 4, "metadata": {}, "cells": []}', "no code cells"),
    "only text": ('{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "x"}]}', "no code cells"),
    "a cell that is none": ('{"nbformat": 4, "cells": [7]}', "item 1"),
    "no source": ('{"nbformat": 4, "cells": [{"cell_type": "code"}]}', "item 1"),
    "another language": ('{"nbformat": 4, "metadata": {"kernelspec": {"language": "R"}}, "cells": []}', "notebook of R"),
    "deep": ("[" * 100_000, "not JSON"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_notebook_is_refused(tmp_path: Path, kind: str) -> None:
    text, fact = BAD[kind]
    (tmp_path / "work.ipynb").write_text(text)
    with pytest.raises(Invalid) as caught:
        made_of(tmp_path / "work.ipynb")
    assert fact in caught.value.message
    assert caught.value.remedy
    assert not (tmp_path / "work").exists()


def test_what_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        made_of(tmp_path / "nowhere.ipynb")
    with pytest.raises(Invalid, match="directory"):
        made_of(tmp_path)
    (tmp_path / "work.ipynb").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="UTF-8"):
        made_of(tmp_path / "work.ipynb")


def test_a_client_names_the_command(tmp_path: Path) -> None:
    with Client("http://127.0.0.1:9", token="x") as client, pytest.raises(Invalid, match="is a notebook") as caught:
        client.submit_project(write_notebook(tmp_path / "work.ipynb", "1"))
    assert "carrel promote" in caught.value.remedy


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
    }
    assert not heavy & set(done.stdout.split())
