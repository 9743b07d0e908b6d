"""What travels with a promoted notebook, and what it returns."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from promoting import run_script, write_notebook

from carrel.core.domain.errors import Invalid
from carrel.node.staging.fetching import fetch
from carrel.notebooks.promote import Promoted, Severity, promote
from carrel.notebooks.promote.gather import digest_of


def checks(made: Promoted) -> list[str]:
    return [f"{note.where}: {note.text}" if note.where else note.text for note in made.notes if note.weight is Severity.CHECK]


def put(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"# {name}\n")


READS = [
    "open('data/x.csv').read()",
    "import pandas as pd; pd.read_csv('data/x.csv', sep='#')",
    "from pathlib import Path; Path('data/x.csv').read_text()",
    "from pathlib import Path\nDATA = Path('data')\n(DATA / 'x.csv').open().read()",
    "import os\nopen(os.path.join('data', 'x.csv')).read()",
    "FILES = ['data/x.csv']\nfor f in FILES: open(f)",
    "def load(path='data/x.csv'): return open(path)\nload()",
    "!cat data/x.csv",
    "import os\nos.chdir('data')\nopen('x.csv')",
    "%cd data\nopen('x.csv')",
    "x = !head -n 1 ./data/x.csv",
    "%%bash\ncat < data/x.csv\n",
    "with open(file='data/x.csv', mode='rt') as f: pass",
    "import glob\nassert glob.glob('data/x*.csv')",
    "from pathlib import Path\nassert list(Path('data').glob('x.*'))",
    "!wc -c data/x*.csv",
]


@pytest.mark.parametrize("cell", READS)
def test_what_is_read_travels(tmp_path: Path, cell: str) -> None:
    put(tmp_path, "data/x.csv", "data/other.csv", "unused.csv")
    made = promote(write_notebook(tmp_path / "work.ipynb", cell))
    assert (made.directory / "data/x.csv").read_text() == "# data/x.csv\n"
    assert not (made.directory / "unused.csv").exists()
    assert run_script(made.directory, made.program).code == 0
    assert checks(made) == []


def test_directories_travel_where_they_are_used_as_such(tmp_path: Path) -> None:
    put(tmp_path, "data/a/1.txt", "data/b.txt", "train/x.txt", "data/.ipynb_checkpoints/c.txt")
    cells = ("root = 'data'\nmode = 'train'", "from pathlib import Path\nsorted(p.name for p in Path(root).rglob('*.txt'))")
    made = promote(write_notebook(tmp_path / "work.ipynb", *cells))
    assert made.data == ("data",)
    assert run_script(made.directory, made.program).out == "['1.txt', 'b.txt']\n"


WRITES = [
    ("open('result.csv', 'w').write('x')", ["result.csv"]),
    ("open('result.csv', mode='ab').write(b'x')", ["result.csv"]),
    ("import pandas as pd; pd.DataFrame({'a': [1]}).to_csv('result.csv')", ["result.csv"]),
    ("from pathlib import Path; Path('result.csv').write_text('x')", ["result.csv"]),
    ("path = 'result.csv'\nopen(path, 'w').close()\nopen(path).read()", ["result.csv"]),
    (
        "import os\nos.makedirs('results', exist_ok=True)\nopen('results/x', 'w').close()",
        ["results/**", "results/x", "results/x/**"],
    ),
    ("for n in range(2):\n    open(f'step-{n}.pt', 'w').close()", ["step-*.pt"]),
    ("from pathlib import Path\nout = Path('outputs')\nout.mkdir(exist_ok=True)\n(out / 'x.txt').write_text('x')", []),
    ("import numpy as np\nnp.save('result.npy', np.arange(2))", ["result.npy"]),
]


@pytest.mark.parametrize(("cell", "patterns"), WRITES)
def test_what_is_written_is_returned_and_is_no_input(tmp_path: Path, cell: str, patterns: list[str]) -> None:
    put(tmp_path, "result.csv", "results/x", "step-1.pt", "outputs/x.txt", "result.npy")
    made = promote(write_notebook(tmp_path / "work.ipynb", cell))
    assert made.outputs == ("outputs/**", *patterns)
    assert (made.data, made.inputs) == ((), ())
    assert run_script(made.directory, made.program).code == 0


NO_FILES = [
    "name = 'f.png'\nfor n in range(2):\n    fig.savefig(target(n), bbox_inches='tight', dpi=150)",
    "fig.savefig(buffer, 'tight')",
    "pd.to_datetime('2020-01-01')\ndf.to_dict('records')\nmodel.to_device('cuda')",
    "df.to_sql('table', connection, if_exists='replace')",
    "place.write_text('some text.txt', encoding='utf-8')",
    "df.to_csv(name, mode='a', encoding='utf-8')",
]


@pytest.mark.parametrize("cell", NO_FILES)
def test_what_only_looks_like_a_name_is_no_output(tmp_path: Path, cell: str) -> None:
    assert promote(write_notebook(tmp_path / "work.ipynb", cell)).outputs == ("outputs/**",)


FILES = [
    ("df.to_csv(path_or_buf='a.csv')", "a.csv"),
    ("fig.savefig('a.png', bbox_inches='tight')", "a.png"),
    ("fig.savefig(fname='a.png', bbox_inches='tight')", "a.png"),
    ("torch.save(model.state_dict(), 'a.pt')", "a.pt"),
    ("nx.write_gml(graph, 'a.gml')", "a.gml"),
    ("torch.onnx.export(model, example, 'a.onnx')", "a.onnx"),
]


@pytest.mark.parametrize(("cell", "path"), FILES)
def test_the_argument_that_names_the_file_is_the_output(tmp_path: Path, cell: str, path: str) -> None:
    assert promote(write_notebook(tmp_path / "work.ipynb", cell)).outputs == ("outputs/**", path)


def test_what_cannot_be_returned_or_found_is_said(tmp_path: Path) -> None:
    put(tmp_path, "abs.csv")
    cells = (
        "import pandas as pd\nopen('/var/lib/thing/out.csv', 'w')\npd.DataFrame().to_csv(name)",
        f"open('missing.csv')\npd.read_csv('https://user:secret@host.org/x.csv?token=1')\npd.read_csv('{tmp_path}/abs.csv')",
        "open('../up.csv', 'w')\nurl = 'https://example.org/'\nx = '/usr/bin/env'\n%cd /elsewhere",
        "input('?')",
    )
    made = promote(write_notebook(tmp_path / "nb" / "work.ipynb", *cells))
    said = "\n".join(checks(made))
    for text in (
        "cell 1, line 2: /var/lib/thing/out.csv is written outside the task",
        "cell 1, line 3: what is written here is known only while it runs",
        "cell 2, line 1: missing.csv is not there",
        "cell 2, line 2: https://host.org/x.csv is fetched while the task runs",
        f"cell 2, line 3: {tmp_path}/abs.csv is an absolute path",
        "../up.csv is written outside the task",
        "cell 3, line 4: /elsewhere is a directory of this machine",
        "cell 4, line 1: input() waits for an answer",
        "name is defined in no cell",
    ):
        assert text in said
    assert "secret" not in said
    assert "example.org" not in said
    assert "/usr/bin/env" not in said
    assert (made.data, made.inputs) == ((), ())


def test_files_above_the_notebook_come_along_under_other_names(tmp_path: Path) -> None:
    put(tmp_path, "data/x.csv", "more/x.csv")
    cells = (("where = '../more/x.csv'", "parameters"), "text = open('../data/x.csv').read(), open(where).read()\ntext")
    made = promote(write_notebook(tmp_path / "nb" / "work.ipynb", *cells))
    assert sorted(made.data) == ["inputs/x-2.csv", "inputs/x.csv"]
    assert [(item.type, item.value) for item in made.parameters] == [("path", "inputs/x-2.csv")]
    assert run_script(made.directory, made.program).out == "('# data/x.csv\\n', '# more/x.csv\\n')\n"


def test_directories_above_the_notebook_come_along_too(tmp_path: Path) -> None:
    put(tmp_path, "data/x.csv", "data/sub/y.csv", "other/z.csv")
    cells = (
        "from pathlib import Path\nDATA = Path('../data/')\na = (DATA / 'sub' / 'y.csv').read_text()",
        "b = open('../data/x.csv').read(), open('../data/sub/../x.csv').read()\na, b",
        "print((Path('..') / 'other' / 'z.csv').exists())",
    )
    made = promote(write_notebook(tmp_path / "nb" / "work.ipynb", *cells))
    assert made.data == ("inputs/data",)
    assert any("../other/z.csv is outside" in text for text in checks(made))
    ran = run_script(made.directory, made.program)
    assert ran.out.splitlines() == ["('# data/sub/y.csv\\n', ('# data/x.csv\\n', '# data/x.csv\\n'))", "False"], ran.err


def test_commands_follow_files_that_go_elsewhere(tmp_path: Path) -> None:
    put(tmp_path, "data/x.csv")
    made = promote(write_notebook(tmp_path / "nb" / "work.ipynb", "!cat ../data/x.csv\nlines = !wc -l < ../data/x.csv\nlines"))
    ran = run_script(made.directory, made.program)
    assert [line.strip() for line in ran.out.splitlines()] == ["# data/x.csv", "['1']"]


def test_directories_that_hold_more_than_data_are_said(tmp_path: Path) -> None:
    put(tmp_path, "nb/x.csv", "nb/sub/y.csv", "up.csv")
    cells = (
        "from pathlib import Path\nPath('.')",
        "import os\nos.listdir('..')",
        "import glob\nglob.glob('*.nothing'), glob.glob('../*.csv')",
        "!ls * && rm -f *.pyc",
        "print('*' * 10, '.')",
    )
    made = promote(write_notebook(tmp_path / "nb" / "work.ipynb", *cells))
    assert checks(made) == [
        "cell 1, line 2: the notebook's own directory is named: of what is in it, only what is named travels",
        "cell 3, line 2: *.nothing names no file here",
        "cell 2, line 2: .. holds more than data: only what is named in it travels",
        "cell 3, line 2: ../*.csv is outside the notebook's directory and does not travel",
    ]
    assert made.data == ()


def test_a_notebook_is_promoted_from_anywhere_to_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_notebook(tmp_path / "nb" / "work.ipynb", "1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert promote(Path("../nb/work.ipynb"), target=Path()).files
    assert (tmp_path / "here" / "MLproject").exists()
    monkeypatch.chdir(tmp_path / "nb")
    assert promote(Path("work.ipynb")).directory == Path("work")
    assert (tmp_path / "nb" / "work" / "MLproject").exists()


def test_modules_travel_with_what_they_import(tmp_path: Path) -> None:
    files = {
        "nb/helper.py": "import package.part\nfrom beside import one\nvalue = package.part.two + one\n",
        "nb/beside.py": "import yaml\none = int(open('one.txt').read()[-2])\n",
        "nb/package/__init__.py": "",
        "nb/package/part.py": "from .deep import two\n",
        "nb/package/deep.py": "two = 2\n",
        "nb/package/table.json": "{}",
        "nb/space/inner.py": "three = 3\n",
        "nb/unused.py": "",
        "nb/one.txt": "is 1\n",
        "shared/common.py": "four = 4\n",
        "nb/scripts/tool.py": "import near\nfive = near.five\n",
        "nb/scripts/near.py": "five = 5\n",
        "nb/queue.py": "raise SystemExit('the standard library comes first to everybody else')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    cells = (
        "import sys\nsys.path.append('../shared')\nimport helper, common\nfrom space.inner import three",
        "%run scripts/tool.py",
        "helper.value, three, common.four, five",
    )
    made = promote(write_notebook(tmp_path / "nb" / "work.ipynb", *cells))
    assert set(made.modules) == {"helper.py", "package", "beside.py", "space", "common.py", "scripts/tool.py", "scripts/near.py"}
    assert (made.directory / "package/table.json").exists()
    assert made.environment.requirements == ("pyyaml",)
    ran = run_script(made.directory, made.program)
    assert ran.out == "(3, 3, 4, 5)\n", ran.err


@pytest.mark.parametrize("name", ["random", "numpy", "helper"])
def test_a_script_does_not_stand_in_for_a_module(tmp_path: Path, name: str) -> None:
    put(tmp_path, "helper.py")
    made = promote(
        write_notebook(tmp_path / f"{name}.ipynb", "import numpy, random, helper\nprint(numpy.array([1]), random.Random)")
    )
    assert (made.name, made.program) == (name, f"{name}_notebook.py")
    assert run_script(made.directory, made.program).out == "[1] <class 'random.Random'>\n"


def test_git_does_not_hold_back_what_belongs_to_the_task(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("*.csv\ndata/\n*.txt\nnb/\n")
    put(tmp_path, "nb/data/x [1].csv", "nb/data/keep/y.csv", "nb/data/keep/.gitignore")
    (tmp_path / "nb/data/keep/.gitignore").write_text("z.csv\n")
    put(tmp_path, "nb/data/keep/z.csv")
    made = promote(
        write_notebook(tmp_path / "nb" / "work.ipynb", "open('data/x [1].csv')", "from pathlib import Path\nPath('data/keep')")
    )
    assert checks(made) == ["data/keep/z.csv does not travel with the task: a .gitignore leaves it out"]


def test_digests_are_those_of_the_runner(tmp_path: Path) -> None:
    put(tmp_path, "d/b/c", "d/b.x", "d/a", "d/B", "d/.hidden")
    for place in ("d", "d/a"):
        assert digest_of(tmp_path / place) == fetch((tmp_path / place).as_uri(), tmp_path / f"copy-{place.replace('/', '-')}")


def test_names_of_every_task_are_taken(tmp_path: Path) -> None:
    put(tmp_path, "MLproject", "requirements.txt", "python_env.yaml", "work.py")
    made = promote(write_notebook(tmp_path / "work.ipynb", "open('requirements.txt'), open('python_env.yaml')"))
    assert (made.directory / "requirements.txt").read_text() == "# requirements.txt\n"
    assert "task_python_env.yaml" in (made.directory / "MLproject").read_text()
    with pytest.raises(Invalid, match="MLproject"):
        promote(write_notebook(tmp_path / "other.ipynb", "open('MLproject')"))
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".*new"))


def test_gpus_are_the_most_that_a_cell_asks_for(tmp_path: Path) -> None:
    cases: list[tuple[tuple[str | tuple[str, ...], ...], int | None]] = [
        (("x = 1",), None),
        (("%gpu 2\nx = 1", "# carrel: gpus=3\nx", ("x", "gpus=1")), 3),
        ((("x = 1", "cpu"), "%gpu off"), 0),
        (("%gpu hold 10m\nx = 1",), 1),
        (("%gpu on", "%gpu auto", "%gpu", "%gpu hold off"), 1),
    ]
    for number, (cells, gpus) in enumerate(cases):
        made = promote(write_notebook(tmp_path / f"n{number}.ipynb", *cells))
        assert made.gpus == (gpus or None if gpus is None else gpus), cells
        assert ("resources" in (made.directory / "MLproject").read_text()) == bool(gpus)


def test_cuda_without_a_word_about_gpus_is_said(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "a.ipynb", "device = 'cuda'"))
    assert "--gpus" in checks(made)[0]
    assert checks(promote(write_notebook(tmp_path / "b.ipynb", "# carrel: gpus=1\ndevice = 'cuda'"))) == []
