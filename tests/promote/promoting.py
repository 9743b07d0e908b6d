"""Notebooks written by hand, promoted, and run: as a script of their own, and in a real kernel for comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from carrel.testing.waiting import PATIENCE

#: A cell: its text, or its text and its tags.
Given = str | tuple[str, ...]


def write_notebook(path: Path, *cells: Given, **metadata: Any) -> Path:
    """Write a notebook with these code cells."""
    document = {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": None,
                "id": f"cell-{number}",
                "metadata": {"tags": list(cell[1:])} if isinstance(cell, tuple) else {},
                "outputs": [],
                "source": cell if isinstance(cell, str) else cell[0],
            }
            for number, cell in enumerate(cells, start=1)
        ],
        "metadata": metadata,
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def run_script(directory: Path, program: str, *arguments: str, **variables: str) -> Ran:
    """Run a promoted script with the packages of this environment, as its task would run it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CARREL_", "MPL"))}
    environment |= {"SHELL": "/bin/sh", "PYTHONWARNINGS": "default", **variables}
    done = subprocess.run(
        [sys.executable, program, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def run_notebook(path: Path) -> str:
    """Run a notebook in a real kernel; return what its cells show as text, in order."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="ck-") as place:

        class OnSockets(AsyncKernelManager):
            """Its kernel listens on unix sockets: TCP ports are chosen first and taken later, maybe by another kernel."""

            def __init__(self, **options: Any) -> None:
                super().__init__(**options)
                self.transport, self.ip = "ipc", f"{place}/k"

        # What stays open of a client is the kernel's business, not ours.
        NotebookClient(
            notebook,
            timeout=PATIENCE,
            kernel_name="python3",
            kernel_manager_class=OnSockets,
            resources={"metadata": {"path": str(path.parent)}},
        ).execute()
    return "".join(_shown(output) for cell in notebook.cells for output in cell.get("outputs", ()))


def _shown(output: Any) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    return f"{output['data'].get('text/plain', '')}\n"


def lines(text: str, without: Sequence[str] = ()) -> list[str]:
    """The lines of a text that begin with none of `without`."""
    return [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith(tuple(without))]
