"""The page of one's own tokens, secrets and environments."""

from __future__ import annotations

import re

import httpx
import pytest
from gateway_lab import client
from portal_site import Site
from test_portal_pages import HOSTILE, secret_in


def post(site: Site, http: httpx.Client, path: str, **fields: str) -> httpx.Response:
    form = secret_in(http.get(f"{site.url}/account"))
    return http.post(f"{site.url}/account/{path}", data={"form_secret": form, **fields})


@pytest.mark.gate
def test_a_token_is_made_shown_once_and_revoked(site: Site) -> None:
    with site.browser("ada") as http:
        page = post(site, http, "tokens", name="laptop", scope="read", lifetime="2d")
        token = re.search(r"<pre class=\"command\"><code>([^<]+)</code>", page.text)
        assert token is not None
        assert page.headers["cache-control"] == "no-store"
        listed = http.get(f"{site.url}/account").text
        assert "laptop" in listed
        assert token[1] not in listed
        with client(site.url, {"Authorization": f"Bearer {token[1]}"}) as program:
            assert program.get("/api/v1/jobs").status_code == 200
            assert program.post("/api/v1/jobs", json={"snapshot": "sha256:" + "0" * 64}).status_code == 403
            number = re.search(r"/account/tokens/(\d+)/revoke", listed.partition("laptop")[2])
            assert number is not None
            assert "is void" in post(site, http, f"tokens/{number[1]}/revoke").text
            assert program.get("/api/v1/jobs").status_code == 401


def test_a_secret_goes_in_and_is_on_no_page(site: Site) -> None:
    with site.browser("ada") as http:
        page = post(site, http, "secrets", name="MY_SECRET_KEY", value="hunter2-hunter2")
        assert "MY_SECRET_KEY" in page.text
        assert "hunter2" not in page.text
        assert b"hunter2" not in site.rig.audited()
        with site.browser("bob") as other:
            assert "MY_SECRET_KEY" not in other.get(f"{site.url}/account").text
            assert post(site, other, "secrets/MY_SECRET_KEY/remove").status_code == 404
        assert "is forgotten" in post(site, http, "secrets/MY_SECRET_KEY/remove").text


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("secrets", {"name": HOSTILE, "value": "x"}, "cannot be the name of a secret"),
        ("secrets", {"name": "A", "value": ""}, "is empty"),
        ("tokens", {"scope": HOSTILE}, "cannot be good for"),
        ("tokens", {"name": "browser, by password"}, "is not called"),
        ("tokens", {"lifetime": "soon"}, "is not a duration"),
        ("tokens/999/revoke", {}, "no token 999"),
    ],
)
def test_what_cannot_be_is_said_in_words(site: Site, path: str, fields: dict[str, str], said: str) -> None:
    with site.browser("ada") as http:
        page = post(site, http, path, **fields)
        assert page.status_code in (404, 422)
        assert said in page.text
        assert HOSTILE not in page.text


def test_buttons_of_elsewhere_change_nothing(site: Site) -> None:
    with site.browser("ada") as http:
        for path in ("tokens", "secrets", "secrets/A/remove", "tokens/1/revoke", "environments/remove"):
            assert http.post(f"{site.url}/account/{path}", data={"name": "A", "value": "b"}).status_code == 403
        assert "There is no token" not in http.get(f"{site.url}/account").text
