"""The example notebooks run as tasks without edits, through a real lab; and so does the page about them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from promoting import PATIENCE, write_notebook

from carrel.client import Client
from carrel.notebooks.promote import promote
from support.lab_process import LabProcess

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "notebooks"
#: What an example says when it has run with these parameters, and what it leaves.
RUNS = {
    "digits": (
        ("epochs=2",),
        ["(1347, 64), (450, 64)", "epoch 2/2  loss", "history.json", "model.joblib"],
        ["outputs/history.json", "outputs/model.joblib"],
    ),
    "attractor": (
        ("steps=300", "style=points"),
        ["array([[ 1.,  1.,  1.]", "Wall time:", "[figure-2.png]", "(2, ['one', 'two'])", "x,y,z"],
        ["ends.csv", "outputs/figure-1.png", "outputs/figure-2.png"],
    ),
    "spirals_torch": (
        ("epochs=4",),
        ["device(type='cpu')", "torch.Size([400, 2])", "epoch 4/4  loss", "accuracy 0."],
        ["spirals.pt"],
    ),
}


@pytest.fixture
def carrel(lab: LabProcess) -> dict[str, str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("CARREL_")}
    return {**bare, "CARREL_HOME": str(lab.home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    """The examples in a directory of one's own."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "notebooks"))


def call(environment: dict[str, str], *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["carrel", *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )


def needs_torch(name: str) -> None:
    """PyTorch for processors alone is a wheel that a machine has at hand; the index would send gigabytes."""
    places = shlex.split(os.environ.get("PIP_FIND_LINKS", ""))
    if "torch" in name and not any(list(Path(place).glob("torch-2.13.0*.whl")) for place in places):
        pytest.skip("no wheel of torch 2.13.0 in PIP_FIND_LINKS")


def test_the_page_tells_of_magics_that_there_are(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "promote.md").read_text()
    table = page[page.index("## What becomes of IPython") : page.index("| any other magic")]
    names = re.findall(r"`(%%?\w+)[^`]*`", table)
    assert len(names) >= 25
    follows = {
        "%pip": "list",
        "%conda": "list",
        "%run": "a.py",
        "%%script": "cat",
        "%%writefile": "a.txt",
        "%timeit": "1",
        "%gpu": "2",
    }
    cells = [f"{name} {follows.get(name, '')}\n" + ("1\n" if name.startswith("%%") else "") for name in names]
    promote(write_notebook(tmp_path / "work.ipynb", *cells))


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_as_a_task_without_edits(name: str, carrel: dict[str, str], notebooks: Path, client: Client) -> None:
    needs_torch(name)
    parameters, said, left = RUNS[name]
    made = call(carrel, "promote", f"{name}.ipynb", "--json", cwd=notebooks)
    assert made.returncode == 0, made.stderr
    directory = json.loads(made.stdout)["directory"]
    assert Path(directory) == notebooks / name
    words = [word for parameter in parameters for word in ("-P", parameter)]
    done = call(carrel, "run", directory, *words, "--name", f"example-{name}", cwd=notebooks)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in said:
        assert text in done.stdout
    (job,) = client.jobs(name=f"example-{name}")
    assert [output.path for output in client.outputs(job.id)] == left


def test_the_executed_notebook_comes_back(carrel: dict[str, str], notebooks: Path, client: Client, tmp_path: Path) -> None:
    made = call(carrel, "promote", "attractor.ipynb", "--keep-notebook", "-o", "kept", "--name", "kept", cwd=notebooks)
    assert made.returncode == 0, made.stderr
    done = call(carrel, "run", "kept", "-P", "steps=200", "-P", "rho=14", cwd=notebooks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(2, ['one', 'two'])" in done.stdout
    (job,) = client.jobs(name="kept")
    client.download_outputs(job.id, tmp_path / "back")
    executed = nbformat.read(tmp_path / "back" / "outputs" / "executed.ipynb", as_version=4)
    nbformat.validate(executed)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, 10))
    assert code[1].metadata.tags == ["injected-parameters"]
    assert code[1].source == "# Parameters\nrho = 14.0\nsteps = 200\nstyle = 'lines'"
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert "1,1,1" not in (tmp_path / "back" / "ends.csv").read_text()


