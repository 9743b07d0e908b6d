"""docs/slurm.md says what the code does."""

import re
from pathlib import Path

from carrel.engines.slurm.passed import PASSED
from carrel.engines.slurm.states import STATES

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()


def test_the_page_has_every_state():
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \|$", PAGE, re.MULTILINE)
    assert dict(rows) == {word: state.value for word, state in STATES.items()}
    assert len(rows) == len(STATES)


def test_the_page_has_every_option_that_is_passed_on():
    assert sorted(re.findall(r"`--([a-z-]+)`", PAGE)) == sorted(PASSED)
