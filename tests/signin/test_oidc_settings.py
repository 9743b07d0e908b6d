"""`[sign_in.oidc]` as it is written: each mistake names its place and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.user import Role
from carrel.lab.server.settings import read_settings

pytestmark = pytest.mark.quick

LEAST = '[sign_in.oidc]\nissuer = "https://id.example.org"\nclient_id = "carrel"\n'


def read(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "carrel.toml"
    file.write_text(text)
    return read_settings(file, {}, {}).sign_in.oidc


def test_the_least_and_the_most(tmp_path: Path) -> None:
    assert read(tmp_path, "") is None
    least = read(tmp_path, LEAST)
    assert (least.admit, least.link, least.secret(), least.user_claim) == ("known", "name", None, "preferred_username")
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    most = read(
        tmp_path,
        f"""
        public_url = "https://gpus.example.org"
        [accounts.physics]
        [accounts.optics]
        [sign_in.oidc]
        issuer = "https://id.example.org/realms/lab/"
        client_id = "carrel"
        client_secret_file = "{secret}"
        name = "Example Institute"
        scopes = "openid email groups"
        user_claim = "email"
        user_domain = "example.org"
        admit = "everybody"
        groups_claim = "realm_access.roles"
        [sign_in.oidc.roles]
        "/gpu/operators" = "operator"
        [sign_in.oidc.accounts]
        physics = "physics"
        "both of them" = ["physics", "optics"]
        """,
    )
    assert (most.issuer, most.link, most.secret()) == ("https://id.example.org/realms/lab/", "never", "s3cret")
    assert most.roles == {"/gpu/operators": Role.OPERATOR}
    assert most.accounts == {"physics": ("physics",), "both of them": ("physics", "optics")}
    assert "s3cret" not in repr(most)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sign_in]\noidc = 1", "sign_in.oidc is 1"),
        ("[sign_in.oidc]", "issuer is None"),
        ('[sign_in.oidc]\nissuer = "http://id.example.org"', "http is for the loopback alone"),
        ('[sign_in.oidc]\nissuer = "https://id.example.org?x=1"', "issuer is"),
        ('[sign_in.oidc]\nissuer = "https://id.example.org"', "client_id is None"),
        (LEAST + 'isuer = "x"', 'Did you mean "issuer"'),
        (LEAST + 'client_secret = "x"', "a secret does not belong there"),
        (LEAST + 'client_secret_file = "secret"', "no absolute path"),
        (LEAST + 'client_secret_file = "/nowhere/secret"', "cannot be read"),
        (LEAST + 'client_secret_file = "/dev/null"', "is no file"),
        (LEAST + 'name = ""', "1 to 60 printable"),
        (LEAST + 'scopes = "profile"', "Name openid among them"),
        (LEAST + 'user_claim = ""', "Name a claim"),
        (LEAST + 'user_domain = "@example.org"', "without @"),
        (LEAST + 'admit = "all"', "known, everybody"),
        (LEAST + 'link = "always"', "name, never"),
        (LEAST + 'link = "never"', "nobody new could ever come in"),
        (LEAST + 'roles = "x"', "It is a table"),
        (LEAST + '[sign_in.oidc.roles]\nops = "king"', "manager, operator, admin"),
        (LEAST + '[sign_in.oidc.roles]\nops = "user"', "manager, operator, admin"),
        (LEAST + "[sign_in.oidc.accounts]\nops = []", "Name a research account"),
        (LEAST + '[sign_in.oidc.accounts]\nops = "physics"', 'there is no account "physics"'),
        ("[accounts.physics]\n" + LEAST + '[sign_in.oidc.accounts]\nops = "physic"', 'Did you mean "physics"'),
        ('host = "0.0.0.0"\n' + LEAST, "has no public_url"),
        ('public_url = "http://gpus.example.org"\n' + LEAST, "must not travel readable"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("content", "mode"), [("s", 0o640), ("s", 0o604), ("", 0o600), ("a\nb", 0o600), ("x" * 1025, 0o600), ("é", 0o600)]
)
def test_a_secret_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path, content: str, mode: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text(content)
    secret.chmod(mode)
    with pytest.raises(Invalid, match=r"sign_in\.oidc\.client_secret_file") as caught:
        read(tmp_path, f'{LEAST}client_secret_file = "{secret}"')
    assert not content or len(content) < 3 or content not in str(caught.value)
