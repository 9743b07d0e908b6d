"""MLeRP's four tutorials, as this lab has them: notebooks of a session on processors, cell by cell, whose calls have a GPU."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from session_rig import wait_until

from carrel import Client
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser

EXAMPLES = Path(__file__).parents[2] / "examples" / "mlerp"
#: What each says, as regular expressions.
SAID = {
    "1_dask_cluster": (r"dask\S* RUNNING\n.*dask\S* RUNNING", r"dask.array<random", "10 numbers", r"mean 0\.50"),
    "2_dask_offloading": (
        r"computing, job \d+\n\(3, 6\)\n\(3, 6\)\na GPU: True",
        r"499999500000 999999\ncomputing, job \d+",
        r"on a GPU: True\ncomputing, job \d+\n\(3, 15\)",
    ),
    "3_submitit_offloading": (r"\(3, 6\)\ncomputing with a GPU: True", r"\[\(1, 1\), \(2, 3\), \(3, 6\)\]"),
    "4_submitit_pytorch": (
        r"loss 2\.\d+\nloss 2\.\d+",
        r"epoch 2: loss \d\.\d+, accuracy 0\.[89]",
        r"in a remote cell: \d+\.\d+ s",
    ),
}
ERRORS = {"2_dask_offloading": "ValueError", "3_submitit_offloading": "FailedJobError"}
#: PyTorch for processors alone is a wheel that a machine has at hand; the index would send gigabytes.
TORCH = next(
    (wheel for place in shlex.split(os.environ.get("PIP_FIND_LINKS", "")) for wheel in Path(place).glob("torch-2.13.0*.whl")),
    None,
)


@pytest.fixture(scope="module")
def tutorial_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    process = start_lab(tmp_path_factory.mktemp("mlerp") / "home", "--cpus", "8", simulate_gpus=1)
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture(scope="module")
def browser(tutorial_lab: LabProcess) -> Iterator[SessionBrowser]:
    with Client(url=tutorial_lab.url, token=tutorial_lab.token) as client:
        job = client.start_session(SessionRequest(name="tutorials", time="2h")).job.id
        wait_until(lambda: client.session(job).ready, "the session")
        assert not client.job(job).devices
        with SessionBrowser(client.open_session(job), patience=20 * PATIENCE) as browser:
            yield browser
        client.cancel(job)


def test_every_notebook_is_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.ipynb")} == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_a_tutorial_runs_in_a_session(browser: SessionBrowser, name: str) -> None:
    if TORCH is None and "torch" in name:
        pytest.skip("no wheel of torch 2.13.0 in PIP_FIND_LINKS")
    wanted = (EXAMPLES / "requirements.txt").read_text()
    wanted = wanted.replace("torch\n", "torch==2.13.0\n" if TORCH else "")
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    kernel, said = browser.start_kernel(f"{name}.ipynb"), ""
    kernel.listen()
    try:
        assert kernel.execute(f"open('requirements.txt', 'w').write({wanted!r})").status == "ok"
        for cell in cells:
            if cell["cell_type"] == "code":
                found = kernel.execute("".join(cell["source"]))
                # As other programs that run notebooks read it (nbclient, nbconvert).
                fails = "raises-exception" in cell["metadata"].get("tags", ())
                assert (found.status, found.error) == (("error", ERRORS[name]) if fails else ("ok", "")), found
                said += found.text
    finally:
        kernel.close()
    for text in SAID[name]:
        assert re.search(text, said), said
