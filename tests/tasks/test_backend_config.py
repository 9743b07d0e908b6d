"""Backend configs with Slurm's names: understood or refused, never dropped."""

from typing import Any

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.slurm import SlurmRequest
from carrel.core.submission import ResourceOptions, TaskOptions
from carrel.core.tasks import BackendConfig, read_backend_config

GIB = 1024**3
MIB = 1024**2

#: What `mlflow run` adds by itself.
FROM_MLFLOW: dict[str, Any] = {
    "ENV_MANAGER": None,
    "SYNCHRONOUS": False,
    "DOCKER_ARGS": {},
    "STORAGE_DIR": None,
    "build_image": False,
    "docker_auth": None,
}


def options(**said: Any) -> BackendConfig:
    return BackendConfig(options=TaskOptions(**said))


def resources(**said: Any) -> BackendConfig:
    return options(resources=ResourceOptions(**said))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, BackendConfig()),
        (FROM_MLFLOW, BackendConfig()),
        ({"mem": "8G"}, resources(memory=8 * GIB)),
        ({"mem": "8000"}, resources(memory=8000 * MIB)),
        ({"mem": 8000}, resources(memory=8000 * MIB)),
        ({"mem": "512K"}, resources(memory=512 * 1024)),
        ({"time": 90}, resources(time=5400)),
        ({"time": "90"}, resources(time=5400)),
        ({"time": "90:30"}, resources(time=5430)),
        ({"time": "02:30:00"}, resources(time=9000)),
        ({"time": "1-12"}, resources(time=36 * 3600)),
        ({"time": "1-12:30"}, resources(time=36 * 3600 + 1800)),
        ({"time": "1-00:00:01"}, resources(time=86401)),
        ({"gres": "gpu"}, resources(gpus=1)),
        ({"gres": "gpu:2"}, resources(gpus=2)),
        ({"gres": "gpu:a100:1"}, resources(gpus=1, gpu_type="a100")),
        ({"gres": "gpu:0"}, resources(gpus=0)),
        ({"gpus_per_node": 2}, resources(gpus=2)),
        ({"gpus-per-node": "h200:2", "gres": "gpu:2"}, resources(gpus=2, gpu_type="h200")),
        ({"gpus": "4"}, resources(gpus=4)),
        ({"cpus-per-task": 8}, resources(cpus=8)),
        ({"cpus_per_task": "8", "cpus-per-task": "8"}, resources(cpus=8)),
        ({"nodes": 1, "ntasks": "1"}, resources(nodes=1)),
        ({"nodes": "2-2", "ntasks": 2}, resources(nodes=2)),
        (
            {"nodes": 2, "ntasks_per_node": 4, "cpus_per_task": 3},
            options(resources=ResourceOptions(nodes=2, cpus=12), tasks_per_node=4),
        ),
        ({"ntasks": 8, "nodes": 2}, options(resources=ResourceOptions(nodes=2), tasks_per_node=4)),
        ({"ntasks": 8, "ntasks-per-node": "4"}, options(resources=ResourceOptions(nodes=2), tasks_per_node=4)),
        ({"ntasks": 4}, options(tasks_per_node=4)),
        ({"nodes": 2, "gpus": "a100:8"}, resources(nodes=2, gpus=4, gpu_type="a100")),
        ({"nodes": 2, "gpus_per_node": 4, "gres": "gpu:4"}, resources(nodes=2, gpus=4)),
        (
            {"partition": "gpu", "account": "physics", "qos": "batch"},
            options(partition="gpu", account="physics", qos="batch"),
        ),
        ({"environment": {"A": 1}, "exports": ["B=x=y", "C"]}, options(variables={"A": "1", "B": "x=y", "C": "here"})),
        ({"preemptible": False}, options(preemptible=False)),
        (
            {"constraint": "a100", "exclusive": True, "reservation": "course", "modules": ["gcc/12", "cuda/12.4"]},
            options(
                slurm=SlurmRequest(
                    constraint="a100", exclusive="exclusive", reservation="course", modules=("gcc/12", "cuda/12.4")
                )
            ),
        ),
        ({"exclusive": "user", "modules": "cuda"}, options(slurm=SlurmRequest(exclusive="user", modules=("cuda",)))),
        ({"exclusive": False, "requeue": False}, options(requeue=0)),
        (
            {"mail-user": "ada@example.org", "mail-type": "FAIL,end"},
            options(slurm=SlurmRequest(mail="ada@example.org", mail_events=("FAIL", "END"))),
        ),
        ({"requeue": True, "signal": "B:TERM@300"}, options(requeue=20, warning=300)),
        ({"requeue": "3", "signal": "SIGTERM"}, options(requeue=3, warning=60)),
        ({"dependency": "afterok:12"}, options(dependency="afterok:12")),
        ({"array": "0-9%2"}, options(array="0-9%2")),
        ({"array": 3}, options(array="3")),
        ({"job-name": "higgs"}, options(name="higgs")),
        ({"detach": True, "PROJECT_ENV_MANAGER": "uv"}, BackendConfig(detach=True, env_manager="uv")),
        ({"nested": True, "environment": {"A": 1}}, options(variables={"A": "1", "CARREL_MLFLOW_NESTED": "{}"})),
        ({"nested": {"mem": "1G", "cache": True}}, options(variables={"CARREL_MLFLOW_NESTED": '{"cache": true, "mem": "1G"}'})),
        ({"nested": False}, options()),
    ],
)
def test_understood(config: dict[str, Any], expected: BackendConfig) -> None:
    assert read_backend_config(config, environ={"C": "here"}) == expected


