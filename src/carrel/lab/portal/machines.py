"""The page of machines from parts: what the fabric has, as a picture, one's machines, and a form for another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.control.compositions import Compositions
from carrel.core.domain.composition import Composition
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, NotFound, Unavailable
from carrel.core.domain.fabric import Block, BlockKind, Together, Wish
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.core.domain.units import parse_duration, parse_size
from carrel.core.domain.user import Caller
from carrel.core.policy.slices import free_slices
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.templating import Templates

PATH = "/machines"
#: Machines that are over, in the list.
_OVER = 10


def has_fabric(gateway: Gateway) -> bool:
    """True where machines are made from parts."""
    keeper = gateway.lab.keeper(COMPOSITIONS)
    return isinstance(keeper, Compositions) and keeper.composer is not None


class MachinesPage:
    """``/machines``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._lab, self._look = gateway.lab, look

    def routes(self) -> list[BaseRoute]:
        """The routes of the page."""
        return [
            Route(PATH, self.page, methods=["GET"]),
            Route(PATH, self.make, methods=["POST"]),
            Route(f"{PATH}/{{id}}/release", self.release, methods=["POST"]),
        ]

    def page(self, request: Request) -> Response:
        """All of it; with ``part=live`` only what changes."""
        return self._page(request)

    async def make(self, request: Request) -> Response:
        """Make a machine, or say what would be taken."""
        fields = await checked_form(request, self._look)

        def answer() -> Response:
            preview = fields.get("preview") == "yes"
            try:
                asked = Composition(wishes=_wishes(fields), time=parse_duration(fields.get("for", "") or "1h"), preview=preview)
                made = self._lab.keeper(COMPOSITIONS).put(caller_of(request), asked)[1]
            except (Invalid, Conflict, Unavailable) as error:
                return self._page(request, problem=error, fields=fields)
            return self._page(request, fields=fields, foreseen=made) if preview else RedirectResponse(PATH, 303)

        return await to_thread.run_sync(answer)

    async def release(self, request: Request) -> Response:
        """Give the blocks of a machine back."""
        await checked_form(request, self._look)
        number = number_in(request.path_params["id"])
        if not number:
            raise NotFound("There is no such machine.")
        await to_thread.run_sync(self._lab.keeper(COMPOSITIONS).remove, caller_of(request), number)
        return RedirectResponse(PATH, 303)

    def _page(
        self,
        request: Request,
        *,
        problem: CarrelError | None = None,
        fields: Mapping[str, str] | None = None,
        foreseen: Composition | None = None,
    ) -> Response:
        caller = caller_of(request)
        blocks = self._lab.keeper(BLOCKS).list(caller)
        machines = sorted(self._lab.keeper(COMPOSITIONS).list(caller), key=lambda one: (one.state.over, -one.id))
        over = [one for one in machines if one.state.over][:_OVER]
        part = request.query_params.get("part") == "live"
        return self._look.page(
            request,
            "machines_live.html" if part else "machines.html",
            status=200 if problem is None else problem_of(problem)[0].status,
            zones=_zones(blocks),
            mine=_owned(caller, machines),
            owners={one.id: one.owner for one in machines},
            machines=[one for one in machines if not one.state.over] + over,
            types=sorted({block.type for block in blocks if block.kind is BlockKind.GPU and block.type}),
            profiles=sorted({profile.name for block in blocks for profile in block.profiles}),
            slices=free_slices(blocks),
            problem=problem,
            fields=fields or {},
            foreseen=foreseen,
            path=PATH,
        )


def _owned(caller: Caller, machines: Sequence[Composition]) -> frozenset[int]:
    return frozenset(one.id for one in machines if one.owner == caller.user.subject)


#: A block, and the slices into which it is cut.
_Cut = tuple[Block, Sequence[Block]]


def _zones(blocks: Sequence[Block]) -> Sequence[tuple[str, Sequence[tuple[str, Sequence[_Cut]]]]]:
    """The blocks by zone and where they lie: their rack, else the machine that they are built into; the others come last."""
    slices: dict[str, list[Block]] = defaultdict(list)
    zones: dict[str, dict[str, list[_Cut]]] = defaultdict(lambda: defaultdict(list))
    for block in blocks:
        if block.of:
            slices[block.of].append(block)
    for block in sorted(blocks, key=lambda one: (one.kind is not BlockKind.CPU, not one.machine)):
        if not block.of:
            place = f"Rack {block.rack}" if block.rack else block.machine if block.fixed else ""
            zones[block.zone][place].append((block, slices[block.name]))
    ordered = ((zone, sorted(places.items(), key=lambda one: (not one[0], one[0]))) for zone, places in sorted(zones.items()))
    return [(zone, [(place or "Loose blocks", found) for place, found in places]) for zone, places in ordered]


def _wishes(fields: Mapping[str, str]) -> tuple[Wish, ...]:
    """What the form asks for. Raises `Invalid`."""
    found: list[Wish] = []
    together = Together(fields.get("together") or "anyhow")
    memory = fields.get("memory", "").strip()
    size = parse_size(memory) if memory else 0
    if gpus := _count(fields, "gpus"):
        found.append(Wish(kind=BlockKind.GPU, count=gpus, type=fields.get("type", ""), size=size, together=together))
    if slices := _count(fields, "slices"):
        profile = fields.get("profile", "")
        found.append(Wish(kind=BlockKind.GPU, count=slices, sliced=True, profile=profile, size=0 if profile else size))
    if drives := _count(fields, "nvme"):
        found.append(Wish(kind=BlockKind.STORAGE, count=drives, type="nvme"))
    return tuple(found)


def _count(fields: Mapping[str, Any], name: str) -> int:
    text = str(fields.get(name, "")).strip() or "0"
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
    if number < 0:
        raise Invalid(f'"{text[:20]}" is no number of {name}.', remedy="Write a whole number, or leave it empty.")
    return number
