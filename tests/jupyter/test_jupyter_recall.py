"""What is kept of outputs for a page that was not there."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.notebooks.jupyter.kernels import BoundedBuffer
from carrel.notebooks.jupyter.recall import CellRun, Recall

pytestmark = pytest.mark.quick


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def display(text: str, identity: str | None = None) -> tuple[str, dict[str, Any]]:
    return "display_data", {
        "data": {"text/plain": text},
        "metadata": {},
        "transient": {"display_id": identity} if identity else {},
    }


def heard(recall: Recall, request: str, *messages: tuple[str, dict[str, Any]]) -> None:
    for kind, content in messages:
        recall.heard(kind, request, content, len(str(content)), 5.0)


def outputs(recall: Recall, cell: str = "c1") -> list[dict[str, Any]]:
    (run,) = [run for run in recall.runs() if run.cell == cell]
    return list(run.show()["outputs"])


def text(recall: Recall, cell: str = "c1") -> str:
    return "".join(output["text"] for output in outputs(recall, cell) if output["output_type"] == "stream")


def a_run(code: str = "x", cell: str = "c1", request: str = "r1", **limits: int) -> Recall:
    recall = Recall(**limits)
    recall.requested(request, cell, code, 1.0)
    return recall


def test_a_run_is_kept_as_the_notebook_format_has_it() -> None:
    recall = a_run("code")
    heard(recall, "r1", ("status", {"execution_state": "busy"}), ("execute_input", {"code": "code", "execution_count": 3}))
    heard(recall, "r1", stream("a"), stream("b\n"), stream("e", "stderr"), display("d"))
    heard(recall, "r1", ("execute_result", {"data": {"text/plain": "1"}, "metadata": {}, "execution_count": 3}))
    heard(recall, "r1", ("error", {"ename": "E", "evalue": "v", "traceback": ["t"]}))
    (run,) = recall.runs()
    assert run.running
    heard(recall, "r1", ("status", {"execution_state": "idle"}))
    shown = run.show()
    assert (shown["cell"], shown["code"], shown["request"], shown["running"]) == ("c1", "code", "r1", False)
    assert (shown["execution_count"], shown["changed"]) == (3, 5.0)
    assert shown["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "ab\n"},
        {"output_type": "stream", "name": "stderr", "text": "e"},
        {"output_type": "display_data", "data": {"text/plain": "d"}, "metadata": {}},
        {"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {}, "execution_count": 3},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]},
    ]


def test_only_the_last_run_of_a_cell_counts() -> None:
    recall = a_run()
    heard(recall, "r1", stream("old"))
    recall.requested("r2", "c1", "y", 2.0)
    heard(recall, "r1", stream("late news of the old run"))
    heard(recall, "r2", stream("new"))
    assert text(recall) == "new"


def test_what_nobody_asked_for_is_nothing() -> None:
    recall = a_run()
    heard(recall, "r9", stream("x"), ("comm_open", {}), ("status", {"execution_state": "busy"}))
    assert outputs(recall) == []


def test_a_progress_bar_is_one_line() -> None:
    recall = a_run()
    heard(recall, "r1", *[stream(f"\r{step}%|{'#' * step}") for step in range(0, 101, 10)])
    assert text(recall) == "100%|" + "#" * 100
    heard(recall, "r1", stream("\ndone\r\n"), stream("next\rover"))
    assert text(recall).splitlines()[-2:] == ["done", "over"]


@given(st.lists(st.text(alphabet="ab\r\n", max_size=6), max_size=12))
def test_pieces_of_a_stream_show_what_the_whole_shows(parts: list[str]) -> None:
    recall = a_run()
    heard(recall, "r1", *[stream(part) for part in parts if part])

    def screen(said: str) -> list[str]:
        return [line.rstrip("\r").rpartition("\r")[2] for line in said.split("\n")]

    assert screen(text(recall)) == screen("".join(parts))


def test_displays_are_updated_from_any_cell() -> None:
    recall = a_run()
    recall.requested("r2", "c2", "y", 2.0)
    heard(recall, "r1", display("waiting", "gpu"), display("other", "x"))
    heard(
        recall,
        "r2",
        ("update_display_data", {"data": {"text/plain": "GPU 0"}, "metadata": {}, "transient": {"display_id": "gpu"}}),
    )
    assert [output["data"]["text/plain"] for output in outputs(recall)] == ["GPU 0", "other"]
    assert all("_display" not in output for output in outputs(recall))


def test_outputs_are_cleared_now_or_with_the_next() -> None:
    recall = a_run()
    heard(recall, "r1", stream("1"), ("clear_output", {"wait": True}))
    assert text(recall) == "1"
    heard(recall, "r1", stream("2"))
    assert text(recall) == "2"
    heard(recall, "r1", ("clear_output", {"wait": False}))
    assert outputs(recall) == []


def test_an_output_without_end_is_cut_with_a_note() -> None:
    recall = a_run(cell_limit=3 * 1024**2)
    for _ in range(100):
        heard(recall, "r1", stream("x" * 100_000))
    assert sum(len(str(output)) for output in outputs(recall)) < 3.2 * 1024**2
    assert "more than the session keeps: 3 MiB" in outputs(recall)[-1]["text"]


def test_many_small_pieces_cost_no_more_than_their_length() -> None:
    recall = a_run(cell_limit=10**9)
    began = time.process_time()
    for _ in range(100_000):
        heard(recall, "r1", stream("x" * 50))
    heard(recall, "r1", stream("\rover"))
    assert text(recall) == "over"
    assert time.process_time() - began < 5  # 0.3 s; copying the whole line for each piece takes minutes


def test_the_oldest_cells_give_way() -> None:
    recall = Recall(kernel_limit=1_000_000)
    recall.requested("r0", "running", "x", 0.0)
    for number in range(20):
        recall.requested(f"c{number}", f"cell {number}", "x", float(number))
        heard(recall, f"c{number}", stream("x" * 100_000), ("status", {"execution_state": "idle"}))
    kept = [run.cell for run in recall.runs()]
    assert kept[0] == "running"
    assert kept[-1] == "cell 19"
    assert "cell 0" not in kept
    assert sum(run.size for run in recall.runs()) <= 1_000_000


def test_nothing_goes_on_after_a_restart() -> None:
    recall = a_run()
    heard(recall, "r1", ("status", {"execution_state": "busy"}), stream("half"))
    recall.restarted(9.0)
    (run,) = recall.runs()
    assert (run.running, run.changed, text(recall)) == (False, 9.0, "half")


def message(kind: str, size: int = 0) -> list[bytes]:
    return [b"topic", b"<IDS|MSG>", b"signature", f'{{"msg_type": "{kind}"}}'.encode(), b"{}", b"{}", b"x" * size]


def test_a_buffer_that_is_full_keeps_everything_but_outputs() -> None:
    buffer = BoundedBuffer(limit=10_000)
    for _ in range(100):
        buffer.append(("iopub", message("stream", 1000)))
    kept = len(buffer)
    assert 5 <= kept <= 10
    buffer.append(("iopub", message("status")))
    buffer.append(("shell", message("execute_reply", 5000)))
    buffer.append(("iopub", [b"not a message"]))
    assert len(buffer) == kept + 3


def test_who_follows_a_run_is_told_of_it_at_once_of_each_change_and_of_its_end() -> None:
    recall = a_run()
    heard(recall, "r1", ("status", {"execution_state": "busy"}), display("1st in line", "d1"))
    said: list[Any] = []

    def note(run: CellRun | None) -> None:
        said.append(None if run is None else (run.running, *[output["data"]["text/plain"] for output in run.show()["outputs"]]))

    end = recall.listen("r1", note)
    heard(recall, "r1", ("update_display_data", display("any moment", "d1")[1]), ("status", {"execution_state": "idle"}))
    assert said == [(True, "1st in line"), (True, "any moment"), (False, "any moment")]
    recall.requested("r2", "c1", "x", 9.0)
    end()
    recall.listen("r1", note)
    assert said[3:] == [None, None]
    heard(recall, "r1", stream("of no run"))
    assert len(said) == 5
