"""`%%remote` and `carrel.remote` in a real kernel, with a real lab."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import called
import matplotlib
import pytest
from called import begins_and_waits, begun

from carrel import Client, Executor
from carrel.testing.waiting import PATIENCE, wait_until
from support.kernel import Ran, TestKernel
from support.lab_process import LabProcess

#: Workers need no packages; there is one of them.
DEFAULTS = "%load_ext carrel\n%remote requirements=none cpus=1 memory=256M workers=1"


@pytest.fixture(scope="module")
def kernel(lab: LabProcess) -> Iterator[TestKernel]:
    with TestKernel(variables={"CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}) as kernel:
        assert kernel.run(DEFAULTS).status == "ok"
        yield kernel


def remote(kernel: TestKernel, code: str, line: str = "") -> Ran:
    return kernel.run(f"%%remote {line}\n{code}")


def trace(ran: Ran) -> str:
    return "\n".join(line for kind, content in ran.messages if kind == "error" for line in content["traceback"])


def displays(ran: Ran) -> list[dict[str, object]]:
    return [content["data"] for kind, content in ran.messages if kind in ("display_data", "update_display_data")]


@pytest.mark.gate
def test_variables_go_there_and_come_back(kernel: TestKernel) -> None:
    kernel.run("import math\nscale = 3\ndef scaled(x):\n    return math.sqrt(x) * scale")
    found = remote(kernel, "import os\nprint('printed')\na, b = scaled(4), os.getpid()\na + 1", "as=a,b")
    assert (found.status, found.text) == ("ok", "printed\n7.0\n"), found
    assert kernel.run("a, b != __import__('os').getpid()").text == "(6.0, True)\n"
    assert [kind for kind, _ in found.messages if kind == "execute_result"] == ["execute_result"]


def test_the_cell_of_the_page_runs(kernel: TestKernel) -> None:
    page = (Path(__file__).parents[2] / "docs" / "functions.md").read_text()
    (cell,) = re.findall(r"^```\n(%%remote .*?)^```$", page, re.MULTILINE | re.DOTALL)
    kernel.run("data = [3.0, 4.0]\ndef train(data, epochs):\n    return 'model', [sum(data) / n for n in range(1, epochs + 1)]")
    found = kernel.run(cell)
    assert (found.status, found.text) == ("ok", "0.35\n"), found
    assert kernel.run("model, len(losses)").text == "('model', 20)\n"


def test_the_last_value_comes_back_under_a_name_that_is_no_variable(kernel: TestKernel) -> None:
    assert remote(kernel, "[1, 2]", "as=values").status == "ok"
    assert kernel.run("sum(values)").text == "3\n"
    assert remote(kernel, "[1, 2];").text == ""


def test_what_is_shared_stays_shared(kernel: TestKernel) -> None:
    assert remote(kernel, "first = []\nsecond = {'of': first}", "as=first,second").status == "ok"
    assert kernel.run("second['of'] is first").text == "True\n"


def test_what_a_cell_shows_comes_in_its_order(kernel: TestKernel) -> None:
    code = (
        "class Rich:\n    def _repr_html_(self): return '<b>rich</b>'\n    def _repr_png_(self): return b'png'\n"
        "print('before')\ndisplay(Rich())\nprint('after')\nhandle = display('x', display_id=True)\nhandle.update('y')\n"
    )
    found = remote(kernel, code)
    assert found.status == "ok", trace(found)
    order = "".join(content["text"] if kind == "stream" else f"<{kind}>" for kind, content in found.messages[1:])
    assert order.startswith("before\n<display_data>after\n<display_data><update_display_data>"), order
    assert displays(found)[0]["text/html"] == "<b>rich</b>"
    assert displays(found)[0]["image/png"] == "cG5n"
    assert [data["text/plain"] for data in displays(found)[1:]] == ["'x'", "'y'"]


def test_a_long_display_comes_too(kernel: TestKernel) -> None:
    code = "class Long:\n    def __init__(self, n): self.n = n\n    def _repr_html_(self): return 'x' * self.n\n"
    found = remote(kernel, code + "display(Long(100_000))\ndisplay(Long(2_000_000))")
    assert [len(str(data["text/html"])) for data in displays(found)] == [100_000, 2_000_000]


def test_what_is_shown_comes_also_when_it_is_more_than_is_kept(kernel: TestKernel) -> None:
    code = "from carrel_worker import display as there\nkept, there._KEPT = there._KEPT, 2000\n"
    found = remote(kernel, f"{code}for n in range(30):\n    display(f'{{n}} ' + 'x' * 300)\nthere._KEPT = kept")
    assert [str(data["text/plain"]).split()[0].strip("'") for data in displays(found)] == [str(n) for n in range(30)]


def test_a_progress_bar_comes_while_the_cell_runs(kernel: TestKernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""
import os, sys, time
for step in range(3):
    print(f"{{step}}/3", end="\\r", file=sys.stderr)
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
"""
    sent = kernel.send(f"%%remote\n{code}")
    assert "0/3\r1/3\r2/3\r" in kernel.result(sent, until=lambda ran: "2/3\r" in ran.stderr).stderr
    go.touch()
    assert kernel.result(sent).status == "ok"


