"""The drawing of a pipeline's steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.lab.portal.step_graph import HEIGHT, WIDTH, StepGraph, draw_graph

Needs = dict[str, tuple[str, ...]]


@st.composite
def needs(draw: st.DrawFn) -> Needs:
    """Jobs of which each needs some of those before it."""
    count = draw(st.integers(1, 24))
    return {
        str(number): tuple(map(str, draw(st.sets(st.integers(0, number - 1), max_size=4)))) if number else ()
        for number in range(count)
    }


def check(graph: StepGraph, wanted: Needs) -> None:
    boxes = {box.key: box for box in graph.boxes}
    assert boxes.keys() == wanted.keys()
    for box in graph.boxes:
        assert 0 <= box.x <= graph.width - WIDTH
        assert 0 <= box.y <= graph.height - HEIGHT
        for other in graph.boxes:
            apart = abs(box.x - other.x) >= WIDTH or abs(box.y - other.y) >= HEIGHT
            assert box is other or apart, (box, other)
    for line in graph.lines:
        begin, end = boxes[line.begin], boxes[line.end]
        assert begin.layer < end.layer
        assert begin.x + WIDTH < end.x
        assert line.points[0] == (begin.x + WIDTH, begin.y + HEIGHT / 2)
        assert line.points[-1] == (end.x, end.y + HEIGHT / 2)
        for point in drawn(line.points):
            assert not any(inside(point, box.x, box.y) for box in graph.boxes), (line, point)


def drawn(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points of the line as the browser draws it."""
    found: list[tuple[float, float]] = []
    for index, ((x, y), (to_x, to_y)) in enumerate(pairwise(points)):
        for part in (number / 10 for number in range(11)):
            curve = (3 * (1 - part) * part**2) + part**3  # its middle points are at the heights of its ends
            sideways = 1.5 * (1 - part) ** 2 * part + 1.5 * (1 - part) * part**2 + part**3
            along = part if index % 2 else sideways
            found.append((x + (to_x - x) * along, y + (to_y - y) * curve))
    return found


def inside(point: tuple[float, float], x: float, y: float) -> bool:
    return x < point[0] < x + WIDTH and y < point[1] < y + HEIGHT


@pytest.mark.gate
@given(needs())
def test_boxes_do_not_overlap_and_lines_go_forward_beside_them(wanted: Needs) -> None:
    graph = draw_graph(wanted)
    check(graph, wanted)
    assert {(line.begin, line.end) for line in graph.lines} == {(one, key) for key, found in wanted.items() for one in found}


def test_thirty_steps_in_six_layers_stay_within_a_page() -> None:
    wanted = {
        f"{layer}.{row}": tuple(f"{layer - 1}.{other % 5}" for other in (row, row + 1)) if layer else ()
        for layer in range(6)
        for row in range(5)
    }
    wanted["5.0"] = (*wanted["5.0"], "0.3", "1.4")
    graph = draw_graph(wanted)
    check(graph, wanted)
    assert {box.layer for box in graph.boxes} == set(range(6))
    assert graph.width <= 1088  # the width of a page, without scrolling
    assert graph.height < 500


def test_a_chain_is_straight_and_branches_lie_around_what_they_need() -> None:
    chain = draw_graph({"a": (), "b": ("a",), "c": ("b",)})
    assert len({box.y for box in chain.boxes}) == 1
    assert chain.lines[0].path.startswith("M")
    fan = {box.key: box.y for box in draw_graph({"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}).boxes}
    assert fan["b"] < fan["a"] < fan["c"]
    assert fan["a"] == pytest.approx(fan["d"])


def test_lines_that_can_do_without_crossings_have_none() -> None:
    graph = draw_graph({"a": (), "b": (), "c": ("b",), "d": ("a",)})
    height = {box.key: box.y for box in graph.boxes}
    assert (height["a"] < height["b"]) == (height["d"] < height["c"])


@pytest.mark.parametrize("wanted", [{"a": ("a",)}, {"a": ("b",), "b": ("a",)}, {"a": ("elsewhere",), "b": ("a", "a")}, {}])
def test_it_draws_whatever_is_said(wanted: Needs) -> None:
    check(draw_graph(wanted), wanted)
