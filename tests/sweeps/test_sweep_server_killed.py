"""The lab's server is killed while trials wait, run, report and end: no trial that has ended is repeated, and none is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from swept import sweep, task, wait_for_sweep

from carrel import Client
from carrel.testing.waiting import wait_until
from support.lab_process import start_lab


def test_a_sweep_survives_a_killed_server(tmp_path: Path) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    trace.mkdir()
    body = "\n".join(
        [
            "open(flags / 'trace', 'a').write(f'{trial}\\n')",
            "for step in range(3):",
            "    carrel.report(float(given.x) + step, step)",
        ]
    )
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
    with Client(home=home) as client:
        options = {"trials": 24, "parallel": 3}
        begun = sweep(
            client, task(tmp_path / "code", body), {"x": "uniform(0, 1)"}, parameters={"flags": str(trace)}, options=options
        )
        for share in (2, 8, 14):
            wait_until(lambda share=share: _begun(trace) > share)  # type: ignore[misc]
            lab.kill()
            lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
        ended = wait_for_sweep(client, begun.id)
        assert (ended.state, ended.counts) == ("COMPLETED", {"COMPLETED": 24})
        assert len({trial.job_id for trial in ended.all_trials}) == 24
        assert [trial.value for trial in ended.all_trials] == [trial.parameters["x"] + 2 for trial in ended.all_trials]
        assert len(list(client.jobs(limit=None))) == 24
    assert Counter(map(int, (trace / "trace").read_text().split())) == Counter(range(1, 25))
    lab.end_jobs()
    lab.stop()


def _begun(trace: Path) -> int:
    return len((trace / "trace").read_text().split()) if (trace / "trace").exists() else 0
