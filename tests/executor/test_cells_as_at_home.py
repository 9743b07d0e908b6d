"""A remote cell shows what the same cell shows at home: each runs in two real kernels, and their messages are compared.

Of the messages only this is made equal before: addresses, numbers of processes, random ids and, in cells that measure it, time.
What a stream gets between two other messages is one text, however many pieces it came in.
"""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from collections.abc import Iterator
from typing import Any

import pytest
from notebook_cells import CELLS, Cell

from support.kernel import Ran, TestKernel
from support.lab_process import LabProcess

#: Cells of which something differs, and why.
DIFFERS = {
    "input": "nobody answers there",
}
_SAME = (
    (re.compile(r"/tmp/ipykernel_\d+/\d+\.py|\b\d{6,}\.py\b"), "<cell>"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "<address>"),
)
_ID = re.compile(
    r"(?<![0-9a-f])(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8}-[0-9a-f]{24}_\d+_\d+)(?![0-9a-f])"
)
_TIMES = re.compile(r"\d+(?:[.:]\d+)*(?:e\+\d+)?(?:(?:ns|us|µs|μs|ms|s|k?it/s|s/it|min)\b)?|\?(?:it/s)?|[█▏▎▍▌▋▊▉▌]+")
Kernels = tuple[TestKernel, TestKernel]


@pytest.fixture(scope="module")
def kernels(lab: LabProcess) -> Iterator[Kernels]:
    """One in which cells run at home, and one in which they run there."""
    with (
        TestKernel(variables={"CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}) as home,
        TestKernel(variables={"CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}) as there,
    ):
        for kernel in (home, there):
            kernel.run("%load_ext carrel\n%remote requirements=none cpus=2 memory=4G workers=1")
        # The worker has no packages of its own: it takes those of this environment.
        packages = sysconfig.get_path("purelib")
        home.run("1")
        assert there.run(f"%%remote\nimport sys\nsys.path.append({packages!r})").status == "ok"
        yield home, there


def available(name: str) -> Any:
    missing = [module for module in CELLS[name].needs if importlib.util.find_spec(module) is None]
    marks = [pytest.mark.skip(reason=f"{', '.join(missing)} is not installed")] if missing else []
    if name in DIFFERS:
        marks.append(pytest.mark.xfail(reason=DIFFERS[name], strict=True))
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [available(name) for name in CELLS])
def test_a_cell_shows_there_what_it_shows_at_home(kernels: Kernels, name: str) -> None:
    cell = CELLS[name]
    seen = [shown(cell, *runs(kernel, cell, remote=remote)) for kernel, remote in zip(kernels, (False, True), strict=True)]
    assert seen[1] == seen[0]


def runs(kernel: TestKernel, cell: Cell, *, remote: bool) -> list[Ran]:
    """The three cells: before, the one, after. At home the line of the magic is a comment: lines have the same numbers."""
    magic = f"%%remote {cell.line}\n"
    code = magic + cell.code if remote else cell.code if cell.code.startswith("%%") else "# " + magic + cell.code
    return [kernel.run(one) for one in (cell.before or "1;", code, cell.after or "1;")]


def shown(cell: Cell, *cells: Ran) -> list[Any]:
    """What the notebook got of the cells, as it compares."""
    ids: dict[str, str] = {}

    def same(value: Any) -> Any:
        if isinstance(value, dict):
            return {same(key): same(one) for key, one in value.items()}
        if isinstance(value, list):
            return [same(one) for one in value]
        if not isinstance(value, str) or len(value) > 100_000:
            return value
        for pattern, text in _SAME:
            value = pattern.sub(text, value)
        value = _ID.sub(lambda found: ids.setdefault(found[0], f"<id {len(ids)}>"), value)
        return _TIMES.sub("<n>", re.sub("[ \u2007]", "", value)) if cell.timed else value

    found: list[Any] = []
    for ran in cells:
        streams: dict[str, str] = {}
        for kind, content in [*ran.messages, ("end", {"status": ran.status, "error": ran.error})]:
            if kind == "stream":
                streams[content["name"]] = streams.get(content["name"], "") + content["text"]
                continue
            if kind == "execute_input":
                continue
            found += [("stream", key, same(text)) for key, text in sorted(streams.items())]
            streams.clear()
            found.append((kind, same(content)))
    return found


@pytest.mark.parametrize("wait", ["import time\ntime.sleep(600)", "import asyncio\nawait asyncio.sleep(600)"])
def test_an_interrupt_looks_as_at_home(kernels: Kernels, wait: str) -> None:
    cell = Cell(f"print('begun', flush=True)\n{wait}")
    seen = []
    for kernel, line in zip(kernels, ("# %%remote ", "%%remote "), strict=True):
        sent = kernel.send(f"{line}\n{cell.code}")
        kernel.result(sent, until=lambda ran: "begun" in ran.text)
        kernel.interrupt()
        seen.append(shown(cell, kernel.result(sent)))
    assert seen[1] == seen[0]


@pytest.mark.parametrize("end", ["big", "raise RuntimeError(big)", "fails(big)"])
def test_nothing_that_a_cell_has_made_stays(kernels: Kernels, end: str) -> None:
    code = "import sys, weakref\nclass Big: pass\nbig = Big()\nsys.kept = weakref.ref(big)\ndef fails(big): 1 / 0\n"
    kernels[1].run(f"%%remote\n{code}{end}")
    assert kernels[1].run("%%remote\nimport gc, sys\ngc.collect()\nsys.kept()").shown == []
