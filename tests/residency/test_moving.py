"""GPU memory leaves and comes back: the same values at the same addresses, whatever goes wrong in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from residency_rig import MIB, Peer, Program, Rig, rig

from support.examples import examples


class State:
    """What a program has on its device, and what it should find there."""

    def __init__(self, program: Program, peer: Peer) -> None:
        self.program, self.peer = program, peer
        self.parts: dict[int, tuple[int, int]] = {}
        self._seed = 0

    def put(self, at: int, size: int) -> int:
        self._seed += 1
        self.program.good("fill", at=at, size=size, seed=self._seed)
        self.parts[at] = (size, self._seed)
        return at

    def allocate(self, size: int) -> int:
        return self.put(self.program.good("alloc", size=size)["at"], size)

    def map(self, size: int, *, times: int = 1, release: bool = False) -> tuple[int, int]:
        """Memory by the calls for virtual memory, seen at so many addresses. Returns the first one, and the handle."""
        handle = self.program.good("create", size=size)["handle"]
        first = 0
        for _ in range(times):
            at = self.program.good("reserve", size=size)["at"]
            self.program.good("map", at=at, size=size, handle=handle)
            first = first or at
        if release:
            self.program.good("release", handle=handle)
        return self.put(first, size), handle

    def same(self) -> None:
        for at, (size, seed) in self.parts.items():
            answer = self.program.order("check", at=at, size=size, seed=seed)
            assert answer == {"result": 0, "same": True}, (hex(at), size)

    def away(self) -> dict[str, Any]:
        assert self.peer.pause()["ok"]
        return self.peer.out()

    def here(self) -> None:
        assert self.peer.back()["place"] == "in"
        assert self.peer.go()["ok"]
        self.same()

    def free(self) -> int:
        return int(self.program.order("memory")["free"])


@pytest.fixture
def state(machine: Rig) -> State:
    made = State(*machine.started())
    assert made.peer.give(3 * MIB, 16 * MIB, 9 * MIB)["ok"]
    return made


@pytest.mark.gate
def test_values_and_addresses_are_the_same(state: State) -> None:
    for size in (5 * MIB, 2 * MIB, MIB, 4096):
        state.allocate(size)
    state.map(4 * MIB)
    before = state.free()
    for _ in range(3):
        assert state.away()["place"] == "out"
        assert state.free() == before + (6 + 2 + 4) * MIB  # what is smaller than 2 MiB stays
        state.here()
        assert state.free() == before


def test_a_state_that_changes_between_moves(state: State) -> None:
    for round_ in range(4):
        at = state.allocate((2 + round_) * MIB)
        state.away()
        state.here()
        state.program.good("free", at=at)
        del state.parts[at]
        state.allocate(3 * MIB)
    state.away()
    state.here()


def test_what_is_freed_while_it_is_away_is_gone(state: State) -> None:
    kept, given_up = state.allocate(4 * MIB), state.allocate(6 * MIB)
    before = state.free()
    state.away()
    state.program.good("free", at=given_up)
    del state.parts[given_up]
    state.here()
    assert kept in state.parts
    assert state.free() == before + 6 * MIB


def test_a_handle_at_two_addresses(state: State) -> None:
    at, handle = state.map(4 * MIB, times=2)
    state.away()
    state.here()
    third = state.program.good("reserve", size=4 * MIB)["at"]
    state.program.good("map", at=third, size=4 * MIB, handle=handle)
    assert state.program.order("check", at=third, size=4 * MIB, seed=state.parts[at][1])["same"]


def test_memory_without_an_address_keeps_its_contents(state: State) -> None:
    at, handle = state.map(4 * MIB)
    size, seed = state.parts.pop(at)
    state.program.good("unmap", at=at, size=size)
    state.away()
    state.here()
    state.program.good("map", at=at, size=size, handle=handle)
    assert state.program.order("check", at=at, size=size, seed=seed)["same"]


def test_a_handle_that_is_released_before_its_mapping(state: State) -> None:
    before = state.free()
    at, handle = state.map(4 * MIB, release=True)
    state.away()
    state.here()
    assert state.program.order("release", handle=handle)["result"] != 0
    again = state.program.good("retain", at=at)["handle"]
    assert again == handle
    state.program.good("unmap", at=at, size=4 * MIB)
    assert state.free() == before - 4 * MIB
    state.program.good("release", handle=again)
    assert state.free() == before


def test_part_of_a_range_is_unmapped(state: State) -> None:
    """As PyTorch's expandable segments do: one range, a handle for each segment."""
    at = state.program.good("reserve", size=8 * MIB)["at"]
    handles = [state.program.good("create", size=2 * MIB)["handle"] for _ in range(4)]
    for number, handle in enumerate(handles):
        state.program.good("map", at=at + number * 2 * MIB, size=2 * MIB, handle=handle, access=False)
    state.program.good("access", at=at, size=8 * MIB)
    for number in (0, 3):
        state.put(at + number * 2 * MIB, 2 * MIB)
    before = state.free()
    state.program.good("unmap", at=at + 2 * MIB, size=4 * MIB)
    for handle in handles[1:3]:
        state.program.good("release", handle=handle)
    assert state.free() == before + 4 * MIB
    state.away()
    state.here()


