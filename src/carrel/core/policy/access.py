"""Who may do what, in one place: `allowed(actor, action, resource)` gives the answer with the rule that made it. Pure.

`RULES` says for each action which rules open it; the first that holds is named in the answer. `SCOPES` says what a token
that is less than its person is good for. `docs/api.md` has the same in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.errors import CarrelError, Denied
from carrel.core.domain.job import Job
from carrel.core.domain.user import Caller, Role
from carrel.core.domain.visible import Visible


class Action(StrEnum):
    """What somebody wants to do; the value ends the sentence "Ada may not …"."""

    #: What is everybody's, and lists of what is one's own.
    LOOK = "look at the lab"
    SEE_JOB = "see jobs of others"
    #: Its log, outputs and record, and the values of its variables.
    READ_JOB = "read the log, outputs and record of this job"
    CANCEL_JOB = "cancel this job"
    CHANGE_JOB = "change what this job stored"
    REPEAT_JOB = "repeat this job"
    LIST_JOBS = "list the jobs of others"
    READ_ALL = "read the events of everybody's jobs"
    SUBMIT = "submit jobs"
    UPLOAD_CODE = "upload code"
    USE_CODE = "use code of others"
    START_SESSION = "start sessions"
    ENTER_SESSION = "enter this session"
    #: By ssh: inside, one is its owner.
    ENTER_JOB = "enter this job"
    USE_ENVIRONMENT = "use environments of others"
    CHANGE_ENVIRONMENT = "change environments of others"
    CHANGE_ENVIRONMENT_OF_SITE = "change environments of the site"
    #: A directory for a session, or an environment, by its path on the lab's machine.
    NAME_PATH = "name directories and environments of the lab's machine by their path"
    SEE_SHARES = "see the standing of others"
    SEE_USE = "see what others used"
    READ_CELLS = "read the recorded cells of others"
    SEE_STORAGE = "see how much others store"
    COLLECT = "remove what the lab keeps"
    RELOAD = "reload the lab's rules"
    CHANGE_RULES = "change the lab's rules"
    DRAIN = "drain nodes"
    RESERVE = "reserve nodes"
    RELEASE = "release nodes"
    COMPOSE = "compose machines"
    SEE_MACHINE = "see machines of others"
    RELEASE_MACHINE = "take apart machines of others"
    SEE_RESERVATION = "see for whom nodes are reserved"
    ANNOUNCE = "tell all users something"
    MANAGE_USERS = "manage users"
    CHANGE_SECRETS = "change secrets"
    READ_SECRETS = "read the secrets of this job"
    #: Look at it, submit calls, read their results.
    USE_POOL = "use pools of others"
    #: Take its calls and tell how they ended.
    WORK = "work for this pool"
    SEE_SWEEP = "see sweeps of others"
    CHANGE_SWEEP = "stop and resume this sweep"
    SEE_BASELINE = "see baselines of others"
    CHANGE_BASELINE = "set or remove this baseline"
    CALIBRATE = "calibrate this baseline"
    #: Make it, change it, read the logs of its programs; and have part in one.
    ORGANISE = "organise this challenge"
    TAKE_PART = "take part in challenges"
    SEE_SUBMISSIONS = "see submissions of other teams"
    #: Tell what its metric is, and hear whether it goes on.
    REPORT = "report for this trial"
    #: One's own, or as an administrator those of others.
    MANAGE_TOKENS = "make, list and revoke tokens"
    LIST_TOKENS = "list the tokens of others"
    SIGN_OUT = "end the token that asks"
    READ_AUDIT = "read the audit log"
    #: One's own password.
    CHANGE_SIGN_IN = "change how they sign in"
    #: With an invitation.
    ENTER = "turn an invitation into a token"
    TRACK = "use the tracking server"
    #: The lab's pages, as a browser that is signed in.
    BROWSE = "use the lab's pages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What an action is about, as far as the rules ask."""

    #: Subject of its owner; None: it has none, or nobody in particular.
    owner: str | None = None
    #: The account that it is charged to.
    account: str | None = None
    visible: Visible = Visible.OWNER
    #: Its number, of a job, and that of the job that submitted it.
    job: int | None = None
    parent: int | None = None
    #: Subjects with whom it is shared by name.
    users: frozenset[str] = frozenset()
    #: Shared with everybody in the lab.
    everybody: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether somebody may, by which rule, and what to tell them if not."""

    allowed: bool
    #: Name of the rule that opened it; of a refusal, the one that was missing.
    rule: str
    words: str = ""
    remedy: str = ""
    #: True when the thing does not exist for them: the caller gets the answer about a thing that is not there.
    hidden: bool = False

    def __bool__(self) -> bool:
        return self.allowed

    def check(self, missing: CarrelError | None = None) -> None:
        """Return if allowed; else raise `missing`, where the thing is hidden and there is one, or `Denied`."""
        if self.allowed:
            return
        if self.hidden and missing is not None:
            raise missing
        raise Denied(self.words, remedy=self.remedy)


#: Which verdicts were asked for while something was carried out, for the audit log, which says by which rule it was: the last on
#: each action, in the order in which they were first asked for. None: nobody wants to know.
HEARD: ContextVar[dict[Action | None, Verdict] | None] = ContextVar("heard", default=None)


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to allow something."""

    name: str
    holds: Callable[[Caller, Resource], bool]


