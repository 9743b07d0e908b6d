"""What travels with a bare script, what stays, and what is said of it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from carrel.client.code import code_of
from carrel.client.travelling import Travelling
from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.snapshots import pack

PACKAGE = {"pkg/__init__.py", "pkg/one.py", "pkg/deep/__init__.py", "pkg/deep/two.py", "further.py", "helper.py"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with much in it that is nobody's business; commands are typed in it."""
    place = tmp_path / "me" / "stuff"
    write(place, {"notes.txt": "private", ".ssh/id_ed25519": "key", "big/data.bin": "0" * 1000, "unused.py": "import os"})
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(place)
    return place


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def travelling(target: Path, *, include: Sequence[str] = (), words: Sequence[str] = ()) -> Travelling:
    code = code_of(target, None, None, target.parent, include=include, words=words)
    return Travelling(code=code, packed=pack(code.directory, only=code.only, also=code.also))


def sent(target: Path, *, include: Sequence[str] = (), words: Sequence[str] = ()) -> set[str]:
    return {entry.path for entry in travelling(target, include=include, words=words).packed.files}


@pytest.mark.gate
def test_a_script_travels_alone_and_it_is_said(place: Path) -> None:
    write(place, {"train.py": "import os, numpy\nprint(1)\n"})
    found = travelling(place / "train.py")
    assert [entry.path for entry in found.packed.files] == ["train.py"]
    assert found.said() == ["train.py (26 B)"]
    assert found.warnings() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import helper", {"helper.py", "further.py"}),
        ("import helper as h, numpy as np", {"helper.py", "further.py"}),
        ("def f():\n    from helper import thing", {"helper.py", "further.py"}),
        ("try:\n    import helper\nexcept ImportError:\n    pass", {"helper.py", "further.py"}),
        ("import importlib\nimportlib.import_module('helper')", {"helper.py", "further.py"}),
        ("from importlib import import_module\nimport_module('pkg.one')", PACKAGE),
        ("__import__('helper')", {"helper.py", "further.py"}),
        ("import importlib\nimportlib.import_module('.only', package='spread')", {"spread/only.py"}),
        ("import pkg.deep.two", PACKAGE),
        ("from pkg import one", PACKAGE),
        ("from spread import only", {"spread/only.py"}),
        ("import spread.only", {"spread/only.py"}),
        ("import fast", {"fast.cpython-311-x86_64-linux-gnu.so"}),
        ("import sys\nsys.path.insert(0, 'lib')\nimport inside", {"lib/inside.py"}),
        ("import sys, os\nsys.path.append(os.path.join(os.path.dirname(__file__), 'lib'))\nimport inside", {"lib/inside.py"}),
        ("# import helper\n'import helper'\nimport sys", set()),
        ("import time", set()),  # built in: no file is looked for
        ("import random", {"random.py"}),  # what lies beside a script goes before the standard library
        ("from . import helper", set()),
        ("this is not Python", set()),
        ("import twice\n", {"twice/__init__.py"}),  # a package goes before a module of the same name
    ],
)  # fmt: skip
def test_the_modules_that_it_imports_travel(place: Path, text: str, expected: set[str]) -> None:
    write(
        place,
        {
            "train.py": text,
            "helper.py": "import further\n",
            "further.py": "import helper, unheard_of\n",
            "pkg/__init__.py": "",
            "pkg/one.py": "from .deep import two\nfrom . import deep\n",
            "pkg/deep/__init__.py": "",
            "pkg/deep/two.py": "from .. import one\nimport further\n",
            "pkg/not_a_module/notes.py": "",
            "pkg/__pycache__/one.cpython-311.pyc": "",
            "spread/only.py": "",
            "spread/other.py": "",
            "fast.cpython-311-x86_64-linux-gnu.so": "",
            "lib/inside.py": "",
            "time.py": "",
            "random.py": "",
            "twice.py": "",
            "twice/__init__.py": "",
        },
    )
    assert sent(place / "train.py") == {"train.py"} | expected


