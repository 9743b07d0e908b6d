"""Sign-in by PAM, with real modules and services of the test's own (`pam_start_confdir`)."""

from __future__ import annotations

import ctypes.util
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from gateway_lab import Rig, a_lab, serve
from local_site import OWN
from portal_site import Clock, Site

from carrel.core.domain.errors import Unavailable
from carrel.lab.audit import AuditFilter
from carrel.lab.credentials import LocalSignIn
from carrel.lab.credentials.pam import PamService, PamSignIn
from carrel.lab.portal import Portal
from carrel.lab.portal.pam import PamPage

pytestmark = pytest.mark.skipif(ctypes.util.find_library("pam") is None, reason="libpam is not installed")

#: Somebody whom every machine has and who is not root; and how they sign in here.
SOMEBODY = next(user.pw_name for user in pwd.getpwall() if user.pw_uid not in (0,) and user.pw_name.isalpha())
PASSWORD = "what only they know"


def service(directory: Path, name: str, auth: str, account: str = "required pam_permit.so") -> PamService:
    (directory / name).write_text(f"auth {auth}\naccount {account}\n")
    return PamService(service=name, directory=str(directory))


def script(directory: Path, text: str) -> str:
    """A module of the test's own: pam_exec(8) gives it the password on standard input."""
    program = directory / "check"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return f"required pam_exec.so quiet expose_authtok {program}"


@dataclass
class PamSite(Site):
    services: Path
    pam: PamSignIn

    def sign_in(self, http: httpx.Client, name: str, password: str, **more: str) -> httpx.Response:
        return http.post("/sign-in/pam", data={"name": name, "password": password, **more}, headers=OWN)


@pytest.fixture
def services(tmp_path: Path) -> Path:
    directory = tmp_path / "pam.d"
    directory.mkdir()
    return directory


@pytest.fixture
def pam_site(tmp_path: Path, services: Path, request: pytest.FixtureRequest) -> Iterator[PamSite]:
    clock = Clock()
    made: list[tuple[Portal, PamSignIn]] = []
    checks = service(services, "checks", script(services, f"IFS= read -r given; [ \"$given\" = '{PASSWORD}' ]"))

    def pages(rig: Rig) -> Portal:
        tokens, people = rig.lab.tokens, rig.lab.people
        local = LocalSignIn(store=rig.store.credentials, people=people, tokens=tokens, clock=clock, monotonic=clock)
        enroll = rig.lab.users.enroll if getattr(request, "param", "known") == "everybody" else None
        pam = PamSignIn(pam=checks, people=people, local=local, enroll=enroll)
        made.append((Portal(clock=clock, ways=[PamPage(pam)]), pam))
        return made[0][0]

    with a_lab(tmp_path / "lab", pages=pages) as rig, serve(rig.app) as url:
        yield PamSite(rig, made[0][0], clock, url, services, made[0][1])


@pytest.mark.gate
@pytest.mark.parametrize("pam_site", ["everybody"], indirect=True)
def test_an_account_of_the_machine_becomes_a_user_of_its_name(pam_site: PamSite) -> None:
    with pam_site.browser() as http:
        assert 'action="/sign-in/pam"' in http.get("/notebooks").text
        wrong = pam_site.sign_in(http, SOMEBODY, "something else", after="/notebooks")
        assert (wrong.status_code, 'name="after" value="/notebooks"' in wrong.text) == (401, True)
        assert pam_site.rig.lab.people.get(SOMEBODY) is None
        right = pam_site.sign_in(http, SOMEBODY, PASSWORD, after="/notebooks")
        assert (right.status_code, right.url.path, SOMEBODY in right.text) == (200, "/notebooks", True)
    user = pam_site.rig.lab.people.get(SOMEBODY)
    assert user is not None
    assert user.role == "user"
    text = pam_site.rig.audited()
    assert PASSWORD.encode() not in text


def test_only_who_is_a_user_comes_in_where_the_lab_says_so(pam_site: PamSite) -> None:
    from carrel.core.domain.user import User, UserState

    people = pam_site.rig.lab.people
    with pam_site.browser() as http:
        assert pam_site.sign_in(http, SOMEBODY, "wrong").status_code == 401
        refused = pam_site.sign_in(http, SOMEBODY, PASSWORD)
        assert (refused.status_code, "is no user of this lab" in refused.text) == (403, True)
        people.add(User(subject=SOMEBODY, name=SOMEBODY), now=time.time())
        assert pam_site.sign_in(http, SOMEBODY, PASSWORD).status_code == 200
        assert pam_site.rig.audit.read(AuditFilter(), limit=1, newest=True)[0]["who"] == SOMEBODY
        http.cookies.clear()
        people.set_state(SOMEBODY, UserState.SUSPENDED, reason="a test", by="root", now=time.time())
        assert pam_site.sign_in(http, SOMEBODY, PASSWORD).status_code == 403
        people.set_state(SOMEBODY, UserState.REMOVED, reason="", by="root", now=time.time())
        assert pam_site.sign_in(http, SOMEBODY, PASSWORD).status_code == 401


def test_root_and_names_that_are_none_never_reach_pam(pam_site: PamSite) -> None:
    asked = pam_site.services / "asked"
    service(pam_site.services, "checks", script(pam_site.services, f"echo >> {asked}"))  # lets everybody in
    with pam_site.browser() as http:
        for name in ("root", SOMEBODY.upper() + "X", "no-such-user-here", "../../etc/passwd", "a\0b", "-x", "x" * 300):
            assert pam_site.sign_in(http, name, PASSWORD).status_code in (401, 422), name
        assert pam_site.sign_in(http, SOMEBODY, "with\0zero").status_code == 401
        assert pam_site.sign_in(http, SOMEBODY, "x" * 1025).status_code == 401
    assert not asked.exists()


