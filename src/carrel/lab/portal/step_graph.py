"""A drawing of jobs that need each other: layers from left to right, a box for each job, a line for each need. Pure.

After Sugiyama, Tagawa, Toda: Methods for Visual Understanding of Hierarchical System Structures (1981). A line that passes
layers has a lane of its own there, so that it crosses no box; lines from the same box share their lanes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from carrel.core.control.pipelines import StepStatus

#: Size of a box, and the room between layers, between boxes, and for a lane.
WIDTH, HEIGHT, GAP, SPACE, LANE = 152.0, 48.0, 32.0, 14.0, 6.0
#: Room around all of it, for outlines.
_MARGIN = 4.0
#: Boxes and lines that are drawn at most: more of them nobody can read.
MOST_DRAWN, MOST_LINES = 100, 400
#: How often the order within the layers is improved, and the places.
_ORDERED, _PLACED = 8, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBox:
    """One job's place."""

    key: str
    #: 0 for those that need none.
    layer: int
    #: Of its left upper corner.
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLine:
    """From a box to one that needs it."""

    begin: str
    end: str
    #: It is level within a layer, and a curve between two.
    points: Sequence[tuple[float, float]]

    @property
    def path(self) -> str:
        """For the attribute ``d`` of a path."""
        (x, y), *others = self.points
        text = f"M{x:g} {y:g}"
        for index, (to_x, to_y) in enumerate(others):
            middle = (x + to_x) / 2
            text += f"H{to_x:g}" if index % 2 else f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"
            x, y = to_x, to_y
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """All of it."""

    width: float
    height: float
    boxes: Sequence[GraphBox]
    lines: Sequence[GraphLine]


@dataclass(frozen=True, slots=True)
class _Place:
    """What takes room in a layer: a box, or the lane of lines that come from one."""

    key: str
    layer: int
    lane: bool


def graph_of(steps: Sequence[StepStatus]) -> dict[str, Any]:
    """Return what the template of a job's steps needs; too many of them are not drawn."""
    drawn = {one.key: (*one.after, *([one.parent] if one.parent is not None else [])) for one in steps}
    readable = 1 < len(drawn) <= MOST_DRAWN and sum(map(len, drawn.values())) <= MOST_LINES
    return {
        "steps": steps,
        "shown": {one.key: one for one in steps},
        "graph": draw_graph(drawn) if readable else None,
        "size": (WIDTH, HEIGHT),
    }


def draw_graph(needs: Mapping[str, Iterable[str]]) -> StepGraph:
    """Return the drawing; `needs` has for each box, in the order in which they are wished for, the keys of those that it needs.

    Keys of others do not count. Of boxes that need each other in a circle, the first one's needs are not drawn.
    """
    layers_of, edges = _layers(needs)
    above: dict[_Place, list[_Place]] = {}
    routes = {edge: _route(*edge, layers_of, above) for edge in edges}
    layers: list[list[_Place]] = [[] for _ in range(max(layers_of.values(), default=-1) + 1)]
    for key, layer in layers_of.items():
        layers[layer].append(_Place(key, layer, False))
    for lane in (place for place in above if place.lane):
        layers[lane.layer].append(lane)
    below: dict[_Place, list[_Place]] = {}
    for place, others in above.items():
        for other in others:
            below.setdefault(other, []).append(place)
    layers = _ordered(layers, above, below)
    middles, height = _middles(layers, above, below)
    boxes = [
        GraphBox(key=place.key, layer=place.layer, x=_left(place.layer), y=middles[place] - HEIGHT / 2)
        for layer in layers
        for place in layer
        if not place.lane
    ]
    wish = {key: index for index, key in enumerate(needs)}
    lines = [GraphLine(begin=begin, end=end, points=_points(route, middles)) for (begin, end), route in routes.items()]
    width = _left(max(len(layers), 1) - 1) + WIDTH + _MARGIN
    # Keyboards go through the boxes layer by layer, as eyes do.
    boxes.sort(key=lambda box: (box.layer, box.y, wish[box.key]))
    return StepGraph(width=width, height=height, boxes=boxes, lines=lines)