def test_files_that_arguments_name_travel_and_directories_are_told(place: Path) -> None:
    write(place, {"train.py": "", "data.csv": "1", "conf/a.yaml": "", "launch.py": "import unused"})
    words = ["--data", "data.csv", "--conf=conf/a.yaml", "./launch.py", "--lr", "0.1", "..", ".", "/etc/passwd", "-", "big"]
    found = travelling(place / "train.py", words=words)
    assert {entry.path for entry in found.packed.files} == {"train.py", "data.csv", "conf/a.yaml", "launch.py", "unused.py"}
    assert found.warnings() == ["An argument mentions big/, which does not travel; --with big adds it."]


def test_a_file_that_code_mentions_is_told_and_with_adds_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '"""data.csv"""\nimport helper\nopen("data.csv"); open("./outputs/old"); open("absent"); open("/etc/passwd")\n'
    text += 'print("helper.py", ".")\n'
    write(place, {"train.py": text, "helper.py": "D = 'big'\n", "data.csv": "1", "outputs/old": ""})
    found = travelling(place / "train.py")
    assert found.warnings() == [
        "train.py mentions data.csv, which does not travel; --with data.csv adds it.",
        "helper.py mentions big/, which does not travel; --with big adds it.",
    ]
    both = travelling(place / "train.py", include=["data.csv", "big"])
    assert {entry.path for entry in both.packed.files} == {"train.py", "helper.py", "data.csv", "big/data.bin"}
    assert both.warnings() == []
    assert both.said() == ["train.py (130 B), big/ (1000 B), data.csv (1 B), helper.py (10 B)"]
    monkeypatch.chdir(place.parent)
    assert travelling(place / "train.py").warnings()[0].endswith("--with stuff/data.csv adds it.")
    assert "data.csv" in sent(place / "train.py", include=["stuff/data.csv"])
    assert "data.csv" in sent(place / "train.py", include=["data.csv"])  # as seen from the script, too


def test_a_shell_script_travels_with_the_scripts_that_it_calls(place: Path) -> None:
    write(
        place,
        {
            "run.sh": "# python unused.py\n. env.sh\npython src/train.py --data data.csv && python3 -m tool.main\n",
            "env.sh": "",
            "src/train.py": "import near\n",
            "src/near.py": "",
            "near.py": "",
            "tool/main.py": "",
            "data.csv": "",
        },
    )
    found = travelling(place / "run.sh")
    assert {entry.path for entry in found.packed.files} == {"run.sh", "env.sh", "src/train.py", "src/near.py", "tool/main.py"}
    assert found.warnings() == ["run.sh mentions data.csv, which does not travel; --with data.csv adds it."]


def test_what_describes_the_environment_travels(place: Path) -> None:
    write(place, {"train.py": "", "requirements.txt": "-r more/base.txt\nnumpy\n", "more/base.txt": "scipy\n", "conda.yml": ""})
    assert sent(place / "train.py") == {"train.py", "requirements.txt", "more/base.txt"}
    write(place, {"train.py": "# /// script\n# dependencies = []\n# ///\n"})
    assert sent(place / "train.py") == {"train.py"}


@pytest.mark.parametrize("marker", ["MLproject", "pyproject.toml", "../mlproject", ".git/HEAD", "../.git/HEAD"])
def test_a_project_or_repository_travels_whole(place: Path, marker: str) -> None:
    deeper = write(place / "deeper", {"train.py": "", "notes.txt": "", marker: ""})
    found = travelling(deeper / "train.py")
    assert {"train.py", "notes.txt"} <= {entry.path for entry in found.packed.files}
    assert found.said() == []


