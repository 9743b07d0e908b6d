"""Who may use the lab: people come, lose their tokens, are suspended, and go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from carrel.core.control.held_users import HeldUsers
from carrel.core.control.ports import JobFilter, JobStore, OutboxEntry
from carrel.core.control.tokens import HANDED_OUT_LIFETIME, INVITED_FOR, Tokens
from carrel.core.control.user_port import UserStore
from carrel.core.domain.errors import Conflict, NotFound
from carrel.core.domain.job import ACTIVE, Job, JobState, Reason
from carrel.core.domain.ports import Clock
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.token import Token
from carrel.core.domain.user import Caller, Role, User, UserState, check_name
from carrel.core.policy.access import Action, allowed

#: More jobs than one user has.
_ALL = 10_000_000

_log = logging.getLogger("carrel.users")


class SecondUserAdded(Protocol):
    """What is done when a lab of one person gets a second one."""

    def __call__(self, *, without: bool) -> None:
        """`without`: although nothing keeps their jobs apart."""


def nothing_to_do(*, without: bool) -> None:
    """Jobs are kept apart by other means, or nobody's run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """What administrators do about people. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    people: UserStore
    tokens: Tokens
    jobs: JobStore
    held: HeldUsers
    #: Tells the loop of jobs that have changed in the store.
    changed: Callable[..., None]
    clock: Clock
    #: What there is to tell the tracking server about a job that ended while it waited.
    withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]] = lambda _job, _task: ()
    #: Called before a second person is added; raises what is to keep them out.
    second_comes: SecondUserAdded = nothing_to_do
    #: What there is to say of isolation, given the jobs that run on the lab's own machine.
    isolation: Callable[[Sequence[Job]], str] = lambda _running: ""
    #: One person is added at a time: of two names that look alike, one comes first.
    _guard: Lock = field(default_factory=Lock)

    def add(
        self,
        caller: Caller,
        name: str,
        role: Role = Role.USER,
        *,
        lifetime: float | None = HANDED_OUT_LIFETIME,
        without_isolation: bool = False,
    ) -> tuple[User, Token, str]:
        """Add a person and return them with their token, which is not shown again.

        `without_isolation`: they may be trusted with the whole lab.
        """
        allowed(caller, Action.MANAGE_USERS).check()
        user = self._new(name, role, without_isolation=without_isolation)
        made, text = self.tokens.hand_out(user.subject, name="the first one", by=caller.user.subject, lifetime=lifetime)
        return user, made, text

    def about_isolation(self) -> str:
        """What an administrator who adds a person should know: whether jobs are kept apart, and which are not yet."""
        running = self.jobs.list(JobFilter(states=ACTIVE), before=None, limit=_ALL)
        return self.isolation([job for job in running if job.state.holds_resources and not job.handed_over])

    def enroll(self, name: str) -> User:
        """The user of this name, who is added if there is none: of somebody whom the lab's own settings let in."""
        return self.people.get(name) or self._new(name, Role.USER, without_isolation=False)

    def enroll_programs(self, name: str) -> None:
        """Have a user for programs of the lab's own (`carrel.core.domain.challenge.PROGRAMS`), whom no person can be."""
        with self._guard:
            if self.people.get(name) is None:
                if self.count() == 1:
                    self.second_comes(without=False)
                self.people.add(User(subject=name, name=f"programs of the {name.replace(':', ' ')}"), now=self.clock())

    def reset(self, caller: Caller, subject: str, *, lifetime: float | None = HANDED_OUT_LIFETIME) -> tuple[User, Token, str]:
        """Make a new token for a user; none of their others is valid any more, and what was open with them ends."""
        allowed(caller, Action.MANAGE_USERS).check()
        user = self.find(subject)
        if user.state is UserState.REMOVED:
            raise Conflict(f'The user "{subject}" was removed.', remedy=f"First take them back: `carrel user resume {subject}`.")
        made, text = self.tokens.replace_all(subject, name="after a reset", by=caller.user.subject, lifetime=lifetime)
        _log.info("%s gave %s a new token; the old ones are void.", caller.user.subject, subject)
        return user, made, text

    def revoke_tokens(self, caller: Caller, subject: str) -> int:
        """End the validity of all tokens of a user."""
        allowed(caller, Action.MANAGE_USERS).check()
        self.find(subject)
        return self.tokens.revoke_all(subject, by=caller.user.subject)

    def invite(
        self,
        caller: Caller,
        name: str,
        role: Role = Role.USER,
        *,
        lifetime: float = INVITED_FOR,
        without_isolation: bool = False,
    ) -> tuple[User, Token, str]:
        """Make a code with which a person, who is added if there is none of this name, gets a token that nobody else has seen."""
        allowed(caller, Action.MANAGE_USERS).check()
        user = self.people.get(name) or self._new(name, role, without_isolation=without_isolation)
        if user.state is not UserState.ACTIVE:
            raise Conflict(
                f'The user "{name}" is {user.state.value}.', remedy=f"First take them back: `carrel user resume {name}`."
            )
        return user, *self.tokens.invite(user.subject, by=caller.user.subject, lifetime=lifetime)

    def suspend(self, caller: Caller, subject: str, reason: str, *, cancel_running: bool = False) -> tuple[User, int]:
        """Accept nothing of a user's any more, and start nothing; what runs goes on, unless it is to be cancelled.

        Tokens of their jobs are refused meanwhile, and what is open of theirs ends. Jobs in line keep their places
        for when the user goes on. Returns how many jobs were cancelled.
        """
        user = self._change(caller, subject, UserState.SUSPENDED, " ".join(reason.split())[:200])
        return user, self._end_jobs(subject, by=caller.user.name, only_running=True) if cancel_running else 0

    def resume(self, caller: Caller, subject: str) -> User:
        """Let a user go on who was suspended or removed. Tokens that were revoked stay so."""
        return self._change(caller, subject, UserState.ACTIVE, "")

    def remove(self, caller: Caller, subject: str) -> tuple[User, int]:
        """End everything of a user's: tokens, and jobs in line and running. Records stay, under a name that nobody else gets."""
        user = self._change(caller, subject, UserState.REMOVED, "")
        self.tokens.revoke_all(subject, by=caller.user.subject)
        return user, self._end_jobs(subject, by=caller.user.name)

    def _change(self, caller: Caller, subject: str, state: UserState, reason: str) -> User:
        allowed(caller, Action.MANAGE_USERS).check()
        user = self.find(subject)
        if not self.people.set_state(subject, state, reason=reason, by=caller.user.subject, now=self.clock()):
            raise Conflict(
                f"{user.name} is the only administrator of this lab.",
                remedy="Make another first: `carrel user add NAME --admin`.",
            )
        _log.info("%s made %s %s.", caller.user.subject, subject, state.value)
        self.held.refresh()
        self.changed()
        self.tokens.announce()
        return self.find(subject)

    def _end_jobs(self, subject: str, *, by: str, only_running: bool = False) -> int:
        states = frozenset(state for state in ACTIVE if state is not JobState.PENDING or not only_running)
        reason = Reason(code="Cancelled", message=f"Cancelled by {by} before it started.")
        ended = []
        for job in self.jobs.list(JobFilter(owner=subject, states=states), before=None, limit=_ALL):
            after = self.jobs.request_cancel(job.id, by=by, reason=reason, now=self.clock(), outbox=self.withdrawal)
            if after is not None:
                ended.append(after)
        self.changed(*ended)
        return len(ended)

    def find(self, subject: str) -> User:
        """The user with this subject. Raises `NotFound`."""
        user = self.people.get(subject)
        if user is None:
            raise NotFound(f'There is no user "{subject}".', remedy="`carrel user list` shows all.")
        return user

    def count(self) -> int:
        """How many people use the lab."""
        return sum(user.state is not UserState.REMOVED for user in self.people.list())

    def _new(self, name: str, role: Role, *, without_isolation: bool) -> User:
        with self._guard:
            check_name(name, [one.subject for one in self.people.list()])
            known = self.people.get(name)
            if known is not None and known.state is UserState.REMOVED:
                raise Conflict(
                    f'A user "{name}" was removed; their jobs and records are kept under this name.',
                    remedy=f"If it is the same person: `carrel user resume {name}`. Else choose another name.",
                )
            if known is None and self.count() == 1:
                self.second_comes(without=without_isolation)
            user = User(subject=name, name=name, role=role)
            self.people.add(user, now=self.clock())
            return user
