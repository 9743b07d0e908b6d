"""The toy engine of tests/engines/tide keeps what every engine promises."""

import os
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from carrel.core.domain.partition import Capabilities
from carrel.engines.local import LocalEngine
from carrel.node.devices import DeviceLocks, this_node
from carrel.testing.builders import LabHome
from carrel.testing.engine_contract import EngineContract

PACKAGE = Path(__file__).parent / "tide"
PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


class TestTideEngine(EngineContract):
    @pytest.fixture
    def home(self, tmp_path):
        return LabHome(tmp_path)

    @pytest.fixture
    def make_engine(self, home, monkeypatch):
        monkeypatch.setattr(sys, "path", [*sys.path, str(PACKAGE)])
        from carrel_tide.engine import TideEngine

        mark = home.root / "quay1"
        mark.touch()

        def make():
            locks = DeviceLocks(home.root / "locks")
            machine = LocalEngine(spool=home.spool, node=this_node(()), run_dir=home.run, environ=os.environ, locks=locks)
            return TideEngine(machine=machine, spool=home.spool, mark=lambda _launch: mark)

        return make


def test_the_page_shows_the_engine_as_it_is():
    sources = "".join(file.read_text() for file in sorted(PACKAGE.rglob("*")) if file.suffix in (".py", ".toml"))
    settings, *shown = re.findall(r"```(?:text|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert 'engine = "tide"' in settings
    assert len(shown) >= 4
    for block in shown:
        assert block in sources


def test_the_page_explains_every_capability():
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert named == [field.name for field in fields(Capabilities)]
