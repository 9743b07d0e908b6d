"""Secrets of users: set by a person, given to those jobs of theirs that name them, and shown to nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.core.domain.errors import Denied, Invalid, NotFound
from carrel.core.domain.ports import Clock
from carrel.core.domain.secret import Secret, check_secret_name, check_secret_value
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed


class SecretStore(Protocol):
    """Keeps values so that who reads its files cannot read them."""

    def put(self, subject: str, name: str, value: str, *, now: float) -> bool:
        """Keep a value; return whether there was none of the name. Raises `Conflict` when there are too many."""
        ...

    def list(self, subject: str) -> Sequence[Secret]:
        """What the user has, by name, without values."""
        ...

    def open(self, subject: str, names: Sequence[str], *, now: float) -> Mapping[str, str]:
        """The values of those of `names` that the user has. Raises `Conflict` for one that cannot be read any more."""
        ...

    def remove(self, subject: str, name: str) -> bool:
        """Forget a value; return whether there was one."""
        ...


class NoSecrets:
    """A lab that keeps none."""

    def put(self, subject: str, name: str, value: str, *, now: float) -> bool:  # noqa: ARG002
        """Refused."""
        raise Invalid("This lab keeps no secrets.")

    def list(self, subject: str) -> Sequence[Secret]:  # noqa: ARG002
        """None."""
        return ()

    def open(self, subject: str, names: Sequence[str], *, now: float) -> Mapping[str, str]:  # noqa: ARG002
        """None."""
        return {}

    def remove(self, subject: str, name: str) -> bool:  # noqa: ARG002
        """There was none."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What people do with their secrets, and what their jobs are given. Thread-safe."""

    store: SecretStore
    clock: Clock

    def put(self, caller: Caller, name: str, value: str) -> bool:
        """Set a secret of the caller's; return whether it is new. Raises `Invalid`, `Denied` for a job, `Conflict`."""
        allowed(caller, Action.CHANGE_SECRETS).check()
        check_secret_name(name)
        check_secret_value(value)
        return self.store.put(caller.user.subject, name, value, now=self.clock())

    def list(self, caller: Caller) -> Sequence[Secret]:
        """The caller's own, by name. Nobody else's, and nobody's values."""
        return self.store.list(caller.user.subject)

    def remove(self, caller: Caller, name: str) -> None:
        """Forget a secret of the caller's; jobs that run keep what they were given. Raises `NotFound`, `Denied`."""
        allowed(caller, Action.CHANGE_SECRETS).check()
        if not self.store.remove(caller.user.subject, name):
            raise NotFound(f"You have no secret {name[:80]}.", remedy="`carrel secret list` shows all.")

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
        found = self.store.open(caller.user.subject, task.secrets, now=self.clock()) if task.secrets else {}
        missing = [name for name in task.secrets if name not in found]
        if missing:
            raise NotFound(
                f"The secret {missing[0]} was removed after the job was submitted.",
                remedy=f"Set it (`carrel secret set {missing[0]}`) and submit the job again.",
            )
        return found
