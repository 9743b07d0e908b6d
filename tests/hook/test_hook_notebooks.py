"""Notebooks in the style of public ones leave the same outputs with the hook and without it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from support.broker_process import start_broker
from support.kernel import Ran, TestKernel
from support.notebook_scripts import cells_of

HERE = Path(__file__).parent / "notebooks"
#: They need PyTorch and its friends; those of every day run where we do.
HEAVY = sorted(HERE.glob("*.py"))
EVERYDAY = sorted((HERE / "everyday").glob("*.py"))
#: In these every cell has a GPU; in the others only what asks for one by itself.
WITH_LEASES = frozenset(path.stem for path in [*HEAVY[::2], *EVERYDAY])

#: What differs by time, address or chance.
_CHANGES = (
    (re.compile(r"\\u001b\[[0-9;]*m"), ""),
    (re.compile(r"0x[0-9a-f]+"), "0x"),
    (re.compile(r"/tmp/[^\s\"'\\]+"), "/tmp"),
    (re.compile(r"ipykernel_\d+"), "ipykernel"),
    (re.compile(r"[\d.]+ (?:[nµmu]|\\u00b5|\\u03bc)?s\b"), "time"),
    (re.compile(r"(total|sys|[Tt]imes?): [^\n\\]*"), r"\1"),
    (re.compile(r"± [^\n\\]*|\\u00b1 [^\n\\]*"), "spread"),
    (re.compile(r"in \d+\.\d+s"), "in time"),
    (re.compile(r"\bpid \d+"), "pid"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{24}_\d+_\d+"), "request"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "id"),
)
_ANSWERS = re.compile(r"# answers: (.*)")


def run(kernel: TestKernel, cell: str, tags: list[str]) -> Ran:
    """Run a cell as a page does; "# answers: a | b" is what its user types."""
    found = _ANSWERS.match(cell)
    answers = found.group(1).split(" | ") if found else []
    message = kernel.send(cell, tags=tags, stdin=bool(answers))
    for answer in answers:
        kernel.question()
        kernel.answer(answer)
    return kernel.result(message)


def normal(ran: Ran) -> list[str]:
    """Everything that a page was told, a line for each message; pieces of one stream are one."""
    told: list[tuple[str, dict[str, Any]]] = [("reply", {"status": ran.status, "error": ran.error, "payload": ran.payload})]
    for kind, content in ran.messages:
        last = told[-1]
        if kind == "stream" and last[0] == "stream" and last[1]["name"] == content["name"]:
            told[-1] = (kind, {**content, "text": last[1]["text"] + content["text"]})
        else:
            told.append((kind, content))
    lines = [f"{kind} {json.dumps(content, sort_keys=True, default=str)}" for kind, content in told]
    for pattern, replacement in _CHANGES:
        lines = [pattern.sub(replacement, line) for line in lines]
    return lines


def leaves_the_same(notebook: Path, python: Path, tmp_path: Path) -> None:
    cells = cells_of(notebook)
    assert len(cells) >= 3
    variables = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "OMP_NUM_THREADS": "1"}
    places = [tmp_path / "plain", tmp_path / "hooked"]
    for place in places:
        place.mkdir()
    with TestKernel(hooked=False, python=python, variables=variables, directory=places[0]) as kernel:
        plain = [normal(run(kernel, cell, [])) for cell in cells]
    with start_broker(tmp_path / "broker", devices=1) as broker:
        session = broker.session(1)
        more = {**variables, **session.variables}
        with TestKernel(python=python, variables=more, directory=places[1]) as kernel:
            tags = ["gpus=1"] if notebook.stem in WITH_LEASES else []
            hooked = [normal(run(kernel, cell, tags)) for cell in cells]
            taken = sum(row["cells"] for row in broker.status()["tenants"])
    for cell, one, other in zip(cells, hooked, plain, strict=True):
        assert one == other, cell
    assert bool(taken) == (notebook.stem in WITH_LEASES)


@pytest.mark.parametrize("name", [path.stem for path in EVERYDAY])
def test_everyday_notebooks(name: str, tmp_path: Path) -> None:
    leaves_the_same(HERE / "everyday" / f"{name}.py", Path(sys.executable), tmp_path)


@pytest.mark.heavy
@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize("name", [path.stem for path in HEAVY])
def test_notebooks_with_large_frameworks(name: str, python: Path, tmp_path: Path) -> None:
    leaves_the_same(HERE / f"{name}.py", python, tmp_path)
