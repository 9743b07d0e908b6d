"""Which inputs let a result be taken again: those whose address names the same content for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carrel.core.domain.cache_key import HALF, cache_key
from carrel.core.domain.task import TaskSpec

RUN = "0123456789abcdef0123456789abcdef"


def key(uri: str) -> str:
    return cache_key(
        TaskSpec(entry_point="main", command="cat inputs/data", snapshot="sha256:0", path_parameters={"inputs/data": uri})
    )


def test_other_code_changes_the_second_half_alone() -> None:
    task = TaskSpec(entry_point="main", command="make", snapshot="sha256:0")
    mended, other = replace(task, snapshot="sha256:1"), replace(task, command="make all")
    assert cache_key(mended)[:HALF] == cache_key(task)[:HALF]
    assert cache_key(mended) != cache_key(task)
    assert cache_key(other)[:HALF] != cache_key(task)[:HALF]


@pytest.mark.parametrize(
    "uri",
    [
        "job:12/outputs",
        f"runs:/{RUN}/data",
        # What a program of MLflow's makes of `run.info.artifact_uri`.
        f"mlflow-artifacts:/workspaces/ada-1/3/{RUN}/artifacts/data",
        f"mlflow-artifacts:/{RUN}/artifacts",
        "models:/digits/3",
    ],
)
def test_an_address_that_lasts_has_a_key(uri: str) -> None:
    assert key(uri) not in ("", key("job:99/outputs"))


@pytest.mark.parametrize(
    "uri",
    ["https://host/data", "file:///data", "models:/digits@best", "mlflow-artifacts:/data", f"mlflow-artifacts:/{RUN}/other"],
)
def test_an_address_that_may_change_has_none(uri: str) -> None:
    assert key(uri) == ""