@pytest.mark.parametrize(
    ("config", "says", "remedy"),
    [
        ({"memory": "8G"}, '"memory" is not understood', "mem"),
        ({"gress": "gpu:1"}, '"gress" is not understood', 'Did you mean "gres"?'),
        ({"chdir": "/scratch"}, '"chdir" is not understood', "constraint"),
        ({"exclusive": 1.5}, "exclusive is 1.5", ""),
        ({"modules": ["cuda", ""]}, "modules has an empty entry", ""),
        ({"modules": {"cuda": "12"}}, "modules is {'cuda': '12'}", ""),
        ({"mail-type": True}, "mail_type is True", ""),
        ({"requeue": 101}, "requeue is 101", "0 to 100"),
        ({"requeue": "often"}, "requeue", "whole number"),
        ({"signal": "USR1@60"}, 'signal is "USR1@60"', "TERM@300"),
        ({"dependency": "before:1"}, 'dependency is "before:1"', "afternotok"),
        ({"array": "5-3"}, "5-3 ends before it begins", "0-99%4"),
        ({"hold": True}, '"hold" is not understood', ""),
        ({"job-name": ""}, "job_name is empty", ""),
        ({"mem": 0}, "mem is 0", ""),
        ({"mem": "lots"}, '"lots" is not a size', ""),
        ({"mem": 1.5}, "mem is 1.5", ""),
        ({"mem": True}, "mem is True", ""),
        ({"time": 0}, "no limit", ""),
        ({"time": "UNLIMITED"}, "UNLIMITED", ""),
        ({"time": "soon"}, "not a duration", ""),
        ({"gres": "lustre:1"}, "does not name GPUs", "gpu:2"),
        ({"gres": "gpu:1,gpu:2"}, "does not name GPUs", ""),
        ({"gres": "gpu:-1"}, "does not name GPUs", ""),
        ({"gres": "gpu:1", "gpus": 2}, "gres and gpus ask for different", ""),
        ({"gres": "gpu:a100:1", "gpus": "h200:1"}, "different GPUs", ""),
        ({"nodes": "2-4"}, 'nodes is "2-4"', "whole number"),
        ({"nodes": 0}, 'nodes is "0"', "from 1"),
        ({"nodes": 2, "ntasks": 3}, "ntasks is 3, with nodes 2", "nodes times ntasks_per_node"),
        ({"nodes": 2, "ntasks": 4, "ntasks_per_node": 1}, "ntasks_per_node 1", "leave one of them out"),
        ({"nodes": 2, "gpus": 3}, "2 nodes cannot share evenly", "gpus_per_node"),
        ({"nodes": 2, "gpus": 4, "gpus_per_node": 4}, "different GPUs", ""),
        ({"cpus_per_task": 0}, "cpus_per_task", ""),
        ({"cpus_per_task": "1", "cpus-per-task": "2"}, "there twice", ""),
        ({"exports": ["HOME_OF_NOBODY"]}, "has no value here", "HOME_OF_NOBODY=value"),
        ({"exports": "A=1"}, "must be an object or a list", ""),
        ({"environment": {"A-B": 1}}, "not a name of a variable", ""),
        ({"environment": {"A": 1}, "exports": ["A=2"]}, "two values", ""),
        ({"environment": {"CARREL_URL": "x"}}, "the lab's own", ""),
        ({"account": ""}, "account is empty", ""),
        ({"detach": "yes"}, "detach is 'yes'", ""),
        ({"nested": "yes"}, "nested is 'yes'", '{"cache": true}'),
        ({"nested": {"memory": "1G"}}, 'nested: Backend config: "memory" is not understood', "mem"),
        ({"nested": {"nested": True}}, "nested is inside of nested", "their own runs"),
        ({"DOCKER_ARGS": {"gpus": "all"}}, "DOCKER_ARGS is set", ""),
        ({"build_image": True}, "build_image is set", ""),
        ({"STORAGE_DIR": "/tmp/x"}, "STORAGE_DIR is set", ""),
        ({"ENV_MANAGER": "poetry"}, '"poetry" is not an environment manager', "uv"),
    ],
)
def test_refused_by_name(config: dict[str, Any], says: str, remedy: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_backend_config(FROM_MLFLOW | config, environ={})
    assert says in caught.value.message
    assert remedy in caught.value.remedy


def test_what_has_no_meaning_in_a_lab_is_told() -> None:
    config = read_backend_config({"output": "job.out", "error": "job.err", "sbatch-script-file": "batch"})
    assert [note.split(":")[0] for note in config.notes] == ['output "job.out"', 'error "job.err"', 'sbatch-script-file "batch"']
    assert all("no such file is written" in note for note in config.notes)
    assert config == BackendConfig(notes=config.notes)
