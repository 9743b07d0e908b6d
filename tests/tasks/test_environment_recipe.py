"""Which environment a task asks for; equal meaning gives an equal recipe."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.core.tasks import describe
from carrel.core.tasks.environment import resolved_as_of
from support.examples import examples


def recipe(root: Path, **files: str) -> EnvironmentRecipe:
    root.mkdir(parents=True, exist_ok=True)
    (root / "train.py").touch()
    for name, text in files.items():
        path = root / name.replace("__", ".").replace("_slash_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return describe(root, script="train.py").environment


SCRIPT = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "requests<3",
#   "Rich",
# ]
# ///
print(1)
"""


def test_equal_meaning_gives_an_equal_recipe(tmp_path: Path) -> None:
    first = recipe(
        tmp_path / "a",
        requirements__txt="""
# what we need
Scikit_Learn[B, a] >= 1.5 , < 2   # the usual
numpy; python_version < '3.13'
""",
    )
    second = recipe(
        tmp_path / "b",
        requirements__txt="-r more.txt\r\nscikit-learn[a,b]<2,>=1.5\r\n",
        more__txt='NumPy ;  python_version < "3.13"\nnumpy;python_version < "3.13"\n',
    )
    assert first == second
    assert first.requirements == ('numpy ; python_version < "3.13"', "scikit-learn[a,b]<2,>=1.5")
    assert recipe(tmp_path / "c", requirements__txt="numpy\n") != recipe(tmp_path / "d", requirements__txt="numpy<3\n")


def test_the_order_in_which_sources_are_looked_for(tmp_path: Path) -> None:
    found = [
        recipe(tmp_path),
        recipe(tmp_path, requirements__txt="a"),
        recipe(
            tmp_path,
            pyproject__toml='[project]\nname = "p"\nversion = "1"\ndependencies = ["b"]\nrequires-python = ">= 3.11, < 4"\n',
        ),
        recipe(tmp_path, uv__lock='version = 1\n[[package]]\nname = "p"\nsource = { virtual = "." }\n'),
        recipe(tmp_path, conda__yaml="dependencies: [python=3.11, pip, {pip: [d]}]"),
        recipe(tmp_path, python_env__yaml="python: 3.12\nbuild_dependencies: [setuptools]\ndependencies: [e]"),
        recipe(tmp_path, MLproject="conda_env: conda.yaml"),
        recipe(tmp_path, train__py=SCRIPT),
    ]
    assert [(item.kind.value, item.source, item.python, item.requirements) for item in found] == [
        ("none", "", None, ()),
        ("requirements", "requirements.txt", None, ("a",)),
        ("requirements", "pyproject.toml", "<4,>=3.11", ("b",)),
        ("uv_lock", "uv.lock", "<4,>=3.11", ()),
        ("requirements", "conda.yaml", "3.11", ("d", "pip")),
        ("requirements", "python_env.yaml", "3.12", ("e", "setuptools")),
        ("requirements", "conda.yaml", "3.11", ("d", "pip")),
        ("requirements", "train.py", ">=3.11", ("requests<3", "rich")),
    ]
    assert not any(item.local for item in found)
    assert set(found[3].files) == {"pyproject.toml", "uv.lock"}


def test_a_pyproject_that_is_only_for_tools_asks_for_nothing(tmp_path: Path) -> None:
    assert recipe(tmp_path, pyproject__toml="[tool.ruff]\nline-length = 100\n").kind is EnvironmentKind.NONE
    assert recipe(tmp_path, requirements__txt="a").source == "requirements.txt"