def test_wrong_tries_count_with_those_of_passwords(pam_site: PamSite) -> None:
    pam_site.clock.stands = 1000.0
    service(pam_site.services, "checks", "required pam_deny.so")
    with pam_site.browser() as http:
        answers = [pam_site.sign_in(http, SOMEBODY, PASSWORD) for _ in range(11)]
    assert [one.status_code for one in answers] == [401] * 10 + [429]
    assert answers[-1].headers["retry-after"] == "61"


def test_what_pam_s_own_modules_say_counts(services: Path) -> None:
    assert service(services, "permit", "required pam_permit.so").accepts(SOMEBODY, PASSWORD)
    assert not service(services, "deny", "required pam_deny.so").accepts(SOMEBODY, PASSWORD)
    expired = service(services, "expired", "required pam_permit.so", account="required pam_deny.so")
    assert not expired.accepts(SOMEBODY, PASSWORD)
    assert not service(services, "unix", "required pam_unix.so nodelay").accepts(SOMEBODY, PASSWORD)


def test_modules_that_print_hang_or_die_harm_nobody(services: Path) -> None:
    loud = service(services, "loud", script(services, "echo '{\"right\": true}'; exit 1").replace("quiet", "stdout"))
    assert not loud.accepts(SOMEBODY, PASSWORD)
    left = services / "pid"
    hangs = service(services, "hangs", script(services, f"echo $$ > {left}; exec sleep 600"))
    with pytest.raises(Unavailable, match="no answer"):
        PamService(service="hangs", directory=hangs.directory, patience=3.0).accepts(SOMEBODY, PASSWORD)
    with pytest.raises(Unavailable, match="no answer"):
        service(services, "dies", script(services, "kill -SEGV $PPID")).accepts(SOMEBODY, PASSWORD)


def test_the_process_has_nothing_of_the_labs(services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARREL_TOKEN", "planted")
    seen = services / "seen"
    tells = script(services, f"tr '\\0' '\\n' < /proc/$PPID/environ > {seen}; tr '\\0' ' ' < /proc/$PPID/cmdline >> {seen}")
    assert service(services, "tells", tells).accepts(SOMEBODY, PASSWORD)
    text = seen.read_text()
    assert "pam_process" in text
    assert "planted" not in text
    assert PASSWORD not in text


def test_services_are_read_as_they_are_written(services: Path, tmp_path: Path) -> None:
    from carrel.core.domain.errors import Invalid
    from carrel.lab.server.settings import read_settings

    file = tmp_path / "carrel.toml"
    service(services, "carrel", "required pam_permit.so")
    place = f'directory = "{services}"'
    file.write_text(f'[sign_in.pam]\nservice = "carrel"\n{place}\n')
    assert read_settings(file, {}, {}).sign_in.pam.admit == "known"
    file.write_text("")
    assert read_settings(file, {}, {}).sign_in.pam is None
    for text, words in (
        ('[sign_in.pam]\nservice = "other-one"\n' + place, "there is no file"),
        (f"[sign_in.pam]\n{place}", "service is None"),
        ('[sign_in.pam]\nservice = "../x"', "Name a PAM service"),
        ('[sign_in.pam]\nservice = "carrel"\nadmit = "all"', "known, everybody"),
        ('[sign_in.pam]\nservice = "carrel"\nadmits = "known"', 'Did you mean "admit"'),
        ('[sign_in.pam]\nservice = "carrel"\ndirectory = "x"', "absolute path"),
        ('[sign_in.pma]\nservice = "carrel"', 'Did you mean "pam"'),
        ('sign_in = "pam"', "It is a table"),
    ):
        file.write_text(text)
        with pytest.raises(Invalid) as caught:
            read_settings(file, {}, {})
        assert words in str(caught.value), text


def test_pam_unix_knows_the_password_of_an_account_and_its_rules(services: Path, tmp_path: Path) -> None:
    """With accounts of the test's own: a namespace in which /etc/passwd and /etc/shadow are others."""
    if not shutil.which("openssl") or not shutil.which("unshare"):
        pytest.skip("openssl or unshare is not installed")
    if subprocess.run(["unshare", "--mount", "--map-root-user", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    hashed = subprocess.run(["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True).stdout.strip()
    accounts = {"passwd": [], "shadow": []}
    for number, (name, expired) in enumerate((("ida", ""), ("otto", "10"))):
        accounts["passwd"].append(f"{name}:x:{1000 + number}:{1000 + number}::/:/bin/sh")
        accounts["shadow"].append(f"{name}:{hashed}:19000:0:99999:7::{expired}:")
    binds = []
    for file, lines in accounts.items():
        (tmp_path / file).write_text("".join(f"{line}\n" for line in ["root:x:0:0::/:/bin/sh", *lines]))
        binds.append(f"mount --bind {tmp_path / file} /etc/{file}")
    service(services, "unix", "required pam_unix.so nodelay", account="required pam_unix.so")
    program = (
        "import sys; from carrel.lab.credentials.pam import PamService, PamSignIn\n"
        f"pam = PamService(service='unix', directory={str(services)!r})\n"
        "print([PamSignIn._is_person(name) and pam.accepts(name, given) for name, given in "
        f"(('ida', {PASSWORD!r}), ('ida', 'wrong'), ('otto', {PASSWORD!r}), ('root', {PASSWORD!r}))])"
    )
    (tmp_path / "program.py").write_text(program)
    words = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        " && ".join([*binds, f"{sys.executable} {tmp_path}/program.py"]),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[True, False, False, False]"), done.stderr
