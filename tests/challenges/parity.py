"""A small challenge: of each number, whether it is odd. Its references and inputs hold words that nothing else holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from carrel import Client
from carrel.core.domain.challenge import SubmissionView
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

#: In the references, and in the test inputs.
LABEL, INPUT = "reference-6f1d", "test-input-90ab"

YAML = """\
name: parity
title: Odd or even
pages: {Overview: pages/overview.md}
rules: pages/rules.md
data:
  train: {path: data/train}
  public: {input: data/public/input, reference: data/public/reference}
ingestion: programs/ingestion
scoring: programs/scoring
starter: starter
baselines: {zeros: baselines/zeros}
phases: [{name: development, begin: 2026-01-01, end: 2040-01-01, split: public}]
board: [{column: accuracy, title: Accuracy, better: larger, precision: 2}]
limits: {per_day: 3, total: 10, at_once: 1, failures_per_day: 2}
"""
_MLPROJECT = """\
name: {name}
entry_points:
  main: {{command: "python {name}.py"}}
carrel: {{resources: {{memory: 256M, time: 5m}}}}
"""
_INGESTION = """\
import os, sys
sys.path.insert(0, "submission")
from model import predict
lines = open(os.environ["CARREL_INPUT"] + "/numbers.txt").read().split()
open("outputs/predictions.txt", "w").write("\\n".join(str(predict(int(n))) for n in lines if n.isdigit()))
"""
_SCORING = """\
import json, os, sys
truth = open(os.environ["CARREL_REFERENCE"] + "/labels.txt").read().split()[1:]
said = open("predictions/predictions.txt").read().split()
if len(said) != len(truth):
    sys.exit(3)
json.dump({"accuracy": sum(a == b for a, b in zip(said, truth)) / len(truth), "more": truth}, open("outputs/scores.json", "w"))
"""


def write_challenge(place: Path, yaml: str = YAML) -> Path:
    """Write the challenge into `place`."""
    numbers = range(100, 111)
    texts = {
        "challenge.yaml": yaml,
        "pages/overview.md": "Say of each number whether it is odd.",
        "pages/rules.md": "Be fair.",
        "data/train/numbers.txt": "1 2 3",
        "data/public/input/numbers.txt": "\n".join([INPUT, *map(str, numbers)]),
        "data/public/reference/labels.txt": "\n".join([LABEL, *(str(number % 2) for number in numbers)]),
        "programs/ingestion/MLproject": _MLPROJECT.format(name="ingest"),
        "programs/ingestion/ingest.py": _INGESTION,
        "programs/scoring/MLproject": _MLPROJECT.format(name="score"),
        "programs/scoring/score.py": _SCORING,
        "starter/starter.ipynb": '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
        "baselines/zeros/model.py": "def predict(number): return 0",
    }
    for path, text in texts.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def write_code(place: Path, text: str) -> Path:
    """Write a submission."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.py").write_text(text)
    return place


def checked(client: Client, name: str = "parity") -> list[SubmissionView]:
    """Wait until all baselines were run."""

    def ended() -> list[SubmissionView] | None:
        found = client.challenge_checks(name).submissions
        return list(found) if all(one.submission.state.ended for one in found) else None

    found = wait_until(ended, lambda: client.challenge_checks(name), timeout=PATIENCE)
    assert found is not None
    return found


def scored(client: Client, code: Path | str, tmp_path: Path, name: str = "parity") -> SubmissionView:
    """Submit code and wait until it has ended."""
    sent = client.submit_to_challenge(name, write_code(tmp_path / "code", code) if isinstance(code, str) else code)
    number = sent.submission.id

    def ended() -> SubmissionView | None:
        found = client.challenge_submission(name, number)
        return found if found.submission.state.ended else None

    found = wait_until(ended, lambda: client.challenge_submission(name, number), timeout=PATIENCE)
    assert found is not None
    return found


@contextmanager
def browser(reader: Client) -> Iterator[httpx.Client]:
    """Give a browser in which somebody is signed in."""
    with httpx.Client(base_url=reader.url) as http:
        signed_in = http.post("/login", data={"token": reader.token}, headers={"Sec-Fetch-Site": "same-origin"})
        assert signed_in.status_code in (200, 303)
        yield http


def carrel(lab: LabProcess, user: Client, *words: str, fails: bool = False) -> str:
    """The output of a command of this user's."""
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": user.token, "CARREL_HOME": "/nonexistent", "TZ": "UTC"}
    done = subprocess.run([sys.executable, "-m", "carrel.cli.main", *words], env=environment, capture_output=True, text=True)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr
