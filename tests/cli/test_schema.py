"""The schemas for editors: what the documentation shows is right by them, and what is misspelt is not."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
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
BLOCKS = [
    (page.name, language, text)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for language, text in re.findall(r"^ *```(toml|yaml)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
]


def _faults(schema: dict[str, Any], document: Any) -> list[str]:
    jsonschema.Draft202012Validator.check_schema(schema)
    return [fault.message for fault in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def _right() -> Iterator[tuple[str, Any, Any]]:
    """What the pages and the examples show: where, the schema of it, and what it says."""
    for page, language, text in BLOCKS:
        if language == "toml" and "# costs.toml" in text:
            yield page, costs_schema, tomllib.loads(text)
        elif language == "toml" and "[environment]" not in text and "# fabric.toml" not in text:
            yield page, settings_schema, tomllib.loads(text)
        elif language == "yaml" and "# MLproject" in text:
            yield page, task_schema, yaml.safe_load(text)
    for file in sorted((ROOT / "examples").glob("**/MLproject")):
        yield file.parent.name, task_schema, yaml.safe_load(file.read_text())


@pytest.mark.parametrize(("where", "schema", "document"), list(_right()))
def test_what_is_shown_is_right(where: str, schema: Callable[[], dict[str, Any]], document: Any) -> None:
    assert _faults(schema(), document) == [], where


@pytest.mark.parametrize(
    ("schema", "document", "says"),
    [
        (task_schema, {"carrel": {"retires": 2}}, "'retires' was unexpected"),
        (task_schema, {"carrel": {"retries": 101}}, "101"),
        (task_schema, {"carrel": {"resources": {"gpu": 1}}}, "'gpu' was unexpected"),
        (task_schema, {"carrel": {"launcher": "mpirun"}}, "'mpirun'"),
        (task_schema, {"entry_points": {"main": {"parameters": {"lr": "flaot"}}}}, "'flaot'"),
        (settings_schema, {"prot": 80}, "'prot' was unexpected"),
        (settings_schema, {"port": "http"}, "'http'"),
        (settings_schema, {"qos": {"batch": {"max_gpu": 4}}}, "'max_gpu' was unexpected"),
        (settings_schema, {"sign_in": {"oidc": {"isuer": "x"}}}, "'isuer' was unexpected"),
    ],
)
def test_a_mistake_is_marked(schema: Callable[[], dict[str, Any]], document: Any, says: str) -> None:
    (fault,) = _faults(schema(), document)
    assert says in fault


@pytest.mark.parametrize(("file", "title"), [("MLproject",) * 2, ("carrel.toml",) * 2, ("costs.toml",) * 2])
def test_the_command_prints_them(capsys: pytest.CaptureFixture[str], file: str, title: str) -> None:
    assert main(["schema", file]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == title


def test_of_another_file_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "setup.cfg"]) != 0
    assert "MLproject, carrel.toml, costs.toml or challenge.yaml" in capsys.readouterr().err
