"""Packages that come from directories and files of this machine: they travel as copies, and no index is asked for their names."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel.client.executor.environment import copy_modules, installed, own_modules, read_requirements
from carrel.core.domain.errors import Invalid

pytestmark = pytest.mark.quick
Installs = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def installs(site: Path) -> Installs:
    def installs(
        name: str,
        url: str = "",
        files: dict[str, str] | None = None,
        *,
        installer: str = "pip",
        editable: bool = False,
        needs: str = "",
    ) -> Path:
        """What an installer leaves behind (PEP 376, PEP 610)."""
        files = {f"{name}/__init__.py": "x = 1\n", f"{name}/part.py": ""} if files is None else files
        for file, text in files.items():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text(text)
        about = site / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        (about / "INSTALLER").write_text(installer)
        if url:
            info = {"dir_info": {"editable": editable}} if url.startswith("file:") else {"archive_info": {}}
            (about / "direct_url.json").write_text(json.dumps({"url": url, **info}))
        names = [*files, *(f"{about.name}/{path.name}" for path in about.iterdir()), f"{about.name}/RECORD"]
        (about / "RECORD").write_text("".join(f"{one},,\n" for one in names))
        return about

    return installs


def source_tree(place: Path, name: str) -> None:
    """A source tree in which setuptools has built: its NAME.egg-info lies on the import path, beside the modules."""
    (place / name).mkdir(parents=True)
    (place / name / "__init__.py").write_text("from importlib.metadata import version\n")
    (place / f"{name}.egg-info").mkdir()
    (place / f"{name}.egg-info" / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


def asked(name: str) -> list[str]:
    return [line for line in installed() if line.lower().replace("_", "-").startswith(name.replace("_", "-"))]


@pytest.mark.parametrize("record", ["direct_url.json", "path alone"])
@pytest.mark.parametrize("name", ["mine_editable", "requests"])
def test_editable(
    site: Path, installs: Installs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, record: str
) -> None:
    """Of setuptools with `src/` or without, of hatchling, of older poetry; and with a name that a public index has."""
    source_tree(tmp_path / "src", name)
    url = f"file://{tmp_path}" if record == "direct_url.json" else ""
    installs(name, url, {f"__editable__.{name}-1.0.pth": str(tmp_path / "src")}, editable=True)
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module(name)
    assert asked(name) == []
    own = own_modules(whole=True)
    assert own[name] == tmp_path / "src" / name
    assert own[f"{name}-1.0.dist-info"] == site / f"{name}-1.0.dist-info"  # its version is asked for by many packages


def test_a_source_tree_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `setup.py develop` leaves it, and where a script lies beside its pyproject.toml."""
    source_tree(tmp_path, "mine_alone")
    monkeypatch.syspath_prepend(tmp_path)
    assert asked("mine_alone") == []


@pytest.mark.parametrize("url", ["file:///home/me/project", "file:///home/me/mine-1.0-py3-none-any.whl"])
def test_from_a_directory_or_a_wheel_all_of_it_travels(installs: Installs, site: Path, tmp_path: Path, url: str) -> None:
    installs("mine_here", url, {"mine_here/__init__.py": "", "mine_here/data/a.json": "{}", "mine_single.py": "", "../bin/x": ""})
    assert asked("mine_here") == []
    found = own_modules(whole=True)
    copy_modules({name: path for name, path in found.items() if path.is_relative_to(site)}, tmp_path / "there")
    copied = {str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*") if path.is_file()}
    assert {"mine_here/__init__.py", "mine_here/data/a.json", "mine_single.py", "mine_here-1.0.dist-info/METADATA"} <= copied
    assert "mine_here" not in own_modules()  # other packages are asked for: what is not imported is not needed
    importlib.import_module("mine_here")
    assert own_modules()["mine_here"] == own_modules([sys.modules["mine_here"]])["mine_here"] == site / "mine_here"


def test_what_cannot_travel_is_refused_by_name(installs: Installs) -> None:
    installs("mine_pure", "file:///home/conda/feedstock_root/work", installer="conda")
    assert asked("mine_pure") == []
    files = {"mine_numbers/core.cpython-311-x86_64-linux-gnu.so": ""}
    installs("mine_numbers", "file:///home/conda/feedstock_root/work", files, installer="conda")
    with pytest.raises(Invalid, match="conda built these packages from files.*: mine-numbers"):
        installed()
    assert "mine_numbers" not in own_modules(whole=True)
    assert read_requirements(["six"]) == ["six"]


def test_no_index_is_asked_for_what_a_private_address_needs(installs: Installs) -> None:
    installs("mine_base", "file:///home/me/base")
    installs("mine_top", "https://git.example.org/top.tar.gz", needs="Requires-Dist: mine_base (>=1)\n")
    with pytest.raises(Invalid, match=r"mine-top, from https://git.example.org/top.tar.gz, needs mine-base"):
        installed()


def test_what_an_index_or_an_address_has_is_asked_for(installs: Installs) -> None:
    installs("of_an_index")
    installs("of_an_address", "https://example.org/x.tar.gz")
    assert asked("of_an_index") == ["of_an_index==1.0"]
    assert asked("of_an_address") == ["of_an_address @ https://example.org/x.tar.gz"]


def test_requirements_files_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.txt").write_text("six==1.16.0 \\\n    --hash=sha256:8abb\n")
    file = tmp_path / "deep" / "r.txt"
    file.write_text("-r ../base.txt\nnumpy # a comment\n")
    assert read_requirements(file) == ["numpy", "six==1.16.0 --hash=sha256:8abb"]
    for line, what in (("-e .", "in directories and files"), ("./x.whl", "in directories and files"), ("-c ../base.txt", "-c")):
        (tmp_path / "deep" / "x.whl").touch()
        file.write_text(line + "\n")
        with pytest.raises(Invalid, match=f"{what}.* not supported|{what}.*not understood|constraints"):
            read_requirements(file)
