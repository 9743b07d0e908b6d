"""The environment of a promoted notebook."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from promoting import write_notebook

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.tasks import describe
from carrel.notebooks.promote import Promoted, Severity, promote

pytestmark = pytest.mark.quick

LOCK = """# Made by uv
numpy==2.1.0 \\
    --hash=sha256:aa --hash=sha256:bb
scikit_learn==1.5.0
opencv-python-headless==4.10.0.84
torch==2.13.0+cpu
ipykernel==6.29.5
tornado==6.4
requests @ git+https://example.org/requests@abc
-e file:///home/ada/mine
theirs @ file:///home/ada/theirs
"""


def notes(made: Promoted, weight: Severity) -> list[str]:
    return [note.text for note in made.notes if note.weight is weight]


def requirements(made: Promoted) -> list[str]:
    """What a lab reads of it."""
    return list(describe(made.directory).environment.requirements)


def test_a_lock_gives_exact_versions_and_leaves_the_kernel_out(tmp_path: Path) -> None:
    cells = ("import numpy, sklearn.svm, cv2, json", "%pip install 'numpy>=2' humanize", "import wandb, mine")
    made = promote(
        write_notebook(tmp_path / "work.ipynb", *cells, language_info={"name": "python", "version": "3.11.7"}), lock=LOCK
    )
    assert made.environment.locked
    exact = [
        "numpy==2.1.0",
        "opencv-python-headless==4.10.0.84",
        "requests @ git+https://example.org/requests@abc",
        "scikit-learn==1.5.0",
        "torch==2.13.0+cpu",
    ]
    assert sorted(requirements(made)) == sorted(["-c constraints.txt", *exact, "humanize", "wandb"])
    recipe = describe(made.directory).environment
    assert recipe.python == "3.11"
    assert "ipykernel==6.29.5" in recipe.files["constraints.txt"]
    assert "tornado==6.4" in recipe.files["constraints.txt"]
    assert any("humanize" in text and "open" in text for text in notes(made, Severity.GUESSED))
    assert any("wandb" in text for text in notes(made, Severity.GUESSED))
    assert any("file:///home/ada/mine" in text for text in notes(made, Severity.CHECK))
    assert any("theirs" in text for text in notes(made, Severity.CHECK))
    assert any("+" in text and "torch" in text for text in notes(made, Severity.CHECK))


def test_what_a_kernel_needs_stays_where_a_cell_imports_it(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "import tornado.ioloop"), lock=LOCK)
    assert "tornado==6.4" in requirements(made)
    assert "ipykernel==6.29.5" not in requirements(made)


def test_running_the_notebook_itself_needs_a_kernel(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "work.ipynb", "1")
    assert {"ipykernel==6.29.5", "nbclient"} <= set(requirements(promote(notebook, lock=LOCK, keep_notebook=True, name="locked")))
    assert set(requirements(promote(notebook, keep_notebook=True, name="open"))) == {"ipykernel", "nbclient"}


def test_a_lock_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="numpy>=2"):
        promote(write_notebook(tmp_path / "work.ipynb", "1"), lock="numpy>=2\n")


def test_imports_become_packages_where_nothing_is_known(tmp_path: Path) -> None:
    cells = (
        "import os, numpy as np, sklearn.svm, cv2, yaml\nfrom PIL import Image\nfrom bs4 import BeautifulSoup",
        "import google.protobuf",
        "try:\n    import cupy\nexcept ImportError:\n    cupy = None\nimport importlib\nimportlib.import_module('attr')",
        "from dateutil import parser\nfrom ruamel import yaml as ruamel_yaml\nfrom google.cloud import storage",
        "import pandas as pd\npd.read_parquet(path) if False else None",
    )
    made = promote(write_notebook(tmp_path / "work.ipynb", *cells))
    assert requirements(made) == sorted(
        [
            "attrs",
            "beautifulsoup4",
            "google-cloud-storage",
            "numpy",
            "opencv-python",
            "pandas",
            "pillow",
            "protobuf",
            "pyarrow",
            "python-dateutil",
            "pyyaml",
            "ruamel-yaml",
            "scikit-learn",
        ]
    )
    assert any("cupy" in text for text in notes(made, Severity.GUESSED))
    assert not made.environment.locked


def test_a_notebook_of_python_alone_gets_an_empty_environment(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "import json"))
    assert requirements(made) == []
    assert describe(made.directory).environment.source == "python_env.yaml"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%pip install numpy", ["numpy"]),
        ("!pip install -q -U 'numpy>=2,<3' pandas[excel]", ["numpy<3,>=2", "pandas[excel]"]),
        ("!pip3 install --quiet numpy >/dev/null 2>&1", ["numpy"]),
        ("!pip install numpy | tail -n 1", ["numpy"]),
        ("!{sys.executable} -m pip install --user numpy", ["numpy"]),
        ("!python -m pip install numpy==2.1", ["numpy==2.1"]),
        ("%uv pip install numpy" if False else "!uv pip install numpy", ["numpy"]),
        ("%pip install --extra-index-url https://host/simple numpy", ["--extra-index-url https://host/simple", "numpy"]),
        ("%pip install git+https://example.org/a.git", ["git+https://example.org/a.git"]),
        ("%pip install -r needs.txt", ["idna==3.10", "numpy<3"]),
        ("%conda install -y -c conda-forge numpy=2.1 pandas", ["numpy==2.1.*", "pandas"]),
        ("if True:\n    %pip install numpy", ["numpy"]),
        ("%%capture\n%pip install numpy", ["numpy"]),
        ("pip install numpy", ["numpy"]),
        ("%pip install \\\n  numpy \\\n  pandas", ["numpy", "pandas"]),
        ("%pip list", []),
        ("!pip freeze > here.txt", []),
    ],
)
def test_installations_become_requirements(tmp_path: Path, line: str, expected: list[str]) -> None:
    (tmp_path / "needs.txt").write_text("# what it needs\nidna==3.10 \\\n    --hash=sha256:aa\nnumpy<3\n")
    made = promote(write_notebook(tmp_path / "work.ipynb", line))
    assert requirements(made) == expected
    script = [text for text in (made.directory / made.program).read_text().splitlines() if "pip" in text or "conda" in text]
    assert all(text.lstrip().startswith(("#", "pass  #")) for text in script)


def test_what_follows_an_installation_still_runs(tmp_path: Path) -> None:
    from promoting import run_script

    made = promote(
        write_notebook(tmp_path / "work.ipynb", "!pip install 'numpy>=1;python_version>\"3\"' && echo done; echo more")
    )
    assert requirements(made) == ['numpy>=1 ; python_version>"3"']
    assert run_script(made.directory, made.program).out == "done\nmore\n"


def test_what_does_not_travel_is_said(tmp_path: Path) -> None:
    cells = (
        "%pip install -e . ./wheel.whl /abs/package",
        "v = 2\n!pip install numpy=={v} $OTHER",
        "%pip install -r nowhere.txt -c limits.txt",
    )
    made = promote(write_notebook(tmp_path / "work.ipynb", *cells))
    said = " ".join(notes(made, Severity.CHECK))
    for word in (". is installed", "./wheel.whl", "/abs/package", "numpy=={v}", "$OTHER", "nowhere.txt", "limits.txt"):
        assert word in said
    assert requirements(made) == []


def test_a_password_of_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        promote(write_notebook(tmp_path / "work.ipynb", "%pip install --index-url https://me:secret@host/simple numpy"))
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "work").exists()


@pytest.mark.gate
@pytest.mark.slow
def test_an_environment_gives_its_own_versions(tmp_path: Path) -> None:
    numpy = importlib.metadata.version("numpy")
    made = promote(write_notebook(tmp_path / "work.ipynb", "import numpy"), prefix=Path(sys.prefix))
    assert f"numpy=={numpy}" in requirements(made)
    assert describe(made.directory).environment.python == f"3.{sys.version_info.minor}"
    assert made.environment_source == sys.prefix
    session = promote(write_notebook(tmp_path / "b.ipynb", "import numpy"), environ={"CARREL_SESSION_ENVIRONMENT": sys.prefix})
    assert requirements(session) == requirements(made)


@pytest.mark.slow
def test_an_environment_on_top_of_another_gives_the_versions_of_both(tmp_path: Path) -> None:
    venv.create(tmp_path / "top", system_site_packages=False)
    (site,) = (tmp_path / "top" / "lib").glob("python3*/site-packages")
    (base,) = (Path(sys.prefix) / "lib").glob("python3*/site-packages")
    (site / "base.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n")
    info = site / "mine-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.5\n")
    subprocess.run([tmp_path / "top/bin/python", "-c", "import numpy"], check=True)
    found = requirements(promote(write_notebook(tmp_path / "work.ipynb", "1"), prefix=tmp_path / "top"))
    assert "mine==1.5" in found
    assert f"numpy=={importlib.metadata.version('numpy')}" in found


def test_a_prefix_without_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Python environment"):
        promote(write_notebook(tmp_path / "work.ipynb", "1"), prefix=tmp_path / "nothing")


UNKNOWN = [
    ("import json\n\nimport utils", "cell 1, line 3: import utils"),
    ("from google.colab import drive", "cell 1, line 1: import google.colab"),
    ("def late():\n    from my_lab.models import Net", "cell 1, line 2: import my_lab.models"),
    ("%%writefile helper.py\nimport os\nimport secret_sauce", "cell 1, line 3: import secret_sauce"),
    ("import beside", "beside.py, line 2: import lab_tools"),
]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("cell", "said"), UNKNOWN)
def test_an_import_that_nobody_knows_is_refused(tmp_path: Path, cell: str, said: str, keep: bool) -> None:
    (tmp_path / "beside.py").write_text("import os\nimport lab_tools\n")
    notebook = write_notebook(tmp_path / "work.ipynb", cell)
    for lock in (None, LOCK):
        with pytest.raises(Invalid, match=r"Nobody knows") as refused:
            promote(notebook, lock=lock, keep_notebook=keep)
        if not keep or "writefile" not in cell:
            assert said in refused.value.message
        assert "--environment" in (refused.value.remedy or "")
        assert not (tmp_path / "work").exists()


KNOWN = [
    # What a cell writes is imported by later ones.
    ("%%writefile helper.py\ndef f():\n    return 1", "from helper import f"),
    ("%%writefile -a tools/more.py\nx = 1", "import tools.more"),
    ("%%writefile src/inner.py\nx = 1", "import sys\nsys.path.append('src')\nimport inner"),
    ("open('made.py', 'w').write('x = 1')", "import made"),
    ("from pathlib import Path\nPath('made.py').write_text('x = 1')", "import made"),
    # Commands bring it: that is said.
    ("!git clone https://example.org/net.git\nimport sys\nsys.path.append('net')", "import net_models"),
    ("!wget https://example.org/code/d2l_tools.py", "import d2l_tools"),
    # Nobody runs these.
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import my_types", "1"),
    ("try:\n    import fast_path\nexcept ImportError:\n    fast_path = None", "1"),
]


@pytest.mark.parametrize(("first", "second"), KNOWN)
def test_what_the_notebook_makes_itself_is_no_package(tmp_path: Path, first: str, second: str) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", first, second))
    assert requirements(made) == []
    if first.startswith("!"):
        assert any("import" in text for text in notes(made, Severity.CHECK))


def test_what_a_written_module_imports_is_needed(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "%%writefile helper.py\nimport numpy", "import helper"))
    assert requirements(made) == ["numpy"]


def test_what_a_cell_installs_may_bring_a_module_of_another_name(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "%pip install odd-distribution", "import odd_module"))
    assert requirements(made) == ["odd-distribution"]
    assert any("odd_module" in text and "odd-distribution" in text for text in notes(made, Severity.GUESSED))


def test_installed_files_tell_which_package_brings_a_module(tmp_path: Path) -> None:
    prefix = tmp_path / "environment"
    site = prefix / "lib" / "python3.11" / "site-packages"
    info = site / "strange_distribution-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "plain_module.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-distribution\nVersion: 1.2\n")
    (info / "RECORD").write_text("plain_module.py,,\nstrange_distribution-1.2.dist-info/METADATA,,\n")
    made = promote(write_notebook(tmp_path / "work.ipynb", "import plain_module"), prefix=prefix)
    assert [line for line in requirements(made) if not line.startswith("-c")] == ["strange-distribution==1.2"]


def test_a_notebook_without_code_says_so(tmp_path: Path) -> None:
    made = promote(write_notebook(tmp_path / "work.ipynb", "%pip install numpy", "# only a remark", "%matplotlib inline"))
    assert any("no code remains" in text for text in notes(made, Severity.CHECK))
    again = promote(write_notebook(tmp_path / "more.ipynb", "print(1)"))
    assert not any("no code remains" in text for text in notes(again, Severity.CHECK))
