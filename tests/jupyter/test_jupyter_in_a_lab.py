"""A session that a lab has started: what its page learns from the lab and from the node's broker."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from session_rig import wait_until

from carrel import Client
from carrel.core.domain.announcement import Announcement, Level
from carrel.core.domain.nouns import ANNOUNCEMENTS
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess
from support.notebook_client import SessionBrowser


@pytest.mark.gate
def test_a_page_learns_when_its_session_ends_and_who_has_the_gpus(lab: LabProcess, client: Client) -> None:
    told = client.add(ANNOUNCEMENTS, Announcement(text="<b>Cake</b>", until=time.time() + 3600, level=Level.WARNING))
    session = client.start_session(SessionRequest(name="its name", time="2h"))
    job = session.job.id
    wait_until(lambda: client.session(job).ready, "the session")
    with SessionBrowser(client.open_session(job)) as browser:
        facts = browser.request("GET", "/carrel/session").json()
        assert (facts["job"], facts["name"], facts["page"]) == (job, "its name", f"{lab.url}/jobs/{job}")
        assert facts["announcements"] == [{"text": "<b>Cake</b>", "level": "warning"}]
        left = datetime.fromisoformat(facts["ends_at"]) - datetime.now(UTC)
        assert timedelta(minutes=115) < left < timedelta(hours=2)
        state = browser.request("GET", "/carrel/status").json()
        assert (state["broker"], state["simulated"], len(state["status"]["devices"])) == ("connected", True, 4)
    client.remove(ANNOUNCEMENTS, told.id)
    client.cancel(job)
    client.wait(job)
