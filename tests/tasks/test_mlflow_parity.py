"""The same project means the same to MLflow itself, and our section does not disturb it."""

import os
from pathlib import Path

import pytest

from carrel.core.tasks import describe

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

PROJECT = """
name: parity
entry_points:
  main:
    parameters:
      epochs: {type: int, default: 5}
      lr: {type: float, default: 1.50}
      small: {default: 1e-3}
      big: {default: 1_000}
      flag: {type: bool, default: yes}
      day: {default: 2026-11-20}
      note: string
      quoted: {type: string, default: "a 'b' \\"c\\" $HOME"}
      where: {type: uri, default: "s3://bucket/key"}
    command: "python train.py -e {epochs} {lr} {small} {big} {flag} {day} {note} {quoted} {where} ${{HOME}}"
  shell:
    command: "echo hello"
carrel:
  resources: {gpus: 1, memory: 8G, time: 2h}
  inputs: [{path: a, uri: "https://example.org/a"}]
"""


@pytest.fixture(scope="module")
def mlflow_command(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    utils = pytest.importorskip("mlflow.projects.utils", reason="MLflow is the reference of this test")

    def command(directory: Path, entry_point: str, parameters: dict[str, str]) -> str:
        project = utils.load_project(os.fspath(directory))
        return str(utils.get_entry_point_command(project, entry_point, parameters, None)[0])

    return command


@pytest.mark.parametrize(
    ("entry_point", "parameters"),
    [
        ("main", {"note": "plain"}),
        ("main", {"note": 'it\'s "q" $(x) `y` \\ ;', "epochs": "7", "extra": "x y", "odd key": "1"}),
        ("main", {"note": ""}),
        ("shell", {}),
        ("shell", {"x": "1", "y": "a b"}),
        ("train.py", {"lr": "0.1"}),
        ("run me.sh", {}),
    ],
)
def test_the_command_is_mlflows(
    tmp_path: Path, monkeypatch, mlflow_command, entry_point: str, parameters: dict[str, str]
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SHELL", "bash")
    (tmp_path / "MLproject").write_text(PROJECT)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run me.sh").write_text("")
    ours = describe(tmp_path, entry_point=entry_point, parameters=parameters).command
    theirs = mlflow_command(tmp_path, entry_point, parameters)
    assert ours == theirs.replace("--'odd key'", "'--odd key'")  # the same word to the shell


@pytest.mark.parametrize(
    ("example", "entry_point", "parameters"),
    [
        ("digits", "main", {}),
        ("digits", "main", {"epochs": "2", "learning_rate": "0.1"}),
        ("mnist_torch", "main", {}),
        ("steps", "main", {}),
        ("steps", "features", {}),
        ("steps", "train", {"features": "features.py"}),
    ],
)
def test_the_examples_mean_the_same(
    mlflow_command, monkeypatch, example: str, entry_point: str, parameters: dict[str, str]
) -> None:  # type: ignore[no-untyped-def]
    directory = EXAMPLES / example
    monkeypatch.chdir(directory)
    ours = describe(directory, entry_point=entry_point, parameters=parameters)
    assert ours.command == mlflow_command(directory, entry_point, parameters).replace(str(directory) + "/", "")
    assert ours.name == example
    assert ours.environment.source == "python_env.yaml"
    assert ours.options.resources.memory
