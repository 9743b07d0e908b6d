"""What a record has of the machine and of variables by which libraries choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.core.domain.launch import Started
from carrel.node.runner import hardware
from carrel.node.runner.hardware import limit_facts, machine_facts
from carrel.node.runner.variables import seeds

pytestmark = pytest.mark.quick


def test_variables_that_matter_are_recorded_and_secrets_never() -> None:
    variables = {"OMP_NUM_THREADS": "4", "NVIDIA_TF32_OVERRIDE": "0", "XLA_FLAGS": "hunter2", "HOME": "/x"}
    assert seeds(variables, {"XLA_FLAGS"}) == {"OMP_NUM_THREADS": "4", "NVIDIA_TF32_OVERRIDE": "0"}
    assert Started(pid=1, seeds=seeds(variables, ())).seeds["XLA_FLAGS"] == "hunter2"


def test_the_machine_tells_what_libraries_choose_by() -> None:
    facts = machine_facts()
    assert facts["libc"]
    assert all(facts.values())
    assert facts.get("cpu_flags", "") == " ".join(sorted(set(facts.get("cpu_flags", "").split())))


def test_the_tightest_limits_of_a_cgroup_and_all_above_it_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_CGROUPS", str(tmp_path))
    job = tmp_path / "slice" / "job"
    job.mkdir(parents=True)
    for place, memory, cpu in ((tmp_path, "max", ""), (job.parent, str(2**30), "150000 100000"), (job, str(2**31), "max 100000")):
        (place / "memory.max").write_text(f"{memory}\n")
        (place / "cpu.max").write_text(f"{cpu}\n")
    facts = limit_facts(str(job))
    assert (facts["cgroup_memory"], facts["cgroup_cpu"]) == ("1G", "1.5")
    (job.parent / "cpu.max").write_text("0 0\n")
    (job.parent / "memory.max").write_text("strange\n")
    assert set(limit_facts(str(job))) == {"cpus_allowed", "cgroup_memory"}
    assert set(limit_facts("/elsewhere")) == {"cpus_allowed"}
