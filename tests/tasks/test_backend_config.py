"""Backend configs with Slurm's names: understood or refused, never dropped."""

from typing import Any

import pytest

from carrel.domain.errors import Invalid
from carrel.tasks import BackendConfig, ResourceOverrides, read_backend_config

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


def resources(**said: Any) -> BackendConfig:
    return BackendConfig(resources=ResourceOverrides(**said))


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
        ({"nodes": 1, "ntasks": "1"}, BackendConfig()),
        (
            {"partition": "gpu", "account": "physics", "qos": "batch"},
            BackendConfig(partition="gpu", account="physics", qos="batch"),
        ),
        ({"environment": {"A": 1}, "exports": ["B=x=y", "C"]}, BackendConfig(variables={"A": "1", "B": "x=y", "C": "here"})),
        ({"preemptible": False}, BackendConfig(preemptible=False)),
        ({"detach": True, "PROJECT_ENV_MANAGER": "uv"}, BackendConfig(detach=True, env_manager="uv")),
    ],
)
def test_understood(config: dict[str, Any], expected: BackendConfig) -> None:
    assert read_backend_config(config, environ={"C": "here"}) == expected


@pytest.mark.parametrize(
    ("config", "says", "remedy"),
    [
        ({"memory": "8G"}, '"memory" is not understood', "mem"),
        ({"gress": "gpu:1"}, '"gress" is not understood', 'Did you mean "gres"?'),
        ({"modules": ["cuda"]}, '"modules" is not understood', "partition"),
        ({"exclusive": True}, '"exclusive"', ""),
        ({"sbatch-script-file": "x"}, '"sbatch-script-file"', ""),
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
        ({"nodes": 2}, "nodes is 2", "one node"),
        ({"ntasks": 4}, "ntasks is 4", ""),
        ({"cpus_per_task": 0}, "cpus_per_task", ""),
        ({"cpus_per_task": "1", "cpus-per-task": "2"}, "there twice", ""),
        ({"exports": ["HOME_OF_NOBODY"]}, "has no value here", "HOME_OF_NOBODY=value"),
        ({"exports": "A=1"}, "must be an object or a list", ""),
        ({"environment": {"A-B": 1}}, "not a name of a variable", ""),
        ({"environment": {"A": 1}, "exports": ["A=2"]}, "two values", ""),
        ({"environment": {"CARREL_URL": "x"}}, "the lab's own", ""),
        ({"account": ""}, "account is empty", ""),
        ({"detach": "yes"}, "detach is 'yes'", ""),
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