def _layers(needs: Mapping[str, Iterable[str]]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Layer of each box, and the lines between them: a box is in the layer after the last that it needs."""
    wanted = {key: [other for other in dict.fromkeys(found) if other in needs and other != key] for key, found in needs.items()}
    layers: dict[str, int] = {}
    edges = []
    while len(layers) < len(wanted):
        left = [key for key in wanted if key not in layers]
        free = [key for key in left if all(other in layers for other in wanted[key])]
        for key in free or left[:1]:
            known = [other for other in wanted[key] if other in layers]
            edges += [(other, key) for other in known]
            layers[key] = max((layers[other] + 1 for other in known), default=0)
    return layers, edges


def _route(begin: str, end: str, layers: Mapping[str, int], above: dict[_Place, list[_Place]]) -> list[_Place]:
    """The places through which a line goes, each noted as below the one before it."""
    first, last = layers[begin], layers[end]
    lanes = [_Place(begin, layer, True) for layer in range(first + 1, last)]
    route = [_Place(begin, first, False), *lanes, _Place(end, last, False)]
    for before, place in pairwise(route):
        known = above.setdefault(place, [])
        if before not in known:
            known.append(before)
    return route


_Neighbours = Mapping[_Place, Sequence[_Place]]


def _ordered(layers: list[list[_Place]], above: _Neighbours, below: _Neighbours) -> list[list[_Place]]:
    """The layers in the order with the fewest crossings that is found by putting each place at the middle of its neighbours."""
    best, fewest = layers, _crossings(layers, above)
    for turn in range(_ORDERED):
        if not fewest:
            break
        downward = turn % 2 == 0
        layers = [list(layer) for layer in layers]
        for index in range(1, len(layers)) if downward else range(len(layers) - 2, -1, -1):
            beside = layers[index - 1 if downward else index + 1]
            rank = {place: number for number, place in enumerate(beside)}
            layers[index] = _by_neighbours(layers[index], rank, above if downward else below)
        crossings = _crossings(layers, above)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _by_neighbours(layer: list[_Place], rank: Mapping[_Place, int], neighbours: _Neighbours) -> list[_Place]:
    def wish(item: tuple[int, _Place]) -> float:
        found = neighbours.get(item[1], ())
        return sum(rank[one] for one in found) / len(found) if found else float(item[0])

    return [place for _, place in sorted(enumerate(layer), key=wish)]


def _crossings(layers: Sequence[Sequence[_Place]], above: _Neighbours) -> int:
    count = 0
    for upper, lower in pairwise(layers):
        rank = {place: number for number, place in enumerate(upper)}
        seen: list[int] = []
        for place in lower:
            ranks = [rank[one] for one in above.get(place, ())]
            count += sum(len(seen) - bisect_right(seen, one) for one in ranks)
            for one in ranks:
                insort(seen, one)
    return count


def _middles(layers: Sequence[Sequence[_Place]], above: _Neighbours, below: _Neighbours) -> tuple[dict[_Place, float], float]:
    """How far down the middle of each place is, and the height of all: as near to its neighbours as the others let it."""
    middles: dict[_Place, float] = {}
    for layer in layers:
        steps = _steps(layer)
        middles |= {place: step - steps[-1] / 2 for place, step in zip(layer, steps, strict=True)}
    for turn in range(_PLACED):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            steps = _steps(layer)
            wishes = []
            for place, step in zip(layer, steps, strict=True):
                beside = [*above.get(place, ()), *below.get(place, ())]
                wish = sum(middles[one] for one in beside) / len(beside) if beside else middles[place]
                wishes.append(wish - step)
            # Apart by their steps and nearest to their wishes: a regression that only rises.
            middles |= {place: step + at for place, step, at in zip(layer, steps, _rising(wishes), strict=True)}
    top = min((middle - _half(place) for place, middle in middles.items()), default=0.0) - _MARGIN
    middles = {place: round(middle - top, 1) for place, middle in middles.items()}
    bottom = max((middle + _half(place) for place, middle in middles.items()), default=0.0)
    return middles, bottom + _MARGIN


def _half(place: _Place) -> float:
    return (LANE if place.lane else HEIGHT) / 2


def _steps(layer: Sequence[_Place]) -> list[float]:
    """Distances of the middles from the first, when all stand as close as they may."""
    steps = [0.0]
    for before, place in pairwise(layer):
        steps.append(steps[-1] + _half(before) + SPACE + _half(place))
    return steps


def _rising(wishes: Sequence[float]) -> list[float]:
    """The nearest numbers, by the sum of squares, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for wish in wishes:
        total, size = wish, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / size:
            before = pools.pop()
            total, size = total + before[0], size + before[1]
        pools.append((total, size))
    return [total / size for total, size in pools for _ in range(size)]


def _left(layer: int) -> float:
    return _MARGIN + layer * (WIDTH + GAP)


def _points(route: Sequence[_Place], middles: Mapping[_Place, float]) -> list[tuple[float, float]]:
    points = [(_left(route[0].layer) + WIDTH, middles[route[0]])]
    for lane in route[1:-1]:
        points += [(_left(lane.layer), middles[lane]), (_left(lane.layer) + WIDTH, middles[lane])]
    return [*points, (_left(route[-1].layer), middles[route[-1]])]
