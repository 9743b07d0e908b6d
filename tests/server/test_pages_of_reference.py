"""The reference pages say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carrel.core.domain.job import REASONS, JobState
from carrel.core.domain.qos import JobKind
from carrel.core.domain.units import parse_duration, parse_size
from carrel.lab.credentials.oidc.fetch import Fetch
from carrel.lab.credentials.oidc.id_token import ALGORITHMS, SKEW
from carrel.lab.credentials.passwords import LONGEST, SHORTEST
from carrel.lab.portal.oidc import BACK
from carrel.lab.server.oidc_settings import OIDC
from carrel.lab.server.settings import SETTINGS, read_settings
from carrel.lab.server.sign_in_settings import PAM

pytestmark = pytest.mark.quick

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str, columns: int) -> dict[str, list[str]]:
    found = {}
    for line in (DOCS / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == columns:
            found[cells[0].strip("` ")] = cells
    return found


def test_every_state_and_reason_is_explained_and_no_other() -> None:
    told = rows("states.md", 2)
    assert set(told) == set(REASONS) | set(JobState)
    assert {name: cells[1] for name, cells in told.items() if name in REASONS} == REASONS


def test_every_setting_is_explained_with_its_variable_and_default() -> None:
    told = rows("settings.md", 4)
    assert set(told) == {setting.name for setting in SETTINGS}
    for setting in SETTINGS:
        _, variable, default, text = told[setting.name]
        assert variable.strip("`") == f"CARREL_{setting.name.upper()}"
        assert text == setting.help
        value = default.strip('`"')
        if setting.default is None:
            assert value == "–"
        else:
            read = {"size": parse_size, "duration": parse_duration, "int": int, "flag": "true".__eq__}.get(setting.kind, str)
            assert read(value) == setting.default


def test_every_setting_of_pam_is_explained() -> None:
    told = rows("sign-in-local.md", 3)
    assert {name: cells[2] for name, cells in told.items() if name in {one.name for one in PAM}} == {
        one.name: one.help for one in PAM
    }
    page = (DOCS / "sign-in-local.md").read_text()
    for number in (f"{SHORTEST} characters or more", f"{LONGEST:,} bytes at most", "Ten wrong tries"):
        assert number in page


def test_every_setting_of_a_provider_is_explained_and_the_examples_are_valid(tmp_path: Path) -> None:
    told = rows("sign-in-oidc.md", 3)
    assert {name: cells[2] for name, cells in told.items()} == {one.name: one.help for one in OIDC}
    assert {name: cells[1].strip('`"').replace("–", "") for name, cells in told.items()} == {
        one.name: one.default or "" for one in OIDC
    }
    page = (DOCS / "sign-in-oidc.md").read_text()
    numbers = (f"within {SKEW:.0f} s", f"{Fetch().patience:.0f} s and {Fetch().longest // 1024} KiB", BACK)
    assert all(number in page for number in numbers)
    assert all(name in page for name in ALGORITHMS)
    secret, file = tmp_path / "secret", tmp_path / "carrel.toml"
    secret.write_text("s")
    secret.chmod(0o600)
    examples = [text for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[sign_in.oidc]" in text]
    assert len(examples) == 3
    for text in examples:
        file.write_text(text.replace("/etc/carrel/client-secret", str(secret)))
        assert read_settings(file, {}, {}).sign_in.oidc.admit == "known"


def test_the_example_of_classes_of_service_is_valid(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", (DOCS / "settings.md").read_text(), re.DOTALL)
    file = tmp_path / "carrel.toml"
    file.write_text(examples[0])
    qos = read_settings(file, {}, {}).rules.qos
    assert (qos["cheetah"].max_jobs_per_user, qos["lion"].kinds) == (20, frozenset({JobKind.TASK}))
    file.write_text(examples[1])
    lion = read_settings(file, {}, {}).rules.qos["lion"]
    assert (lion.max_time, lion.default_time, lion.max_jobs_per_user) == (48 * 3600, 24 * 3600, 4)
    file.write_text(examples[2])
    parts = read_settings(file, {}, {}).rules.partitions
    assert [part.name for part in parts.values() if part.takes("tabby")] == ["HouseCats"]
    assert [name for name in ("big01", "big09", "house2") if parts["BigCats"].has(name)] == ["big01"]
    file.write_text(examples[3])
    assert read_settings(file, {}, {}).rules.partitions["cluster"].engine == "slurm"
    file.write_text(examples[4])
    assert read_settings(file, {}, {}).rules.partition_names == {"pascal": "cluster", "debug": ""}
    file.write_text(examples[5])
    rules = read_settings(file, {}, {}).rules
    defaults = read_settings(tmp_path / "none", {}, {}).rules
    assert (rules.accounts["physics"].users, rules.accounts["optics"].parent) == ({"ada": 2, "bob": 1}, "physics")
    for weight in ("age_weight", "share_weight", "size_weight", "half_life", "cpu_charge", "promises", "backfill_times"):
        assert getattr(rules, weight) == getattr(defaults, weight)  # the example shows the defaults
    file.write_text(examples[6])
    assert read_settings(file, {}, {}).database.startswith("postgresql+psycopg://")