def test_options_constraints_and_hashes_are_kept(tmp_path: Path) -> None:
    found = recipe(
        tmp_path,
        requirements__txt=(
            "--index-url https://pypi.example.org/simple\n-f /srv/wheels\n"
            "--extra-index-url=https://e.example.org\n-c limits/c.txt\n"
            "torch==2.13.0 \\\n    --hash=sha256:bb \\\n    --hash=sha256:aa\n"
            "-e git+https://example.org/x.git@v1#egg=x\npkg @ https://example.org/p.whl ; os_name == 'posix'\n"
        ),
        limits_slash_c__txt="# no newer\nNumpy < 3\n",
    )
    assert found.requirements == (
        "--index-url https://pypi.example.org/simple",
        "--find-links /srv/wheels",
        "--extra-index-url https://e.example.org",
        "-c limits/c.txt",
        "-e git+https://example.org/x.git@v1#egg=x",
        'pkg @ https://example.org/p.whl ; os_name == "posix"',
        "torch==2.13.0 --hash=sha256:aa --hash=sha256:bb",
    )
    assert found.files == {"limits/c.txt": "numpy<3\n"}
    assert not found.local


@pytest.mark.parametrize(
    "line", ["-e .", ".", "./pkg", "pkg/", "--find-links wheels", "wheels/x-1-py3-none-any.whl", "./pkg[extra]"]
)
def test_what_lies_in_the_project_makes_the_recipe_local(tmp_path: Path, line: str) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "x-1-py3-none-any.whl").touch()
    assert recipe(tmp_path, requirements__txt=line).local


def test_a_locked_package_of_the_projects_own_is_local(tmp_path: Path) -> None:
    project = '[project]\nname = "p"\nversion = "1"\n'
    assert recipe(tmp_path, pyproject__toml=project, uv__lock='[[package]]\nname = "p"\nsource = { editable = "." }\n').local
    assert recipe(tmp_path / "dynamic", pyproject__toml='[project]\nname = "p"\ndynamic = ["dependencies"]\n').requirements == (
        ".",
    )


def test_uvs_own_lock_is_read(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = []\n'
    )
    subprocess.run([Path(sys.executable).with_name("uv"), "lock", "--offline", "-q"], cwd=tmp_path, check=True)
    found = recipe(tmp_path)
    assert (found.kind, found.python, found.local) == (EnvironmentKind.UV_LOCK, ">=3.11", False)


def test_conda_with_other_packages_keeps_its_text(tmp_path: Path) -> None:
    text = "name: x\nchannels: [conda-forge]\ndependencies:\n  - python=3.11  \n"
    text += "  - conda-forge::cudatoolkit=11.8=h_1\n  - pip:\n    - -r r.txt\n"
    found = recipe(tmp_path, conda__yaml=text, r__txt="numpy")
    assert (found.kind, found.python) == (EnvironmentKind.CONDA, "3.11")
    assert found.files["conda.yaml"] == text.replace("3.11  ", "3.11")


def test_a_conda_file_in_a_directory_names_files_and_packages_beside_it(tmp_path: Path) -> None:
    conda = "dependencies: [python=3.11, pip, {pip: [-r requirements.txt, ./pkg, -e ../own]}]"
    (tmp_path / "envs" / "pkg").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "MLproject").write_text("name: x\nconda_env: envs/conda.yaml\n")
    found = recipe(tmp_path, envs_slash_conda__yaml=conda, envs_slash_requirements__txt="attrs", requirements__txt="idna")
    assert found.requirements == ("-e ./own", "./envs/pkg", "attrs", "pip")


def test_a_script_is_read_in_the_encoding_that_it_declares_and_may_hold_data(tmp_path: Path) -> None:
    latin = f"# -*- coding: latin-1 -*-\n{SCRIPT}print('gr\xf6\xdfe')\n".encode("latin-1")
    (tmp_path / "train.py").write_bytes(latin)
    assert describe(tmp_path, script="train.py").environment.requirements == ("requests<3", "rich")
    (tmp_path / "train.py").write_bytes(SCRIPT.encode() + b"DATA = '" + 3_000_000 * b"x" + b"'\n")
    assert describe(tmp_path, script="train.py").environment.requirements == ("requests<3", "rich")


