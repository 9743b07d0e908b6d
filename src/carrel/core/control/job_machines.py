"""Machines that are made for jobs, where no machine of the lab has what they need: one for each, which goes when its job is over.

The job is what is kept. Which machines have to be made or given back for it is found anew in each turn, so a lab that was killed
goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from carrel.core.control.composing import Composer, machine_name
from carrel.core.control.compositions import node_of, none_here
from carrel.core.domain.composition import Composition, CompositionState, MachineRules
from carrel.core.domain.errors import Impossible
from carrel.core.domain.fabric import Wish, by_name
from carrel.core.domain.job import Job
from carrel.core.domain.node import Node
from carrel.core.domain.parts import wishes_of
from carrel.core.domain.placement import MachineWait, Waiting
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import format_duration
from carrel.core.policy.compose import Plan, ever
from carrel.core.policy.free_blocks import Asked, projected

#: Seconds after which a machine that could not be made for a job is tried again.
AGAIN_SECONDS = 60.0
_NO_RULES = MachineRules()


class JobMachines:
    """Makes machines for jobs, and gives them back when these are over. Thread-safe."""

    def __init__(
        self,
        composer: Composer | None = None,
        rules: MachineRules = _NO_RULES,
        *,
        grace: int = 0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`composer` is None in a lab without a fabric. `grace`: seconds that a job may take to end when its walltime is over.

        `wake` is called when somebody asks for another machine than before.
        """
        self._composer, self._rules, self._grace, self._wake = composer, rules, grace, wake
        self._asked: tuple[int, ...] = ()
        #: Why machines are not begun that are asked for; what all wait for, and of which records that was found.
        self._refused: dict[int, str] = {}
        self._waits: Mapping[int, MachineWait] = {}
        self._seen: tuple[Sequence[Composition], tuple[int, ...]] = ((), ())
        self._nodes: tuple[Sequence[Composition], Mapping[int, str]] = ((), {})
        #: The machine that was made last for a job.
        self._made: dict[int, int] = {}

    # ---- what a submission is told

    def nodes_for(self, nodes: Sequence[Node], owner: str, account: str, asked: Resources) -> Sequence[Node]:
        """Return the nodes that such a job could have: the machine that would be made for it, or those that are there.

        Of machines from parts, those of its owner that outlast it. Raises `Invalid`, and `Impossible` for what is never there.
        """
        if asked.compose:
            return (self._node_for(account, asked),)
        there = {machine_name(one): one for one in self._living() if one.state is CompositionState.RUNNING}
        if self._composer is None or not there:
            return nodes
        until = self._composer.clock() + asked.time + self._grace

        def is_usable(one: Composition | None) -> bool:
            return one is None or (one.owner == owner and not one.job and one.end >= until)

        return [node for node in nodes if is_usable(there.get(node.name))]

    def _node_for(self, account: str, asked: Resources) -> Node:
        if self._composer is None:
            raise none_here()
        if asked.time > self._rules.longest:
            raise Impossible(
                f"The job asks for a machine from parts for {format_duration(asked.time)}.",
                remedy=f"This lab keeps one for at most {format_duration(self._rules.longest)}.",
            )
        blocks, wishes = self._composer.blocks(), wishes_of(asked)
        if why := self._rules.refuses((), wishes):
            raise Impossible(f"The job's owner {why}.", remedy="Ask for less; an administrator sets it in the fabric's file.")
        one = Composition(wishes=wishes, time=asked.time, account=account)
        found = ever(blocks, Asked(wishes=one.wishes, machine="c0", account=account, time=asked.time + self._grace))
        if not isinstance(found, Plan):
            raise Impossible(
                f"{found.message[:1].upper()}{found.message[1:]}.", remedy="`carrel compose blocks` shows what there is."
            )
        one = replace(one, blocks=found.blocks, changes=found.changes, machine=found.machine)
        return node_of(one, by_name(projected(blocks, one.changes)))

    # ---- what the loop asks

    def node(self, job: int) -> str:
        """The node that was made for a job; "": it is not there."""
        there = self._living()
        if self._nodes[0] is not there:
            running = (one for one in there if one.job and one.state is CompositionState.RUNNING)
            self._nodes = there, {one.job: machine_name(one) for one in running}
        return self._nodes[1].get(job, "")

    def ask(self, jobs: Sequence[Waiting]) -> None:
        """These wait for nothing but their machines now, first in line first."""
        asked = tuple(job.id for job in jobs)
        if asked != self._asked:
            self._asked = asked
            self._wake()

    def waits(self) -> Mapping[int, MachineWait]:
        """What machines wait for, by the job."""
        return self._waits

    # ---- what the fabric's thread does

    def turn(self, job: Callable[[int], Job | None]) -> bool:
        """Ask for the machines that are missing, and give back those of jobs that are over; return whether the loop should look.

        `job` finds one by its number. Raises `Unavailable` when the fabric does not answer.
        """
        composer, asked = self._composer, self._asked
        if composer is None:
            return False
        with composer.lock:
            self._end(composer, job)
            self._begin(composer, [found for number in asked if (found := job(number)) is not None and not found.state.ended])
            now = (self._living(), asked)
            if now[0] is self._seen[0] and now[1] == self._seen[1]:
                return False
            self._waits = self._found(composer)
            self._seen = now  # not before: where the fabric did not answer, it is found in the next turn
        return True

    def _living(self) -> Sequence[Composition]:
        return () if self._composer is None else self._composer.living()

    def _end(self, composer: Composer, job: Callable[[int], Job | None]) -> None:
        now = composer.clock()
        for one in composer.living():
            if not one.job or ((found := job(one.job)) is not None and not found.state.ended):
                continue
            over = f"job {one.job} is over"
            if one.state in (CompositionState.PENDING, CompositionState.CONFIGURING):
                composer.release(one, over, CompositionState.CANCELLED)
            elif one.state is CompositionState.RUNNING and one.end > now:
                linger = 0 if composer.awaited(one.holds, now + self._rules.linger) else self._rules.linger
                end = min(one.end, max(now + linger, one.begin + self._rules.shortest))
                if (end, over) != (one.end, one.ending):
                    composer.records.put(replace(one, end=end, ending=over))

    def _begin(self, composer: Composer, jobs: Sequence[Job]) -> None:
        self._refused = {}
        living = composer.living()
        have = {one.job for one in living}
        for job in jobs:
            if job.id in have:
                continue
            mine = [one for one in living if one.owner == job.owner]
            time, now = job.resources.time + self._grace, composer.clock()
            asked = Asked(wishes=wishes_of(job.resources), machine="", account=job.account, time=time)
            if (spare := self._spare(composer, asked, mine)) is not None:
                made = replace(spare, job=job.id, name=job.name, time=time, end=now + time, ending="", reason="")
            elif why := self._refuses(composer, job, mine, asked.wishes):
                self._refused[job.id] = why
                continue
            else:
                linger = max(self._rules.linger, self._rules.shortest)
                made = Composition(wishes=asked.wishes, time=time, linger=linger, name=job.name, submitted=now)
                made = replace(made, owner=job.owner, account=job.account, job=job.id)
            made = composer.records.put(made)
            self._made[job.id] = made.id
            living = [*(one for one in living if one.id != made.id), made]

    def _spare(self, composer: Composer, asked: Asked, mine: Sequence[Composition]) -> Composition | None:
        """One that was made for such a job, which is over. Those who wait for what it has come first."""
        for one in mine:
            if not one.job or not one.ending or one.state is not CompositionState.RUNNING or one.end <= composer.clock():
                continue
            if (one.wishes, one.account) == (asked.wishes, asked.account):
                if composer.awaited(one.holds, composer.clock() + asked.time):
                    continue
                blocks = by_name(composer.blocks())
                if all(asked.may_have(blocks[name]) for name in one.blocks if name in blocks):
                    return one
        return None

    def _refuses(self, composer: Composer, job: Job, mine: Sequence[Composition], wishes: Sequence[Wish]) -> str:
        """Why no machine is begun for the job now; "" where one is."""
        last = composer.records.get(self._made.get(job.id, 0))
        if last is not None and last.state is CompositionState.FAILED and composer.clock() < last.end + AGAIN_SECONDS:
            return f"its machine could not be made ({last.reason}); it is tried again"
        why = self._rules.refuses(mine, wishes)
        return f"its owner {why}" if why else ""

    def _found(self, composer: Composer) -> Mapping[int, MachineWait]:
        found = {job: MachineWait(why) for job, why in self._refused.items()}
        for one in composer.living():
            if not one.job or one.state is CompositionState.RUNNING:
                continue
            why, expected = one.reason, 0.0
            if one.state is CompositionState.PENDING:
                promise = composer.promise(one)
                why, expected = promise.why, promise.at if promise.plan else 0.0
            doing = why or next((change.title for change in one.changes), "")
            found[one.job] = MachineWait(f"machine {one.id} is made for it" + (f" ({doing})" if doing else ""), expected)
        return found
