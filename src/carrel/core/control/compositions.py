"""What callers do with machines from parts, and what the rest of the lab sees of them: nodes that are kept for their owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.control.composing import Composer, machine_name
from carrel.core.control.keeper import Keeper
from carrel.core.domain.composition import Composition, CompositionState, MachineRules
from carrel.core.domain.control_characters import visible
from carrel.core.domain.errors import CarrelError, Conflict, Impossible, Invalid, NotFound
from carrel.core.domain.fabric import Block, BlockKind, Wish, by_name
from carrel.core.domain.node import SIMULATED, Device, Node
from carrel.core.domain.parts import compose_of
from carrel.core.domain.reservation import FOR_EVER, Reservation
from carrel.core.domain.units import format_duration
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed

#: Characters of a name, and wishes of one machine. Blocks that a record names.
_NAME, _WISHES, _NAMED = 64, 16, 50


def none_here() -> NotFound:
    """The error of a lab without a fabric."""
    return NotFound(
        "This lab has no fabric: its machines are as they are.",
        remedy="An administrator names its parts with the setting `fabric` (docs/composing.md).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compositions(Keeper[Composition]):
    """Machines of one's own; operators see those of all."""

    #: None: the lab has no fabric.
    composer: Composer | None
    rules: MachineRules = field(default_factory=MachineRules)
    #: Which account is charged for a caller who names none.
    account: Callable[[Caller], str] = lambda caller: caller.user.account
    #: Bytes of a GPU that tasks of a user (by subject) and a name took, with room; 0: that was not measured.
    took: Callable[[str, str], int] = lambda _owner, _name: 0
    #: Wakes what makes changes.
    wake: Callable[[], None] = lambda: None

    def list(self, caller: Caller) -> Sequence[Composition]:
        """Those that the caller may see. Of those that are over, none is kept in memory."""
        found = (self.seen(caller, one) for one in self.records.select())
        return [one for one in found if one is not None]

    def put(self, caller: Caller, asked: Composition) -> tuple[bool, Composition]:
        """Keep what is asked for, or tell what it would be."""
        if not asked.preview:
            with self._composer().lock:  # two that come at once are not both the last one that a user may have
                return Keeper.put(self, caller, asked)
        value = self.checked(caller, asked)
        return False, self._foreseen(value)

    def checked(self, caller: Caller, asked: Composition) -> Composition:
        """Raises `Invalid` for what cannot be asked for, `Impossible` for what the fabric lacks, `Conflict` for one too many."""
        composer = self._composer()
        name = visible(" ".join(asked.name.split()))
        if len(name) > _NAME:
            raise Invalid(f"The name has {len(name)} characters.", remedy=f"Say in at most {_NAME} what it is for.")
        if not 0 < len(asked.wishes) <= _WISHES:
            raise Invalid(
                f"{len(asked.wishes)} kinds of blocks are asked for.", remedy=f"Ask for 1 to {_WISHES}, such as `--gpus 2`."
            )
        if not 0 < asked.time <= self.rules.longest:
            raise Invalid(
                f"The machine is asked for {format_duration(asked.time) if asked.time > 0 else 'no time'}.",
                remedy=f"This lab keeps one for at most {format_duration(self.rules.longest)}.",
            )
        if asked.linger < 0:
            raise Invalid(f"linger is {asked.linger}.", remedy="Say seconds, or 0 to keep the machine for its time.")
        if asked.within < 0:
            raise Invalid(f"within is {asked.within}.", remedy="Say seconds, or 0 to wait for as long as it takes.")
        value = replace(
            asked,
            wishes=tuple(self._learnt(caller, wish) for wish in asked.wishes),
            name=name,
            preview=False,
            owner=caller.user.subject,
            account=self.account(caller),
            state=CompositionState.PENDING,
            submitted=self.clock(),
        )
        if why := composer.never(value):
            raise Impossible(f"{why[:1].upper()}{why[1:]}.", remedy="`carrel compose blocks` shows what there is.")
        if why := self.rules.refuses((), value.wishes):
            raise Impossible(f"{caller.user.name} {why}.", remedy="Ask for less; an administrator sets it in the fabric's file.")
        mine = [one for one in composer.living() if one.owner == value.owner]
        if not asked.preview and (why := self.rules.refuses(mine, value.wishes)):
            raise Conflict(f"{caller.user.name} {why}.", remedy="Give one back: `carrel compose release`.")
        return value

    def seen(self, caller: Caller, value: Composition) -> Composition | None:
        """One's own as things stand."""
        if not allowed(caller, Action.SEE_MACHINE, Resource(owner=value.owner)):
            return None
        steps = tuple(change.title for change in value.changes)
        if value.state is not CompositionState.PENDING:
            return replace(value, steps=steps)
        return self._foreseen(value)

    def remove(self, caller: Caller, key: str | int) -> None:
        """Give the blocks back; what runs on the machine goes on, and the blocks go when it has ended."""
        self.get(caller, key)  # raises for what they may not see
        found = self.records.get(key)
        allowed(caller, Action.RELEASE_MACHINE, Resource(owner=found.owner if found else None)).check(self.missing(caller, key))
        if found is None or found.state.over:
            raise Conflict(f"Machine {key} is over.", remedy="There is nothing to give back.")
        self._composer().release(found, f"released by {caller.user.name}", CompositionState.CANCELLED)
        self.wake()

    def changed(self) -> None:
        """Plans are made at once."""
        self.wake()

    def _learnt(self, caller: Caller, wish: Wish) -> Wish:
        if not wish.like:
            return wish
        if size := self.took(caller.user.subject, wish.like):
            return replace(wish, size=size)
        raise Invalid(
            f'No task of yours called "{wish.like}" has completed with its GPU memory measured.',
            remedy="Say a size, such as `--slice 10G`.",
        )

    def _foreseen(self, value: Composition) -> Composition:
        if self.composer is None:
            return value
        found = self.composer.promise(value)
        plan = found.plan
        if plan is None or not found.now:
            return replace(value, reason=found.why, expected=0.0 if plan is None else found.at)
        # A machine that is not asked for yet has no number.
        steps = tuple(
            change.title.replace(machine_name(value), "it") if not value.id else change.title for change in plan.changes
        )
        return replace(value, zone=plan.zone, machine=plan.machine, blocks=plan.blocks, steps=steps, expected=found.at)

    def _composer(self) -> Composer:
        if self.composer is None:
            raise none_here()
        return self.composer


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricBlocks:
    """The blocks of the fabric as records that nothing but the fabric changes: `RecordStore` for those who look."""

    composer: Composer | None

    def all(self, **equal: Any) -> Sequence[Block]:
        """Blocks that have these values, with who has them."""
        return [block for block in self._all() if all(getattr(block, name) == value for name, value in equal.items())]

    def _all(self) -> Sequence[Block]:
        if self.composer is None:
            raise none_here()
        holders = {name: one for one in self.composer.living() for name in one.holds}
        blocks = sorted(self.composer.blocks(), key=lambda block: (block.zone, block.machine, block.kind, _natural(block.name)))
        return [
            replace(block, used=True, composition=one.id, holder=one.owner) if (one := holders.get(block.name)) else block
            for block in blocks
        ]

    def get(self, *key: Any) -> Block | None:
        """The block of this name, or None."""
        return by_name(self.all()).get(key[0])

    def select(self, **equal: Any) -> Sequence[Block]:
        """The same."""
        return self.all(**equal)

    def put(self, value: Block) -> Block:
        """Refuse it."""
        raise Conflict(f"{value.name} is a part of the fabric.", remedy="Change the fabric's file.")

    def remove(self, *key: Any) -> bool:
        """Refuse it."""
        raise Conflict(f"{key[0]} is a part of the fabric.", remedy="Change the fabric's file.")


class Blocks(Keeper[Block]):
    """What callers see of the fabric: that a block is in use, and by which machine if they may see that one."""

    def seen(self, caller: Caller, value: Block) -> Block | None:
        """The block; without the name of somebody else's machine."""
        if not value.used or allowed(caller, Action.SEE_MACHINE, Resource(owner=value.holder)):
            return value
        return replace(value, composition=0, machine=value.machine if value.fixed or value.of else "")


class ComposedMachines:
    """The machines that are there, as nodes of the lab: each is kept for its owner until its time is over."""

    def __init__(self, composer: Composer | None) -> None:
        self._composer = composer
        #: What was made of the compositions when they last were as they are: placement asks in every cycle.
        self._known: tuple[Sequence[Composition], tuple[Node, ...], tuple[Reservation, ...]] = ((), (), ())

    def nodes(self) -> tuple[Node, ...]:
        """The nodes; the same tuple while no composition changes."""
        return self._look()[1]

    def reservations(self) -> tuple[Reservation, ...]:
        """What keeps the jobs of others off them, and those that would outlast them."""
        return self._look()[2]

    def _look(self) -> tuple[Sequence[Composition], tuple[Node, ...], tuple[Reservation, ...]]:
        there = () if self._composer is None else self._composer.living()
        if self._composer is not None and self._known[0] is not there:
            running = [one for one in there if one.state is CompositionState.RUNNING]
            try:
                blocks = by_name(self._composer.blocks()) if running else {}
            except CarrelError:  # the fabric does not answer now: what was there is there until it does
                return self._known
            nodes = tuple(node_of(one, blocks) for one in running)
            self._known = there, nodes, tuple(window for one in running for window in _windows(one))
        return self._known


