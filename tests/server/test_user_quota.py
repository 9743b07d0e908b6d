"""Who has as much on the disk as a user may have starts nothing more, also of what was submitted before."""

from __future__ import annotations

from pathlib import Path

from carrel.client import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest
from support.lab_process import start_lab


def test_what_waits_does_not_start_while_its_owner_has_no_room(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('tracking = false\nuser_quota = "1M"\n')
    code = tmp_path / "code"
    code.mkdir()
    (code / "task.py").write_text(
        "import os, sys, time\n"
        "open('outputs/made', 'wb').write(os.urandom(2 << 20))\n"
        "print('wrote', flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
    )
    lab = start_lab(home, "--cpus", "2", simulate_gpus=0)
    go = str(tmp_path / "go")

    def submit(cpus: int) -> int:
        asked = ResourceRequest(cpus=cpus, memory="64M")
        return ada.submit_project(code, script="task.py", arguments=[go], resources=asked).id

    try:
        with Client(home=home) as ada:
            first, second = submit(1), submit(1)
            wait_until(lambda: all(b"wrote" in b"".join(ada.log(job)) for job in (first, second)))
            waits = [submit(2), submit(2)]
            session = ada.start_session(SessionRequest(kind="terminal", cpus=1, memory="256M")).job.id
            ada.cancel(first)
            assert ada.wait(first, timeout=PATIENCE).state == "CANCELLED"
            wait_until(lambda: {ada.job(job).reason for job in waits} == {"StorageFull"})
            assert "1M is what each user may have" in ada.job(waits[0]).message
            assert ada.job(second).state == "RUNNING", "what runs goes on"
            wait_until(lambda: ada.job(session).state == "RUNNING")
            ada.cancel(session)
            Path(go).touch()
            assert ada.wait(second, timeout=PATIENCE).state == "COMPLETED"
            assert [one.size for one in ada.outputs(second)] == [2 << 20]
            for job in (first, second):
                ada.remove_outputs(job)
            assert ada.wait(waits[0], timeout=PATIENCE).state == "COMPLETED"
    finally:
        lab.end_jobs()
        lab.stop()
