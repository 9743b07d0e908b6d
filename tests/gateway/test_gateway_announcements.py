"""Announcements over REST."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from gateway_lab import V1, Rig

from carrel.core.domain.announcement import Announcement
from carrel.core.domain.nouns import ANNOUNCEMENTS


def at(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


def announce(who: httpx.Client, text: str = "The power is off on Friday", **more: Any) -> httpx.Response:
    return who.post(f"{V1}/announcements", json={"text": text, "until": at(3600), **more})


def told(who: httpx.Client) -> list[str]:
    return [one["text"] for one in who.get(f"{V1}/announcements").json()["announcements"]]


@pytest.mark.gate
def test_every_user_is_told_what_holds_and_administrators_what_comes(ada: httpx.Client, root: httpx.Client) -> None:
    made = announce(root, level="warning")
    assert made.status_code == 201, made.text
    assert (made.json()["by"], made.json()["level"]) == ("root", "warning")
    announce(root, "later", begin=at(1800))
    assert told(ada) == ["The power is off on Friday"]
    assert told(root) == ["The power is off on Friday", "later"]
    assert ada.get(f"{V1}/announcements/{made.json()['id']}").json() == made.json()
    assert root.delete(f"{V1}/announcements/{made.json()['id']}").status_code == 204
    assert told(ada) == []
    assert ada.get(f"{V1}/announcements/{made.json()['id']}").status_code == 404


def test_one_that_is_over_is_not_told_and_goes_with_the_next_change(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    rig.store.of(ANNOUNCEMENTS).put(Announcement(text="over", begin=1.0, until=2.0))
    assert told(ada) == told(root) == []
    announce(root)
    assert [one.text for one in rig.store.of(ANNOUNCEMENTS).all()] == ["The power is off on Friday"]


def test_a_terminal_has_nothing_to_obey_in_it(ada: httpx.Client, root: httpx.Client) -> None:
    announce(root, "two\n lines \x1b]0;title\x07 and \u202eback")
    assert told(ada) == ["two lines ^[]0;title^G and \\u202eback"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": "x" * 501}, "has 501 characters"),
        ({"text": " \n"}, "has 0 characters"),
        ({"until": at(-5)}, "over before anybody sees it"),
        ({"begin": at(7200)}, "over before anybody sees it"),
        ({"until": "2100-12-01T09:00:00"}, "no zone"),
        # It would be kept, and no list could show it any more.
        ({"until": 1e300}, "no moment between 1970 and 2255"),
        ({"until": at(3600), "begin": -1e300}, "no moment between 1970 and 2255"),
        ({"until": "9999-12-31T23:59:59Z"}, "no moment between 1970 and 2255"),
        ({"level": "panic"}, "level"),
        ({"by": "bob"}, '"by" is unknown'),
        ({"id": 7}, '"id" is unknown'),
    ],
)
def test_what_cannot_be_told_is_refused(root: httpx.Client, body: dict[str, Any], words: str) -> None:
    answer = announce(root, **body)
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["detail"]
