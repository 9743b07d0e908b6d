"""Whatever the driver answers and in whatever order we are asked: the table of states holds and no value is lost."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from suspension_rig import rig

from carrel.node.suspension import DriverState, Ending
from carrel.node.suspension.specimen import Specimen
from support.examples import examples

#: Errors that a call may answer without having done anything.
ERRORS = st.sampled_from([1, 401, 600, 801, 999])
CALLS = st.sampled_from(["cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore"])


class States(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.steps = {0: 0, 1: 0}

    @initialize()
    def start(self) -> None:
        directory = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.rig = self.stack.enter_context(rig(Path(directory), gpus=2, suspender={"patience": 1000}))
        self.specimens: list[Specimen] = [self.rig.specimen(0), self.rig.specimen(1)]

    def teardown(self) -> None:
        self.stack.close()

    @rule(call=CALLS, code=ERRORS, which=st.integers(0, 1))
    def something_will_go_wrong(self, call: str, code: int, which: int) -> None:
        self.rig.driver.inject(call, "error", code, pid=self.specimens[which].target.pid)

    @rule(both=st.booleans())
    def suspend(self, both: bool) -> None:
        moved = self.rig.suspend(*self.specimens[: 1 + both])
        states = {self.rig.state(one) for one in self.specimens[: 1 + both]}
        if moved.ending is Ending.DONE:
            assert states == {DriverState.CHECKPOINTED}
            on = {pid for pid, _ in self.rig.on_devices()}
            assert not on & {one.target.pid for one in self.specimens[: 1 + both]}
        elif moved.ending is not Ending.LOST:
            assert states == {DriverState.RUNNING}
            assert moved.message
        self.rig.driver.clear()

    @rule(both=st.booleans())
    def resume(self, both: bool) -> None:
        before = {self.rig.state(one) for one in self.specimens[: 1 + both]}
        moved = self.rig.resume(*self.specimens[: 1 + both])
        states = {self.rig.state(one) for one in self.specimens[: 1 + both]}
        if moved.ending is Ending.DONE:
            assert states == {DriverState.RUNNING}
        elif before == {DriverState.CHECKPOINTED}:
            assert states == {DriverState.CHECKPOINTED}
        self.rig.driver.clear()

    @rule(which=st.integers(0, 1))
    def compute(self, which: int) -> None:
        if self.rig.state(self.specimens[which]) is DriverState.RUNNING:
            self.specimens[which].order("step")
            self.steps[which] += 1

    @invariant()
    def no_value_is_lost(self) -> None:
        for which, specimen in enumerate(getattr(self, "specimens", [])):
            state = self.rig.state(specimen)
            assert state in (DriverState.RUNNING, DriverState.CHECKPOINTED)
            if state is DriverState.RUNNING:
                assert specimen.order("check") == {"same": True, "count": self.steps[which]}


TestStates = States.TestCase
TestStates.settings = settings(max_examples=examples(8), stateful_step_count=12, deadline=None)
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
