"""A real lab: an invitation in the browser, sign-in by password and by the machine's accounts, and what `carrel doctor` says."""

from __future__ import annotations

import ctypes.util
import json
import os
import pwd
from pathlib import Path

import httpx
import pytest

from carrel.testing.waiting import PATIENCE
from support.fork_server import run_carrel
from support.lab_process import start_lab

GOOD = "correct horse battery staple"
OWN = {"Sec-Fetch-Site": "same-origin", "Accept": "text/html"}


def carrel(home: Path, *words: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CARREL_")}
    done = run_carrel([*words, "--home", str(home)], variables=variables, directory=None, timeout=PATIENCE)
    return done.stdout.decode()


@pytest.mark.gate
def test_a_lab_is_signed_in_to_without_a_terminal_and_its_secrets_are_in_no_file(tmp_path: Path) -> None:
    home, services = tmp_path / "home", tmp_path / "pam.d"
    home.mkdir(mode=0o700)
    services.mkdir()
    (services / "carrel").write_text("auth required pam_permit.so\naccount required pam_permit.so\n")
    has_pam = ctypes.util.find_library("pam") is not None
    (home / "carrel.toml").write_text(f'[sign_in.pam]\nservice = "carrel"\nadmit = "everybody"\ndirectory = "{services}"\n')
    lab = start_lab(home)
    try:
        invited = carrel(home, "user", "invite", "grace", "--without-isolation")
        (link,) = [line.strip() for line in invited.splitlines() if "/invitation#" in line]
        address, code = link.split("#")
        assert address == f"{lab.url}/invitation"
        assert f"carrel login {lab.url} --invitation {code}" in invited
        with httpx.Client(base_url=lab.url, headers=OWN, timeout=PATIENCE, follow_redirects=True) as http:
            assert http.get("/invitation").status_code == 200
            done = http.post("/invitation", data={"code": code, "password": GOOD, "again": GOOD})
            assert (done.status_code, done.url.path) == (200, "/")
            assert "You have a password." in http.get("/my-sign-in").text
        with httpx.Client(base_url=lab.url, headers=OWN, timeout=PATIENCE, follow_redirects=True) as http:
            assert http.post("/sign-in/password", data={"name": "grace", "password": GOOD + "x"}).status_code == 401
            assert http.post("/sign-in/password", data={"name": "grace", "password": GOOD, "after": "/notebooks"}).url.path == (
                "/notebooks"
            )
        somebody = next(user.pw_name for user in pwd.getpwall() if user.pw_uid != 0 and user.pw_name.isalpha())
        if has_pam:
            with httpx.Client(base_url=lab.url, headers=OWN, timeout=PATIENCE, follow_redirects=True) as http:
                assert http.post("/sign-in/pam", data={"name": somebody, "password": GOOD}).status_code == 200
                assert http.post("/sign-in/pam", data={"name": "root", "password": GOOD}).status_code == 401
        said = carrel(home, "doctor", "--json")
        (check,) = [one for one in json.loads(said)["checks"] if one["name"] == "sign-in"]
        assert 'PAM service "carrel"' in check["message"]
        carrel(home, "user", "reset", "grace")
        with httpx.Client(base_url=lab.url, headers=OWN, timeout=PATIENCE) as http:
            assert http.post("/sign-in/password", data={"name": "grace", "password": GOOD}).status_code == 401
    finally:
        lab.stop()
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.name.startswith("lab.db") for path in kept)
    for path in kept:
        data = path.read_bytes()
        assert GOOD.encode() not in data, path
        assert code.encode() not in data, path
