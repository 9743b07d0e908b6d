"""A notebook as a task runs it: ends, parameters, outputs. Every test has a real kernel."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from promoting import PATIENCE, read_executed, run, start_runner, write_notebook

NEVER = "print('must not run')"


@pytest.mark.gate
def test_values_go_behind_the_cell_for_parameters(tmp_path: Path) -> None:
    cells = (
        "print('first')",
        ("rate = 0.1\nname = 'a'\nsizes = [1]\nfast = False\nlimit = 1.0", "parameters"),
        "print(rate, repr(name), sizes, fast, limit, later)",
    )
    done = run(
        write_notebook(tmp_path / "work.ipynb", *cells, minor=4),
        *("--rate=2", "--name=3", "--sizes=[1, 2]", "--fast=yes", "--limit=inf", "--later", "text"),
    )
    assert (done.code, done.err) == (0, "")
    assert done.out == "first\n2.0 '3' [1, 2] True inf text\n"
    executed = done.executed().cells
    assert [cell.metadata.get("tags") for cell in executed] == [None, ["parameters"], ["injected-parameters"], None]
    assert executed[2].source.startswith("# Parameters\nrate = 2.0\nname = '3'\n")
    assert [cell.execution_count for cell in executed] == [1, 2, 3, 4]


def test_the_same_run_leaves_the_same_notebook(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "work.ipynb", ("n = 1", "parameters"), "import time\ntime.sleep(0.1)\nprint(n)")
    first, second = (run(notebook, "--n=2").directory.joinpath("outputs/executed.ipynb").read_bytes() for _ in range(2))
    assert first == second


def test_without_such_a_cell_they_go_to_the_top(tmp_path: Path) -> None:
    done = run(write_notebook(tmp_path / "work.ipynb", "print(epochs + 1)"), "--epochs=4")
    assert done.out == "5\n"
    assert done.executed().cells[0].metadata.tags == ["injected-parameters"]


def test_an_executed_notebook_runs_again_with_other_values(tmp_path: Path) -> None:
    cells = (("n = 1\nm = 1", "parameters"), ("n = 5\nm = 6", "injected-parameters"), "print(n, m)")
    done = run(write_notebook(tmp_path / "work.ipynb", *cells), "--n=2", "--m=6")
    assert done.out == "2 6\n"
    assert len(done.executed().cells) == 3


@pytest.mark.parametrize(
    ("word", "fact"),
    [("--fast=maybe", '"maybe" is neither true nor false'), ("fast", "--NAME=VALUE"), ("--2=3", "--NAME=VALUE")],
)
def test_a_value_that_does_not_fit_runs_nothing(tmp_path: Path, word: str, fact: str) -> None:
    done = run(write_notebook(tmp_path / "work.ipynb", ("fast = True", "parameters"), NEVER), word)
    assert (done.code, done.out) == (1, "")
    assert fact in done.err


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no data')", 1),
        (f"exit()\n{NEVER}", 0),
        (f"def stop():\n    quit(4)\nstop()\n{NEVER}", 4),
        ("exit", 0),
        ("raise SystemExit", 0),
        ("1 / 0", 1),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
)
def test_it_ends_as_a_script_does(tmp_path: Path, cell: str, code: int) -> None:
    done = run(write_notebook(tmp_path / "work.ipynb", "print('before')", cell, NEVER))
    assert done.code == code
    assert done.out.startswith("before\n")
    assert "must not run" not in done.out.replace(NEVER, "")
    assert done.text(0) == "before\n"
    assert done.executed().cells[2].outputs == []
    assert (done.err == "") == (code == 0)


def test_an_error_is_in_the_log_and_in_the_notebook(tmp_path: Path) -> None:
    done = run(
        write_notebook(tmp_path / "work.ipynb", ("1 / 0", "raises-exception"), "def f():\n    return {}['key']\nf()", NEVER)
    )
    assert done.code == 1
    assert "ZeroDivisionError" in done.err
    assert "KeyError: 'key'" in done.err
    assert "\x1b" not in done.err
    assert [cell.outputs[0].ename for cell in done.executed().cells[:2]] == ["ZeroDivisionError", "KeyError"]


def test_a_cell_with_the_tag_is_skipped(tmp_path: Path) -> None:
    assert run(write_notebook(tmp_path / "work.ipynb", (NEVER, "skip-execution"), "print(1)")).out == "1\n"


def test_no_output_is_lost_however_it_is_written(tmp_path: Path) -> None:
    flushes = "import sys\nfor _ in range(10_000):\n    sys.stdout.write('0' * 100); sys.stdout.flush()\nprint('\\nhi')"
    # It keeps the interpreter's lock while it writes more than a pipe holds.
    library = "import ctypes\nctypes.PyDLL(None).write(1, b'1' * 200_000, 200_000);"
    children = "import subprocess\nsubprocess.run(['sh', '-c', 'echo out; echo err >&2'], stdout=sys.stdout);"
    thread = "import threading, time\ngo = threading.Event()\nthreading.Thread(target=lambda: (go.wait(), print('late'))).start()"
    done = run(
        write_notebook(tmp_path / "work.ipynb", flushes, library, children, thread, "go.set()\ntime.sleep(1)", "!echo shell")
    )
    assert (done.code, done.err) == (0, "err\n")
    assert done.out == "0" * 1_000_000 + "\nhi\n" + "1" * 200_000 + "out\nlate\nshell\n"
    assert [done.text(cell) for cell in range(3)] == ["0" * 1_000_000 + "\nhi\n", "1" * 200_000, "out\nerr\n"]
    # Which of the two a thread belongs to is ipykernel's to say.
    assert done.text(3) + done.text(4) == "late\n"


def test_what_cells_show_is_kept(tmp_path: Path) -> None:
    cells = (
        "shown = display('old', display_id=True)\nprint('between')\n{'a': 1}",
        "shown.update('new')",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('caf\\udce9')\n'caf\\udce9'",
        "from IPython.display import SVG, clear_output\nprint('gone')\nclear_output()\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')",
        "%gpu 2",
        "print(await __import__('asyncio').sleep(0, 'awaited'))",
    )
    done = run(write_notebook(tmp_path / "work.ipynb", *cells))
    assert (done.code, done.err) == (0, "")
    executed = done.executed().cells
    assert executed[0].outputs[0].data["text/plain"] == "'new'"
    assert executed[0].outputs[2].data["text/plain"] == "{'a': 1}"
    assert executed[2].outputs[0].data["image/png"]
    assert [output.output_type for output in executed[3].outputs] == ["execute_result"]
    assert executed[5].outputs[0].text == "awaited\n"
    for text in ("'old'\nbetween\n{'a': 1}\n'new'\n", "[figure-1.png]\n", "[figure-2.svg]\n", "gone"):
        assert text in done.out
    figures = tmp_path / "outputs" / "figures"
    assert sorted(path.name for path in figures.iterdir()) == ["figure-1.png", "figure-2.svg"]
    assert (figures / "figure-1.png").read_bytes().startswith(b"\x89PNG")


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"it ended before it wrote {text!r}")


def test_a_run_that_is_killed_leaves_what_ran(tmp_path: Path) -> None:
    # It goes on by itself when what it wrote has been saved while it runs.
    second = (
        "import pathlib, time\nwritten = 'in the ' + 'middle'\nprint(written, flush=True)\n"
        "while written not in pathlib.Path('outputs/executed.ipynb').read_text():\n    time.sleep(0.1)\n"
        "print('saved', flush=True)\ntime.sleep(600)"
    )
    with start_runner(write_notebook(tmp_path / "work.ipynb", "print('first')", second)) as process:
        read_until(process, "saved")
        process.kill()
    executed = read_executed(tmp_path)
    assert executed.cells[0].outputs[0].text == "first\n"
    assert executed.cells[1].outputs[0].text.startswith("in the middle\n")


def test_a_signal_reaches_the_cell(tmp_path: Path) -> None:
    cell = (
        "import signal, sys, time\n"
        "def save(number, frame):\n    open('checkpoint', 'w').close()\n    print('saved', flush=True)\n    sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    with start_runner(write_notebook(tmp_path / "work.ipynb", cell, NEVER)) as process:
        read_until(process, "ready")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (5, "saved\n")
    assert (tmp_path / "checkpoint").exists()


def test_a_kernel_that_does_not_handle_the_signal_ends_by_it(tmp_path: Path) -> None:
    with start_runner(
        write_notebook(tmp_path / "work.ipynb", "print('ready', flush=True)\nimport time; time.sleep(600)")
    ) as process:
        read_until(process, "ready")
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert "SIGTERM" in err
    assert read_executed(tmp_path).cells[0].outputs[0].text == "ready\n"