def test_a_traceback_names_the_lines_of_cells(kernel: TestKernel) -> None:
    kernel.run("def divides(x):\n    return 1 / x")
    found = remote(kernel, "def outer():\n    divides(0)\nouter()")
    assert (found.status, found.error) == ("error", "ZeroDivisionError")
    number = kernel.run("len(In) - 2").text.strip()
    assert f"Cell In[{number}], line 4, in <module>\n    outer()" in trace(found)
    assert ", line 2, in divides\n    return 1 / x" in trace(found)
    assert "carrel_worker" not in trace(found)
    assert "magic.py" not in trace(found)
    assert remote(kernel, "if").error == "SyntaxError"


def test_an_exception_of_the_notebook_is_the_same_class_here(kernel: TestKernel) -> None:
    kernel.run("class Own(Exception):\n    pass")
    found = kernel.run(
        "try:\n    get_ipython().run_cell_magic('remote', '', 'raise Own(5)')\nexcept Own as error:\n    print(error.args)"
    )
    assert found.text == "(5,)\n", trace(found)


def test_an_interrupt_is_an_interrupt_there(kernel: TestKernel) -> None:
    code = """
import time
try:
    print("begun")
    time.sleep(600)
except KeyboardInterrupt:
    print("heard")
    raise
"""
    sent = kernel.send(f"%%remote\n{code}")
    kernel.result(sent, until=lambda ran: "begun" in ran.text)
    kernel.interrupt()
    found = kernel.result(sent)
    assert (found.status, found.error, "heard" in found.text) == ("error", "KeyboardInterrupt", True)
    assert remote(kernel, "1 + 1").text == "2\n", "the worker goes on"


@pytest.mark.parametrize(
    ("reserve", "words"),
    [("no", r"waiting: #1 in line for a GPU: ."), ("yes", r"waiting for a worker: job \d+ is PENDING: .*GPU")],
)
def test_a_call_that_waits_says_why_and_is_interrupted_before_it_begins(
    kernel: TestKernel, client: Client, flags: Path, reserve: str, words: str
) -> None:
    resources = {"cpus": 1, "memory": "256M", "gpus": 2, "reserve": reserve == "yes", "requirements": [], "modules": [called]}
    with Executor(1, client=client, **resources) as others:
        has_both = others.submit(begins_and_waits, str(flags))
        try:
            wait_until(lambda: begun(flags), "the call that has both GPUs")
            sent = kernel.send(f"%%remote gpus=1 reserve={reserve}\nprint('it ran')")
            waits = kernel.result(sent, until=lambda ran: "GPU" in str(ran.shown))
            assert re.search(words, str(waits.shown)), waits
            kernel.interrupt()
            found = kernel.result(sent)
        finally:
            (flags / "go").touch()
        assert has_both.result(PATIENCE) == "done"
    assert found.error == "KeyboardInterrupt"
    assert "it ran" not in found.text


def test_processes_of_a_remote_cell_find_functions_of_the_notebook(kernel: TestKernel) -> None:
    kernel.run("class Item:\n    def __init__(self, n): self.n = n\ndef squared(item):\n    return Item(item.n ** 2)")
    code = """
import multiprocessing as mp
with mp.Pool(2) as pool:
    print([one.n for one in pool.map(squared, [Item(2), Item(3)])])
"""
    found = remote(kernel, code)
    assert (found.status, found.text) == ("ok", "[4, 9]\n"), trace(found)


def test_what_cannot_come_back_is_named(kernel: TestKernel) -> None:
    found = remote(kernel, "import threading\nheld = threading.Lock()\nfine = 1", "as=held,fine")
    assert found.error == "TypeError"
    assert "held cannot be pickled" in trace(found)
    assert "fine" not in trace(found).partition("pickled")[0]
    found = remote(kernel, "big = bytes(2**21)", "as=big limit=1M")
    assert "big 2 MiB" in trace(found)
    assert "limit=" in trace(found)


