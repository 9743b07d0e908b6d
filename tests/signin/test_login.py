"""`carrel login`, `carrel logout` and the sign-in between them, with the real command and people on the pages."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from gateway_lab import a_lab, client, serve
from portal_site import Clock, Site
from programs import Program, decide, error_of

from carrel.client import Client
from carrel.client.stored_tokens import token_file
from carrel.core.domain.errors import Unauthenticated
from carrel.testing.waiting import PATIENCE, wait_until


@dataclass
class Laptop:
    """A machine with nothing but the lab's address, and no browser unless one is named."""

    site: Site
    place: Path
    more: dict[str, str] = field(default_factory=dict)

    @property
    def around(self) -> dict[str, str]:
        none = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"), "")
        home = {"XDG_CONFIG_HOME": str(self.place / "config"), "XDG_DATA_HOME": str(self.place / "data")}
        return {**none, **home, **self.more}

    @property
    def carrel(self) -> CommandLine:
        return CommandLine(self.around)

    @property
    def file(self) -> Path:
        return token_file(self.site.url, self.around)

    @property
    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def change(self, **values: Any) -> None:
        self.file.write_text(json.dumps({**self.kept, **values}))

    def login(self, who: str = "ada", decision: str = "approve", *words: str) -> tuple[int, str, str]:
        """`carrel login` with a code that somebody enters elsewhere."""
        running = self.carrel.start("login", self.site.url, *words)
        code, said = read_code(running)
        with self.site.browser(who) as browser:
            assert decide(browser, code, decision).status_code == 200
        out, err = running.communicate(timeout=PATIENCE)
        return running.returncode, out, said + err


def read_until(running: subprocess.Popen[Any], pattern: str) -> str:
    said = ""
    while re.search(pattern, said) is None:
        assert select.select([running.stderr], [], [], PATIENCE)[0], said
        piece = os.read(running.stderr.fileno(), 65536).decode()  # type: ignore[union-attr]
        assert piece, said
        said += piece
    return said


def read_code(running: subprocess.Popen[Any]) -> tuple[str, str]:
    said = read_until(running, r"Waiting until you have approved it there")
    found = re.search(r"enter the code +([A-Z]{4}-[A-Z]{4})\n", said)
    assert found, said
    return found[1], said


@pytest.fixture
def laptop(site: Site, tmp_path: Path) -> Laptop:
    return Laptop(site, tmp_path / "laptop")


@pytest.fixture
def signed_in(laptop: Laptop) -> Laptop:
    """A laptop on which ada is signed in."""
    with Program(laptop.site) as program:
        tokens = program.sign_in()
    laptop.file.parent.mkdir(parents=True)
    kept = {"access_token": tokens["access_token"], "refresh_token": tokens["refresh_token"], "expires_at": 4e9}
    laptop.file.write_text(json.dumps(kept))
    laptop.file.chmod(0o600)
    laptop.more["CARREL_URL"] = laptop.site.url
    return laptop


def renewals(site: Site) -> int:
    with client(site.url, site.rig.headers("root")) as http:
        query = {"action": "renew a sign-in", "result": "allowed", "limit": 100}
        return len(http.get("/api/v1/audit", params=query).json()["lines"])


def with_browser(laptop: Laptop, status: int = 0) -> Path:
    """Give it a browser that writes down the address with which it is opened."""
    script, opened = laptop.place.parent / "browser.py", laptop.place.parent / "opened"
    script.write_text(f"import pathlib, sys\npathlib.Path({str(opened)!r}).write_text(sys.argv[1])\nsys.exit({status})\n")
    laptop.more["BROWSER"] = f"{sys.executable} {script} %s"
    return opened


# ---- signing in and out


@pytest.mark.gate
def test_a_code_for_another_browser_signs_in_and_logout_ends_it(laptop: Laptop) -> None:
    code, out, err = laptop.login()
    assert (code, "as Ada" in out) == (0, True), err
    assert f"{laptop.site.url}/device" in err
    assert "10 minutes at most" in err
    assert stat.S_IMODE(laptop.file.stat().st_mode) == 0o600
    kept = laptop.kept
    assert [secret for secret in (kept["access_token"], kept["refresh_token"]) if secret in out + err] == []
    assert laptop.carrel("lab", "--json").json["caller"]["subject"] == "ada"
    assert "carrel login on " in laptop.carrel("token", "list").out
    assert laptop.carrel("logout").out == f"Signed out of {laptop.site.url}.\n"
    assert not laptop.file.exists()
    with Program(laptop.site) as program:
        assert not program.works(kept)
        assert error_of(program.renew(kept)) == "invalid_grant"
    assert laptop.carrel("logout", laptop.site.url).code == 5


