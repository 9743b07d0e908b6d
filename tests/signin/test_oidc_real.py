"""Sign-in through a real, independent provider: npm's oidc-provider."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import client
from oidc_site import INCIDENT, OidcSite, open_accounts
from programs import Program, decide
from real_provider import RealProvider

from carrel.core.domain.user import Role, UserState
from carrel.lab.credentials.oidc import Membership
from carrel.lab.credentials.oidc.id_token import ALGORITHMS
from carrel.lab.portal.oidc import BACK
from carrel.testing.waiting import PATIENCE
from support.fork_server import run_carrel
from support.lab_process import start_lab
from support.ports import kept_port

pytestmark = pytest.mark.xdist_group("oidc-provider")

MakeSite = Callable[..., OidcSite]


# ---- the way there and back


@pytest.mark.gate
@pytest.mark.parametrize(
    ("name", "secret"), [("carrel", True), ("carrel-public", False), *((f"carrel-{one}", True) for one in ALGORITHMS[1:])]
)
def test_a_person_comes_back_signed_in(make_site: MakeSite, provider: RealProvider, name: str, secret: bool) -> None:
    site = make_site(provider.client(name, secret=secret))
    with site.browser() as http:
        button = http.get("/notebooks?x=1")
        assert 'href="/sign-in/oidc?after=/notebooks%3Fx%3D1">Sign in with the Institute</a>' in button.text
        page = site.sign_in(http, "ada", after="/notebooks?x=1")
        assert (page.status_code, page.url.raw_path, "Ada" in page.text) == (200, b"/notebooks?x=1", True)
        cookies = [cookie.name for cookie in http.cookies.jar if cookie.name.startswith("carrel")]
        assert cookies == [site.portal.sessions.cookie(secure=False)]
    line = site.last()
    assert (line["who"], line["action"], line["result"], line["method"]) == ("ada", "sign in", "allowed", "GET")
    token = site.rig.store.tokens.list("ada")[-1]
    assert token.name == "browser, through the Institute"


def test_another_site_s_redirect_ends_at_a_page_that_goes_on_by_itself(make_site: MakeSite) -> None:
    site = make_site()
    with site.browser() as http:
        place = site.arrive(http, "ada", after="/notebooks")
        page = http.get(place, headers={"Sec-Fetch-Site": "cross-site"})
        assert (page.status_code, page.headers["refresh"]) == (200, "0; url=/notebooks")
        assert (page.headers["cache-control"], page.headers["referrer-policy"]) == ("no-store", "no-referrer")
        assert site.signed_in(http) == "ada"


def test_the_redirect_uri_is_exact_and_other_names_of_the_lab_lead_to_it(make_site: MakeSite, provider: RealProvider) -> None:
    site = make_site()
    with site.browser() as http:
        moved = http.get(site.url.replace("127.0.0.1", "localhost") + "/sign-in/oidc?after=/docs", follow_redirects=False)
        assert moved.headers["location"] == f"{site.url}/sign-in/oidc?after=%2Fdocs&moved=1"
        assert site.begin(http)["redirect_uri"] == f"{site.url}{BACK}"
        provider.press("choose", redirect_uris=[f"{site.url}/elsewhere"])
        assert "redirect_uri" in http.get(f"{site.url}/sign-in/oidc").text  # the provider's own refusal


def test_what_is_only_in_userinfo_and_what_is_in_the_token_are_the_same(make_site: MakeSite, provider: RealProvider) -> None:
    site = make_site(userinfo=False)
    before = provider.press("seen").get("/me", 0)
    assert site.who("ada")[:2] == (200, "ada")
    assert provider.press("seen").get("/me", 0) == before
    provider.press("choose", userinfo=True)
    assert site.who("bob")[:2] == (200, "bob")
    assert provider.press("seen")["/me"] == before + 1


def test_who_breaks_off_there_is_told_and_nothing_of_the_provider_s_text_is_shown(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site()
    caplog.set_level("INFO")
    status, who, text = site.who("ada", deny="1")
    assert (status, who) == (401, None)
    assert "did not let you in, or you broke off there" in text
    assert "<b>" not in text.replace("<body>", "")
    incident = INCIDENT.search(text)
    assert incident is not None
    assert incident[0] in caplog.text


def test_no_code_token_or_secret_is_in_a_log(
    make_site: MakeSite, provider: RealProvider, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site()
    caplog.set_level("DEBUG", "carrel")
    caplog.set_level("INFO")
    with site.browser() as http:
        place = site.arrive(http, "ada")
        assert http.get(place).status_code == 200
        assert http.get(place).status_code == 401
    query = httpx.URL(place).params
    mine = "\n".join(record.getMessage() for record in caplog.records if "httpx" not in record.name)
    mine += "\n".join(map(str, site.lines()))
    for secret in (query["code"], query["state"], provider.secret):
        assert secret not in mine


# ---- whose they are


def test_only_users_come_in_where_the_lab_says_so(make_site: MakeSite, provider: RealProvider) -> None:
    site = make_site()
    provider.person("carol")
    status, who, text = site.who("carol")
    assert (status, who, "carol is no user of this lab" in text) == (403, None, True)
    site.add("carol")
    assert site.who("carol")[:2] == (200, "carol")
    site.rig.lab.people.set_state("carol", UserState.SUSPENDED, reason="a test", by="root", now=1.0)
    assert site.who("carol")[0] == 403
    site.rig.lab.people.set_state("carol", UserState.ACTIVE, reason="", by="root", now=1.0)
    assert site.who("carol")[:2] == (200, "carol")


def test_everybody_becomes_a_user_but_nobody_one_who_is_there(make_site: MakeSite, provider: RealProvider) -> None:
    site = make_site(everybody=True, links_by_name=False)
    provider.person("carol")
    assert site.who("carol")[:2] == (200, "carol")
    assert site.user("carol").role is Role.USER
    assert site.who("carol")[:2] == (200, "carol")
    status, who, text = site.who("ada")  # the lab's ada may be another one
    assert (status, who, "may be somebody else" in text) == (403, None, True)


def test_a_new_name_there_opens_no_other_user_and_keeps_one_s_own(make_site: MakeSite, provider: RealProvider) -> None:
    site = make_site()
    assert site.who("ada")[:2] == (200, "ada")
    assert site.who("bob")[:2] == (200, "bob")
    provider.person("ada", preferred_username="bob", email="bob@example.org")
    provider.person("bob", preferred_username="root")
    assert site.who("ada")[:2] == (200, "ada")
    assert site.who("bob")[:2] == (200, "bob")


def test_a_recycled_name_is_another_person(make_site: MakeSite, provider: RealProvider) -> None:
    site = make_site()
    assert site.who("ada")[:2] == (200, "ada")
    provider.person("ada", sub="sub-of-a-new-ada")
    status, who, text = site.who("ada")
    assert (status, who, "linked to another person" in text) == (403, None, True)
    assert "carrel user reset ada" in text
    line = site.last()
    assert (line["tried"], line["result"], line["rule"], "who" in line) == ("ada", "refused", "sign-in provider", False)
    site.as_admin("POST", "/ada/reset")
    assert site.who("ada")[:2] == (200, "ada")
    found = site.rig.store.identities.of("ada")
    assert found is not None
    assert found.sub == "sub-of-a-new-ada"


def test_a_removed_user_stays_out_and_comes_back_as_a_new_link(make_site: MakeSite) -> None:
    site = make_site()
    assert site.who("ada")[:2] == (200, "ada")
    site.as_admin("DELETE", "/ada")
    assert site.rig.store.identities.of("ada") is None
    status, who, text = site.who("ada")
    assert (status, who, "no user of this lab any more" in text) == (401, None, True)
    assert site.rig.store.identities.of("ada") is None
    site.as_admin("POST", "/ada/resume")
    assert site.who("ada")[:2] == (200, "ada")


# ---- groups


def test_groups_give_roles_and_accounts_and_take_them_back(make_site: MakeSite, provider: RealProvider) -> None:
    groups = Membership(
        roles={"gpu-operators": Role.OPERATOR, "gpu-admins": Role.ADMIN},
        accounts={"physics": ("physics",), "both": ("physics", "optics")},
    )
    site = make_site(membership=groups, scopes="openid profile groups")
    open_accounts(site, "physics", "optics", "biology")
    provider.person("ada", groups=["gpu-operators", "both", "unknown"])
    assert site.who("ada")[:2] == (200, "ada")
    assert site.user("ada").role is Role.OPERATOR
    assert site.last()["changed"] == "role user -> operator, account +optics, account +physics"
    caller = site.rig.caller("ada")
    assert caller.accounts == {"physics", "optics"}
    digest = site.rig.upload("ada")
    with client(site.url, site.rig.headers("ada")) as http:
        for account, status in (("optics", 201), ("biology", 403)):
            answer = http.post("/api/v1/jobs", json={"snapshot": digest, "account": account})
            assert answer.status_code == status, answer.text
    provider.person("ada", groups=["physics"])
    assert site.who("ada")[:2] == (200, "ada")
    assert (site.user("ada").role, site.rig.caller("ada").accounts) == (Role.USER, {"physics"})
    assert site.last()["changed"] == "role operator -> user, account -optics"
    assert site.who("ada")[:2] == (200, "ada")
    assert "changed" not in site.last()


def test_a_role_that_was_given_by_hand_stays(
    make_site: MakeSite, provider: RealProvider, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site(membership=Membership(roles={"ops": Role.OPERATOR}), scopes="openid profile groups")
    caplog.set_level("INFO")
    provider.person("root", groups=["ops"])
    assert site.who("root")[:2] == (200, "root")
    assert site.user("root").role is Role.ADMIN
    assert "The role of root stays admin: it was given by hand." in caplog.text


# ---- keys and clocks


def test_a_key_that_is_new_is_fetched_and_not_more_than_once_a_minute(make_site: MakeSite, provider: RealProvider) -> None:
    site = make_site()
    site.clock.stands = site.clock()
    assert site.who("ada")[:2] == (200, "ada")
    asked = provider.press("seen")["/jwks"]
    assert site.who("bob")[:2] == (200, "bob")
    assert provider.press("rotate")["/jwks"] == asked
    assert site.who("ada")[0] == 401  # the keys are younger than a minute
    assert provider.press("seen")["/jwks"] == asked
    site.clock.stands += 61
    provider.press("shift", seconds=61)
    assert site.who("ada")[:2] == (200, "ada")
    assert provider.press("seen")["/jwks"] == asked + 1


# ---- attacks on the browser


def test_an_answer_is_good_in_the_browser_that_asked_and_once(make_site: MakeSite) -> None:
    site = make_site()
    with site.browser() as mine, site.browser() as other:
        place = site.arrive(mine, "ada")
        assert "did not begin that sign-in" in other.get(place).text  # without a cookie
        site.begin(other)
        answer = other.get(place)  # with that of a sign-in of its own: somebody wants this browser to be ada's
        assert (answer.status_code, "another sign-in" in answer.text) == (401, True)
        assert site.signed_in(other) is None
        assert mine.head(place).status_code == 200
        cookies = dict(mine.cookies)
        assert mine.get(place).status_code == 200
        mine.cookies.clear()
        mine.cookies.update({name: value for name, value in cookies.items() if name == "carrel_oidc"})
        assert "was used already" in mine.get(place).text
        assert site.signed_in(mine) is None


def test_a_code_of_another_sign_in_is_refused_by_pkce_and_nonce(make_site: MakeSite) -> None:
    """Somebody puts a stolen code into an answer to a sign-in that they began themselves."""
    site = make_site()
    with site.browser() as victim, site.browser() as thief:
        stolen = httpx.URL(site.arrive(victim, "ada")).params["code"]
        own = httpx.URL(site.arrive(thief, "bob"))
        answer = thief.get(own.copy_merge_params({"code": stolen}))
        assert (answer.status_code, "refused the sign-in (invalid_grant)" in answer.text) == (401, True)
        assert site.signed_in(thief) is None


def test_a_sign_in_takes_ten_minutes_at_most(make_site: MakeSite) -> None:
    site = make_site()
    with site.browser() as http:
        place = site.arrive(http, "ada")
        site.clock.ahead += 601
        answer = http.get(place)
        assert (answer.status_code, "longer than 10 minutes" in answer.text) == (401, True)


# ---- what stands on it


def test_the_lab_s_own_device_flow_goes_through_the_provider(make_site: MakeSite) -> None:
    """`carrel login`: a program gets tokens of the lab's from a person whom the provider knows."""
    site = make_site()
    with Program(site) as program, site.browser() as http:
        begun = program.begin()
        question = http.get(begun["verification_uri_complete"])
        assert question.status_code == 401
        site.sign_in(http, "ada", after=f"/device?user_code={begun['user_code']}")
        http.headers["Sec-Fetch-Site"] = "same-origin"
        assert decide(http, begun["user_code"]).status_code == 200
        tokens = program.poll(begun).json()
        assert program.works(tokens)
        renewed = program.renew(tokens)
        assert renewed.status_code == 200
        assert program.works(renewed.json())
        site.as_admin("POST", "/ada/reset")
        assert not program.works(renewed.json())