@pytest.mark.parametrize(
    "script", ["print('größe')".encode("latin-1"), "print(1)".encode("utf-16"), b"# coding: nothing-like-it\nprint(1)\n"]
)
def test_a_script_in_another_encoding_is_refused_with_the_remedy(tmp_path: Path, script: bytes) -> None:
    (tmp_path / "train.py").write_bytes(script)
    with pytest.raises(Invalid, match=r"train\.py is not in the encoding .*PEP 263"):
        describe(tmp_path, script="train.py")


def test_a_shell_script_with_dos_line_ends_is_refused_before_it_waits(tmp_path: Path) -> None:
    (tmp_path / "run all.sh").write_bytes(b"set -e\r\necho yes\r\n")
    with pytest.raises(Invalid, match=r"DOS line ends.*sed -i 's/\\r\$//' 'run all\.sh'"):
        describe(tmp_path, script="run all.sh")


def test_a_shell_script_with_a_byte_order_mark_is_refused_before_it_waits(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"\xef\xbb\xbfecho yes\n")
    with pytest.raises(Invalid, match=r"byte order mark"):
        describe(tmp_path, script="run.sh")


@pytest.mark.parametrize(
    ("first_line", "command"),
    [
        ("#!/bin/bash -eu", "bash -eu run.sh"),
        ("#! /bin/sh -e", "bash -e run.sh"),
        ("#!/usr/bin/env -S bash -euo pipefail", "bash -euo pipefail run.sh"),
        ("#!/bin/bash -l", "bash run.sh"),
        ("#!/bin/bash -le", "bash -e run.sh"),
        ("#!/bin/bash --login", "bash run.sh"),
        ("#!/bin/bash", "bash run.sh"),
        ("#!/bin/zsh -e", "bash run.sh"),
        ("echo '#!/bin/bash -e'", "bash run.sh"),
    ],
)
def test_options_of_a_scripts_first_line_hold(tmp_path: Path, first_line: str, command: str) -> None:
    (tmp_path / "run.sh").write_text(f"{first_line}\nfalse\necho never with -e\n")
    assert describe(tmp_path, script="run.sh").command == command


def test_requirements_as_powershell_writes_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "requirements.txt").write_bytes("requests<3\r\n".encode("utf-16"))
    assert describe(tmp_path, script="train.py").environment.requirements == ("requests<3",)


