from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from gateway_lab import Rig
from pydantic import BaseModel

from carrel.core.domain import errors
from carrel.wire import v1

DOCS = Path(__file__).parents[2] / "docs" / "api.md"
METHODS = {"get", "put", "post", "delete", "head", "patch"}


def operations(document: dict[str, dict[str, dict[str, dict[str, object]]]]) -> dict[tuple[str, str], dict[str, object]]:
    return {
        (method.upper(), path): operation
        for path, found in document["paths"].items()
        for method, operation in found.items()
        if method in METHODS
    }


@pytest.mark.gate
def test_the_documentation_lists_exactly_the_endpoints_that_there_are(rig: Rig) -> None:
    listed = set(re.findall(r"^\| `([A-Z]+)` \| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    assert listed == set(operations(rig.app.openapi()))


def test_the_documentation_lists_every_kind_of_error(rig: Rig) -> None:
    text = DOCS.read_text()
    # Errors of single rooms (the runner's, say) never go out through the gateway; those of the domain do.
    told = {cls.code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.CarrelError)}
    for code in (told - {"error"}) | {"internal", "too_large", "method_not_allowed"}:
        assert f"`{code}`" in text, code


def test_every_operation_says_what_it_does_what_it_answers_and_how_it_refuses(rig: Rig, nobody: httpx.Client) -> None:
    document = nobody.get("/openapi.json").json()
    assert document == rig.app.openapi()
    assert "Problem" in document["components"]["schemas"]
    assert "HTTPValidationError" not in str(document)
    found = operations(document)
    assert len(found) >= 20
    for (method, path), operation in found.items():
        assert operation["summary"], path
        answers = operation["responses"]
        assert isinstance(answers, dict)
        good = [status for status in answers if status.startswith("2")]
        assert good, path
        if path.startswith("/api/"):
            assert operation["security"], path
            assert operation["description"], path
            for status in ("400", "401", "403", "404", "422"):
                assert "application/problem+json" in answers[status]["content"], (path, status)
            if method == "GET":
                schema = str(answers["200"]["content"])
                assert "$ref" in schema or "string" in schema or "object" in schema, path


def test_every_model_of_the_wire_is_published(rig: Rig) -> None:
    schemas = rig.app.openapi()["components"]["schemas"]
    inner = {"Request", "Response", "EventView"}
    found = {name: getattr(v1, name) for name in dir(v1)}
    models = {name for name, model in found.items() if isinstance(model, type) and issubclass(model, BaseModel)}
    assert len(models) > 50
    assert models - inner <= set(schemas), models - inner - set(schemas)
