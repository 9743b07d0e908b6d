from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Sessions for tests are made where the proxy's tests are.
sys.path.insert(0, str(Path(__file__).parents[1] / "proxy"))

from jupyter_seat import Seat
from session_rig import a_front, a_jupyter, short_directory
from small_broker import a_broker


@pytest.fixture(scope="module")
def seat() -> Iterator[Seat]:
    with short_directory() as place, a_broker(place / "broker") as broker:
        (place / ".bashrc").write_text("PATH=/somewhere:$PATH\n")
        variables = {"CARREL_BROKER": str(broker.path), "HOME": str(place)}
        with a_jupyter(variables=variables) as jupyter, a_front() as front:
            yield Seat(jupyter, front, front.sessions.add(jupyter.session), broker)
