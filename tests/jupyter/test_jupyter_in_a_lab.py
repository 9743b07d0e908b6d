"""A session that a lab has started: what its page learns from the lab and from the node's broker."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from session_rig import wait_until

from carrel import Client
from carrel.core.domain.announcement import Announcement, Level
from carrel.core.domain.nouns import ANNOUNCEMENTS
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess
from support.notebook_client import SessionBrowser

#: What is said of a kernel that was ended, and by itself: by the kernel of the system where there are cgroups.
MEMORY = (
    r"\[carrel\] This kernel is gone\. ((?:Process \d+ \([\d.]+[MG]\) was ended: together [\d.]+[MG] of memory were in use|"
    r"The system ended a process: all memory was used up), and this session asked for 600M\. "
    r"Load less at once, shut down kernels that you do not need, or start a session with more: --memory 1\.2G\.)\n"
)


@pytest.mark.gate
def test_a_page_learns_when_its_session_ends_and_who_has_the_gpus(lab: LabProcess, client: Client) -> None:
    told = client.add(ANNOUNCEMENTS, Announcement(text="<b>Cake</b>", until=time.time() + 3600, level=Level.WARNING))
    session = client.start_session(SessionRequest(name="its name", time="2h"))
    job = session.job.id
    wait_until(lambda: client.session(job).ready, "the session")
    with SessionBrowser(client.open_session(job)) as browser:
        facts = browser.request("GET", "/carrel/session").json()
        assert (facts["job"], facts["name"], facts["page"]) == (job, "its name", f"{lab.url}/jobs/{job}")
        assert facts["sessions"][str(job)] == "its name"
        assert facts["announcements"] == [{"text": "<b>Cake</b>", "level": "warning"}]
        left = datetime.fromisoformat(facts["ends_at"]) - datetime.now(UTC)
        assert timedelta(minutes=115) < left < timedelta(hours=2)
        state = browser.request("GET", "/carrel/status").json()
        assert (state["broker"], state["simulated"], len(state["status"]["devices"])) == ("connected", True, 4)
    client.remove(ANNOUNCEMENTS, told.id)
    client.cancel(job)
    client.wait(job)


@pytest.mark.gate
def test_a_cell_says_with_numbers_that_its_kernel_took_too_much_memory(client: Client) -> None:
    session = client.start_session(SessionRequest(memory="600M"))
    job = session.job.id
    wait_until(lambda: client.session(job).ready, "the session")
    with SessionBrowser(client.open_session(job)) as browser:
        with browser.websocket("/carrel/events") as events:
            kernel = browser.start_kernel()
            ran = kernel.execute("x = bytearray(800 * 1024**2)\nimport time; time.sleep(600)")
            assert ran.status == "dead"
            found = re.fullmatch(MEMORY, ran.text)
            assert found, ran.text
            while (news := json.loads(events.recv(timeout=PATIENCE)))["type"] != "notice":
                pass
            assert (news["level"], news["message"]) == ("error", found[1])
        cells = browser.request("GET", f"/carrel/outputs/{kernel.id}").json()["cells"]
        assert found[1] in str(cells)
        assert browser.kernel(kernel.id).execute("1 + 1").status == "ok"  # the kernel that was started in its place
    client.cancel(job)
    client.wait(job)