def test_a_cell_that_fails_leaves_what_was_done(carrel: dict[str, str], tmp_path: Path, client: Client) -> None:
    notebook = write_notebook(tmp_path / "work.ipynb", "print('first')", "1 / 0", "print('never')")
    assert call(carrel, "promote", str(notebook), "--keep-notebook", "--name", "failing", cwd=tmp_path).returncode == 0
    done = call(carrel, "run", "failing", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("first\n")
    assert "ZeroDivisionError" in done.stdout
    (job,) = client.jobs(name="failing")
    client.download_outputs(job.id, tmp_path / "back")
    executed = nbformat.read(tmp_path / "back" / "outputs" / "executed.ipynb", as_version=4)
    assert executed.cells[0].outputs[0].text == "first\n"
    assert executed.cells[1].outputs[0].ename == "ZeroDivisionError"
    assert "never" not in str(executed.cells[2].outputs)


def test_a_task_that_is_stopped_leaves_what_was_done(carrel: dict[str, str], tmp_path: Path, client: Client) -> None:
    notebook = write_notebook(
        tmp_path / "work.ipynb", "print('first')", "print('second', flush=True)\nimport time; time.sleep(600)"
    )
    assert call(carrel, "promote", str(notebook), "--keep-notebook", "--name", "stopped", cwd=tmp_path).returncode == 0
    job = client.submit_project(str(tmp_path / "stopped"))
    for event in client.events(job.id):
        if event.type == "log" and "second" in event.data["text"]:
            break
    client.cancel(job.id)
    assert client.wait(job.id, timeout=PATIENCE).state == "CANCELLED"
    client.download_outputs(job.id, tmp_path / "back")
    executed = nbformat.read(tmp_path / "back" / "outputs" / "executed.ipynb", as_version=4)
    assert executed.cells[0].outputs[0].text == "first\n"


def test_large_data_is_an_input_by_digest(carrel: dict[str, str], tmp_path: Path, client: Client) -> None:
    (tmp_path / "data" / "many").mkdir(parents=True)
    with (tmp_path / "data" / "large.bin").open("wb") as file:
        file.truncate(11 * 1024**2)
    for name in ("a", "b/c"):
        file_ = tmp_path / "data" / "many" / name
        file_.parent.mkdir(exist_ok=True)
        with file_.open("wb") as file:
            file.truncate(6 * 1024**2)
    cells = (
        ("size = 3\nwhere = 'data/large.bin'", "parameters"),
        "import os\nprint(len(open(where, 'rb').read()), sorted(name for _, _, names in os.walk('data/many') for name in names))",
    )
    made = call(carrel, "promote", str(write_notebook(tmp_path / "large.ipynb", *cells)), "--json", cwd=tmp_path)
    document = json.loads(made.stdout)
    assert [(item["path"], item["size"]) for item in document["inputs"]] == [
        ("data/large.bin", 11 * 1024**2),
        ("data/many", 12 * 1024**2),
    ]
    assert not (tmp_path / "large" / "data").exists()
    assert [item["type"] for item in document["parameters"]] == ["int", "path"]
    done = call(carrel, "run", "large", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{11 * 1024**2} ['a', 'c']\n")
    with (tmp_path / "data" / "large.bin").open("r+b") as file:
        file.write(b"changed")
    done = call(carrel, "run", "large", cwd=tmp_path)
    assert done.returncode != 0
    assert "digest" in done.stderr
    done = call(carrel, "run", "large", "-P", f"where=file://{tmp_path}/data/many/a", cwd=tmp_path)
    assert "digest" in done.stderr, "the input is checked whatever is done with it"


def test_the_page_is_right(carrel: dict[str, str], notebooks: Path) -> None:
    page = (ROOT / "docs" / "promote.md").read_text()
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^\$ carrel (.*)$", page, re.MULTILINE)]
    assert [words[0] for words in commands] == ["promote", "run", "env", "promote", "run", "promote"]
    for words in commands:
        done = call(carrel, *words, cwd=notebooks)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    for name, text in re.findall(r"^```python\n# (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        cells = nbformat.read(notebooks / name, as_version=4).cells
        assert any(text.strip() in cell.source for cell in cells)
