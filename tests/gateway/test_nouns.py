"""What holds for every noun: what is private never leaves, and rights have been said."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from gateway_lab import Rig

from carrel.core.domain.fabric import BlockKind, Wish
from carrel.core.domain.noun import Noun, kept_fields, shown, shown_fields
from carrel.core.domain.nouns import NOUNS
from carrel.lab.gateway.actions import ENDPOINTS
from carrel.wire.v1 import asked_of, show, shown_of, value_of

SAMPLES: dict[Any, Any] = {str: "a-word", int: 7, float: 7.5, bool: True, tuple[str, ...]: ("a-word",)}
WISHES = (Wish(kind=BlockKind.GPU),)
SAMPLES |= {tuple[Wish, ...]: WISHES}
SECRETS: dict[Any, Any] = {str: "must-stay-here", int: 271828, float: 271828.0, tuple[str, ...]: ("must-stay-here",)}


def sample(noun: Noun[Any]) -> Any:
    """A value with something in each of its fields; what is private is recognised."""
    hints, seen = get_type_hints(noun.type), shown_fields(noun.type)
    values = {}
    for one in fields(noun.type):
        options = [part for part in get_args(hints[one.name]) if type(None) in get_args(hints[one.name])]
        kind = options[0] if options else hints[one.name]
        chosen = next(iter(kind)) if isinstance(kind, type) and issubclass(kind, StrEnum) and not options else None
        values[one.name] = (SAMPLES if one.name in seen else SECRETS).get(kind, chosen)
    return noun.type(**{name: value for name, value in values.items() if value is not None})


@pytest.mark.quick
@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)
def test_what_is_private_never_leaves(noun: Noun[Any]) -> None:
    value = sample(noun)
    unseen = {one.name for one in fields(noun.type)} - set(shown_fields(noun.type))
    sent = show(value).model_dump_json()
    assert "must-stay-here" not in sent
    assert "271828" not in sent
    assert not unseen & set(shown_of(noun.type).model_json_schema(mode="serialization")["properties"])
    assert not unseen & set(kept_fields(noun.type)) & set(asked_of(noun).model_fields)
    read = value_of(noun.type, shown_of(noun.type).model_validate_json(sent))
    assert {name: getattr(read, name) for name in shown_fields(noun.type)} == {
        name: getattr(value, name) for name in shown_fields(noun.type)
    }
    assert not any(getattr(read, name) == getattr(value, name) for name in unseen if isinstance(getattr(value, name), str))


def test_the_routes_of_nouns_have_rights_and_answer_with_the_noun(rig: Rig) -> None:
    document = rig.app.openapi()
    for noun in NOUNS:
        for path in (path for path in document["paths"] if path.startswith(f"/api/v1/{noun.plural}")):
            for method in document["paths"][path]:
                assert (method.upper(), path.removeprefix("/api/v1")) in ENDPOINTS
        if f"{noun.type.__name__}List" in document["components"]["schemas"]:
            sent = document["components"]["schemas"][noun.type.__name__]
            worked_out = {name for name, one in vars(noun.type).items() if isinstance(one, shown)}
            assert set(sent["properties"]) == {*shown_fields(noun.type), *worked_out}


def test_a_machine_that_cannot_be_asked_for_is_a_clear_error(rig: Rig, ada: httpx.Client) -> None:
    for wish in ({"kind": "gpu", "type": "a\x1b"}, {"kind": "gpu", "names": [""]}, {"kind": "gpu", "count": 0}, {"kind": "warp"}):
        answer = ada.post("/api/v1/compositions", json={"wishes": [wish], "time": 60})
        assert (answer.status_code, bool(answer.json()["detail"])) == (422, True), wish
