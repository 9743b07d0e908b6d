"""An environment has a name and an owner; what its owner installs is there tomorrow, and is remembered."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from environment_lab import Lab
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from named_lab import LIMIT, NamedLab

from carrel.core.domain.errors import Conflict, Invalid, NotFound, StorageFull, Unavailable
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.environments import EnvironmentFailed
from carrel.node.environments.named import SITE, note_changes
from carrel.node.environments.named.making import link_uv
from carrel.node.environments.named.records import checked_name, split_name
from carrel.testing.builders import make_deep
from support.package_index import PackageIndex


def python(prefix: Path, code: str) -> str:
    done = subprocess.run([prefix / "bin/python", "-c", code], capture_output=True, text=True, timeout=LIMIT, env={"PATH": ""})
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()


def files(prefix: Path) -> list[Path]:
    return sorted(path for path in prefix.rglob("*") if "__pycache__" not in path.parts)


# --- made on first use, kept


@pytest.mark.gate
def test_the_default_one_is_made_on_first_use_and_found_afterwards(named: NamedLab, lab: Lab) -> None:
    first = named.open("ada")
    assert python(first.prefix, "import ipykernel, pip; print(ipykernel.version)") == "7.0"
    assert named.packages("ada") == ["ipykernel==7.0", "pip==25.0", "traitlets==5.0"]
    calls = lab.calls()
    assert named.open("ada").prefix == first.prefix
    assert lab.calls() == calls, "a second session starts no process for it"
    for path in (first.place.directory, first.place.directory.parent, first.place.directory.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.place.record.stat().st_mode) == 0o600
    assert (first.prefix / "bin/uv").exists()


@pytest.mark.gate
def test_the_default_one_begins_with_what_the_lab_names(named: NamedLab, lab: Lab) -> None:
    lab.wheel("science", "1.0")
    first = named.open("ada", default="science pip")
    assert "science==1.0" in named.packages("ada")
    assert "resolving the lab's default_environment" in named.reports
    named.uninstall(first.prefix, "science")
    assert "science==1.0" not in named.packages("ada")
    named.open("ada", default="science pip")
    assert "science==1.0" not in named.packages("ada"), "it is its owner's from then on"


def test_without_an_index_the_default_one_has_what_there_is_and_says_so_once(named: NamedLab) -> None:
    named.open("ada", default="absent-science")
    assert named.packages("ada") == ["ipykernel==7.0", "pip==25.0", "traitlets==5.0"]
    said = [line for line in named.reports if line.startswith("absent-science cannot be installed: ")]
    assert len(said) == 1
    assert len([line for line in named.reports if "carrel env remove default" in line]) == 1
    named.reports.clear()
    named.open("ada", default="absent-science")
    assert named.reports == []


@pytest.mark.parametrize("index", ["index-url = http://127.0.0.1:9/simple", "no-index = true"])
def test_without_a_kernel_anywhere_the_first_notebook_says_what_to_do(named: NamedLab, lab: Lab, index: str) -> None:
    lab.pip_conf(f"[global]\n{index}\n")
    with pytest.raises(EnvironmentFailed, match="ipykernel") as caught:
        named.open("ada", default="numpy pip")
    assert caught.value.remedy.startswith("Every notebook needs ipykernel and pip. Where the lab reaches no package index: ")
    assert not [line for line in named.reports if "has ipykernel" in line]


def test_the_default_one_can_be_the_sites(named: NamedLab, lab: Lab) -> None:
    lab.wheel("science", "1.0")
    with pytest.raises(NotFound, match='"site/science", and that is not there'):
        named.environments().check("ada", "default", "site/science")
    named.create(SITE, "science", "science")
    named.environments().check("ada", "default", "site/science")
    assert named.open("ada", default="site/science").record.name == "site.science"
    named.open("bob")
    assert named.open("bob", default="site/science").record.name == "default", "who has one keeps it"


def test_owners_have_environments_of_their_own(named: NamedLab) -> None:
    assert named.open("ada").prefix != named.open("bob").prefix
    with pytest.raises(NotFound, match="torch"):
        named.open("ada", "torch")


def test_what_is_installed_is_there_tomorrow_and_in_the_lock(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha", requires=("beta",))
    lab.wheel("beta", "2.0")
    prefix = named.open("ada").prefix
    assert not note_changes(prefix), "nothing happened yet"
    before = named.environments().lock("ada", "default").text
    named.install(prefix, "alpha")
    assert note_changes(prefix, clock=lambda: named.clock + 100)
    assert not note_changes(prefix)
    named.release()

    lock = named.environments().lock("ada", "default")
    assert named.packages("ada") == ["alpha==1.0", "beta==2.0", "ipykernel==7.0", "pip==25.0", "traitlets==5.0"]
    assert lock.text.count("--hash=sha256:") == before.count("--hash=sha256:") == 3, "known hashes stay, others are not made up"
    assert python(named.open("ada").prefix, "import alpha, beta; print(beta.version)") == "2.0"
    assert [note.how for note in named.environments().get("ada", "default").record.locks] == ["made", "installed"]


def test_a_notebooks_own_pip_works_at_once(lab: Lab, real_packages: PackageIndex) -> None:
    """A real kernel of the environment: `%pip` and `!pip` install, the next cell imports."""
    lab.use_index(real_packages)
    named = NamedLab(lab)
    prefix = named.open("ada").prefix
    manager = KernelManager(kernel_name="none")
    manager._kernel_spec = KernelSpec(argv=[f"{prefix}/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    environ = {**lab.environ, "VIRTUAL_ENV": str(prefix), "PATH": f"{prefix}/bin:/usr/bin:/bin", "TMPDIR": str(lab.base)}
    manager.start_kernel(env=environ, cwd=str(lab.base))
    client = manager.blocking_client()
    client.start_channels()
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        said.append(str(content.get("text", content.get("evalue", ""))))

    try:
        client.wait_for_ready(timeout=LIMIT)
        for cell in ("%pip install -q pathspec", "!pip install -q idna", "import pathspec, idna; print('both', idna.__name__)"):
            answer = client.execute_interactive(cell, timeout=LIMIT, output_hook=hear)
            assert answer["content"]["status"] == "ok", said
        assert "both idna" in "".join(said)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        named.release()
    names = {line.partition("==")[0] for line in named.packages("ada")}
    assert {"pathspec", "idna"} <= names


def test_steps_of_one_installation_are_one_lock(named: NamedLab, lab: Lab) -> None:
    for name in ("alpha", "beta", "gamma"):
        lab.wheel(name)
    prefix = named.open("ada").prefix
    for number, name in enumerate(("alpha", "beta")):
        named.install(prefix, name)
        assert note_changes(prefix, clock=lambda number=number: 2_000_000.0 + number)
    named.install(prefix, "gamma")
    assert note_changes(prefix, clock=lambda: 2_001_000.0)
    locks = named.environments().get("ada", "default").record.locks
    assert [(note.how, note.packages) for note in locks] == [("made", 3), ("installed", 5), ("installed", 6)]


def test_packages_from_addresses_and_directories_keep_them(named: NamedLab, lab: Lab) -> None:
    prefix = named.open("ada").prefix
    wheel = lab.wheel("alpha", where=lab.code)
    named.install(prefix, f"alpha @ {wheel.as_uri()}")
    site = next(prefix.glob("lib/python3*/site-packages"))
    for name, text in {
        "vcs": '{"url": "https://me:secret@example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
        "mine": '{"url": "file:///home/ada/mine", "dir_info": {"editable": true}}',
    }.items():
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info/METADATA").write_text(f"Name: {name}\n")
        (site / f"{name}-1.0.dist-info/direct_url.json").write_text(text)
    (site / "~eft-1.0.dist-info").mkdir()  # pip was killed while it removed something
    (site / "half-1.0.dist-info").mkdir()
    assert note_changes(prefix)
    assert named.packages("ada") == [
        "-e file:///home/ada/mine",
        f"alpha @ {wheel.as_uri()}",
        "ipykernel==7.0",
        "pip==25.0",
        "traitlets==5.0",
        "vcs @ git+https://example.org/x.git@abc",
    ]


def test_prefixes_of_others_are_left_alone(tmp_path: Path) -> None:
    assert not note_changes(tmp_path)
    assert not note_changes(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_its_user_removed_comes_back(named: NamedLab) -> None:
    opened = named.open("ada")
    named.uninstall(opened.prefix, "ipykernel")
    named.environments().make_usable(opened, named.work())
    assert "installing ipykernel>=6.29" in named.reports
    assert python(opened.prefix, "import ipykernel; print(1)") == "1"


# --- made from something


def test_from_requirements_with_what_a_kernel_needs(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha")
    prefix = named.create("ada", "study", "alpha<2")
    assert named.packages("ada", "study") == ["alpha==1.0", "ipykernel==7.0", "pip==25.0", "traitlets==5.0"]
    assert named.environments().lock("ada", "study").text.count("--hash=") == 4
    assert python(prefix, "import alpha, ipykernel; print(1)") == "1"
    with pytest.raises(Conflict, match="already"):
        named.create("ada", "study", "alpha")


def test_from_a_uv_project_without_the_project_itself(lab: Lab, real_packages: PackageIndex) -> None:
    lab.use_index(real_packages)
    named = NamedLab(lab)
    files = lab.locked('dependencies = ["six<2"]\n[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n')
    recipe = EnvironmentRecipe(kind=EnvironmentKind.UV_LOCK, source="uv.lock", files=files, local=True)
    named.environments().create("ada", "study", recipe, named.work())
    names = named.packages("ada", "study")
    assert f"six=={version('six')}" in names
    assert not any("study" in line for line in names)
    assert any("left out" in line for line in named.reports)


def test_a_prefix_elsewhere_is_used_where_it_is(named: NamedLab, lab: Lab) -> None:
    mine = lab.base / "mine"
    named.uv("venv", str(mine), "--no-python-downloads")
    environments = named.environments()
    with pytest.raises(EnvironmentFailed, match="no ipykernel") as refused:
        environments.create("ada", "mine", mine, named.work())
    assert refused.value.remedy == f"Run: uv pip install --python {mine}/bin/python ipykernel"
    with pytest.raises(EnvironmentFailed, match="bin/python"):
        environments.create("ada", "mine", lab.base / "nothing", named.work())
    assert environments.list("ada") == []

    named.install(mine, "ipykernel")
    before = files(mine)
    assert environments.create("ada", "mine", mine, named.work()).prefix == str(mine)
    opened = named.open("ada", "mine")
    assert environments.make_usable(opened, named.work()) == mine
    assert named.packages("ada", "mine") == ["ipykernel==7.0", "traitlets==5.0"]
    assert files(mine) == before, "nothing of ours is installed there"
    named.release()
    environments.remove("ada", "mine")
    assert (mine / "bin/python").exists()


def test_the_remedy_for_a_missing_kernel_fits_the_prefix(named: NamedLab, lab: Lab) -> None:
    mine = lab.base / "mine"
    named.uv("venv", str(mine), "--no-python-downloads")
    named.install(mine, "pip")
    with pytest.raises(EnvironmentFailed) as refused:
        named.environments().look_at("ada", mine, named.work())
    assert refused.value.remedy == f"Run: {mine}/bin/python -m pip install ipykernel"
    (mine / "conda-meta").mkdir()
    with pytest.raises(EnvironmentFailed) as refused:
        named.environments().look_at("ada", mine, named.work())
    assert refused.value.remedy == f"Run: conda install -p {mine} ipykernel"


def test_the_lock_of_a_conda_prefix_is_condas_own_list(named: NamedLab, lab: Lab) -> None:
    mine = lab.base / "mine"
    named.uv("venv", str(mine), "--no-python-downloads")
    named.install(mine, "ipykernel")
    (mine / "conda-meta").mkdir()
    url = "https://conda.example.org/t/secret/linux-64/zlib-1.3-0.conda"
    (mine / "conda-meta/zlib-1.3-0.json").write_text(json.dumps({"name": "zlib", "url": url, "md5": "abc"}))
    named.environments().create("ada", "mine", mine, named.work())
    lock = named.environments().lock("ada", "mine").text.splitlines()
    assert lock[:2] == ["@EXPLICIT", "https://conda.example.org/t/****/linux-64/zlib-1.3-0.conda#abc"]
    assert "# pip ipykernel==7.0" in lock
    with pytest.raises(Conflict, match="cannot be built from its lock"):
        named.environments().copy("ada", "twin", "mine", named.work())


def test_from_the_lock_of_another(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha", "1.0")
    named.create("ada", "study", "alpha")
    lab.wheel("alpha", "2.0")
    named.environments().copy("ada", "twin", "study", named.work())
    assert named.packages("ada", "twin") == named.packages("ada", "study")
    assert named.environments().get("ada", "twin").record.source == "the lock of ada/study"


# --- going back


def test_restore_goes_back_and_the_history_keeps_all(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha")
    lab.wheel("beta")
    opened = named.open("ada")
    first = opened.prefix
    named.install(first, "alpha")
    environments = named.environments()
    with pytest.raises(Conflict, match="session"):
        environments.restore("ada", "default", None, named.work())
    named.release()

    environments.restore("ada", "default", None, named.work())
    info = environments.get("ada", "default")
    assert named.packages("ada") == ["ipykernel==7.0", "pip==25.0", "traitlets==5.0"]
    assert [note.how for note in info.record.locks] == ["made", "installed", "restored"]
    assert not first.exists(), "the earlier one went"
    assert python(info.prefix, "import alpha").endswith("No module named 'alpha'")

    with_alpha = info.record.locks[1].digest.removeprefix("sha256:")[:12]
    environments.restore("ada", "default", with_alpha, named.work())
    assert "alpha==1.0" in named.packages("ada")
    with pytest.raises(NotFound, match="no lock"):
        environments.restore("ada", "default", "ffffffffffff0", named.work())


def test_there_is_nothing_to_go_back_to_at_first(named: NamedLab) -> None:
    named.open("ada")
    named.release()
    with pytest.raises(Conflict, match="one set"):
        named.environments().restore("ada", "default", None, named.work())


def test_a_restore_that_fails_changes_nothing(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha")
    prefix = named.open("ada").prefix
    named.install(prefix, "alpha")
    named.release()
    lab.uv('case "$*" in "pip sync"*) exit 1;; esac')
    with pytest.raises(EnvironmentFailed):
        named.environments().restore("ada", "default", None, named.work())
    assert named.environments().get("ada", "default").prefix == prefix
    assert python(prefix, "import alpha; print(1)") == "1"
    assert [path.name for path in prefix.parent.iterdir() if path.name.isdecimal()] == [prefix.name]


# --- sharing


def test_of_a_shared_one_everybody_gets_a_copy(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha")
    lab.wheel("beta")
    theirs = named.create("ada", "study", "alpha")
    with pytest.raises(NotFound):
        named.open("bob", "ada/study")
    named.environments().share("ada", "study", ["bob"])
    copy = named.open("bob", "ada/study")
    assert (copy.record.owner, copy.record.name) == ("bob", "ada.study")
    assert copy.prefix != theirs
    named.install(copy.prefix, "beta")
    assert python(theirs, "import beta").endswith("No module named 'beta'")
    assert named.open("bob", "ada/study").prefix == copy.prefix == named.open("bob", "ada.study").prefix
    assert named.open("bob", "study").prefix == copy.prefix, "shared in person: the name alone will do"
    with pytest.raises(NotFound):
        named.open("eve", "ada/study")
    assert [info.name for info in named.environments().list("bob")] == ["ada.study", "ada/study"]
    named.environments().share("ada", "study", [])
    with pytest.raises(NotFound):
        named.open("bob", "ada/study")
    assert named.open("bob", "ada.study").prefix == copy.prefix, "what one has made of it stays"


def test_a_copy_follows_until_something_is_installed_into_it(named: NamedLab, lab: Lab) -> None:
    for name in ("alpha", "beta", "gamma"):
        lab.wheel(name)
    theirs = named.create("ada", "study", "alpha")
    named.environments().share("ada", "study", ["all"])
    copy = named.open("bob", "ada/study")
    named.install(theirs, "beta")
    named.open("bob", "ada/study")
    assert "ada/study has changed; your copy is in use and stays as it is" in named.reports
    named.release()
    follower = named.open("bob", "ada/study")
    assert "beta==1.0" in named.packages("bob", "ada.study")
    assert [note.how for note in follower.record.locks] == ["made", "taken"]
    assert follower.prefix != copy.prefix
    named.release()

    named.clock += 100
    named.install(follower.prefix, "gamma")
    named.uninstall(theirs, "beta")
    again = named.open("bob", "ada/study")
    assert again.prefix == follower.prefix
    assert {"beta==1.0", "gamma==1.0"} <= set(named.packages("bob", "ada.study"))
    assert any("keeps what you installed" in line for line in named.reports)


def test_what_is_shared_with_everybody_needs_its_owner_before_it(named: NamedLab, lab: Lab) -> None:
    named.create("eve", "torch")
    named.environments().share("eve", "torch", ["all"])
    with pytest.raises(NotFound, match="eve/torch"):
        named.open("ada", "torch")
    named.create(SITE, "torch")
    assert named.open("ada", "torch").record.origin.environment == "site/torch"  # type: ignore[union-attr]
    named.create("bob", "torch")
    assert named.open("bob", "torch").record.origin is None, "one's own goes first"


def test_a_user_called_site_is_not_the_site(named: NamedLab) -> None:
    named.create("site", "torch")
    with pytest.raises(NotFound):
        named.open("ada", "site/torch")
    named.create(SITE, "torch")
    assert named.open("ada", "site/torch").record.origin is not None
    assert named.open("site", "torch").record.origin is None


def test_a_shared_prefix_gets_a_layer_on_top(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha")
    lab.wheel("beta")
    base = lab.base / "base"
    named.uv("venv", str(base), "--no-python-downloads")
    named.install(base, "ipykernel", "alpha")
    named.environments().create(SITE, "base", base, named.work())
    before = files(base)
    opened = named.open("ada", "site/base")
    prefix = named.environments().make_usable(opened, named.work())
    assert python(prefix, "import ipykernel, alpha, pip; print(1)") == "1"
    named.install(prefix, "beta")
    assert python(prefix, "import alpha, beta; print(1)") == "1"
    assert files(base) == before
    assert "beta==1.0" in named.packages("ada", "site.base")
    assert named.open("ada", "site/base").prefix == prefix
    with pytest.raises(Conflict):
        named.environments().share("ada", "site.base", ["all"])


# --- room


def test_a_full_quota_is_told_before_anything_is_written(named: NamedLab, lab: Lab) -> None:
    named.create("ada", "study")
    environments = named.environments()
    size = environments.get("ada", "study").size
    environments.set_quota(size)
    with pytest.raises(StorageFull, match=r"Your environments use .* of .* so the environment \"more\".*Yours: study ") as full:
        named.create("ada", "more")
    assert "carrel env remove" in full.value.remedy
    with pytest.raises(StorageFull):
        named.open("ada")
    assert [info.name for info in environments.list("ada")] == ["study"]
    named.create("bob", "more")
    environments.set_quota(None)
    named.create("ada", "more")


def test_a_full_disk_is_told_with_what_uses_it(named: NamedLab) -> None:
    named.create("ada", "study")
    full = named.environments(reserve=1 << 60)
    with pytest.raises(StorageFull, match="The disk with the environments is full .* Yours: study") as refused:
        full.check_room("ada", "the session")
    assert "carrel env remove" in refused.value.remedy


def test_a_disk_that_fills_while_building_leaves_nothing(named: NamedLab, lab: Lab) -> None:
    lab.uv('case "$*" in "pip sync"*) echo "error: No space left on device (os error 28)" >&2; exit 2;; esac')
    with pytest.raises(StorageFull):
        named.create("ada", "study")
    assert named.environments().list("ada") == []
    assert not list((lab.root / "named/ada").glob("study*"))


def test_a_file_in_two_environments_is_counted_once(named: NamedLab, lab: Lab) -> None:
    first, second = named.create("ada", "one"), named.create("ada", "two")
    (first / "data").write_bytes(os.urandom(1 << 20))
    os.link(first / "data", second / "data")
    os.link(first / "data", second / "again")
    sizes = {info.name: info.size for info in named.environments().list("ada")}
    assert 1 << 20 <= sizes["one"] < 3 << 20
    assert sizes["two"] < 1 << 20
    assert named.environments().get("ada", "two").size >= 1 << 20


def test_the_site_has_no_quota(named: NamedLab) -> None:
    named.create(SITE, "one")
    named.environments().set_quota(1)
    named.create(SITE, "two")


# --- what cannot be understood


def test_a_record_of_a_newer_version_is_not_built_over(named: NamedLab) -> None:
    opened = named.open("ada")
    named.release()
    text = opened.place.record.read_text()
    opened.place.record.write_text(text.replace('"owner"', '"newer": 1, "owner"'))
    with pytest.raises(Unavailable, match="newer"):
        named.open("ada")
    assert named.environments().list("ada") == []
    assert (opened.prefix / "bin/python").exists()
    opened.place.record.write_text(text)
    assert named.open("ada").prefix == opened.prefix


# --- names


@pytest.mark.parametrize("name", ["", ".x", "A", "a b", "a/b/", "x" * 65, "ä", "a\0", "..", "lock", "share", "restore", "/x"])
def test_bad_names_are_refused(named: NamedLab, name: str) -> None:
    with pytest.raises(Invalid):
        split_name(name) if "/" in name else checked_name(name)


def test_an_unknown_name_names_the_nearest(named: NamedLab) -> None:
    named.create("ada", "torch")
    with pytest.raises(NotFound, match='Did you mean "torch"'):
        named.open("ada", "trch")


def test_what_an_owner_puts_in_the_place_of_a_record_is_not_waited_for_or_followed(named: NamedLab, lab: Lab) -> None:
    """The runner looks at packages while the session runs that may change them: a pipe must not stop it, a link not lead it."""
    opened = named.open("ada", "default")
    site = next(opened.prefix.glob("lib/python3*/site-packages"))
    secret = lab.base / "secret.json"
    secret.write_text('{"url": "https://secret.example", "archive_info": {}}')
    for name in ("piped-1.0", "linked-1.0"):
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info/METADATA").write_text("Metadata-Version: 2.1\n")
    os.mkfifo(site / "piped-1.0.dist-info/direct_url.json")
    (site / "linked-1.0.dist-info/direct_url.json").symlink_to(secret)
    lock = named.environments().lock("ada", "default").text
    assert "piped==1.0" in lock
    assert "linked==1.0" in lock
    assert "secret" not in lock


def test_what_an_owner_puts_into_an_environment_holds_up_nobody_who_looks_at_it(named: NamedLab, lab: Lab) -> None:
    """Bob's list has what Ada shares, and her directories in it."""
    opened = named.open("ada", "default")
    site = next(opened.prefix.glob("lib/python3*/site-packages"))
    for name, text in (("nested", "[" * 100_000), ("endless", "")):
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\n")
        (site / f"{name}-1.0.dist-info/direct_url.json").write_text(text)
    os.truncate(site / "endless-1.0.dist-info/direct_url.json", 1 << 40)
    make_deep(opened.prefix, 3000, os.urandom(3 << 20))
    assert {"nested==1.0", "endless==1.0"} <= set(named.packages("ada"))
    assert named.environments().get("ada", "default").size > 3 << 20
    named.release()
    named.environments().remove("ada", "default")
    assert not list((lab.root / "named").rglob("d" * 100)), "nothing of it stays"