def _has(role: Role) -> Callable[[Caller, Resource], bool]:
    # A job of an administrator is no administrator.
    return lambda actor, _resource: actor.user.role is role and actor.job_id is None


def _shared(actor: Caller, resource: Resource) -> bool:
    return resource.visible is Visible.ACCOUNT and resource.account in actor.accounts


def _manages(actor: Caller, resource: Resource) -> bool:
    return actor.user.role is Role.MANAGER and actor.job_id is None and resource.account in actor.accounts


EVERYBODY = Rule("everybody", lambda _actor, _resource: True)
OWNER = Rule("owner", lambda actor, resource: resource.owner == actor.user.subject)
MEMBER = Rule("shared with its account", _shared)
NAMED = Rule("shared with them", lambda actor, resource: resource.everybody or actor.user.subject in resource.users)
ITSELF = Rule("the job itself", lambda actor, resource: actor.job_id is not None and actor.job_id == resource.job)
MANAGER = Rule("account manager", _manages)
OPERATOR = Rule("operator", _has(Role.OPERATOR))
ADMINISTRATOR = Rule("administrator", _has(Role.ADMIN))

#: Rules that open each action. What is not here is closed.
RULES: Mapping[Action, tuple[Rule, ...]] = {
    Action.LOOK: (EVERYBODY,),
    Action.SEE_JOB: (OWNER, MEMBER, MANAGER, OPERATOR, ADMINISTRATOR),
    Action.READ_JOB: (OWNER, MEMBER, ADMINISTRATOR),
    Action.CANCEL_JOB: (OWNER, MANAGER, OPERATOR, ADMINISTRATOR),
    Action.CHANGE_JOB: (OWNER, ADMINISTRATOR),
    Action.REPEAT_JOB: (OWNER, ADMINISTRATOR),
    Action.LIST_JOBS: (MANAGER, OPERATOR, ADMINISTRATOR),
    Action.READ_ALL: (ADMINISTRATOR,),
    Action.SUBMIT: (EVERYBODY,),
    Action.UPLOAD_CODE: (EVERYBODY,),
    Action.USE_CODE: (OWNER,),
    Action.START_SESSION: (EVERYBODY,),
    Action.ENTER_SESSION: (OWNER,),
    Action.ENTER_JOB: (OWNER,),
    Action.USE_ENVIRONMENT: (OWNER, NAMED),
    Action.CHANGE_ENVIRONMENT: (OWNER,),
    Action.CHANGE_ENVIRONMENT_OF_SITE: (ADMINISTRATOR,),
    Action.NAME_PATH: (ADMINISTRATOR,),
    Action.SEE_SHARES: (OWNER, MANAGER, ADMINISTRATOR),
    Action.SEE_USE: (OWNER, MANAGER, ADMINISTRATOR),
    Action.READ_CELLS: (OWNER, OPERATOR, ADMINISTRATOR),
    Action.SEE_STORAGE: (OWNER, MANAGER, ADMINISTRATOR),
    Action.COLLECT: (ADMINISTRATOR,),
    Action.RELOAD: (ADMINISTRATOR,),
    Action.CHANGE_RULES: (ADMINISTRATOR,),
    Action.DRAIN: (OPERATOR, ADMINISTRATOR),
    Action.RESERVE: (OPERATOR, ADMINISTRATOR),
    Action.RELEASE: (OPERATOR, ADMINISTRATOR),
    Action.COMPOSE: (EVERYBODY,),
    Action.SEE_MACHINE: (OWNER, OPERATOR, ADMINISTRATOR),
    Action.RELEASE_MACHINE: (OWNER, OPERATOR, ADMINISTRATOR),
    Action.SEE_RESERVATION: (NAMED, OPERATOR, ADMINISTRATOR),
    Action.ANNOUNCE: (ADMINISTRATOR,),
    Action.MANAGE_USERS: (ADMINISTRATOR,),
    Action.CHANGE_SECRETS: (EVERYBODY,),
    Action.READ_SECRETS: (ITSELF,),
    Action.USE_POOL: (OWNER,),
    Action.WORK: (ITSELF,),
    Action.SEE_SWEEP: (OWNER, ADMINISTRATOR),
    Action.CHANGE_SWEEP: (OWNER, ADMINISTRATOR),
    Action.SEE_BASELINE: (OWNER, ADMINISTRATOR),
    Action.CHANGE_BASELINE: (OWNER,),
    Action.CALIBRATE: (OWNER, ADMINISTRATOR),
    Action.ORGANISE: (OWNER, NAMED, ADMINISTRATOR),
    Action.TAKE_PART: (EVERYBODY,),
    Action.SEE_SUBMISSIONS: (NAMED, ADMINISTRATOR),
    Action.REPORT: (ITSELF,),
    Action.MANAGE_TOKENS: (OWNER, ADMINISTRATOR),
    Action.LIST_TOKENS: (ADMINISTRATOR,),
    Action.SIGN_OUT: (EVERYBODY,),
    Action.READ_AUDIT: (OPERATOR, ADMINISTRATOR),
    Action.CHANGE_SIGN_IN: (EVERYBODY,),
    Action.ENTER: (EVERYBODY,),
    Action.TRACK: (OWNER, ADMINISTRATOR),
    Action.BROWSE: (EVERYBODY,),
}

