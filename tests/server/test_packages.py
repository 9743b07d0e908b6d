"""A lab that was installed without MLflow or JupyterLab."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.submission.installed import install_command
from carrel.lab.server.packages import ABILITIES, without_missing
from carrel.lab.server.settings import SETTINGS, read_settings

pytestmark = pytest.mark.quick

EVERYTHING = {"tracking": True, "sessions": True}
EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_with_its_packages_everything_is_on(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "carrel.toml", {}, {})
    assert settings.tracking is settings.sessions is True
    assert settings.left_out == ()


def test_what_is_not_installed_is_off_and_said() -> None:
    found, left_out = without_missing(EVERYTHING, (), installed=lambda package: package != "mlflow")
    assert found == {"tracking": False, "sessions": True}
    assert left_out == (f"MLflow: mlflow is not installed ({install_command('tracking')})",)


def test_what_was_turned_off_is_not_missed() -> None:
    off = dict.fromkeys(EVERYTHING, False)
    assert without_missing(off, ("tracking",), installed=lambda _package: False) == (off, ())


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_was_asked_for_by_name_is_an_error_where_it_cannot_be(name: str) -> None:
    with pytest.raises(Invalid, match=f"{name} is on, and .* is not installed") as caught:
        without_missing(EVERYTHING, (name,), installed=lambda _package: False)
    assert caught.value.remedy.startswith("pip install ")


def test_the_extras_have_the_packages() -> None:
    names = {setting.name for setting in SETTINGS}
    for ability in ABILITIES:
        assert ability.setting in names
        assert any(line.startswith(ability.package) for line in EXTRAS[ability.extra])
    assert EXTRAS["server"] == ["carrel-lab[lab,tracking,notebooks]"]
    assert not any(line.startswith(ability.package) for line in EXTRAS["lab"] for ability in ABILITIES)