def test_a_reset_at_the_last_moment_wins(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    assert site.who("ada")[:2] == (200, "ada")
    tokens = site.rig.lab.tokens
    sign_in = type(tokens).sign_in

    def slow(self: Any, subject: str, text: str, *, how: str) -> Any:
        site.as_admin("POST", f"/{subject}/reset")
        return sign_in(self, subject, text, how=how)

    monkeypatch.setattr(type(tokens), "sign_in", slow)
    status, who, text = site.who("ada")
    assert (status, who, "ended this way of signing in" in text) == (401, None, True)


# ---- a lab of its own


def test_a_lab_starts_without_its_provider_and_doctor_says_what_is_wrong(provider: RealProvider, tmp_path: Path) -> None:
    home, secret = tmp_path / "home", tmp_path / "secret"
    home.mkdir(mode=0o700)
    secret.write_text(provider.secret)
    secret.chmod(0o600)

    def configure(issuer: str) -> None:
        text = f'[sign_in.oidc]\nissuer = "{issuer}"\nclient_id = "carrel"\nname = "Institute"\n'
        (home / "carrel.toml").write_text(f'{text}client_secret_file = "{secret}"\nadmit = "everybody"\n')

    with kept_port() as port:  # nobody listens there
        configure(f"http://127.0.0.1:{port}")
        lab = start_lab(home)
        try:
            with httpx.Client(base_url=lab.url, headers={"Accept": "text/html"}, timeout=PATIENCE) as http:
                assert http.get("/sign-in/oidc").status_code == 503
                assert http.post("/login", data={"token": lab.token}, headers={"Sec-Fetch-Site": "none"}).status_code == 303
            status, message = doctor(home)
            assert (status, "cannot be reached" in message) == ("fail", True)
        finally:
            lab.stop()
    configure(provider.issuer + "/")
    assert doctor(home)[1].endswith("sign by sign.")
    configure(provider.issuer)
    lab = start_lab(home)
    try:
        provider.press("choose", redirect_uris=[f"{lab.url}{BACK}"])
        status, message = doctor(home)
        assert (status, "5 keys, RS256" in message) == ("ok", True)
        with httpx.Client(headers={"Accept": "text/html", "Sec-Fetch-Site": "none"}, timeout=PATIENCE) as http:
            http.follow_redirects = True
            page = http.get(f"{lab.url}/sign-in/oidc")
            # The second person of a lab begins isolation, or is refused where the kernel cannot.
            assert http.post(page.url, data={"login": "ada"}).status_code in (200, 409)
    finally:
        lab.stop()


def doctor(home: Path) -> tuple[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CARREL_")}
    words = ["doctor", "--json", "--home", str(home)]
    done = run_carrel(words, variables=variables, directory=None, timeout=PATIENCE)
    (check,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "provider"]
    return check["status"], check["message"]