#: Seconds after its time for which nothing starts on a machine: it is used, and goes as soon as it is not.
_AFTER = FOR_EVER


def _windows(one: Composition) -> Sequence[Reservation]:
    name, node, users = f"machine {one.id}", (node_name(one),), frozenset((one.owner,))
    if one.job:
        whose = f"it was made from parts for job {one.job}"
        return (Reservation(name=name, begin=one.begin, end=one.begin + _AFTER, nodes=node, machine=True, reason=whose),)
    whose, over = "it was made from parts for one user", "it is taken apart then"
    return (
        Reservation(name=name, begin=one.begin, end=one.end, nodes=node, users=users, machine=True, reason=whose),
        Reservation(name=f"end of machine {one.id}", begin=one.end, end=one.end + _AFTER, nodes=node, reason=over),
    )


def node_name(one: Composition) -> str:
    """Return the name of the node that jobs see: a host may have several."""
    return machine_name(one)


def node_of(one: Composition, blocks: Mapping[str, Block]) -> Node:
    """Return a machine as a node: what its CPU blocks have, or of a host so much as its GPUs are of all there."""
    mine = [blocks[name] for name in one.blocks if name in blocks]
    cpus = [block for block in mine if block.kind is BlockKind.CPU]
    part = 1.0
    if not cpus:
        here = [block for block in blocks.values() if block.fixed and not block.of and block.machine == one.machine]
        cpus = [block for block in here if block.kind is BlockKind.CPU]
        whole = sum(block.size for block in here if block.kind is BlockKind.GPU)
        part = sum(block.size for block in mine if block.kind is BlockKind.GPU) / whole if whole else 1.0
    memory = sum(block.memory for block in cpus) + sum(block.size for block in mine if block.kind is BlockKind.MEMORY)
    return Node(
        name=node_name(one),
        cpus=max(1, int(sum(block.size for block in cpus) * part)),
        memory=int(memory * part),
        devices=tuple(
            Device(
                uuid=block.uuid or f"{SIMULATED}{block.name}",
                index=number,
                type=block.title.replace(" ", "-"),
                name=block.title if block.uuid else f"{block.title} (simulated, no hardware)",
                memory=block.size,
                simulated=not block.uuid,
            )
            for number, block in enumerate(block for block in mine if block.kind is BlockKind.GPU)
        ),
        parts={"composition": _told(one), "compose": compose_of(one.wishes)},
    )


def _told(one: Composition) -> str:
    """ "3: node0, a100-0, nvme0"."""
    more = f" and {len(one.blocks) - _NAMED} more" if len(one.blocks) > _NAMED else ""
    return f"{one.id}: {', '.join(one.blocks[:_NAMED])}{more}"


def _natural(name: str) -> tuple[str, int]:
    digits = name[len(name.rstrip("0123456789")) :]
    return name.removesuffix(digits), int(digits or 0)
