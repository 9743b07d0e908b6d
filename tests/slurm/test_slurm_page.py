"""docs/slurm.md says what the code does."""

import re
import textwrap
from pathlib import Path

from carrel.engines.slurm.passed import PASSED
from carrel.engines.slurm.states import STATES
from carrel.server.settings import read_settings
from carrel.server.slurm import KEYS

PAGES = Path(__file__).parents[2] / "docs"
PAGE = (PAGES / "slurm.md").read_text()


def test_the_page_has_every_state():
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \|$", PAGE, re.MULTILINE)
    assert dict(rows) == {word: state.value for word, state in STATES.items()}
    assert len(rows) == len(STATES)


def test_the_example_is_a_lab_with_a_partition_of_slurms(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "carrel.toml"
    file.write_text(textwrap.dedent(example))
    settings = read_settings(file, {}, {})
    assert settings.slurm_url == "http://login1:8642"
    assert [part.slurm and part.slurm.partition for part in settings.rules.partitions.values()] == [None, "gpu"]


def test_every_key_of_a_partition_of_slurms_is_explained():
    settings = PAGES / "settings.md"
    assert all(f"\n{key} = " in settings.read_text() for key in KEYS)


def test_the_page_has_every_option_that_is_passed_on():
    assert sorted(re.findall(r"`--([a-z-]+)`", PAGE)) == sorted(PASSED)
