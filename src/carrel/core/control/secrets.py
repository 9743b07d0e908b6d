"""Secrets of users: set by a person, given to those jobs of theirs that name them, and shown to nobody."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from carrel.core.control.keeper import Keeper
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound
from carrel.core.domain.secret import MOST_SECRETS, Secret, check_secret_name, check_secret_value
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed


class Seal(Protocol):
    """Makes values unreadable for who has the lab's files; `carrel.lab.store.secrets` is one."""

    def seal(self, subject: str, name: str, value: str) -> str: ...
    def unseal(self, subject: str, name: str, sealed: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets(Keeper[Secret]):
    """What people do with their secrets, and what their jobs are given.

    Values are sealed before they are kept, and opened for one job alone: that is what no other noun has.
    """

    seal: Seal
    #: What is read and then written must not change between.
    _guard: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False)

    def list(self, caller: Caller) -> Sequence[Secret]:
        """The caller's own, by name. Nobody else's, and nobody's values."""
        return self.records.select(subject=caller.user.subject)

    def put(self, caller: Caller, asked: Secret) -> tuple[bool, Secret]:
        """Set a secret of the caller's; return whether it is new. Raises `Invalid`, `Conflict`."""
        check_secret_name(asked.name)
        check_secret_value(asked.value)
        me = caller.user.subject
        kept = Secret(name=asked.name, subject=me, sealed=self.seal.seal(me, asked.name, asked.value), set_at=self.clock())
        with self._guard:
            known = {secret.name for secret in self.list(caller)}
            if kept.name not in known and len(known) >= MOST_SECRETS:
                raise Conflict(f"You have {len(known)} secrets, and nobody may have more.", remedy="`carrel secret remove` one.")
            self.records.put(kept)
        return kept.name not in known, kept

    def remove(self, caller: Caller, key: str | int) -> None:
        """Forget a secret of the caller's; jobs that run keep what they were given. Raises `NotFound`."""
        with self._guard:
            there = self.records.remove(caller.user.subject, key)
        if not there:
            raise NotFound(f"You have no secret {str(key)[:80]}.", remedy="`carrel secret list` shows all.")

    def check(self, caller: Caller, task: TaskSpec, own: TaskSpec | None) -> None:
        """Raise `Invalid` for a task that names a secret that its submitter does not have, or whose name is taken.

        `own` is what the calling job was asked to do, None for a person: a job hands on what it was given itself, and not more.
        """
        if not task.secrets:
            return
        for name in task.secrets:
            check_secret_name(name)
            if name in task.variables:
                raise Invalid(f"{name} is a variable of the task and a secret.", remedy="Leave one of them out.")
            if own is not None and name not in own.secrets:
                raise Denied(
                    f"Job {caller.job_id} was not given the secret {name}, so its steps are not either.",
                    remedy=f"Submit the first job with --secret {name}, or the step with your own token.",
                )
        known = {secret.name for secret in self.list(caller)}
        missing = [name for name in task.secrets if name not in known]
        if missing:
            raise Invalid(
                f"You have no secret {missing[0]}.", remedy=f"Set it first: `carrel secret set {missing[0]}` asks for its value."
            )

    def of_job(self, caller: Caller, job_id: int, task: TaskSpec) -> Mapping[str, str]:
        """What job `job_id` was promised, for the job itself while it runs. Raises `Denied`, `NotFound`, `Conflict`."""
        allowed(caller, Action.READ_SECRETS, Resource(owner=caller.user.subject, job=job_id)).check()
        found = self._open(caller.user.subject, task.secrets)
        missing = [name for name in task.secrets if name not in found]
        if missing:
            raise NotFound(
                f"The secret {missing[0]} was removed after the job was submitted.",
                remedy=f"Set it (`carrel secret set {missing[0]}`) and submit the job again.",
            )
        return found

    def _open(self, subject: str, names: Sequence[str]) -> Mapping[str, str]:
        """The values of those of `names` that the user has, and remember that they were used. Raises `Conflict`."""
        with self._guard:
            found = [secret for name in names if (secret := self.records.get(subject, name)) is not None]
            for secret in found:
                self.records.put(replace(secret, used_at=self.clock()))
        return {secret.name: self.seal.unseal(subject, secret.name, secret.sealed) for secret in found}