def test_packages_that_an_owners_link_leads_to_are_not_the_environments(named: NamedLab, lab: Lab) -> None:
    opened = named.open("ada", "default")
    (lab.base / "private/site-packages/secret_project-1.0.dist-info").mkdir(parents=True)
    (lab.base / "private/site-packages/secret_project-1.0.dist-info/METADATA").write_text("")
    (opened.prefix / "lib/python3.99").symlink_to(lab.base / "private")
    (opened.prefix / "lib64x").symlink_to(lab.base)
    assert named.packages("ada") == ["ipykernel==7.0", "pip==25.0", "traitlets==5.0"]


def test_the_labs_uv_is_put_into_the_environment_and_nowhere_else(named: NamedLab, lab: Lab) -> None:
    opened = named.open("ada", "default")
    elsewhere = lab.base / "elsewhere"
    (opened.prefix / "bin").rename(elsewhere)
    (elsewhere / "uv").unlink()
    (opened.prefix / "bin").symlink_to(elsewhere)
    link_uv(opened.prefix, Path("/usr/bin/true"))
    assert not os.path.lexists(elsewhere / "uv")
    (opened.prefix / "bin").unlink()
    elsewhere.rename(opened.prefix / "bin")
    (opened.prefix / "bin/uv").symlink_to("/gone")
    link_uv(opened.prefix, Path("/usr/bin/true"))
    assert (opened.prefix / "bin/uv").readlink() == Path("/usr/bin/true")
