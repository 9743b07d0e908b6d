"""An administrator changes the rules of a lab that runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import Denied, Impossible, Invalid
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest
from support.lab_process import LabProcess, start_lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabProcess]:
    (tmp_path / "carrel.toml").write_text('preset = "mlerp"\n')
    lab = start_lab(tmp_path, "--cpus", "8", simulate_gpus=2)
    yield lab
    lab.end_jobs()
    lab.stop()


def script(tmp_path: Path) -> Path:
    file = tmp_path / "work" / "wait.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("import time\ntime.sleep(600)\n")
    return file


@pytest.mark.gate
def test_a_refusal_names_the_limit_and_the_class_that_fits(lab: LabProcess, tmp_path: Path) -> None:
    with Client(lab.url, lab.token) as client:
        with pytest.raises(Impossible) as refused:
            client.submit_project(script(tmp_path), resources=ResourceRequest(time="2h"))
        assert refused.value.message == 'The job asks for 2 h, but QoS "cheetah" allows 30 min.'
        assert refused.value.remedy == 'Ask for 30 min or less, or choose QoS "lion", which allows it.'
        with pytest.raises(Impossible, match='QoS "panther" allows 0 per user. Ask for none, or choose QoS "tabby"'):
            client.start_session(SessionRequest(gpus=1, reserve=True))
        with pytest.raises(Invalid, match='QoS "lion" does not take a session'):
            client.start_session(SessionRequest(qos="lion"))


def test_rules_are_replaced_while_jobs_wait(lab: LabProcess, tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    with Client(lab.url, lab.token) as client:
        jobs = [client.submit_project(script(tmp_path), qos="cheetah").id for _ in range(2)]
        file.write_text('preset = "mlerp"\n[qos.cheetah]\nmax_jobs_per_user = 3\n')
        assert client.reload_rules() is True
        assert client.reload_rules() is False
        file.write_text('preset = "mlerp"\n[qos.cheetah]\nmax_jobs_per_usr = 1\n')
        with pytest.raises(Invalid, match='Did you mean "max_jobs_per_user"'):
            client.reload_rules()
        assert {qos.name: qos.max_jobs_per_user for qos in client.lab().qos}["cheetah"] == 3
        more = [client.submit_project(script(tmp_path), qos="cheetah").id for _ in range(2)]
        why = "its owner holds 3 of at most 3 jobs"
        waits = wait_until(lambda: next((one for one in map(client.job, more) if why in one.message), None), "one to wait")
        file.write_text('preset = "mlerp"\n')
        lab.process.send_signal(signal.SIGHUP)
        wait_until(lambda: client.job(waits.id).state != "PENDING", lambda: client.job(waits.id).message)
        token = client.add_user("ada").token
        for job in (*jobs, *more):
            client.cancel(job)
    with Client(lab.url, token) as ada, pytest.raises(Denied, match="may not reload the lab's rules"):
        ada.reload_rules()