_READ = frozenset(
    {Action.LOOK, Action.SEE_JOB, Action.READ_JOB, Action.USE_ENVIRONMENT, Action.SEE_SWEEP, Action.SIGN_OUT, Action.SEE_BASELINE}
    | {Action.SEE_SUBMISSIONS, Action.SEE_MACHINE}
)
_SUBMIT = _READ | {Action.SUBMIT, Action.UPLOAD_CODE, Action.USE_CODE, Action.USE_POOL, Action.TAKE_PART}
_SUBMIT |= {Action.COMPOSE, Action.RELEASE_MACHINE}
#: What a token is good for that is less than its person. A person's own token has the scope `ALL`.
ALL = "all"
JOB = "job"
INVITATION = "invitation"
SCOPES: Mapping[str, frozenset[Action]] = {
    ALL: frozenset(Action),
    #: Looking: one's own jobs, logs, outputs, environments, and the lab.
    "read": _READ
    | {Action.LIST_JOBS, Action.READ_ALL, Action.READ_CELLS, Action.SEE_SHARES, Action.SEE_USE, Action.SEE_STORAGE}
    | {Action.SEE_RESERVATION},
    #: And submitting, repeating and cancelling tasks.
    "submit": _SUBMIT
    | {Action.CANCEL_JOB, Action.REPEAT_JOB, Action.CHANGE_JOB, Action.CHANGE_SWEEP}
    | {Action.CHANGE_BASELINE, Action.CALIBRATE},
    "sessions": _READ | {Action.START_SESSION, Action.ENTER_SESSION, Action.CANCEL_JOB},
    "tracking": frozenset({Action.TRACK, Action.SIGN_OUT}),
    #: The token of a job: look, submit further steps with their code, cancel these, track.
    JOB: _SUBMIT
    | {Action.CANCEL_JOB}
    | {Action.WORK, Action.REPORT, Action.TRACK, Action.READ_SECRETS, Action.READ_CELLS, Action.SEE_SHARES, Action.SEE_STORAGE}
    | {Action.SEE_USE},
    #: An invitation is a token that is good for nothing but its own exchange.
    INVITATION: frozenset({Action.ENTER}),
}
#: Those that a person may choose for a token.
CHOICES = tuple(scope for scope in SCOPES if scope not in (JOB, INVITATION))