MISTAKES: dict[str, tuple[dict[str, str], str]] = {
    "key of python_env": ({"python_env__yaml": "dependancies: [a]"}, 'python_env.yaml, line 1: "dependancies"'),
    "list": ({"python_env__yaml": "dependencies: a"}, "must be a list"),
    "python": ({"python_env__yaml": "python: latest"}, '"latest" is not a version of Python'),
    "requirement": ({"requirements__txt": "ok\n\nnumpy => 2"}, "requirements.txt, line 3"),
    "name": ({"requirements__txt": "num py"}, '"py" in "num py" is not a version specifier'),
    "option": ({"requirements__txt": "--pree"}, 'the option "--pree" is not understood'),
    "option without value": ({"requirements__txt": "--index-url"}, "takes a value"),
    "absent include": ({"requirements__txt": "-r none.txt"}, "none.txt does not exist"),
    "absent constraints": ({"requirements__txt": "-c none.txt"}, "none.txt does not exist"),
    "options in constraints": ({"requirements__txt": "-c c.txt", "c__txt": "-e ."}, "c.txt, line 1"),
    "circle": ({"requirements__txt": "-r requirements.txt"}, "include each other"),
    "outside": ({"requirements__txt": "-r ../../../../../../../etc/passwd"}, "does not exist"),
    "absolute": ({"requirements__txt": "/etc/pkg"}, "is not in the project"),
    "file address": ({"requirements__txt": "x @ file:///etc/pkg"}, "a place on one machine"),
    "absent package": ({"requirements__txt": "./pkg"}, '"./pkg" is not in the project'),
    "password": ({"requirements__txt": "--index-url https://me:secret@h/simple"}, "password"),
    "password in a requirement": ({"requirements__txt": "x @ git+https://me:secret@h/x.git"}, "password"),
    "toml": ({"pyproject__toml": "[project"}, "pyproject.toml: not TOML"),
    "dependencies": ({"pyproject__toml": "[project]\ndependencies = 'a'"}, "must be a list of texts"),
    "sources": ({"pyproject__toml": "[project]\n[tool.uv.sources]\nx = {path = 'x'}"}, "[tool.uv] sources"),
    "lock alone": ({"uv__lock": ""}, "without pyproject.toml"),
    "conda variables": ({"conda__yaml": "dependencies: []\nvariables: {A: 1}"}, "variables of a conda file"),
    "conda key": ({"conda__yaml": "dependency: []"}, '"dependency" is not a key'),
    "two blocks": ({"train__py": SCRIPT + SCRIPT}, "more than one script block"),
    "block": ({"train__py": "# /// script\n# dependencies = [\n# ///\n"}, "train.py, line 1: the script block is not TOML"),
    "block key": ({"train__py": '# /// script\n# dependency = ["a"]\n# ///\n'}, '"dependency" is not a key'),
    "block type": ({"train__py": "# /// script\n# dependencies = 'a'\n# ///\n"}, "must be a list of texts"),
    "block index": ({"train__py": "# /// script\n# [[tool.uv.index]]\n# url = 'x'\n# ///\n"}, "[tool.uv] index"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path: Path, mistake: str) -> None:
    files, says = MISTAKES[mistake]
    with pytest.raises(Invalid) as caught:
        recipe(tmp_path, **files)
    assert says in caught.value.message
    assert "secret" not in str(caught.value)


def test_other_blocks_and_text_in_strings_are_no_metadata(tmp_path: Path) -> None:
    assert recipe(tmp_path, train__py="# /// other\n# x\n# ///\n").kind is EnvironmentKind.NONE
    assert recipe(tmp_path, train__py="# /// script\nnot a comment\n").kind is EnvironmentKind.NONE
    assert recipe(tmp_path, train__py="# /// script\n# dependencies = ['a']\n#\n# ///").requirements == ("a",)


LINES = st.lists(
    st.text(st.sampled_from("abX-_.[],;<>=!~ @:/#\\'\"\n0123456789"), max_size=30)
    | st.sampled_from(["-r x", "-c", "-e .", "numpy>=2", "--hash=sha256:a", "a @ https://h/x"]),
    max_size=5,
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES)
def test_any_requirements_are_read_or_refused_and_reading_is_stable(tmp_path: Path, lines: list[str]) -> None:
    try:
        found = recipe(tmp_path, requirements__txt="\n".join(lines))
    except CarrelError:
        return
    assert recipe(tmp_path, requirements__txt="\n".join(found.requirements)).requirements == found.requirements


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2023-12-01", "2023-12-02T00:00:00Z"),  # with that day
        ("2023-12-01T09:00:00Z", "2023-12-01T09:00:00Z"),
        ("2023-12-01T09:00:00+02:00", "2023-12-01T07:00:00Z"),
    ],
)
def test_a_date_as_of_which_requirements_are_resolved(tmp_path: Path, text: str, moment: str) -> None:
    found = recipe(tmp_path, requirements__txt="numpy==1.26.0\n")
    assert found.as_of is None
    assert resolved_as_of(found, text).as_of == moment
    assert resolved_as_of(found, None) == found


@pytest.mark.parametrize("text", ["2023", "yesterday", "2023-13-01", "2023-12-01T09:00:00", ""])
def test_what_is_no_date_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match="resolve_as_of"):
        resolved_as_of(recipe(tmp_path, requirements__txt="numpy\n"), text)


def test_a_date_means_nothing_where_nothing_is_resolved(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no environment"):
        resolved_as_of(EnvironmentRecipe(), "2023-12-01")
    conda = "name: x\ndependencies: [python=3.11, cudatoolkit]\n"
    with pytest.raises(Invalid, match="conda"):
        resolved_as_of(recipe(tmp_path, conda__yaml=conda), "2023-12-01")