@pytest.mark.parametrize("status", [0, 1], ids=["opens", "fails"])
def test_a_browser_of_this_machine_is_opened_at_an_address_without_the_code(laptop: Laptop, status: int) -> None:
    opened = with_browser(laptop, status)
    code, out, err = laptop.login("ada", "approve", "--json")
    assert (code, json.loads(out)) == (0, {"url": laptop.site.url, "user": "ada", "kept": str(laptop.file)}), err
    wait_until(lambda: opened.exists() and opened.read_text() == f"{laptop.site.url}/device", "the browser was opened")
    assert laptop.carrel("ps").code == 0


def test_what_is_refused_on_the_page_leaves_nothing(laptop: Laptop) -> None:
    code, _out, err = laptop.login("ada", "refuse")
    assert (code, "refused on the lab's page" in err, laptop.file.exists()) == (4, True, False)


@pytest.mark.parametrize("browser", ["", f"{sys.executable} -c pass %s &"], ids=["none", "one"])
def test_an_interrupt_ends_it_in_good_order(laptop: Laptop, browser: str) -> None:
    laptop.more["BROWSER"] = browser
    running = laptop.carrel.start("login", laptop.site.url)
    read_until(running, r"Ctrl-C stops\.")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out, "Traceback" in err, laptop.file.exists()) == (130, "", False, False)


def test_a_second_sign_in_ends_the_first(laptop: Laptop) -> None:
    assert laptop.login()[0] == 0
    first = laptop.kept
    assert laptop.login("bob")[0] == 0
    with Program(laptop.site) as program:
        assert error_of(program.renew(first)) == "invalid_grant"
        assert program.works(laptop.kept)


def test_two_ways_are_not_taken_at_once(laptop: Laptop) -> None:
    done = laptop.carrel("login", laptop.site.url, "--invitation", "x", "--token")
    assert (done.code, "Leave one out" in done.err) == (2, True)


def test_an_answer_that_is_none_of_a_lab_is_told(tmp_path: Path) -> None:
    with a_lab(tmp_path / "lab", issues=False) as rig, serve(rig.app) as url:
        laptop = Laptop(Site(rig, None, Clock(), url), tmp_path / "laptop")  # type: ignore[arg-type]
        done = laptop.carrel("login", url)
        assert (done.code != 0, "Traceback" in done.err, laptop.file.exists()) == (True, False, False), done.err


# ---- staying signed in


def test_an_access_token_that_has_ended_is_renewed_in_silence(signed_in: Laptop) -> None:
    before = signed_in.kept
    signed_in.site.clock.ahead += 3600  # this machine's clock does not know
    done = signed_in.carrel("ps")
    assert (done.code, done.err) == (0, "")
    after = signed_in.kept
    assert after["access_token"] != before["access_token"]
    assert stat.S_IMODE(signed_in.file.stat().st_mode) == 0o600
    assert signed_in.carrel("ps").code == 0
    assert (renewals(signed_in.site), signed_in.kept) == (1, after)


def test_one_that_is_about_to_end_is_renewed_before(signed_in: Laptop) -> None:
    signed_in.change(expires_at=1.0)
    assert signed_in.carrel("ps").code == 0
    assert renewals(signed_in.site) == 1
    assert signed_in.kept["expires_at"] > 1.0
    with client(signed_in.site.url, signed_in.site.rig.headers("root")) as http:
        lines = http.get("/api/v1/audit", params={"user": "ada", "result": "refused"}).json()["lines"]
    assert lines == []


def test_commands_at_once_renew_once(signed_in: Laptop) -> None:
    signed_in.change(expires_at=1.0)
    running = [signed_in.carrel.start("ps") for _ in range(4)]
    ended = [(one.communicate(timeout=PATIENCE), one.returncode) for one in running]
    assert [code for _, code in ended] == [0] * 4, ended
    assert renewals(signed_in.site) == 1