def test_memory_that_others_have_stays(state: State) -> None:
    at, handle = state.map(2 * MIB)
    shared = state.program.good("create", size=2 * MIB, shareable=1)["handle"]
    state.program.good("export", handle=shared)
    state.program.good("managed", size=4 * MIB)
    quiet = state.peer.pause()
    assert quiet["movable"] == [2 * MIB]
    assert quiet["stays"] == [6 * MIB]
    assert quiet["reasons"] == ["managed memory", "exported memory"]
    assert state.peer.out()["bytes"] == 2 * MIB
    state.here()
    assert at
    assert handle


def test_memory_that_moves_is_not_shared_and_the_program_reads_why(state: State) -> None:
    at = state.allocate(2 * MIB)
    assert state.program.order("share", at=at)["result"] == 801
    assert "CARREL_RESIDENCY=off" in state.program.errors()


def test_a_range_is_what_was_asked_for(state: State) -> None:
    at = state.allocate(5 * MIB)
    found = state.program.order("range", at=at + 3 * MIB)
    assert found == {"result": 0, "base": at, "size": 5 * MIB}


def test_a_context_takes_its_memory_with_it(state: State) -> None:
    state.allocate(4 * MIB)
    state.program.good("reset")
    assert state.peer.pause()["movable"] == [0]


def test_two_devices(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=2) as machine:
        program, peer = machine.started()
        program.good("context", device=1)
        parts = [(program.good("alloc", size=4 * MIB, seed=device, device=device)["at"], device) for device in (0, 1, 0)]
        peer.give(12 * MIB)
        quiet = peer.pause()
        assert quiet["movable"] == [8 * MIB, 4 * MIB]
        assert quiet["devices"] == list(machine.driver.uuids)
        assert peer.out()["ok"]
        assert peer.back()["ok"]
        peer.go()
        for at, device in parts:
            assert program.order("check", at=at, size=4 * MIB, seed=device, device=device)["same"]


def test_a_pool_that_is_too_small_says_so(machine: Rig) -> None:
    state = State(*machine.started())
    state.allocate(6 * MIB)
    state.peer.give(4 * MIB)
    moved = state.away()
    assert not moved["ok"]
    assert moved["place"] == "in"
    assert "6291456" in moved["why"]
    assert "4194304" in moved["why"]
    assert state.peer.give(2 * MIB, first=2)["ok"]
    assert state.peer.out()["ok"]
    assert not state.peer.take(1, 2)["ok"]  # the state lies there
    state.here()
    assert state.peer.take(1, 2) | {"id": 0} == {"op": "pieces_back", "id": 0, "ok": True, "why": "", "place": "in", "bytes": 0}


