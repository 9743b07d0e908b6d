"""docs/slurm.md says what the code does."""

import os
import pwd
import re
import textwrap
from pathlib import Path

import pytest

from carrel.engines.deputy.configuration import read_configuration
from carrel.engines.slurm.partition import slurm_of
from carrel.engines.slurm.passed import PASSED
from carrel.engines.slurm.states import STATES
from carrel.lab.server.identity import FORMS, deputy_command
from carrel.lab.server.settings import read_settings
from carrel.lab.server.slurm_partitions import KEYS
from carrel.lab.server.whose_code import check_safe

pytestmark = pytest.mark.quick

PAGES = Path(__file__).parents[2] / "docs"
PAGE = (PAGES / "slurm.md").read_text()


def test_the_page_has_every_state():
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \|$", PAGE, re.MULTILINE)
    assert dict(rows) == {word: state.value for word, state in STATES.items()}
    assert len(rows) == len(STATES)


def test_the_examples_are_a_lab_with_a_partition_of_slurms_and_what_deputies_may_do(tmp_path):
    lab, deputies = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "deputy.toml").write_text(textwrap.dedent(deputies))
    if os.geteuid() == 0:
        configuration = read_configuration(tmp_path / "deputy.toml")
        account = pwd.getpwnam("games")
        assert (configuration.group, configuration.directory_of(account)) == ("lab", Path(account.pw_dir) / ".carrel" / "jobs")
        assert configuration.environ_of(account)["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    file = tmp_path / "carrel.toml"
    file.write_text(textwrap.dedent(lab))
    settings = read_settings(file, {}, {})
    assert settings.slurm_url == "https://login1:8642"
    assert [slurm_of(part).partition for part in settings.rules.partitions.values()] == ["gpu"]
    file.write_text(f'slurm_identity = "same"\n{textwrap.dedent(lab)}')
    check_safe(read_settings(file, {}, {}))


def test_every_way_to_be_somebody_is_explained():
    rows = re.findall(r"^\| `(\w+)(?::[^`]*)?`[^|]*\| [a-z]", PAGE.split("## Who jobs run as")[1].split("## ")[0], re.MULTILINE)
    assert sorted(set(rows) - {"slurm_identity"}) == sorted(re.findall(r'"(\w+)[:"]', FORMS))
    assert " ".join(deputy_command(None, "alice")).endswith("bin/carrel-deputy --config /etc/carrel/deputy.toml")


def test_every_key_of_a_partition_of_slurms_is_explained():
    settings = PAGES / "settings.md"
    assert all(f"\n{key} = " in settings.read_text() for key in KEYS)


def test_the_page_has_every_option_that_is_passed_on():
    assert sorted(re.findall(r"`--([a-z-]+)`", PAGE)) == sorted(PASSED)
