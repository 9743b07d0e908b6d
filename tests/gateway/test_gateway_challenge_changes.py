"""A new version of a challenge is told once, also where the lab was killed between the line and the version."""

from __future__ import annotations

import httpx
from gateway_lab import Rig
from test_access_table import CHALLENGE

from carrel.core.domain.challenge import Challenge
from carrel.core.domain.nouns import CHALLENGE_NOTICES, CHALLENGES
from carrel.wire.v1 import API


def kept(rig: Rig, end: str) -> str:
    """A version of the challenge that ends then."""
    yaml = CHALLENGE["challenge.yaml"].replace("end: 2100-01-01", f"end: {end}")
    snapshot = rig.upload("root", {**CHALLENGE, "challenge.yaml": yaml})
    rig.app.state.gateway.challenges.programs.keep("eeg", snapshot)
    return snapshot


def test_a_change_is_told_once(rig: Rig, root: httpx.Client) -> None:
    """Killed after the line was written, the lab publishes the same version without a second one; a way back is told again."""
    first, second = kept(rig, "2100-01-01"), kept(rig, "2101-01-01")
    challenges, notices = rig.store.of(CHALLENGES), rig.store.of(CHALLENGE_NOTICES)

    def publish(old: str, new: str, reason: str) -> int:
        challenges.put(Challenge(name="eeg", organiser="root", version=old, draft=new))
        return root.post(f"{API}/challenges/eeg/publish", json={"reason": reason}).status_code

    assert publish(first, second, "") == 422
    assert not notices.all()
    assert publish(first, second, "more time") == 200
    assert publish(first, second, "") == 200  # as the killed lab left it
    assert [one.version for one in notices.all()] == [second]
    assert publish(second, first, "less time") == 200
    assert [one.text.rpartition(" Reason: ")[2] for one in notices.all()] == ["more time", "less time"]
    found = challenges.get("eeg")
    assert found is not None
    assert (found.version, found.draft) == (first, "")
