"""The schemas for editors: what the documentation shows is right by them, and what is misspelt is not."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from carrel.cli.main import main
from carrel.core.tasks.schema import task_schema
from carrel.core.worth.schema import costs_schema
from carrel.lab.server.schema import settings_schema

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.name, language, text)
    for page in PAGES
    for language, text in re.findall(r"^ *```(toml|yaml)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
]
PROJECTS = sorted((ROOT / "examples").glob("**/MLproject"))


def _faults(schema: dict[str, Any], document: Any) -> list[str]:
    jsonschema.Draft202012Validator.check_schema(schema)
    return [fault.message for fault in jsonschema.Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize(
    "text",
    [text for _, language, text in BLOCKS if language == "toml" and "[environment]" not in text and "# costs.toml" not in text],
)
def test_settings_of_the_pages_are_right(text: str) -> None:
    assert _faults(settings_schema(), tomllib.loads(text)) == []


@pytest.mark.parametrize("text", [text for _, language, text in BLOCKS if language == "toml" and "# costs.toml" in text])
def test_cost_files_of_the_pages_are_right(text: str) -> None:
    assert _faults(costs_schema(), tomllib.loads(text)) == []


@pytest.mark.parametrize("file", PROJECTS, ids=lambda file: file.parent.name)
def test_projects_of_the_examples_are_right(file: Path) -> None:
    assert _faults(task_schema(), yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize("text", [text for _, language, text in BLOCKS if language == "yaml" and "# MLproject" in text])
def test_projects_of_the_pages_are_right(text: str) -> None:
    assert _faults(task_schema(), yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("project", "says"),
    [
        ({"carrel": {"retires": 2}}, "'retires' was unexpected"),
        ({"carrel": {"retries": 101}}, "101"),
        ({"carrel": {"resources": {"gpu": 1}}}, "'gpu' was unexpected"),
        ({"carrel": {"launcher": "mpirun"}}, "'mpirun'"),
        ({"entry_points": {"main": {"parameters": {"lr": "flaot"}}}}, "'flaot'"),
    ],
)
def test_a_mistake_in_a_project_is_marked(project: dict[str, Any], says: str) -> None:
    (fault,) = _faults(task_schema(), project)
    assert says in fault


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prot": 80}, "'prot' was unexpected"),
        ({"port": "http"}, "'http'"),
        ({"qos": {"batch": {"max_gpu": 4}}}, "'max_gpu' was unexpected"),
        ({"sign_in": {"oidc": {"isuer": "x"}}}, "'isuer' was unexpected"),
    ],
)
def test_a_mistake_in_the_settings_is_marked(settings: dict[str, Any], says: str) -> None:
    (fault,) = _faults(settings_schema(), settings)
    assert says in fault


@pytest.mark.parametrize(("file", "title"), [("MLproject",) * 2, ("carrel.toml",) * 2, ("costs.toml",) * 2])
def test_the_command_prints_them(capsys: pytest.CaptureFixture[str], file: str, title: str) -> None:
    assert main(["schema", file]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == title


def test_of_another_file_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "setup.cfg"]) != 0
    assert "MLproject, carrel.toml or costs.toml" in capsys.readouterr().err
