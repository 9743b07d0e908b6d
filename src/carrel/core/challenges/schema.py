"""The JSON schema of a challenge.yaml (JSON Schema, draft 2020-12), for editors: they complete keys and mark what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT: Mapping[str, Any] = {"type": ["string", "number", "boolean"]}
_NAME: Mapping[str, Any] = {**_TEXT, "pattern": "^[a-z0-9][a-z0-9-]{0,39}$"}
_PATH: Mapping[str, Any] = {**_TEXT, "minLength": 1}


def _number(least: int, most: int = 1_000_000) -> Mapping[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": [*required], "additionalProperties": False}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}


_SPLIT = _object({"input": _PATH, "reference": _PATH}, "input", "reference")
#: With copy: false participants have no files of it, and are shown single ones: so many a day, each of at most so many bytes.
_TRAIN = {"path": _PATH, "copy": {"type": "boolean"}, "samples_per_day": _number(0, 10_000), "largest_sample": _TEXT}
_LIMITS: Mapping[str, Any] = {
    "per_day": _number(1),
    "total": _number(1),
    "at_once": _number(1),
    "failures_per_day": _number(1),
    "gpu_hours": _TEXT,
}
_FINAL = _object({"from": _TEXT, "choose": {"enum": ["team", "best", "last"]}, "number": _number(1, 10)}, "from")
_PHASE = {
    **{"name": _NAME, "begin": _TEXT, "end": _TEXT, "split": _TEXT, "final": _FINAL, **_LIMITS},
    "board": {"enum": ["shown", "hidden", "hidden-until-the-end"]},
}
_COLUMN = {
    "column": {**_TEXT, "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"},
    "title": _TEXT,
    "better": {"enum": ["larger", "smaller"]},
    "precision": _number(0, 15),
    "range": {**_list(_TEXT), "minItems": 2, "maxItems": 2},
}
#: Each key of the file: what it is, and what may be written there.
_SAID: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "name": ("Lower-case letters, digits and -.", _NAME),
    "title": ("What people read.", _TEXT),
    "pages": ("Markdown files by their titles.", {"type": "object", "additionalProperties": _PATH}),
    "rules": ("A Markdown file that participants accept.", _PATH),
    "data": (
        "Directories: train for participants, try for their dry runs, any other one is a split that they do not see.",
        {
            "type": "object",
            "properties": {"train": _object(_TRAIN, "path"), "try": _SPLIT},
            "additionalProperties": _SPLIT,
        },
    ),
    "ingestion": ("The program that runs the code of teams: a directory with an MLproject.", _PATH),
    "scoring": ("The program that compares predictions with references: a directory with an MLproject.", _PATH),
    "starter": ("What participants begin with.", _PATH),
    "baselines": (
        "Submissions of the organiser's own, by name.",
        {"type": "object", "additionalProperties": _PATH, "propertyNames": _NAME},
    ),
    "phases": (
        "Times, one after the other, in which submissions are scored on a split.",
        {**_list(_object(_PHASE, "name", "begin", "end", "split")), "minItems": 1},
    ),
    "board": (
        "Scores; the first decides, the next ones where it is equal.",
        {**_list(_object(_COLUMN, "column")), "minItems": 1},
    ),
    "limits": ("Numbers of submissions of a team.", _object(_LIMITS)),
    "teams": (
        "The largest number of people in a team, and until when teams merge.",
        _object({"largest": _number(1), "merge_until": _TEXT}),
    ),
    "feedback": ("Bytes of what the ingestion says last, for teams, where it ends with exit code 3.", _number(0, 1000)),
    "zone": ('Of dates without a zone, and of days: "Europe/Berlin".', _TEXT),
    "organisers": ("Users who may change it, beside who made it.", _list(_TEXT)),
    "qos": ("Class of service of its programs.", _TEXT),
    "account": ("Account of its programs.", _TEXT),
    "ladder": (
        "Scores that teams are shown move only when they are better by more than the step, in all phases or in these.",
        _object({"step": _TEXT, "phases": _list(_TEXT)}, "step"),
    ),
    "steps": (
        "Ends are shown in steps of so many seconds; with one_end it is not told in which way a submission failed.",
        _object({"time": _number(1, 86_400), "one_end": {"type": "boolean"}}),
    ),
    "log": (
        "Bytes of what a team's own code printed last that it may read, on all splits or on these.",
        _object({"bytes": _number(1, 64 * 1024), "splits": _list(_TEXT)}, "bytes"),
    ),
    "asks": (
        "What people are asked when they join, with the answers to choose from.",
        {"type": "object", "additionalProperties": {**_list(_TEXT), "minItems": 2, "maxItems": 30}, "propertyNames": _NAME},
    ),
    "intervals": ("Level of the intervals that are shown beside scores: 0.95.", _TEXT),
    "predictions": ("What a submission may leave for the scoring program: 256M.", _TEXT),
}


def challenge_schema() -> dict[str, Any]:
    """Return the schema. What it lets through may still be wrong in ways that only the lab can tell."""
    needed = ("name", "title", "pages", "data", "ingestion", "scoring", "phases", "board")
    keys = {
        key: {"description": said, **(value if key in needed else {"anyOf": [value, {"type": "null"}]})}
        for key, (said, value) in _SAID.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "challenge.yaml",
        **_object(keys, *needed),
    }
