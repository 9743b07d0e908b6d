"""A task that writes checkpoints goes on after its walltime, while it gets on and as often as it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.testing.waiting import wait_until
from carrel.wire.v1 import ResourceRequest
from support.small_lab import MortalLab

#: One step for each attempt, and told to end when it has been made; done when there are three.
STEPS = """
trap 'kill $! 2>/dev/null; echo told to end; exit 75' TERM
step=$(cat $CARREL_CHECKPOINT_DIR/step 2>/dev/null || echo 0)
echo begins at $step
if [ $step -ge 2 ]; then echo done; exit 0; fi
echo $((step + 1)) > $CARREL_CHECKPOINT_DIR/step
sleep 600 & wait $!
"""


@pytest.mark.gate
def test_it_goes_on_from_its_checkpoint_and_says_so(tmp_path: Path) -> None:
    lab = MortalLab(tmp_path / "lab", "--cpus", "4")
    resources = ResourceRequest(memory="64M", time="6s")
    job = lab.ended(lab.submit(STEPS, resources=resources, requeue=5, warning="3s").id)
    assert (job.state, job.attempt, job.requeues_left) == ("COMPLETED", 3, 3), job
    assert [attempt.state for attempt in job.attempts] == ["TIMEOUT", "TIMEOUT", "COMPLETED"]
    logs = [lab.log(job.id, attempt=number) for number in (1, 2, 3)]
    assert [log.splitlines()[0] for log in logs] == ["begins at 0", "begins at 1", "begins at 2"]
    assert "SIGTERM: the walltime ends in 3 s." in logs[0]
    assert "told to end" in logs[0]
    told = [event.data["message"] for event in lab.client.events(job.id) if event.data.get("reason") == "Requeued"]
    assert [text.split("; ")[-1] for text in told] == ["it may do so 4 more times.", "it may do so 3 more times."]
    wait_until(lambda: not list((tmp_path / "lab" / "spool").glob(f"{job.id}/checkpoint")))
    lab.stop()