@pytest.mark.parametrize("where", ["", "stuff/"], ids=["in it", "below"])
def test_a_home_directory_that_is_a_repository_or_project_is_none_of_a_script(place: Path, where: str) -> None:
    home = place.parent
    subprocess.run(["git", "init", "-q", home], check=True)
    write(home, {f"{where}train.py": "import helper", f"{where}helper.py": "", "MLproject": "name: mine", "secret": ""})
    assert sent(home / f"{where}train.py") == {"train.py", "helper.py"}
    write(home, {"requirements.txt": "numpy"})
    assert "requirements.txt" not in sent(home / f"{where}train.py")


def test_with_adds_to_a_project_what_gitignore_leaves_out(place: Path) -> None:
    root = write(
        place / "p",
        {"MLproject": "name: p", "train.py": "", ".gitignore": "data/\n*.csv\n", "data/a.csv": "", "data/b/c.csv": ""},
    )
    (root / "data" / ".gitignore").write_text("*\n")
    assert "data/a.csv" not in sent(root / "train.py")
    assert {"data/a.csv", "data/b/c.csv"} <= sent(root / "train.py", include=["p/data"])
    code = code_of(root, None, None, place, include=["p/data/a.csv"])
    assert code.also == ("data/a.csv",)


def test_what_cannot_be_added_is_refused(place: Path, tmp_path: Path) -> None:
    write(place, {"train.py": "", "../outside": ""})
    with pytest.raises(NotFound, match="no such file"):
        sent(place / "train.py", include=["absent"])
    with pytest.raises(Invalid, match="outside of"):
        sent(place / "train.py", include=["../outside"])
    with pytest.raises(Invalid, match="whole directory"):
        sent(place / "train.py", include=["."])
    with pytest.raises(Invalid, match="git address"):
        code_of("https://host/repository.git", None, None, tmp_path, include=["train.py"])
    os.mkfifo(place / "pipe")
    with pytest.raises(Invalid, match="neither a file nor a directory"):
        sent(place / "train.py", include=["pipe"])


def test_a_link_travels_as_what_it_leads_to(place: Path) -> None:
    write(place.parent, {"shared/helper.py": "x = 1\n", "shared/set/a": ""})
    write(place, {"train.py": "import helper\n"})
    (place / "helper.py").symlink_to("../shared/helper.py")
    (place / "set").symlink_to("../shared/set")
    found = travelling(place / "train.py", include=["set"])
    assert {entry.path: entry.target for entry in found.packed.files} == {"train.py": "", "helper.py": "", "set/a": ""}


def test_a_socket_beside_a_script_is_nothing_and_in_a_project_is_said(place: Path) -> None:
    write(place, {"train.py": ""})
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("s.sock")
    assert travelling(place / "train.py").warnings() == []
    write(place, {"MLproject": "name: p"})
    found = travelling(place / "train.py")
    assert found.warnings() == ["s.sock is a socket, pipe or device, and stays behind."]
    assert "s.sock" not in {entry.path for entry in found.packed.files}
    listening.close()


@pytest.mark.parametrize(
    ("log", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'\n", "data.csv"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/spool/12.1/work/data.csv'\n", "data.csv"),
        ("FileNotFoundError: [Errno 2] Unable to open file (name = 'big/data.bin', errno = 2)\n", "big/data.bin"),
        ("cat: ./notes.txt: No such file or directory\n", "notes.txt"),
        ("ModuleNotFoundError: No module named 'unused'\n", "unused.py"),
        ("python: can't open file '/spool/12.1/work/absent.py': [Errno 2] No such file or directory\n", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'elsewhere.csv'\n", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: '../outside'\n", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'train.py'\n", None),
        ("all is well\n", None),
    ],
)
def test_a_file_that_a_task_did_not_find_names_with(place: Path, log: str, path: str | None) -> None:
    write(place, {"train.py": "open('data.csv')", "data.csv": "", "../outside": ""})
    hint = travelling(place / "train.py").missed("before\n" + log)
    assert hint == (None if path is None else f"{path} is in {place} and did not travel; --with {path} adds it.")
