"""Putting a finished environment under a name: built beside what is there, and counting once its record says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.environments.building import BuildContext, requirements_in
from carrel.node.environments.errors import EnvironmentFailed, EnvironmentTimeout
from carrel.node.environments.guards import OpenGuard
from carrel.node.environments.named import making
from carrel.node.environments.named.changes import freeze, hashes_in, known_hashes, signature
from carrel.node.environments.named.records import SEEN, Kind, LockNote, NamedRecord, Origin, Place, full_name
from carrel.node.environments.pythons import Interpreter
from carrel.node.environments.records import write_text
from carrel.node.environments.words import INDEX_REMEDY


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Builds at one place, whose `changing` guard is held."""

    place: Place
    hold: OpenGuard
    build_context: BuildContext
    clock: Callable[[], float]

    def create(self, owner: str, name: str, recipe: EnvironmentRecipe) -> NamedRecord:
        """Make the environment of a recipe."""
        self.place.sweep(None)
        lock, interpreter = making.lock_of(recipe, self.build_context)
        words = recipe.source or (f"Python {recipe.python}" if recipe.python else "ipykernel and pip alone")
        return self.replace(self._new(owner, name, Kind.OWN, words), lock, "made", interpreter)

    def create_default(self, owner: str, name: str, requirements: str, report: Callable[[str], None]) -> NamedRecord:
        """Make an owner's first environment with these requirements (blanks between them), or without them where that fails."""
        wanted = tuple(dict.fromkeys(requirements.split()))
        if wanted in ((), ("pip",)):
            return self._create_kernel_alone(owner, name)
        recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, source="the lab's default_environment", requirements=wanted)
        try:
            return self.create(owner, name, recipe)
        except EnvironmentTimeout:
            raise
        except EnvironmentFailed as error:
            report(f"{', '.join(wanted)} cannot be installed: {error.message}")
            kernel_alone = self._create_kernel_alone(owner, name)
            report(f"your environment has ipykernel and pip alone; where that is mended, `carrel env remove {name}` gets another")
            return kernel_alone

    def _create_kernel_alone(self, owner: str, name: str) -> NamedRecord:
        try:
            return self.create(owner, name, EnvironmentRecipe())
        except EnvironmentTimeout:
            raise
        except EnvironmentFailed as error:
            remedy = f"Every notebook needs ipykernel and pip. {error.remedy or INDEX_REMEDY}"
            raise EnvironmentFailed(error.message, remedy=remedy, details=error.details) from error

    def refer(self, owner: str, name: str, prefix: Path) -> NamedRecord:
        """Refer to a prefix that others made; nothing is installed there."""
        if not prefix.is_absolute():
            raise Invalid(f'"{prefix}" is not an absolute path.', remedy="Begin it with a slash.")
        self.place.sweep(None)
        found = making.look_at(prefix, self.build_context)
        record = self._new(owner, name, Kind.REFERENCE, f"{prefix}, used where it is")
        record = replace(record, prefix=str(prefix), python=found.python)
        self.place.write(record)
        return record

    def copy(self, owner: str, name: str, original: NamedRecord, lock: str) -> NamedRecord:
        """Make an environment from what is installed in another."""
        self.place.sweep(None)
        if original.kind is Kind.OVERLAY or (original.kind is Kind.REFERENCE and making.is_conda(Path(original.prefix))):
            raise Conflict(
                f"{original.name} stands on {original.base or original.prefix} and cannot be built from its lock.",
                remedy="Refer to that prefix, or list what you need in a requirements file.",
            )
        words = f"the lock of {full_name(original.owner, original.name)}"
        return self.replace(self._new(owner, name, Kind.OWN, words), lock, "made", self._interpreter(original))

    def take(self, owner: str, name: str, original: NamedRecord, lock: str, digest: str) -> NamedRecord:
        """Make a personal copy of a shared environment."""
        source = full_name(original.owner, original.name)
        origin = Origin(environment=source, lock=digest)
        self.build_context.context.report(f"making your own copy of {source}")
        if original.kind is Kind.OWN:
            record = replace(self._new(owner, name, Kind.OWN, f"a copy of {source}"), origin=origin)
            return self.replace(record, lock, "made", self._interpreter(original))
        base = making.look_at(Path(original.prefix), self.build_context)
        record = self._new(owner, name, Kind.OVERLAY, f"{source}, with what you install on top of it")
        record = replace(record, origin=origin, base=original.prefix, python=base.python)
        return self._built(
            record, lambda target: making.build_overlay(base, target, self.build_context, self.hold.fd), {}, "made"
        )

    def replace(self, record: NamedRecord, lock: str, how: str, interpreter: Interpreter | None = None) -> NamedRecord:
        """Build the environment of `lock` and put it in the place of the present one, which nobody may be using."""
        chosen = interpreter or self._interpreter(record)
        return self._built(
            replace(record, python=chosen.version),
            lambda target: making.build(lock, chosen, target, self.build_context, self.hold.fd),
            {**known_hashes(self.place, record), **hashes_in(lock)},
            how,
        )

    def _built(
        self, record: NamedRecord, build: Callable[[Path], None], hashes: dict[str, tuple[str, ...]], how: str
    ) -> NamedRecord:
        place = self.place
        place.directory.mkdir(mode=0o700, exist_ok=True)
        target = place.next_generation()
        try:
            build(target)
            seen, text = signature(target), freeze(target, hashes)
            note = LockNote(at=self.clock(), digest=place.keep_lock(text), how=how, packages=len(requirements_in(text)))
            written = replace(record, prefix=target.name, locks=(*record.locks, note))
            place.write(written)  # from here on the new one is the environment
        except BaseException:
            place.discard(target if record.prefix else place.directory)
            self.build_context.context.discard(target)
            raise
        write_text(place.directory / SEEN, seen)
        if record.prefix:
            place.discard(place.directory / record.prefix)
        return written

    def _new(self, owner: str, name: str, kind: Kind, words: str) -> NamedRecord:
        return NamedRecord(owner=owner, name=name, kind=kind, prefix="", python="", source=words, created=self.clock())

    def _interpreter(self, record: NamedRecord) -> Interpreter:
        """The Python of a record: the exact version where the machine has it, else the same minor version."""
        version = record.python.partition("-")[2]
        return making.interpreter_for(".".join(version.split(".")[:2]) if version else None, self.build_context)
