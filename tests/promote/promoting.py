"""Notebooks that tests write, and their runs in a real kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from carrel.testing.waiting import PATIENCE

RUNNER = Path(__file__).parents[2] / "src" / "carrel" / "notebooks" / "promote" / "payload" / "notebook_runner.py"
#: A cell: its text, or its text and its tags.
Given = str | tuple[str, ...]


def write_notebook(path: Path, *cells: Given, minor: int = 5, **metadata: Any) -> Path:
    """Write a notebook with these code cells."""
    document = {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": 7,
                **({"id": f"cell-{number}"} if minor >= 5 else {}),
                "metadata": {"tags": list(cell[1:])} if isinstance(cell, tuple) else {},
                "outputs": [{"output_type": "stream", "name": "stdout", "text": "of an earlier run"}],
                "source": cell if isinstance(cell, str) else cell[0],
            }
            for number, cell in enumerate(cells, start=1)
        ],
        "metadata": metadata,
        "nbformat": 4,
        "nbformat_minor": minor,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    directory: Path

    def executed(self) -> Any:
        return read_executed(self.directory)

    def text(self, cell: int) -> str:
        """What a cell wrote to its streams, in the executed notebook."""
        outputs = self.executed().cells[cell].outputs
        return "".join(output.text for output in outputs if output.output_type == "stream")


def read_executed(directory: Path) -> Any:
    notebook = nbformat.read(directory / "outputs" / "executed.ipynb", as_version=4)
    nbformat.validate(notebook)
    return notebook


def start_runner(notebook: Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CARREL_", "PYTEST_", "MPL"))}
    return subprocess.Popen(
        [sys.executable, RUNNER, notebook.name, *words],
        cwd=notebook.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(notebook: Path, *words: str) -> Ran:
    """Run a notebook as its task does."""
    with start_runner(notebook, *words) as process:
        out, err = process.communicate(timeout=PATIENCE)
        return Ran(process.returncode, out, err, notebook.parent)
