"""Who may do what: the rules by themselves, and that the page says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carrel.core.domain.account import Account
from carrel.core.domain.errors import Denied, Invalid, NotFound
from carrel.core.domain.user import Caller, Role, User
from carrel.core.domain.visible import Visible
from carrel.core.policy.access import ALL, HEARD, INVITATION, JOB, RULES, SCOPES, Action, Resource, allowed, token_allows
from carrel.core.policy.accounts import accounts_of, choose_account

pytestmark = pytest.mark.quick

PHYSICS = frozenset({"physics"})


def person(name: str, role: Role = Role.USER, accounts: frozenset[str] = PHYSICS, job: int | None = None) -> Caller:
    return Caller(user=User(subject=name, name=name.title(), role=role), accounts=accounts, job_id=job)


ADA, CORA, BOB = person("ada"), person("cora"), person("bob", accounts=frozenset({"optics"}))
MARA, OLGA, ROOT = (
    person("mara", Role.MANAGER),
    person("olga", Role.OPERATOR, frozenset()),
    person("root", Role.ADMIN, frozenset()),
)
PRIVATE = Resource(owner="ada", account="physics")
SHARED = Resource(owner="ada", account="physics", visible=Visible.ACCOUNT)


def test_every_action_has_a_rule_and_every_scope_only_actions() -> None:
    assert set(RULES) == set(Action)
    assert all(RULES.values())
    assert SCOPES[ALL] == frozenset(Action)
    assert Action.MANAGE_USERS not in SCOPES[JOB] | SCOPES["read"] | SCOPES["submit"]


def test_a_job_ends_those_that_it_has_submitted_and_no_others() -> None:
    step = Resource(owner="ada", account="physics", job=4, parent=3)
    assert allowed(person("ada", job=3), Action.CANCEL_JOB, step)
    for actor in (
        person("ada", job=5),
        person("bob", job=3),
        person("root", Role.ADMIN, job=5),
        person("mara", Role.MANAGER, job=5),
    ):
        assert not allowed(actor, Action.CANCEL_JOB, step)
    assert not allowed(person("ada", job=3), Action.CHANGE_JOB, step)
    assert not allowed(person("ada", job=3), Action.CANCEL_JOB, Resource(owner="ada", account="physics", job=3))


@pytest.mark.parametrize(
    ("actor", "private", "shared"),
    [
        (ADA, "see read cancel change repeat", "see read cancel change repeat"),
        (CORA, "", "see read"),
        (BOB, "", ""),
        (MARA, "see cancel", "see read cancel"),
        (person("mara", Role.MANAGER, frozenset({"optics"})), "", ""),
        (OLGA, "see cancel", "see cancel"),
        (ROOT, "see read cancel change repeat", "see read cancel change repeat"),
        (person("root", Role.ADMIN, frozenset(), job=3), "", ""),
        (person("mara", Role.MANAGER, job=3), "", "see read"),
        (person("ada", job=3), "see read", "see read"),
    ],
)
def test_what_each_may_do_with_a_job(actor: Caller, private: str, shared: str) -> None:
    for resource, expected in ((PRIVATE, private), (SHARED, shared)):
        actions = (Action.SEE_JOB, Action.READ_JOB, Action.CANCEL_JOB, Action.CHANGE_JOB, Action.REPEAT_JOB)
        may = [action.name.partition("_")[0].lower() for action in actions if allowed(actor, action, resource)]
        assert may == expected.split()
        assert not allowed(actor, Action.ENTER_SESSION, resource) or actor is ADA


def test_a_verdict_names_its_rule() -> None:
    assert allowed(ADA, Action.READ_JOB, SHARED).rule == "owner"
    assert allowed(CORA, Action.READ_JOB, SHARED).rule == "shared with its account"
    assert allowed(MARA, Action.CANCEL_JOB, PRIVATE).rule == "account manager"
    assert allowed(ROOT, Action.DRAIN).rule == "administrator"
    assert allowed(person("ada", job=7), Action.CANCEL_JOB, PRIVATE).rule == "token of a job"


def test_what_somebody_may_not_know_of_is_not_there_and_what_they_see_is_denied() -> None:
    missing = NotFound("There is no job 1.")
    with pytest.raises(NotFound):
        allowed(BOB, Action.CANCEL_JOB, SHARED).check(missing)
    with pytest.raises(
        Denied, match=r"Cora may not cancel this job.*Ask its owner or the account's manager or an operator or an administrator"
    ):
        allowed(CORA, Action.CANCEL_JOB, SHARED).check(missing)
    with pytest.raises(Denied, match=r"Olga may not read the log"):
        allowed(OLGA, Action.READ_JOB, PRIVATE).check(missing)


def test_a_token_is_never_more_than_its_scopes_nor_more_than_its_person() -> None:
    reader = Caller(user=ADA.user, scopes=frozenset({"read"}))
    assert allowed(reader, Action.READ_JOB, PRIVATE)
    assert allowed(reader, Action.CANCEL_JOB, PRIVATE).words == "This token is for read only."
    assert not allowed(reader, Action.COLLECT)
    assert not token_allows(reader, None)
    assert token_allows(ADA, None)
    everything = Caller(user=ADA.user, scopes=frozenset({ALL}), job_id=3)
    assert not token_allows(everything, Action.MANAGE_USERS)
    unknown = Caller(user=ADA.user, scopes=frozenset({"no such scope"}))
    assert not any(allowed(unknown, action, PRIVATE) for action in Action)


@pytest.mark.parametrize(
    ("scopes", "action", "words", "remedy"),
    [
        ({"read", "tracking"}, Action.SUBMIT, "read, tracking", "Use one that is for this too (all or submit)"),
        ({"read"}, Action.MANAGE_USERS, "read", "Use one that is for this too (all)"),
        (set(), Action.SUBMIT, "nothing", "Use one that is for this too (all or submit)"),
        ({"read"}, None, "read", "Use one that is for this too (all)"),
        ({INVITATION}, Action.SUBMIT, "invitation", "Turn it into a token first"),
    ],
)
def test_a_token_that_is_not_for_this_says_which_one_is(scopes: set[str], action: Action | None, words: str, remedy: str) -> None:
    verdict = token_allows(Caller(user=ADA.user, scopes=frozenset(scopes)), action)
    assert (bool(verdict), verdict.rule, verdict.words) == (False, "scope of the token", f"This token is for {words} only.")
    assert verdict.remedy.startswith(remedy)
    if action is not None:
        assert allowed(Caller(user=ADA.user, scopes=frozenset(scopes)), action) == verdict


def test_the_token_of_a_job_says_what_it_is_good_for() -> None:
    verdict = allowed(person("ada", job=7), Action.CANCEL_JOB, PRIVATE)
    assert verdict.words == "The token of job 7 cannot do this."
    assert verdict.remedy.startswith("A job may look at its owner's jobs, submit further steps and cancel these;")


@pytest.mark.parametrize(
    ("action", "resource", "remedy"),
    [
        (Action.MANAGE_USERS, Resource(), "Ask an administrator of the lab."),
        (Action.LIST_JOBS, Resource(), "Ask the account's manager or an operator or an administrator of the lab."),
        (Action.SEE_SHARES, Resource(), "Ask the account's manager or an administrator of the lab."),
        (Action.SEE_SHARES, PRIVATE, "Ask its owner or the account's manager or an administrator of the lab."),
        (Action.CHANGE_ENVIRONMENT, PRIVATE, "Its owner alone may."),
        (Action.CHANGE_ENVIRONMENT, Resource(), "Its owner alone may."),
        (Action.READ_SECRETS, PRIVATE, "The job itself may, with its own token while it runs."),
    ],
)
def test_a_refusal_says_who_may(action: Action, resource: Resource, remedy: str) -> None:
    verdict = allowed(CORA, action, resource)
    assert (bool(verdict), verdict.remedy, verdict.rule) == (False, remedy, RULES[action][-1].name)


def test_what_was_asked_is_heard_with_its_verdict() -> None:
    reader = Caller(user=ADA.user, scopes=frozenset({"read"}))
    before = HEARD.set({})
    try:
        yes, no = allowed(ADA, Action.READ_JOB, PRIVATE), allowed(CORA, Action.CANCEL_JOB, PRIVATE)
        by_token = token_allows(reader, None)
        assert token_allows(ADA, Action.SUBMIT).rule == "token"
        assert HEARD.get() == {Action.READ_JOB: yes, Action.CANCEL_JOB: no, None: by_token}
    finally:
        HEARD.reset(before)


def test_members_of_an_account_are_those_whom_it_names_and_whose_own_it_is() -> None:
    accounts = {
        "physics": Account(name="physics", users={"ada": 1}),
        "open": Account(name="open"),
        "optics": Account(name="optics", users={"bob": 1}),
    }
    assert accounts_of("ada", "default", accounts) == {"physics"}
    assert accounts_of("bob", "open", accounts) == {"open", "optics"}
    assert accounts_of("eve", "physics", accounts) == frozenset()
    assert accounts_of("ada", "default", {}) == {"default"}
    assert choose_account(None, "ada", "default", {}) == choose_account("default", "ada", "default", {}) == "default"
    with pytest.raises(Invalid, match='There is no account "root"') as refused:
        choose_account("root", "ada", "default", {})
    assert refused.value.remedy == "Open to ada: default."
    # By the groups of a sign-in provider; an account that does not exist is none.
    assert accounts_of("ada", "default", accounts, {"optics", "gone"}) == {"physics", "optics"}
    assert choose_account("optics", "ada", "default", accounts, {"optics"}) == "optics"
    with pytest.raises(Denied):
        choose_account("optics", "ada", "default", accounts)


def test_the_page_says_which_rules_open_each_action() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    told = {row[0]: row[1] for row in re.findall(r"^\| ([a-z' ,.]+) \| ([a-z, ]+) \|$", text, re.MULTILINE)}
    assert told == {action.value: ", ".join(rule.name for rule in rules) for action, rules in RULES.items()}
