"""What a session hears of its node's broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from session_rig import PATIENCE, short_directory
from small_broker import a_broker, lease, tenant

from carrel.notebooks.jupyter.lending import Lending

News = dict[str, Any]


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (found := condition()):
            await asyncio.sleep(0.01)
        return found


@pytest.mark.gate
def test_where_nothing_is_lent() -> None:
    async def run() -> None:
        state = await Lending(None, "token").look()
        assert (state["broker"], state["simulated"], state["status"]) == ("absent", False, {})

    asyncio.run(run())


def test_a_broker_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        state = await Lending(str(tmp_path / "none"), "token").look()
        assert state["broker"] == "unreachable"
        assert state["why"].startswith("The node's broker does not answer: no such file or directory.")

    asyncio.run(run())


def test_news_is_passed_on_and_a_broker_may_be_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.notebooks.jupyter.lending._PAUSE", 0.02)
    with short_directory() as place:
        news: list[News] = []

        async def run() -> None:
            lending = Lending(str(place / "b"), "the job's token")
            with a_broker(place / "b") as broker:
                end = lending.listen(lambda one: news.append(dict(one)))
                await until(lambda: news and news[-1]["broker"] == "connected")
                assert broker.hellos[0] | {"op": ""} == {"op": "", "v": 1, "role": "observer", "token": "the job's token"}
                assert news[-1]["simulated"] is True
                broker.say(tenants=[tenant("t1")], leases=[lease("l1")])
                await until(lambda: news[-1]["status"].get("leases"))
                broker.notice("warning", "Your hold ends.")
                await until(lambda: news[-1]["type"] == "notice")
                assert news[-1] == {"type": "notice", "level": "warning", "message": "Your hold ends."}
                broker.hang_up()
                await until(lambda: len(broker.hellos) > 1)
                assert any(one.get("broker") == "unreachable" for one in news)
                # Who has not been told anything yet is not hung up on with the others, and would be served on.
                await until(lambda: lending.state()["broker"] == "connected")
            (place / "b").unlink()
            await until(lambda: lending.state()["broker"] == "unreachable")
            assert lending.state()["status"] == {}
            with a_broker(place / "b") as again:
                await until(lambda: lending.state()["broker"] == "connected")
                end()
                assert lending.state()["broker"] == "unreachable"  # nobody looks: no connection
                assert (await lending.look())["broker"] == "connected"
                assert len(again.hellos) == 2

        asyncio.run(run())


def test_a_refusal_is_passed_on() -> None:
    with short_directory() as place, a_broker(place / "b") as broker:
        broker.refusal = "This token is not valid here."
        state = asyncio.run(Lending(str(place / "b"), "x").look())
        assert (state["broker"], state["why"]) == ("unreachable", "This token is not valid here.")
