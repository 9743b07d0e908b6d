"""What is open with the lab ends with the right to have it open."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from carrel.core.control.conversations import Conversations, PutOut
from carrel.core.domain.errors import Unauthenticated, Unavailable
from carrel.core.domain.user import Caller, User

ADA = Caller(user=User(subject="ada", name="Ada"), token_id=1)


class Door:
    """Says who is let in."""

    def __init__(self) -> None:
        self.now: Caller | None = ADA
        self.asked = 0
        #: Questions that get no answer.
        self.silent = 0
        self.conversations = Conversations(self._still, clock=time.time)

    def _still(self, _caller: Caller) -> Caller:
        self.asked += 1
        if self.asked <= self.silent:
            raise Unavailable("The lab's database does not answer.")
        if self.now is None:
            raise Unauthenticated("It is void.")
        return self.now


async def nowhere(_message: Any) -> None:
    pass


async def for_ever(_send: Any) -> None:
    await asyncio.Event().wait()


def test_who_was_put_out_between_the_question_and_the_answer_is_put_out_all_the_same() -> None:
    door = Door()

    async def talk() -> None:
        version = door.conversations.version
        # Here it was asked whether she is let in, and she was.
        door.now = None
        door.conversations.look()
        await door.conversations.hold(ADA, version, for_ever, nowhere)

    with pytest.raises(PutOut) as out:
        asyncio.run(talk())
    assert not out.value.begun


def test_a_token_that_ends_by_itself_is_asked_about_then_and_may_have_been_renewed() -> None:
    door = Door()
    early = replace(ADA, until=time.time() - 1)

    async def talk() -> None:
        await door.conversations.hold(early, door.conversations.version, begin, nowhere)

    async def begin(send: Any) -> None:
        await send({})
        while not door.asked:  # and then it goes on
            await asyncio.sleep(0.01)
        door.now = None
        door.conversations.look()
        await for_ever(send)

    with pytest.raises(PutOut) as out:
        asyncio.run(talk())
    assert out.value.begun
    assert door.asked >= 2


def test_what_was_said_before_the_end_is_said_and_all_else_is_as_it_was() -> None:
    door = Door()

    async def late(_send: Any) -> None:
        raise TimeoutError("of its own")

    async def talk() -> str:
        with pytest.raises(TimeoutError, match="of its own"):
            await door.conversations.hold(ADA, door.conversations.version, late, nowhere)

        async def answer(_send: Any) -> str:
            door.now = None
            door.conversations.look()  # she ends her own token, and has the answer
            return "done"

        return await door.conversations.hold(ADA, door.conversations.version, answer, nowhere)

    assert asyncio.run(talk()) == "done"


def test_a_caller_stays_while_the_lab_cannot_say_and_is_looked_at_again() -> None:
    door = Door()
    door.silent = 1
    door.now = None

    async def talk() -> None:
        await door.conversations.hold(ADA, door.conversations.version, begin, nowhere)

    async def begin(send: Any) -> None:
        door.conversations.look()
        await for_ever(send)

    with pytest.raises(PutOut):
        asyncio.run(talk())
    assert door.asked == 2
