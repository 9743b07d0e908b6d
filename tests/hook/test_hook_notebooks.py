"""Notebooks in the style of public ones leave the same outputs with the hook and without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carrel.testing.broker_process import start_broker
from carrel.testing.kernel import Ran, TestKernel
from carrel.testing.notebook_scripts import PACKAGES, cells_of, make_environment

HERE = Path(__file__).parent / "notebooks"
NOTEBOOKS = sorted(path.stem for path in HERE.glob("*.py"))
#: In these every cell has a GPU; in the others only what asks for one by itself.
WITH_LEASES = frozenset(NOTEBOOKS[::2])


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment as people have them. PyTorch comes from where pip is told to look first."""
    return make_environment(tmp_path_factory.mktemp("heavy") / "venv", PACKAGES)


_CHANGES = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"0x[0-9a-f]+"), "0x"),
    (re.compile(r"/tmp/\S+"), "/tmp"),
    (re.compile(r"ipykernel_\d+"), "ipykernel"),
    (re.compile(r"[\d.]+ [nµm]?s\b"), "time"),
    (re.compile(r"(total|sys|times?): [^\n]*"), r"\1"),
    (re.compile(r"pid \d+"), "pid"),
)


def normal(ran: Ran) -> tuple[str, str, str, list[str]]:
    text = ran.text
    for pattern, replacement in _CHANGES:
        text = pattern.sub(replacement, text)
    shown = [line for line in ran.shown if "GPU" not in line]
    return ran.status, ran.error, text, [re.sub(r"0x[0-9a-f]+", "0x", line) for line in shown]


@pytest.mark.heavy
@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_same_outputs_with_and_without_the_hook(name: str, python: Path, tmp_path: Path) -> None:
    cells = cells_of(HERE / f"{name}.py")
    assert len(cells) >= 3
    variables = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "OMP_NUM_THREADS": "1"}
    with TestKernel(hooked=False, python=python, variables=variables) as kernel:
        plain = [normal(kernel.run(cell)) for cell in cells]
    with start_broker(tmp_path / "broker", devices=1) as broker:
        session = broker.session(1)
        with TestKernel(python=python, variables={**variables, **session.variables}) as kernel:
            tags = ["gpus=1"] if name in WITH_LEASES else []
            hooked = [normal(kernel.run(cell, tags=tags)) for cell in cells]
            taken = sum(row["cells"] for row in broker.status()["tenants"])
    assert hooked == plain
    assert bool(taken) == (name in WITH_LEASES)
