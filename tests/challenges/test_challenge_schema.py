"""The JSON schema of challenge.yaml and its reader: they know the same keys, and what the reader takes the schema takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from parity import YAML

from carrel.cli.main import main
from carrel.core.challenges.reading import KEYS, read_challenge
from carrel.core.challenges.schema import challenge_schema
from carrel.core.domain.errors import Invalid

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]
SCHEMA = challenge_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
#: Every mapping of the file is here once at least.
FULL: dict[str, Any] = {
    **{"name": "eeg", "title": "EEG", "pages": {"A": "a.md"}, "ingestion": "p", "scoring": "s"},
    "data": {
        "train": {"path": "t"},
        "try": {"input": "t/i", "reference": "t/r"},
        "public": {"input": "i", "reference": "r"},
    },
    "phases": [{"name": "one", "begin": "2026-01-01", "end": "2027-01-01", "split": "public"}],
    "board": [{"column": "a"}],
    "limits": {},
    "teams": {"largest": 5},
    "ladder": {"step": 0.1},
    "steps": {"time": 60},
    "log": {"bytes": 100},
}


def examples() -> Iterator[str]:
    yield YAML
    yield (ROOT / "examples/challenge-eeg/challenge.yaml").read_text()
    docs = (ROOT / "docs/challenges.md").read_text()
    yield from (
        text for text in re.findall(r"^```yaml\n(.*?)^```$", docs, re.MULTILINE | re.DOTALL) if "# challenge.yaml" in text
    )


@pytest.mark.parametrize("text", list(examples()))
def test_what_is_shown_is_right(text: str) -> None:
    VALIDATOR.check_schema(SCHEMA)
    VALIDATOR.validate(_plain(yaml.safe_load(text)))
    read_challenge(text, None)


def _plain(document: Any) -> Any:
    """Dates as an editor sees them."""
    return json.loads(json.dumps(document, default=str))


def mappings(schema: dict[str, Any], document: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], set[str]]]:
    """Where the document has a mapping whose keys are declared, and these."""
    for one in schema.get("anyOf", [schema]):
        if isinstance(document, list) and "items" in one:
            yield from mappings(one["items"], document[0], (*way, 0))
        if isinstance(document, dict):
            if one.get("additionalProperties") is False:
                yield way, set(one["properties"])
            for key, value in document.items():
                below = one.get("properties", {}).get(key, one.get("additionalProperties"))
                if isinstance(below, dict):
                    yield from mappings(below, value, (*way, key))


@pytest.mark.parametrize(("way", "keys"), list(mappings(SCHEMA, FULL)))
def test_the_reader_knows_the_same_keys(way: tuple[Any, ...], keys: set[str]) -> None:
    """A key of the reader's that the schema lacks belongs into `carrel.core.challenges.schema`."""
    wrong = json.loads(json.dumps(FULL))
    place: Any = wrong
    for step in way:
        place = place[step]
    place["zzzzzz"] = 1
    with pytest.raises(Invalid) as caught:
        read_challenge(json.dumps(wrong), None)
    known = re.search(r"Keys: (.*)\.$", caught.value.remedy)
    assert known, caught.value
    assert set(known[1].split(", ")) == keys


WORDS = st.sampled_from(["a", "eeg", "a b", "A", "", "x/y", "larger", "smaller", "public", "2026-05-01", "Europe/Berlin"])
SCALARS = st.one_of(WORDS, st.integers(-2, 2000), st.booleans(), st.none())
SOME = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2), max_leaves=4)


@given(st.data())
def test_what_the_reader_takes_the_schema_takes(data: st.DataObject) -> None:
    document = json.loads(json.dumps(FULL))
    chosen = data.draw(st.lists(st.sampled_from(list(mappings(SCHEMA, FULL))), min_size=1, max_size=4))
    for way, keys in sorted(chosen, key=lambda one: -len(one[0])):  # the innermost first: they are there still
        place: Any = document
        for step in way:
            place = place[step]
        place[data.draw(st.sampled_from(sorted(keys)))] = data.draw(SOME)
    try:
        read_challenge(json.dumps(document), None)
    except Invalid:
        return
    assert not [fault.message for fault in VALIDATOR.iter_errors(document)]


def test_it_is_printed_for_editors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "challenge.yaml"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_every_key_says_what_it_is() -> None:
    assert set(SCHEMA["properties"]) == set(KEYS)
    assert all(len(said["description"]) > 10 for said in SCHEMA["properties"].values())
