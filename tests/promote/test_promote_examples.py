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
from promoting import PATIENCE, read_executed, write_notebook

from carrel.client import Client
from carrel.testing.waiting import wait_until
from support.lab_process import LabProcess

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "notebooks"
#: What travels with an example, what it says when it has run with these parameters, and what it leaves.
RUNS = {
    "digits": (
        (),
        ("epochs=2",),
        ["(1347, 64), (450, 64)", "epoch 2/2  loss", "history.json", "model.joblib"],
        ["outputs/executed.ipynb", "outputs/history.json", "outputs/model.joblib"],
    ),
    "attractor": (
        ("starts.csv",),
        ("steps=300", "style=points"),
        ["array([[ 1.,  1.,  1.]", "Wall time:", "[figure-2.png]", "(2, ['one', 'two'])", "x,y,z"],
        ["outputs/ends.csv", "outputs/executed.ipynb", "outputs/figures/figure-1.png", "outputs/figures/figure-2.png"],
    ),
    "spirals_torch": (
        (),
        ("epochs=4",),
        ["device(type='cpu')", "torch.Size([400, 2])", "epoch 4/4  loss", "accuracy 0."],
        ["outputs/executed.ipynb", "outputs/spirals.pt"],
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


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_as_a_task_without_edits(name: str, carrel: dict[str, str], notebooks: Path, client: Client) -> None:
    needs_torch(name)
    if "torch" in name:
        (notebooks / "requirements.txt").write_text("numpy\ntorch==2.13.0\n")
    include, parameters, said, left = RUNS[name]
    made = call(carrel, "promote", f"{name}.ipynb", "--json", *(f"--with={path}" for path in include), cwd=notebooks)
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


@pytest.mark.gate
def test_a_notebook_is_run_as_it_is(carrel: dict[str, str], tmp_path: Path, client: Client) -> None:
    (tmp_path / "helper.py").write_text("def double(n):\n    return 2 * n\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "n.txt").write_text("21")
    cells = (("n = 1\nwhere = 'data/n.txt'", "parameters"), "import helper\nprint(helper.double(n))", "print(open(where).read())")
    write_notebook(tmp_path / "my work.ipynb", *cells)
    done = call(carrel, "run", "my work.ipynb", "-P", "n=4", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("8\n")
    assert "data/n.txt is in" in done.stderr, done.stderr
    assert "--with data/n.txt adds it" in done.stderr
    done = call(carrel, "run", "my work.ipynb", "--with", "data", "--name", "as-it-is", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\n21\n"), done.stderr
    assert "helper.py" in done.stderr
    done = call(carrel, "run", "my work.ipynb", "-P", "where=data/n.txt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\n21\n"), done.stderr
    (job,) = client.jobs(name="as-it-is")
    client.download_outputs(job.id, tmp_path / "back")
    assert read_executed(tmp_path / "back").cells[1].source == "# Parameters\nn = 1\nwhere = 'data/n.txt'"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "data", "helper.py", "my work.ipynb"]


def test_a_sweep_of_a_notebook(carrel: dict[str, str], tmp_path: Path, client: Client) -> None:
    write_notebook(tmp_path / "fit.ipynb", ("x = 1.0\nn = 1", "parameters"), "import carrel\ncarrel.report((x - 3) ** 2 + n)")
    words = ("-P", "x=categorical(2, 3)", "-P", "n=5", "--trials", "2", "--sampler", "grid", "--metric", "loss", "--json")
    done = call(carrel, "sweep", "fit.ipynb", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    number = json.loads(done.stdout)["id"]
    wait_until(lambda: client.sweep(number).state == "COMPLETED")
    assert sorted((one.parameters["x"], one.value) for one in client.sweep(number).all_trials) == [("2", 6.0), ("3", 5.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["fit.ipynb"]


def test_a_notebook_that_exits_ends_its_task(carrel: dict[str, str], tmp_path: Path, client: Client) -> None:
    for code, state in ((0, "COMPLETED"), (3, "FAILED")):
        notebook = write_notebook(
            tmp_path / f"exit{code}.ipynb", "print('before')", f"import sys; sys.exit({code})", "print('never')"
        )
        done = call(carrel, "run", str(notebook), cwd=tmp_path)
        assert (done.returncode, "never" in done.stdout) == (code, False)
        (job,) = client.jobs(name=f"exit{code}")
        assert (job.state, job.exit_code) == (state, code)


def test_a_task_that_is_stopped_leaves_what_was_done(carrel: dict[str, str], tmp_path: Path, client: Client) -> None:
    write_notebook(tmp_path / "work.ipynb", "print('first')", "print('second', flush=True)\nimport time; time.sleep(600)")
    made = call(carrel, "promote", "work.ipynb", "--name", "stopped", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    job = client.submit_project(str(tmp_path / "stopped"))
    for event in client.events(job.id):
        if event.type == "log" and "second" in event.data["text"]:
            break
    client.cancel(job.id)
    assert client.wait(job.id, timeout=PATIENCE).state == "CANCELLED"
    client.download_outputs(job.id, tmp_path / "back")
    assert [cell.outputs[0].text for cell in read_executed(tmp_path / "back").cells] == ["first\n", "second\n"]


def test_the_page_is_right(carrel: dict[str, str], notebooks: Path) -> None:
    page = (ROOT / "docs" / "promote.md").read_text()
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^\$ carrel (.*)$", page, re.MULTILINE)]
    assert [words[0] for words in commands] == ["run", "promote", "run", "env", "promote", "run"]
    for words in commands:
        done = call(carrel, *words, cwd=notebooks)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    for name, text in re.findall(r"^```python\n# (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        cells = nbformat.read(notebooks / name, as_version=4).cells
        assert any(text.strip() in cell.source for cell in cells)


# --- the command


def test_the_command_says_what_it_made(carrel: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1\n")
    write_notebook(tmp_path / "My work.ipynb", ("n = 3", "parameters"), "import numpy; open('data.csv')")
    done = call(carrel, "promote", "My work.ipynb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "Made My_work/ of My work.ipynb"
    assert said[-1] == "Run it: carrel run My_work -P n=3"
    for text in (
        "n=3",
        "ipykernel, nbclient",
        "Please check: The notebook imports numpy, and no packages are known",
        "--with data.csv adds",
    ):
        assert text in done.stdout
    done = call(
        carrel,
        "promote",
        "My work.ipynb",
        "-o",
        "task",
        "--name",
        "job",
        "-e",
        sys.prefix,
        "--with",
        "data.csv",
        "--json",
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)
    assert (found["directory"], found["name"], found["program"]) == (str(tmp_path / "task"), "job", "job.ipynb")
    assert (found["parameters"], found["gpus"], found["environment"]["source"]) == ({"n": 3}, 0, sys.prefix)
    assert set(found["files"]) == {path.name for path in (tmp_path / "task").iterdir()}