def test_what_would_end_the_notebook_when_it_comes_back_is_an_error(kernel: TestKernel) -> None:
    made = "import sys\nclass Ends:\n    def __reduce__(self): return sys.exit, (3,)\n"
    found = remote(kernel, f"{made}x = Ends()", "as=x")
    assert (found.error, "would end the program" in found.text) == ("BrokenProcessPool", True), found
    found = remote(
        kernel, "import sys\nclass Fails(Exception):\n    def __reduce__(self): return sys.exit, (3,)\nraise Fails('words')"
    )
    assert (found.error, "words" in found.text) == ("Fails", True), found


def test_a_name_that_the_cell_never_makes_is_refused_before_it_runs(kernel: TestKernel) -> None:
    found = remote(kernel, "print('it ran')\nx = 1", "as=y")
    assert (found.error, found.text.startswith("it ran")) == ("Invalid", False)
    assert "makes no variable y" in trace(found)


def test_commands_of_the_shell_run_there_and_magics_say_that_they_do_not(kernel: TestKernel) -> None:
    assert remote(kernel, "!echo said\nlines = !echo one; echo two\nprint(lines)").text == "said\n['one', 'two']\n"
    assert "%cd does not work in a remote cell" in trace(remote(kernel, "%cd /"))


@pytest.mark.parametrize("asks", ["input('name? ')", "breakpoint()"])
def test_a_cell_that_asks_is_told_that_nobody_answers(kernel: TestKernel, asks: str) -> None:
    found = remote(kernel, asks)
    assert found.error == "EOFError"
    assert "Ask in a cell of its own" in trace(found)


def test_a_cell_may_await(kernel: TestKernel) -> None:
    assert remote(kernel, "import asyncio\nawait asyncio.sleep(0)\nawait asyncio.sleep(0, 5)").text == "5\n"


def test_a_function_is_called_there(kernel: TestKernel) -> None:
    kernel.run(
        "import carrel\n@carrel.remote(requirements=[], cpus=1, memory='256M', max_workers=1)\ndef factorial(n):\n"
        "    'Doc.'\n    print('at', n)\n    return 1 if n < 2 else n * factorial(n - 1)"
    )
    found = kernel.run("factorial(3), factorial.submit(4).result(), factorial.__doc__")
    assert found.text.endswith("(6, 24, 'Doc.')\n"), trace(found)
    assert found.text.startswith("at 3\nat 2\nat 1\n")
    found = kernel.run("factorial('a')")
    assert found.error == "TypeError"
    assert "return 1 if n < 2" in trace(found)
    assert kernel.run("@carrel.remote\ndef plain(): pass\ntype(plain).__name__").text == "'RemoteFunction'\n"


def test_figures_are_shown_where_they_are_and_at_the_end_of_a_cell(kernel: TestKernel) -> None:
    # The worker has no packages: it takes matplotlib from here.
    here = str(Path(matplotlib.__file__).parents[1])
    code = f"""
import sys
sys.path.append({here!r})
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
print("between")
figure, axes = plt.subplots()
"""
    found = remote(kernel, code)
    assert found.status == "ok", trace(found)
    order = [
        kind if kind != "stream" else content["text"]
        for kind, content in found.messages[1:]
        if kind == "stream" or "image/png" in content.get("data", {})  # not the line that says what a slow start waits for
    ]
    assert next(one for one in order if one.strip()) == "display_data", order
    assert "between" in "".join(order[1:-1])
    assert order[-1] == "display_data"
    pictures = [data["image/png"] for data in displays(found) if "image/png" in data]
    assert all(base64.b64decode(str(picture)).startswith(b"\x89PNG") for picture in pictures)


def test_a_module_of_ones_own_travels_also_when_it_is_changed(kernel: TestKernel, tmp_path: Path) -> None:
    (tmp_path / "mine_of_remote.py").write_text("value = 1\n")
    kernel.run(f"import sys, importlib\nsys.path.insert(0, {str(tmp_path)!r})\nimport mine_of_remote")
    assert remote(kernel, "mine_of_remote.value").text == "1\n"
    (tmp_path / "mine_of_remote.py").write_text("value = 22\n")
    assert remote(kernel, "mine_of_remote.value").text == "22\n"


def test_pools_can_be_seen_and_closed(kernel: TestKernel, client: Client) -> None:
    remote(kernel, "1")
    said = kernel.run("%remote")
    assert "memory=256M" in said.text
    assert "pool " in said.text
    assert "closed." in kernel.run("%remote close").text
    assert "open: none" in kernel.run("%remote").text
    assert client.pools() == []
    assert remote(kernel, "1 + 2").text == "3\n"
