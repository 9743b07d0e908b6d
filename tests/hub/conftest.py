from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hub_rig import HubRig, install_proxy

from carrel import Client
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess, start_lab

QOS = """\
session_qos = "free"
default_qos = "free"

[qos.free]
idle_time = "12h"

[qos.single]
max_jobs_per_user = 1
max_time = "1h"
"""


@pytest.fixture(scope="session")
def proxy_program() -> str:
    """JupyterHub's proxy; it comes from npm."""
    found = shutil.which("configurable-http-proxy")
    if found is not None:
        return found
    npm = shutil.which("npm")
    trouble = "npm is not installed (Debian: apt-get install npm), and configurable-http-proxy is not either"
    if npm is not None and shutil.which("node") is not None:
        try:
            return install_proxy(npm)
        except (subprocess.SubprocessError, OSError) as error:
            said = getattr(error, "stderr", b"") or b""
            trouble = f"npm could not install configurable-http-proxy: {error} {said.decode(errors='replace')[-500:]}"
    if os.environ.get("CI"):
        pytest.fail(trouble)
    pytest.skip(trouble)


@pytest.fixture(scope="session")
def hub_lab(tmp_path_factory: pytest.TempPathFactory, proxy_program: str) -> Iterator[LabProcess]:
    """A lab with a class of service that lets each user run one session."""
    home = tmp_path_factory.mktemp("hub") / "lab"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text(QOS)
    lab = start_lab(home, simulate_gpus=2)
    yield lab
    # Sessions outlive the lab; these must not.
    with Client(url=lab.url, token=lab.token) as admin:
        left = admin.sessions(everybody=True)
        for session in left:
            admin.cancel(session.job.id)
        for session in left:
            admin.wait(session.job.id, timeout=PATIENCE)
    lab.stop()


@pytest.fixture(scope="session")
def rig(hub_lab: LabProcess, proxy_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubRig]:
    with closing(HubRig(hub_lab, proxy_program, Path(tmp_path_factory.mktemp("rig")))) as rig:
        yield rig


@pytest.fixture(scope="session")
def ada(rig: HubRig) -> str:
    """A user whose server runs."""
    who = rig.add_user("ada")
    rig.start(who)
    return who