OUT = ("cuStreamCreate", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuMemUnmap", "cuMemRelease")
BACK = ("cuStreamCreate", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync", "cuStreamSynchronize")
#: Numbers of CUresult that are no verdict on the context: out of memory, operating system.
CODES = (2, 304)


def several(state: State) -> None:
    state.allocate(4 * MIB)
    state.allocate(2 * MIB)
    state.map(4 * MIB, times=2)


def fail(machine: Rig, call: str, number: int, code: int) -> None:
    """Let the call go wrong at its `number`th time from now on."""
    machine.driver.clear()
    machine.driver.inject(call, "error", code, after=number)


@pytest.mark.parametrize("call", OUT)
def test_a_call_that_fails_on_the_way_out(call: str, machine: Rig, state: State) -> None:
    several(state)
    before = state.free()
    for number in range(100):
        fail(machine, call, number, CODES[number % 2])
        assert state.peer.pause()["ok"]
        moved = state.peer.out()
        reached = not machine.driver.pending()
        machine.driver.clear()
        assert moved["place"] in ("in", "out"), moved
        assert moved["ok"] == (moved["place"] == "out")
        assert moved["ok"] or moved["why"]
        state.here()
        assert state.free() == before - moved["leaked"]
        assert moved["leaked"] == 0
        if not reached:
            assert number > 0
            break


@pytest.mark.parametrize("call", BACK)
def test_a_call_that_fails_on_the_way_back(call: str, machine: Rig, state: State) -> None:
    several(state)
    before = state.free()
    for number in range(100):
        assert state.away()["ok"]
        away = state.free()
        fail(machine, call, number, CODES[1])
        moved = state.peer.back(patience=0)
        reached = not machine.driver.pending()
        machine.driver.clear()
        assert moved["place"] == ("in" if moved["ok"] else "out")
        if not moved["ok"]:
            assert moved["why"]
            assert state.free() == away
        state.here()
        assert state.free() == before
        if not reached:
            assert number > 0
            break


def accounted(state: State, moved: dict[str, Any], here: int, away: int) -> None:
    """What the driver counts is what the library says that there is."""
    assert state.free() == (here if moved["place"] == "in" else away) - moved["leaked"], moved


@pytest.mark.parametrize(
    ("first", "second"), [("cuMemUnmap", "cuMemMap"), ("cuMemUnmap", "cuMemUnmap"), ("cuMemRelease", "cuMemMap")]
)
def test_a_move_that_can_neither_be_finished_nor_taken_back_at_once_is_whole_later(
    first: str, second: str, machine: Rig, state: State
) -> None:
    """Two calls fail, one of them where the other's failure is mended. What stays on the device is counted and used again."""
    several(state)
    here = state.free()
    away = here + 10 * MIB
    for number in range(12):
        machine.driver.clear()
        machine.driver.inject(first, "error", 304, after=number, count=2)
        machine.driver.inject(second, "error", 2, after=number % 4, count=2)
        assert state.peer.pause()["ok"]
        moved = state.peer.out()
        machine.driver.clear()
        if moved["place"] == "lost":
            moved = state.peer.back()
            assert moved["ok"]
        accounted(state, moved, here, away)
        state.here()
        assert state.free() == here


def test_a_way_back_that_fails_where_memory_has_two_addresses(machine: Rig, state: State) -> None:
    several(state)
    here = state.free()
    for number in range(12):
        assert state.away()["ok"]
        away = state.free()
        machine.driver.inject("cuMemMap", "error", 304, after=number)
        machine.driver.inject("cuMemUnmap", "error", 2, count=3)
        moved = state.peer.back(patience=0)
        machine.driver.clear()
        accounted(state, moved, here, away)
        state.here()
        assert state.free() == here


def test_memory_without_an_address_leaves_nothing_on_the_device(machine: Rig, state: State) -> None:
    """It is mapped beside for its copy, and that mapping cannot be undone at once."""
    at, handle = state.map(4 * MIB)
    size, seed = state.parts.pop(at)
    state.program.good("unmap", at=at, size=size)
    here = state.free()
    for number in range(6):
        assert state.away()["ok"]
        machine.driver.inject("cuMemUnmap", "error", 304, after=number % 3, count=2)
        assert state.peer.back()["ok"]
        machine.driver.clear()
        assert state.away()["ok"]
        assert state.free() == here + 4 * MIB
        state.here()
    state.program.good("map", at=at, size=size, handle=handle)
    assert state.program.order("check", at=at, size=size, seed=seed)["same"]


def test_the_host_memory_cannot_be_registered(machine: Rig) -> None:
    state = State(*machine.started())
    state.allocate(4 * MIB)
    machine.driver.inject("cuMemHostRegister", "error", 304)
    assert not state.peer.give(4 * MIB)["ok"]
    assert state.away()["ok"]  # it is tried again
    state.here()


def test_a_full_device_is_waited_for(machine: Rig, state: State) -> None:
    state.allocate(4 * MIB)
    state.away()
    machine.driver.inject("cuMemCreate", "error", 2, count=5)
    state.here()


def test_memory_under_a_copy_that_may_still_run_is_not_taken_away(machine: Rig, state: State) -> None:
    """The driver does not say that a copy has ended; were its memory unmapped, the context would be at an end."""
    several(state)
    state.away()
    machine.driver.inject("cuMemcpyHtoDAsync", "rate", 20 * MIB, count=-1)
    machine.driver.inject("cuStreamSynchronize", "error", 304)
    moved = state.peer.back()
    assert (moved["ok"], moved["place"]) == (False, "out")
    machine.driver.clear()
    assert machine.driver.broken() == []
    state.here()


def test_a_killed_program_leaves_nothing(machine: Rig, state: State) -> None:
    several(state)
    state.peer.pause()
    machine.driver.inject("cuMemcpyDtoHAsync", "hang", -1)
    state.peer.begin("out")
    while machine.driver.pending():  # until it is in the middle
        pass
    state.program.kill()
    with pytest.raises(EOFError):
        state.peer.expect("moved")
    other, _ = machine.started()
    free = other.order("memory")
    assert free["total"] - free["free"] == 8 * MIB  # its own context


@pytest.mark.parametrize("order", ["out", "in"])
def test_a_broker_that_is_killed_in_the_middle_finds_the_state(order: str, machine: Rig, state: State) -> None:
    several(state)
    state.peer.pause()
    if order == "in":
        state.peer.out()
    machine.driver.inject("cuMemcpyDtoHAsync" if order == "out" else "cuMemcpyHtoDAsync", "hang", 0.2)
    state.peer.begin(order)
    while machine.driver.pending():
        pass
    machine.server.close()
    machine.server.open()
    state.peer = machine.server.accept()
    hello = state.peer.hello
    assert hello["place"] == ("out" if order == "out" else "in")
    assert hello["paused"]
    assert hello["gate"] == "closed"
    assert hello["lease"] == "lease-1"
    assert hello["pieces"] == [1, 2, 3]
    assert hello["sizes"] == [3 * MIB, 16 * MIB, 9 * MIB]
    assert len(state.peer.files) == 3
    state.here()


def test_two_states_change_places_that_do_not_fit_together(tmp_path: Path) -> None:
    with rig(tmp_path, memory=(16 + 12) * MIB) as machine:
        states = []
        for _ in range(2):
            state = State(*machine.started())
            state.peer.give(10 * MIB)
            state.allocate(6 * MIB)
            state.allocate(4 * MIB)
            assert state.away()["ok"]
            states.append(state)
        states[0].here()
        for round_ in range(4):
            here, away = states if round_ % 2 == 0 else reversed(states)
            assert here.peer.pause()["ok"]
            coming = away.peer.begin("in", patience=60)
            going = here.peer.begin("out")
            assert here.peer.finish("moved", going)["place"] == "out"
            assert away.peer.finish("moved", coming)["place"] == "in"
            assert away.peer.go()["ok"]
            away.same()


def moves_at_random(machine: Rig, seed: int, rounds: int) -> None:
    """Allocations, frees and moves of which many fail: each value stays where it was, and nothing is left on the device."""
    dice = random.Random(seed)
    state = State(*machine.started())
    empty = state.free()
    state.peer.give(*[dice.choice((3, 5, 9)) * MIB for _ in range(12)])
    for _ in range(rounds):
        act = dice.random()
        if act < 0.25 and len(state.parts) < 8:
            state.allocate(dice.randint(1, 5) * MIB + dice.choice((0, 4096)))
        elif act < 0.35 and state.parts:
            at = dice.choice(list(state.parts))
            if state.program.order("free", at=at)["result"] == 0:
                del state.parts[at]
        else:
            assert state.peer.pause()["ok"]
            if dice.random() < 0.6:
                fail(machine, dice.choice(OUT), dice.randint(0, 12), dice.choice(CODES))
            moved = state.peer.out()
            for _ in range(dice.randint(0, 2)):
                fail(machine, dice.choice(BACK), dice.randint(0, 12), dice.choice(CODES))
                moved = state.peer.back(patience=0)
            machine.driver.clear()
            assert moved["place"] in ("in", "out", "none"), moved
            moved = state.peer.back()
            assert moved["ok"], moved
            assert state.peer.go()["ok"]
            state.same()
    for at in state.parts:
        state.program.good("free", at=at)
    assert state.free() == empty


@pytest.mark.parametrize("seed", range(3))
def test_moves_at_random(seed: int, machine: Rig) -> None:
    moves_at_random(machine, seed, examples(40))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_many_moves_at_random(seed: int, machine: Rig) -> None:
    moves_at_random(machine, 1000 + seed, 650)  # some 10,000 moves in all
