"""A recipe becomes an environment once; what is there is found without starting anything."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from environment_lab import Lab

from carrel.core.domain.errors import StorageFull
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.environments import EnvironmentFailed, activate
from carrel.testing.waiting import PATIENCE
from support.package_index import PackageIndex

Recipe = Callable[..., EnvironmentRecipe]


def run(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=PATIENCE, env={"PATH": "/usr/bin:/bin"})


@pytest.mark.gate
def test_second_run_builds_nothing_and_starts_nothing(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha", requires=("beta",))
    lab.wheel("beta", "2.0")
    first = lab.prepare(needs("alpha"))
    calls, marker = lab.calls(), (first.path / "carrel-environment.json").stat().st_mtime_ns
    assert first.built
    assert calls
    assert "installing 2 packages" in lab.reports

    second = lab.prepare(needs("alpha"), store=lab.store(uv=lab.base / "no-such-uv"))
    assert not second.built
    assert (second.digest, second.path, second.lock) == (first.digest, first.path, first.lock)
    assert lab.calls() == calls
    assert (first.path / "carrel-environment.json").stat().st_mtime_ns == marker
    assert run(second.python, "import alpha, beta; print(beta.version)").stdout == "2.0\n"


def test_the_lock_has_exact_versions_and_hashes_and_nothing_of_the_machine(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha", requires=("beta>=1",))
    lab.wheel("beta", "1.0")
    lab.wheel("beta", "2.0")
    environment = lab.prepare(needs("alpha"))
    lines = [line.strip() for line in environment.lock.splitlines()]
    assert [line.rstrip(" \\") for line in lines if "==" in line] == ["alpha==1.0", "beta==2.0"]
    assert environment.lock.count("--hash=sha256:") == 2
    assert str(lab.base) not in environment.lock
    assert (environment.path / "carrel.lock").read_text() == environment.lock


def test_equal_locks_share_one_environment_whatever_was_asked(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    first = lab.prepare(needs("alpha"))
    second = lab.prepare(needs("alpha<3", source="train.py"))
    assert second.path == first.path
    assert not second.built


def test_a_lock_stays_when_newer_versions_appear_and_can_be_given(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha", "1.0")
    first = lab.prepare(needs("alpha"))
    lab.wheel("alpha", "2.0")
    assert lab.prepare(needs("alpha")).lock == first.lock
    assert "alpha==2.0" in lab.prepare(needs("alpha>=1")).lock
    again = lab.prepare(needs("alpha>=1"), locked=first.lock)
    assert again.digest == first.digest


def test_a_wheel_that_is_not_the_locked_one_is_refused(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    with pytest.raises(EnvironmentFailed, match="[Hh]ash"):
        lab.prepare(needs("alpha"), locked=f"alpha==1.0 --hash=sha256:{'0' * 64}\n")


def test_hashes_that_a_recipe_names_hold(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha", requires=("Beta_B",))
    digest = hashlib.sha256(lab.wheel("beta_b").read_bytes()).hexdigest()
    right = lab.prepare(needs("alpha", f"beta-b==1.0 --hash=sha256:{digest} --hash=sha256:{'0' * 64}"))
    assert right.lock == lab.prepare(needs("alpha")).lock
    with pytest.raises(EnvironmentFailed, match=r"beta-b==1\.0 has no file with a hash that .* names"):
        lab.prepare(needs("alpha", f"beta-b==1.0 --hash=sha256:{'0' * 64}"))


def test_no_environment_is_a_bare_one_without_the_labs_packages(lab: Lab) -> None:
    environment = lab.prepare(EnvironmentRecipe())
    assert environment.built
    assert environment.lock == ""
    assert not lab.prepare(EnvironmentRecipe()).built
    for package in ("carrel", "pydantic", "mlflow", "uv"):
        assert "ModuleNotFoundError" in run(environment.python, f"import {package}").stderr


@pytest.mark.parametrize("lost", ["bin/python", "carrel-environment.json"])
def test_what_is_not_whole_is_built_again(lab: Lab, needs: Recipe, lost: str) -> None:
    """A Python that is gone, or a build that was broken off."""
    lab.wheel("alpha")
    first = lab.prepare(needs("alpha"))
    lab.release()
    (first.path / lost).unlink()
    (first.path / "left-over").touch()
    second = lab.prepare(needs("alpha"))
    assert second.built
    assert second.path == first.path
    assert not (second.path / "left-over").exists()
    assert run(second.python, "import alpha").returncode == 0
    assert len(lab.calls("pip compile")) == 1


def test_the_failure_has_the_resolvers_words(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha", "1.0")
    with pytest.raises(EnvironmentFailed) as failure:
        lab.prepare(needs("alpha==99"))
    assert "requirements.txt" in failure.value.message
    assert "alpha==99" in failure.value.message
    assert "unsatisfiable" in failure.value.message
    assert "\x1b" not in failure.value.message
    assert lab.store().list() == []


def test_a_failed_installation_leaves_nothing_and_can_be_repeated(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    lab.uv('case "$*" in "pip sync"*) echo "error: the mirror is down" >&2; exit 2;; esac')
    with pytest.raises(EnvironmentFailed, match="the mirror is down"):
        lab.prepare(needs("alpha"))
    assert lab.store().list() == []
    lab.uv()
    assert lab.prepare(needs("alpha")).built


def test_a_full_disk_is_told_as_such(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    lab.uv('case "$*" in "pip sync"*) dd if=/dev/zero of=/dev/full count=1; exit 2;; esac')
    with pytest.raises(StorageFull, match="No space"):
        lab.prepare(needs("alpha"))


def test_a_store_that_cannot_be_written_is_an_error_not_a_traceback(lab: Lab, needs: Recipe) -> None:
    lab.root.write_text("in the way")
    with pytest.raises(EnvironmentFailed, match=str(lab.root)):
        lab.prepare(needs("alpha"))


def test_everything_said_goes_to_the_log(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    log = lab.base / "log"
    log.write_text("before\n")
    lab.prepare(needs("alpha"), log=log)
    text = log.read_text()
    assert text.startswith("before\n")
    assert "alpha==1.0" in text


def test_python_is_the_one_asked_for(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    own = lab.prepare(needs("alpha"))
    number = own.version.removeprefix("cpython-")
    assert lab.prepare(needs("alpha", python=number.rpartition(".")[0])).version.startswith(
        "cpython-" + number.rpartition(".")[0]
    )
    assert lab.prepare(needs("alpha", python=">=3.10")).digest == own.digest


@pytest.mark.parametrize("request_text", ["3.99", ">=4"])
def test_a_missing_python_names_those_that_are_there(lab: Lab, needs: Recipe, request_text: str) -> None:
    there = lab.prepare(EnvironmentRecipe()).version.removeprefix("cpython-")
    with pytest.raises(EnvironmentFailed) as failure:
        lab.prepare(needs("alpha", python=request_text))
    assert request_text in failure.value.message
    assert there in failure.value.message


@pytest.mark.parametrize("request_text", ["--help", "/bin/sh", "3.11; id"])
def test_a_python_that_is_no_version_is_refused(lab: Lab, needs: Recipe, request_text: str) -> None:
    with pytest.raises(EnvironmentFailed, match="not a version"):
        lab.prepare(needs("alpha", python=request_text))


def test_an_administrators_python_is_the_default(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    base = lab.prepare(EnvironmentRecipe()).python.resolve()
    named = lab.prepare(needs("alpha"), store=lab.store(python=base))
    assert named.python.resolve() == base
    assert named.digest == lab.prepare(needs("alpha")).digest
    with pytest.raises(EnvironmentFailed, match="does not exist"):
        lab.prepare(needs("alpha"), store=lab.store(python=lab.base / "no-python"))


def test_further_files_are_found_from_the_tasks_directory(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha", "1.0")
    lab.wheel("alpha", "2.0")
    lab.wheel("beta")
    files = {"env/base.txt": "beta\n", "env/limits.txt": "alpha<2\n"}
    recipe = needs("alpha", "-r env/base.txt", "-c env/limits.txt", source="env/requirements.txt", files=files)
    assert lab.prepare(recipe).lock.count("==1.0") == 2
    with pytest.raises(EnvironmentFailed, match="outside"):
        lab.prepare(needs("alpha", files={"../../evil.txt": "x"}))
    assert not (lab.root.parent / "evil.txt").exists()


@pytest.mark.parametrize("editable", [True, False])
def test_code_that_is_a_package_is_part_of_the_environment(
    lab: Lab, needs: Recipe, editable: bool, real_packages: PackageIndex
) -> None:
    lab.use_index(real_packages)  # the build backend
    package = lab.code / "pkg"
    (package / "src").mkdir(parents=True)
    (package / "pyproject.toml").write_text(
        '[project]\nname = "pkg"\nversion = "1"\ndescription = "x"\n'
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[tool.hatch.build]\ndev-mode-dirs = ["src"]\n'
        '[tool.hatch.build.targets.wheel]\nonly-include = ["src/pkg.py"]\nsources = ["src"]\n'
    )
    (package / "src/pkg.py").write_text('"""A package."""\nanswer = 41\n')
    before = sorted(lab.code.rglob("*"))
    recipe = needs("-e ./pkg" if editable else "./pkg", local=True)
    first = lab.prepare(recipe, code_digest="sha256:one")
    (package / "src/pkg.py").write_text('"""A package."""\nanswer = 42\n')
    second = lab.prepare(recipe, code_digest="sha256:two")
    assert first.lock == second.lock
    assert first.digest != second.digest
    assert [run(env.python, "import pkg; print(pkg.answer)").stdout for env in (first, second)] == ["41\n", "42\n"]
    assert sorted(lab.code.rglob("*")) == before
    assert not lab.prepare(recipe, code_digest="sha256:two").built


def test_uv_lock_is_installed_as_it_is_and_a_package_with_it(lab: Lab, real_packages: PackageIndex) -> None:
    lab.use_index(real_packages)
    recipe = EnvironmentRecipe(kind=EnvironmentKind.UV_LOCK, source="uv.lock", files=lab.locked('dependencies = ["six<2"]\n'))
    environment = lab.prepare(recipe)
    assert f"six=={version('six')}" in environment.lock
    assert "study" not in environment.lock
    assert run(environment.python, "import six; print(six.__version__)").stdout == f"{version('six')}\n"
    assert lab.calls("pip compile") == []
    assert not lab.prepare(recipe).built
    with pytest.raises(EnvironmentFailed, match="uv lock"):
        lab.prepare(EnvironmentRecipe(kind=EnvironmentKind.UV_LOCK, files={"pyproject.toml": ""}))
    (lab.code / "study.py").write_text('"""A study."""\nanswer = 42\n')
    about = (
        'description = "x"\ndependencies = ["six"]\n[build-system]\nrequires = ["hatchling"]\n'
        'build-backend = "hatchling.build"\n[tool.hatch.build]\ndev-mode-dirs = ["."]\n'
    )
    package = EnvironmentRecipe(kind=EnvironmentKind.UV_LOCK, source="uv.lock", files=lab.locked(about), local=True)
    environment = lab.prepare(package)
    assert run(environment.python, "import six, study; print(study.answer)").stdout == "42\n"
    assert not lab.prepare(package).built
    assert lab.prepare(package, code_digest="sha256:changed").built


def test_prereleases_are_taken_when_asked_for(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha", "1.0")
    lab.wheel("alpha", "2.0rc1")
    assert "alpha==1.0" in lab.prepare(needs("alpha")).lock
    environment = lab.prepare(needs("--pre", "alpha"))
    assert run(environment.python, "import alpha; print(alpha.version)").stdout == "2.0rc1\n"


def test_wheels_in_the_code_are_found(lab: Lab, needs: Recipe) -> None:
    (lab.code / "wheels").mkdir()
    lab.wheel("alpha", "7.0", where=lab.code / "wheels")
    environment = lab.prepare(needs("--find-links wheels", "alpha", local=True))
    assert run(environment.python, "import alpha; print(alpha.version)").stdout == "7.0\n"


def test_activation_leaves_no_other_environment_on_the_path(lab: Lab) -> None:
    environment = lab.prepare(EnvironmentRecipe())
    base = {
        "PATH": "/other/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": "/other",
        "PYTHONPATH": "/somewhere",
        "PYTHONHOME": "/else",
        "CONDA_PREFIX": "/opt/conda",
        "KEPT": "yes",
    }
    variables = activate(environment.path, base, conda=environment.conda)
    assert variables == {
        "PATH": f"{environment.path}/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": str(environment.path),
        "KEPT": "yes",
    }
    assert activate(environment.path, base, conda=False, keep_pythonpath=True)["PYTHONPATH"] == "/somewhere"
    said = subprocess.run(["python", "-c", "import sys; print(sys.prefix)"], env=variables, capture_output=True, text=True)
    assert said.stdout.strip() == str(environment.path)


def test_what_a_recipe_takes_and_the_machine_lacks_is_told_before_anything_is_built(lab: Lab, needs: Recipe) -> None:
    lab.environ["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    store = lab.store()
    with pytest.raises(EnvironmentFailed, match=r"satisfies '3\.99'"):
        store.check(needs("alpha", python="3.99"))
    with pytest.raises(EnvironmentFailed, match="micromamba"):
        store.check(EnvironmentRecipe(kind=EnvironmentKind.CONDA, source="conda.yaml"))
    store.check(needs("alpha", python=">=3.11"))
    asked = lab.calls()
    store.check(needs("beta", python=">=3.11"))
    store.check(needs("beta"))
    assert lab.calls() == asked, "what is here is asked for once"


def test_a_python_that_is_not_there_is_fetched_where_that_is_allowed(lab: Lab, needs: Recipe) -> None:
    """uv's part is played: its Pythons are not where tests may look."""
    lab.wheel("alpha")
    gate, own = lab.base / "fetched", sys.executable
    played = f"""case "$*" in
"python install "*) echo "$UV_PYTHON_INSTALL_DIR" > {gate}; exit 0;;
"python find "*) test -e {gate} || exit 2; echo {own}; exit 0;;
esac"""
    uv_program = lab.uv(played)
    recipe = needs("alpha", python="3.11.99")
    with pytest.raises(EnvironmentFailed, match=r"satisfies '3\.11\.99'"):
        lab.prepare(recipe, store=lab.store(uv=uv_program))
    allowed = lab.store(uv=uv_program, download_python=True)
    allowed.check(recipe)
    assert lab.prepare(recipe, store=allowed).built
    assert "fetching Python 3.11.99" in lab.reports
    assert gate.read_text().strip() == str(lab.root / "pythons")
