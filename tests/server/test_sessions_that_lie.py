"""A session puts a program of its own in the place of its notebook server: the lab, and other people's sessions, go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import start_lab
from support.notebook_client import SessionBrowser

#: Answers every request, then says in a file how often it was asked.
_LIAR = """
import os, socket, subprocess, sys
code = '''
import os, socket, sys
place, body = os.path.join(os.environ["TMPDIR"], "jupyter.sock"), sys.argv[1].encode()
os.rename(place, place + ".real")
listener = socket.socket(socket.AF_UNIX)
listener.bind(place)
listener.listen(100)
print("listens", flush=True)
asked = 0
while True:
    connection, _ = listener.accept()
    with connection:
        if b"/carrel/activity" not in connection.recv(65536):
            continue
        connection.sendall(b"HTTP/1.1 200 OK\\\\r\\\\nContent-Length: %d\\\\r\\\\n\\\\r\\\\n%b" % (len(body), body))
        asked += 1
        open(sys.argv[2], "w").write(str(asked))
'''
liar = subprocess.Popen([sys.executable, "-c", code, {body!r}, {file!r}], stdout=subprocess.PIPE, start_new_session=True)
assert liar.stdout.readline()
"""


@pytest.mark.timeout(300)
def test_what_it_says_of_itself_costs_nobody_else_anything(tmp_path: Path) -> None:
    home = tmp_path / "lab"
    home.mkdir()
    (home / "carrel.toml").write_text('default_qos = "q"\nsession_qos = "q"\n[qos.q]\nidle_time = "6s"\n')
    lab = start_lab(home, "--cpus", "8", simulate_gpus=0, variables={"CARREL_SESSION_LOOK_TIME": "1s"})
    bodies = ['{"kernels_busy": 0, "last_activity": []}', '{"kernels_busy": 0, "last_activity": 1e300}', "5", "[" * 60_000]

    def started(client: Client) -> int:
        job_id = client.start_session(SessionRequest()).job.id
        wait_until(lambda: client.session(job_id).ready, "the session to be ready")
        return job_id

    def asked(file: Path) -> int:
        return int(file.read_text() or 0) if file.exists() else 0

    try:
        with Client(home=home) as client:
            for number, body in enumerate(bodies):
                job_id, file = started(client), tmp_path / f"asked{number}"
                with SessionBrowser(client.open_session(job_id)) as browser:
                    kernel = browser.start_kernel()
                    kernel.listen()
                    assert kernel.execute(_LIAR.format(body=body, file=str(file))).status == "ok"
                    kernel.close()
                wait_until(lambda file=file: asked(file) > 1, "the lab to have asked it")  # type: ignore[misc]
                assert job_id in {session.job.id for session in client.sessions(everybody=True, ended=True)}
            unused = client.wait(started(client), timeout=PATIENCE)
            assert "idle" in unused.message
        assert "Looking at sessions failed" not in (home / "logs" / "server.log").read_text()
    finally:
        lab.end_jobs()
        lab.stop()
