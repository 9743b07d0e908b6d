"""`%%remote` in a session of a real lab: its environment has the client, its token may submit, within the lab's limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from session_rig import wait_until

from carrel import Client
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import Kernel, SessionBrowser

ONE_WORKER = "%%remote requirements=none cpus=1 memory=256M workers=1"


@pytest.fixture(scope="module")
def small_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    home = tmp_path_factory.mktemp("remote") / "home"
    process = start_lab(home, "--cpus", "8", simulate_gpus=1, variables={"CARREL_SESSION_JOBS": "1"})
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture(scope="module")
def session(small_lab: LabProcess) -> Iterator[tuple[Client, int]]:
    with Client(url=small_lab.url, token=small_lab.token) as client:
        job = client.start_session(SessionRequest(name="notebook", time="2h")).job.id
        wait_until(lambda: client.session(job).ready, "the session")
        yield client, job
        client.cancel(job)


@pytest.fixture
def kernel(session: tuple[Client, int]) -> Iterator[Kernel]:
    client, job = session
    with SessionBrowser(client.open_session(job), patience=PATIENCE) as browser:
        kernel = browser.start_kernel()
        kernel.listen()
        yield kernel
        kernel.close()


@pytest.mark.gate
def test_a_cell_runs_on_the_lab_as_the_sessions_owner(session: tuple[Client, int], kernel: Kernel) -> None:
    client, job = session
    found = kernel.execute(f"{ONE_WORKER} as=where\nimport os\nwhere = int(os.environ['CARREL_JOB_ID'])\nprint('there')")
    assert (found.status, "there" in found.text) == ("ok", True), found
    worker = int(kernel.execute("where").text.strip())
    assert worker != job
    assert client.job(worker).parent == job
    assert client.job(worker).owner == client.job(job).owner


def test_it_ends_jobs_that_it_has_submitted_and_no_others(session: tuple[Client, int], kernel: Kernel) -> None:
    client, job = session
    found = kernel.execute(f"{ONE_WORKER} as=where\nimport os\nwhere = int(os.environ['CARREL_JOB_ID'])")
    assert found.status == "ok", found
    worker = int(kernel.execute("where").text.strip())
    assert kernel.execute(f"import carrel\nlab = carrel.Client()\nlab.cancel({job})").error == "Denied"
    assert kernel.execute("lab.cancel(where);").status == "ok"
    assert client.wait(worker, timeout=PATIENCE).state == "CANCELLED"


def test_what_was_installed_since_is_there_in_the_next_cell(kernel: Kernel) -> None:
    line = "%%remote cpus=1 memory=256M workers=1 idle=1s\n"
    assert kernel.execute(f"{line}import installed_since").error == "ModuleNotFoundError"
    # As pip does it for a directory of this machine: no index is asked for such a package.
    place = "import sysconfig, pathlib, json\nplace = pathlib.Path(sysconfig.get_path('purelib'))\n"
    about = "about = place / 'installed_since-1.dist-info'\nabout.mkdir()\n"
    files = {
        "METADATA": "Metadata-Version: 2.1\nName: installed_since\nVersion: 1\n",
        "direct_url.json": '{"url": "file:///somewhere", "dir_info": {}}',
        "RECORD": "installed_since.py,,\n",
    }
    written = "".join(f"(about / {name!r}).write_text({text!r})\n" for name, text in files.items())
    module = "(place / 'installed_since.py').write_text('value = 7')"
    assert kernel.execute(place + about + written + module).status == "ok"
    assert kernel.execute(f"{line}import installed_since\ninstalled_since.value").text.strip().endswith("7")
