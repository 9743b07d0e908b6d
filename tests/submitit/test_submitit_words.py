"""What needs no lab: parameters, places in a job, programs as functions, the cluster "debug", names."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import carrel
from carrel import submitit
from carrel.client.submitit.job_environment import expand_nodes
from carrel.client.submitit.parameters import Wanted, wanted
from carrel.client.submitit.sending import command_of
from carrel.submitit.core import utils

pytestmark = pytest.mark.quick


def asked(cluster: str = "carrel", **parameters: Any) -> Wanted:
    from carrel.client.submitit.parameters import check

    check(parameters)
    return wanted(parameters, cluster)


@pytest.mark.parametrize(
    ("parameters", "resources"),
    [
        ({"timeout_min": 90, "mem_gb": 1.5, "nodes": 2}, {"time": "5400s", "memory": "1536M", "nodes": 2}),
        ({"cpus_per_task": 3, "tasks_per_node": 4}, {"cpus": 12}),
        ({"gpus_per_node": 2, "slurm_cpus_per_gpu": 8}, {"gpus": 2, "cpus": 16}),
        ({"slurm_gpus_per_node": "a100:2", "slurm_mem_per_gpu": "10GB"}, {"gpus": 2, "gpu_type": "a100", "memory": "20480M"}),
        ({"slurm_gpus_per_task": 1, "tasks_per_node": 2}, {"gpus": 2}),
        ({"slurm_num_gpus": 3, "nodes": 2}, {"gpus": 2, "nodes": 2}),
        ({"slurm_gres": "gpu:h100:4"}, {"gpus": 4, "gpu_type": "h100"}),
        ({"slurm_gres": "gpu"}, {"gpus": 1}),
        ({"slurm_mem": "4000"}, {"memory": "4000M"}),
        ({"slurm_mem_per_cpu": "2G", "cpus_per_task": 4}, {"memory": "8192M", "cpus": 4}),
        ({"slurm_additional_parameters": {"mem-per-gpu": "1G"}, "gpus_per_node": 2}, {"memory": "2048M", "gpus": 2}),
        ({"timeout_min": 5, "slurm_time": 7}, {"time": "420s"}),
        ({"slurm_time": "1:00:00"}, {"time": "1:00:00"}),
        ({"mem_gb": None, "carrel_gpu_memory": "40G"}, {"gpu_memory": "40G"}),
    ],
)
def test_parameters_become_resources(parameters: dict[str, Any], resources: dict[str, Any]) -> None:
    assert asked(**parameters).resources == resources


def test_parameters_of_slurm_go_along_or_have_a_counterpart() -> None:
    found = asked(
        name="train",
        slurm_partition="gpu",
        slurm_account="physics",
        slurm_dependency="afterok:12",
        slurm_constraint="a100",
        slurm_exclusive=True,
        slurm_mail_user="a@b.c",
        slurm_mail_type="END,FAIL",
        slurm_comment="mine",
        slurm_additional_parameters={"nice": 100, "spread-job": True, "kill-on-invalid-dep": False},
        slurm_array_parallelism=3,
        slurm_signal_delay_s=7,
        carrel_variables={"A": "b"},
    )
    assert found.options == {
        "name": "train",
        "partition": "gpu",
        "account": "physics",
        "dependency": "afterok:12",
        "variables": {"A": "b"},
    }
    assert found.slurm == {
        "constraint": "a100",
        "exclusive": "exclusive",
        "mail": "a@b.c",
        "mail_events": ["END", "FAIL"],
        "options": ["--comment=mine", "--nice=100", "--spread-job"],
    }
    assert (found.parallel, found.warning) == (3, 7)


def test_the_parameters_of_another_cluster_mean_nothing() -> None:
    assert asked("local", timeout_min=5, slurm_time=9, local_setup=["a"]) == asked("local", timeout_min=5, local_setup=["a"])
    assert asked("slurm", timeout_min=5, local_timeout_min=9).resources == {"time": "300s"}


@pytest.mark.parametrize(
    ("parameters", "kind", "said"),
    [
        ({"blublu": 2}, NameError, "no parameter blublu"),
        ({"slurm_partitoin": "a"}, NameError, "slurm_partition"),
        ({"slurm_srun_args": ["-v"]}, NameError, "carrel_launcher"),
        ({"local_visible_gpus": [0]}, NameError, "gpus_per_node"),
        ({"mem_gb": "2GB"}, TypeError, "int or float"),
        ({"nodes": True}, TypeError, "takes int"),
        ({"slurm_mem": "much"}, ValueError, "16GB"),
        ({"slurm_gres": "shard:2"}, ValueError, "gpu:NUMBER"),
    ],
)
def test_what_is_refused_is_named_with_the_remedy(parameters: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        asked(**parameters)


def test_executors_take_submitits_arguments(tmp_path: Path) -> None:
    assert submitit.AutoExecutor(tmp_path, slurm_max_num_timeout=7, local_max_num_timeout=9).max_num_timeout == 7
    assert submitit.AutoExecutor(tmp_path, cluster="local", slurm_max_num_timeout=7).max_num_timeout == 3
    assert submitit.SlurmExecutor(tmp_path, max_num_timeout=5).max_num_timeout == 5
    with pytest.warns(UserWarning, match="slurm_max_num_timeout"):
        assert submitit.AutoExecutor(tmp_path, max_num_timeout=2).max_num_timeout == 2
    with pytest.raises(TypeError, match="slurm_foobar"):
        submitit.AutoExecutor(tmp_path, slurm_foobar=2)
    with pytest.raises(ValueError, match="no cluster 'moon'"):
        submitit.AutoExecutor(tmp_path, cluster="moon")
    with pytest.raises(ValueError, match="requirements="):
        submitit.AutoExecutor(tmp_path, slurm_python="/usr/bin/python2")
    slurm = submitit.SlurmExecutor(tmp_path)
    slurm.update_parameters(time=9, partition="a")
    assert slurm.parameters == {"slurm_time": 9, "slurm_partition": "a"}
    with pytest.raises(ValueError, match="blublu"):
        slurm.update_parameters(blublu=1)


def test_too_large_a_submission_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    executor = submitit.AutoExecutor(tmp_path, slurm_max_pickle_size_gb=0.000001)
    with pytest.raises(RuntimeError, match="max_pickle_size_gb"):
        executor.submit(len, "x" * 2000)


def test_the_cluster_debug_calls_here_when_it_is_asked(tmp_path: Path) -> None:
    seen: list[str] = []

    def call(value: int) -> int:
        here = submitit.JobEnvironment()
        seen.append(here.job_id)
        assert (here.num_tasks, here.global_rank, here.num_nodes) == (1, 0, 1)
        return 1 // value

    executor = submitit.AutoExecutor(tmp_path, cluster="debug")
    good, bad, none = executor.map_array(call, [1, 0, 1])
    assert (good.state, seen) == ("QUEUED", [])
    assert (good.result(), good.state, seen) == (1, "DONE", [good.job_id])
    assert good.result() == 1
    assert isinstance(bad.exception(), ZeroDivisionError)
    assert bad.state == "FAILED"
    none.cancel()
    with pytest.raises(submitit.UncompletedJobError, match="was cancelled"):
        none.result()
    assert asyncio.run(good.awaitable().result()) == 1
    assert "SUBMITIT_EXECUTOR" not in os.environ


def test_outside_of_a_job_there_is_no_job_environment() -> None:
    with pytest.raises(RuntimeError, match="inside of the function"):
        submitit.JobEnvironment()


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("a1", ["a1"]),
        ("a[1-3,07],b", ["a1", "a2", "a3", "a07", "b"]),
        ("a[08-10]", ["a08", "a09", "a10"]),
        ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
    ],
)
def test_lists_of_nodes(listed: str, names: list[str]) -> None:
    assert expand_nodes(listed) == names


@pytest.mark.parametrize("listed", ["a[1-,4]", "a[1,2,b-3]", "a[1"])
def test_what_is_no_list_of_nodes(listed: str) -> None:
    with pytest.raises(ValueError, match="no list of nodes"):
        expand_nodes(listed)


@given(st.lists(st.from_regex(r"[a-z]{1,4}[0-9]{0,3}", fullmatch=True), min_size=1, max_size=5))
def test_plain_names_are_themselves(names: list[str]) -> None:
    assert expand_nodes(",".join(names)) == names


def test_torch_gets_the_gpu_of_its_rank_and_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "SUBMITIT_EXECUTOR": "carrel",
        "CARREL_JOB_ID": "12",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
    }
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    found = submitit.TorchDistributedEnvironment().export()
    assert (found.rank, found.world_size, found.master_addr, found.master_port) == (1, 2, "10.0.0.1", 4711)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    monkeypatch.setenv("MASTER_PORT", "1")
    found.master_port = 2
    with pytest.raises(RuntimeError, match="overwrite"):
        found.export(set_cuda_visible_devices=False)
    assert found.export(set_cuda_visible_devices=False, overwrite=True)
    assert os.environ["MASTER_PORT"] == "2"


def test_programs_are_functions() -> None:
    program = submitit.helpers.CommandFunction([sys.executable, "-c", "import sys; print(sys.argv[1:])"], verbose=False)
    assert program("a", x=1) == "['a', '--x=1']"
    fails = submitit.helpers.CommandFunction([sys.executable, "-c", "raise SystemExit('too bad')"], verbose=False)
    with pytest.raises(submitit.FailedJobError, match="too bad"):
        fails()


def test_a_snapshot_is_a_copy_to_work_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    (root / "data").mkdir(parents=True)
    for name in ("a.py", "b.py", "data/large"):
        (root / name).write_text(name)
    monkeypatch.chdir(root)
    with submitit.helpers.RsyncSnapshot(copy, exclude=["data", "b*"]):
        assert Path.cwd() == copy
        assert [path.name for path in copy.iterdir()] == ["a.py"]
    assert Path.cwd() == root
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "b.py"], check=True)
    with submitit.helpers.RsyncSnapshot(tmp_path / "known", include=["data/large"]):
        pass
    assert {path.name for path in (tmp_path / "known").rglob("*") if path.is_file()} == {"b.py", "large"}


def test_variables_of_jobs_are_taken_out_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("OF_MINE", "1")
    with submitit.helpers.clean_env(extra_names=["OF_MINE"]):
        assert not {"SLURM_JOB_ID", "OF_MINE"} & set(os.environ)
    with utils.environment_variables(OF_MINE=2):
        assert os.environ["OF_MINE"] == "2"
    assert (os.environ["SLURM_JOB_ID"], os.environ["OF_MINE"]) == ("1", "1")


def test_submissions_are_kept_and_their_folders_are_named(tmp_path: Path) -> None:
    submission = submitit.DelayedSubmission(pow, 2, 3)
    submission.dump(tmp_path / "a.pkl")
    again = submitit.DelayedSubmission.load(tmp_path / "a.pkl")
    assert (again.done(), again.result(), again.done()) == (False, 8, True)
    assert utils.JobPaths(tmp_path / "%A" / "%a", "12_3", 1).stdout == tmp_path / "12" / "3" / "12_3_1_log.out"
    assert utils.JobPaths.get_first_id_independent_folder(tmp_path / "x_%j" / "y") == tmp_path


def test_the_shell_keeps_the_exit_code_and_outlives_sigterm(tmp_path: Path) -> None:
    command = command_of("sh -c 'kill -TERM $PPID; exit 7'", ["touch before"], ["touch after"])
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 7
    assert {path.name for path in tmp_path.iterdir()} == {"before", "after"}


def test_importing_carrel_loads_nothing_of_it_and_every_name_is_there() -> None:
    program = "import sys, carrel, json; print(json.dumps([name for name in sys.modules if 'submitit' in name]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
    assert carrel.submitit is submitit
    for name in submitit.__all__:
        assert getattr(submitit, name).__name__ == name
    with pytest.raises(AttributeError, match="Autoexecutor"):
        _ = submitit.Autoexecutor


def test_what_a_job_imports_is_of_the_standard_library(tmp_path: Path) -> None:
    from carrel.client.submitit.sending import write_project

    write_project(tmp_path, submissions=[b""], requirements=[], modules={}, cluster="carrel")
    names = "carrel.submitit, carrel.submitit.helpers, carrel.submitit.core.core, carrel.submitit.core.utils"
    program = (
        f"import sys; sys.path.insert(0, 'face'); import {names}; from carrel.submitit import AutoExecutor, Job; print('well')"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "well\n", done.stderr
