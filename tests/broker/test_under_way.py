"""What moves say about how fast the next ones are."""

from __future__ import annotations

import pytest

from carrel.core.domain.units import GIB
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.rates import BACK, EXCHANGE, OUT, Rates
from carrel.node.broker.core.rows import TenantRow
from carrel.node.broker.core.under_way import UnderWay
from carrel.node.suspension.ports import Ending, Moved


def row(name: str, home: str = "gpu0") -> TenantRow:
    about = {"pid": 1, "start": 1, "uid": 1, "job": 1, "attempt": 1, "owner": "a", "role": "kernel"}
    return TenantRow(id=name, home=(home,), state={home: 8 * GIB}, moved_by="bus", **about)


def done(seconds: float, ending: Ending = Ending.DONE) -> Moved:
    return Moved(ending=ending, bytes=8 * GIB, seconds=seconds)


@pytest.mark.parametrize("first", ["out", "in"])
def test_an_exchange_is_measured_as_a_whole_and_says_nothing_of_moves_alone(first: str) -> None:
    ledger = Ledger(make_id="b")
    moves = UnderWay(Rates(ledger, out=None, back=None), "driver")
    moves.begun(row("goes"), OUT, 10.0)
    moves.begun(row("elsewhere", "gpu1"), OUT, 10.0)
    moves.begun(row("comes"), BACK, 11.0)
    moves.exchanged("comes", 11.0)
    names = ["goes", "comes"] if first == "out" else ["comes", "goes"]
    for name, now in zip(names, (13.0, 15.0), strict=True):
        moves.ended(name, done(2.0), now)
    assert ledger.rates == {("bus", EXCHANGE): 16 * GIB / 4.0}
    moves.ended("elsewhere", done(4.0), 15.0)
    assert ledger.rates["bus", OUT] == 2 * GIB


def test_an_exchange_in_which_one_has_yielded_says_nothing() -> None:
    ledger = Ledger(make_id="b")
    moves = UnderWay(Rates(ledger, out=None, back=None), "driver")
    moves.begun(row("goes"), OUT, 10.0)
    moves.begun(row("comes"), BACK, 10.0)
    moves.exchanged("comes", 10.0)
    moves.ended("comes", done(2.0, Ending.RETRY), 12.0)
    moves.ended("goes", done(2.0), 12.0)
    assert ledger.rates == {}
