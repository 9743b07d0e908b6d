"""The reference in docs/tasks.md is complete, and its examples are right."""

import json
import re
from pathlib import Path

import pytest

from carrel.core.submission import SlurmOptions, options_of
from carrel.core.tasks import describe, read_backend_config
from carrel.core.tasks.backend_config import MLFLOW_KEYS, SLURM_KEYS
from carrel.core.tasks.environment import PYTHON_ENV_KEYS, SOURCES
from carrel.core.tasks.mlproject import ENTRY_POINT_KEYS, PROJECT_KEYS
from carrel.core.tasks.parameters import ParameterType
from carrel.core.tasks.section import INPUT_KEYS, RESOURCE_KEYS, SECTION_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ROWS = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))


@pytest.mark.parametrize(
    "key",
    [
        *PROJECT_KEYS,
        *ENTRY_POINT_KEYS,
        *ParameterType,
        *SECTION_KEYS,
        *(f"resources.{key}" for key in RESOURCE_KEYS),
        *(f"slurm.{key}" for key in options_of(SlurmOptions)),
        *PYTHON_ENV_KEYS,
    ],
)
def test_every_key_has_a_row(key: str) -> None:
    assert f"`{key}`" in ROWS


@pytest.mark.parametrize("key", [*INPUT_KEYS, *SOURCES, *SLURM_KEYS, *MLFLOW_KEYS])
def test_every_other_name_is_mentioned(key: str) -> None:
    assert f"`{key}`" in PAGE


def test_no_row_describes_what_does_not_exist() -> None:
    known = {*PROJECT_KEYS, *ENTRY_POINT_KEYS, *ParameterType, *SECTION_KEYS, *PYTHON_ENV_KEYS, *SLURM_KEYS}
    known |= {f"resources.{key}" for key in RESOURCE_KEYS} | {"python_env.yaml"}
    known |= {f"slurm.{key}" for key in options_of(SlurmOptions)}
    assert set(re.findall(r"`([^`]+)`", ROWS)) <= known


def test_the_examples_are_right(tmp_path: Path) -> None:
    files = {text.split("\n")[0].removeprefix("# "): text for _, text in BLOCKS if text.startswith("# ")}
    assert set(files) == {"MLproject", "python_env.yaml", "train.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "requirements.txt").write_text("")
    task = describe(tmp_path, parameters={"epochs": "20", "data": "data/train.csv"})
    assert task.command == "python train.py --epochs 20 --learning-rate 0.01 --data data/train.csv"
    assert task.environment.requirements == ("scikit-learn<2,>=1.5", "setuptools")
    assert task.options.resources.time == 7200
    assert describe(tmp_path, script="train.py").environment.requirements == ("numpy>=2",)
    (config,) = [json.loads(text) for language, text in BLOCKS if language == "json"]
    assert read_backend_config(config).options.resources.gpu_type == "a100"