def test_threads_of_one_client_renew_once(signed_in: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in signed_in.around.items():
        monkeypatch.setenv(name, value)
    signed_in.change(expires_at=1.0)
    with Client() as mine:
        threads = [threading.Thread(target=mine.nodes) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert renewals(signed_in.site) == 1
        assert mine.token == signed_in.kept["access_token"]


def test_an_answer_that_was_lost_is_asked_for_again(signed_in: Laptop) -> None:
    """A command was killed after it had asked, and before it had kept the answer."""
    signed_in.change(expires_at=1.0, retry="the key that it kept before")
    with Program(signed_in.site) as program:
        assert program.renew(signed_in.kept, key="the key that it kept before").status_code == 200
    assert signed_in.carrel("ps").code == 0
    assert "retry" not in signed_in.kept
    signed_in.change(expires_at=1.0)
    assert signed_in.carrel("ps").code == 0


def ended_by_themselves(site: Site, kept: dict[str, Any]) -> None:
    with client(site.url, {"Authorization": f"Bearer {kept['access_token']}"}) as http:
        assert http.delete("/api/v1/tokens/current").status_code == 204


def stolen(site: Site, kept: dict[str, Any]) -> None:
    with Program(site) as thief:
        assert thief.renew(kept).status_code == 200


def unused(site: Site, kept: dict[str, Any]) -> None:
    site.clock.ahead += 31 * 86400


@pytest.mark.parametrize("what", [ended_by_themselves, stolen, unused])
def test_a_sign_in_that_has_ended_says_how_to_go_on(signed_in: Laptop, what: Callable[[Site, dict[str, Any]], None]) -> None:
    what(signed_in.site, signed_in.kept)
    for _ in range(2):
        signed_in.change(expires_at=1.0)
        done = signed_in.carrel("ps")
        assert (done.code, f"carrel login {signed_in.site.url}" in done.err, "Traceback" in done.err) == (4, True, False), (
            done.err
        )
    signed_in.change(expires_at=4e9)
    done = signed_in.carrel("ps")
    assert (done.code, "carrel login" in done.err) == (4, True), done.err
    assert signed_in.carrel("logout").code == 0


def test_who_is_suspended_reads_why_and_goes_on_later(signed_in: Laptop) -> None:
    with client(signed_in.site.url, signed_in.site.rig.headers("root")) as root:
        root.post("/api/v1/users/ada/suspend", json={"reason": "The course is over."}).raise_for_status()
        for end in (4e9, 1.0):
            signed_in.change(expires_at=end)
            done = signed_in.carrel("ps")
            assert (done.code, "The course is over" in done.err) == (4, True), done.err
        root.post("/api/v1/users/ada/resume").raise_for_status()
    assert signed_in.carrel("ps").code == 0


def test_what_is_kept_and_damaged_is_told(signed_in: Laptop) -> None:
    for text in ('{"access_token": 1}', '{"a": "b"}', "[]", "{"):
        signed_in.file.write_text(text)
        done = signed_in.carrel("ps")
        assert (done.code, "Traceback" in done.err, "carrel-failure" in done.err) == (4, False, False), done.err
    assert signed_in.carrel("logout").code == 4
    assert signed_in.login()[0] == 0


def test_a_stream_of_events_goes_on_when_its_token_ends(signed_in: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in signed_in.around.items():
        monkeypatch.setenv(name, value)
    site, rig = signed_in.site, signed_in.site.rig
    job = site.submit("ada")
    rig.engine.run(job)
    rig.engine.say(job, log=b"before\n")
    with Client() as mine:
        log: Iterator[str] = mine.stream_log(job)
        assert next(log) == "before\n"
        site.clock.ahead += 3600
        rig.lab.tokens.announce()
        rig.engine.say(job, log=b"after\n")
        assert next(log) == "after\n"
        rig.engine.end(job)
        assert list(log) == []
    assert renewals(site) == 1


def test_a_token_without_a_renewal_goes_on(laptop: Laptop) -> None:
    laptop.file.parent.mkdir(parents=True)
    laptop.file.write_text(laptop.site.rig.tokens["bob"] + "\n")
    laptop.file.chmod(0o600)
    laptop.more["CARREL_URL"] = laptop.site.url
    assert laptop.carrel("lab", "--json").json["caller"]["subject"] == "bob"
    assert laptop.carrel("logout").code == 0
    with pytest.raises(Unauthenticated):
        laptop.site.rig.caller("bob")