#: Of things that belong to somebody: what shows that such a thing is there. Who may not even do this gets "there is none".
_SHOWS: Mapping[Action, Action] = {
    **dict.fromkeys((Action.SEE_JOB, Action.READ_JOB, Action.CANCEL_JOB, Action.CHANGE_JOB, Action.REPEAT_JOB), Action.SEE_JOB),
    **dict.fromkeys((Action.ENTER_SESSION, Action.ENTER_JOB, Action.READ_SECRETS), Action.SEE_JOB),
    Action.USE_CODE: Action.USE_CODE,
    Action.USE_POOL: Action.USE_POOL,
    Action.WORK: Action.WORK,
    **dict.fromkeys((Action.SEE_SWEEP, Action.CHANGE_SWEEP), Action.SEE_SWEEP),
    **dict.fromkeys((Action.SEE_BASELINE, Action.CHANGE_BASELINE, Action.CALIBRATE), Action.SEE_BASELINE),
    Action.REPORT: Action.REPORT,
    Action.SEE_SUBMISSIONS: Action.SEE_SUBMISSIONS,
    Action.USE_ENVIRONMENT: Action.USE_ENVIRONMENT,
    Action.CHANGE_ENVIRONMENT: Action.CHANGE_ENVIRONMENT,
    Action.MANAGE_TOKENS: Action.MANAGE_TOKENS,
    **dict.fromkeys((Action.SEE_MACHINE, Action.RELEASE_MACHINE), Action.SEE_MACHINE),
}
_ASK = {ADMINISTRATOR: "an administrator", OPERATOR: "an operator", MANAGER: "the account's manager", OWNER: "its owner"}
#: Answers that allow, made once: every event of every stream asks.
_YES = {rule: Verdict(True, rule.name) for rules in RULES.values() for rule in rules}


def allowed(actor: Caller, action: Action, resource: Resource = Resource()) -> Verdict:
    """Whether `actor` may do `action` with `resource`, and by which rule."""
    verdict = _verdict(actor, action, resource)
    if (heard := HEARD.get()) is not None:
        heard[action] = verdict
    return verdict


def _verdict(actor: Caller, action: Action, resource: Resource) -> Verdict:
    # The token of a job is good for ending what that job has submitted, and nothing else.
    others = action is Action.CANCEL_JOB and actor.job_id is not None and actor.job_id != resource.parent
    if others or not _token_suffices(actor, action):
        return _by_token(actor, action)
    for rule in RULES[action]:
        if rule.holds(actor, resource):
            return _YES[rule]
    return _refusal(actor, action, resource)


def token_allows(actor: Caller, action: Action | None) -> Verdict:
    """Whether the token that `actor` showed is good for `action` at all; None stands for anything that has no name here."""
    if _token_suffices(actor, action):
        return Verdict(True, "token")
    verdict = _by_token(actor, action)
    if (heard := HEARD.get()) is not None:
        heard[action] = verdict
    return verdict


def of_job(job: Job) -> Resource:
    """A job, as the rules see it."""
    return Resource(owner=job.owner, account=job.account, visible=job.visible, job=job.id, parent=job.parent)


def _scopes(actor: Caller) -> frozenset[str]:
    return actor.scopes if actor.job_id is None else frozenset({JOB})


def _token_suffices(actor: Caller, action: Action | None) -> bool:
    if actor.job_id is None and ALL in actor.scopes:
        return True
    return any(action in SCOPES.get(scope, ()) for scope in _scopes(actor) if scope != ALL)


def _by_token(actor: Caller, action: Action | None) -> Verdict:
    if actor.job_id is not None:
        return Verdict(
            False,
            "token of a job",
            f"The token of job {actor.job_id} cannot do this.",
            "A job may look at its owner's jobs, submit further steps and cancel these; do the rest with your own token.",
        )
    scopes = ", ".join(sorted(actor.scopes)) or "nothing"
    enough = " or ".join(scope for scope in CHOICES if action in SCOPES[scope]) or ALL
    remedy = f"Use one that is for this too ({enough}): `carrel token create --scope` makes it."
    if INVITATION in actor.scopes:
        remedy = "Turn it into a token first: `carrel login URL --invitation CODE`."
    return Verdict(False, "scope of the token", f"This token is for {scopes} only.", remedy)


def _refusal(actor: Caller, action: Action, resource: Resource) -> Verdict:
    shows = _SHOWS.get(action)
    hidden = shows is not None and not any(rule.holds(actor, resource) for rule in RULES[shows])
    who = [word for rule, word in _ASK.items() if rule in RULES[action] and not (rule is OWNER and resource.owner is None)]
    remedy = f"Ask {' or '.join(reversed(who))} of the lab." if who and who != ["its owner"] else "Its owner alone may."
    remedy = "The job itself may, with its own token while it runs." if RULES[action] == (ITSELF,) else remedy
    return Verdict(False, RULES[action][-1].name, f"{actor.user.name} may not {action}.", remedy, hidden=hidden)
