"""VS Code in the browser: a small program in the place of code-server, and code-server itself where this machine has it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import expect
from session_rig import Browser, Front, Jupyter, a_front, a_jupyter

from carrel.testing.waiting import PATIENCE, wait_until
from support.chromium import a_chromium
from support.small_code_server import put


@dataclass
class Desk:
    jupyter: Jupyter
    front: Front
    browser: Browser


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    variables = {"PATH": put(tmp_path / "bin"), "CARREL_SESSION_CLIENT": str(tmp_path / "client")}
    with a_jupyter(kind="vscode", variables=variables) as jupyter, a_front() as front:
        yield Desk(jupyter, front, front.enter(front.sessions.add(jupyter.session)))


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cwd").exists()


@pytest.mark.gate
def test_it_is_started_once_in_the_sessions_environment_and_ends_with_the_session(desk: Desk) -> None:
    first = desk.browser.get("/code")
    assert (first.status_code, first.headers["location"]) == (302, "/proxy/code/")
    said = desk.browser.get("/proxy/code/").json()
    assert said["socket"] == str(desk.jupyter.temporary / "pages/code")
    assert (said["auth"], said["directory"]) == ("none", str(desk.jupyter.files))
    assert said["user_data_dir"] == str(desk.jupyter.files / ".carrel/code")
    assert Path(said["config"]).parent == desk.jupyter.temporary, "no file of the user's own"
    assert said["python"] == f"{sys.prefix}/bin/python"
    assert "/client/" in said["pythonpath"], "programs there find the lab's client"
    with desk.browser.websocket("/proxy/code/talk") as talk:
        for message in ("text", b"\x00bytes"):
            talk.send(message)
            assert talk.recv() == message
    assert desk.browser.get("/code").status_code == 302
    assert desk.browser.get("/proxy/code/").json()["pid"] == said["pid"]
    stranger = Browser(desk.front, desk.front.sessions.add(desk.jupyter.session))
    assert stranger.get("/proxy/code/").status_code in (401, 403)
    desk.browser.request("POST", "/api/shutdown")
    wait_until(lambda: not _alive(said["pid"]), "the end of code-server")


def test_one_that_has_ended_is_started_again(desk: Desk) -> None:
    desk.browser.get("/code")
    before = desk.browser.get("/proxy/code/").json()["pid"]
    desk.browser.get("/proxy/code/end")
    wait_until(lambda: not _alive(before), "its end")
    assert desk.browser.get("/code").status_code == 302
    assert desk.browser.get("/proxy/code/").json()["pid"] != before


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("#!/bin/sh\nexit 7\n", "code-server ended with exit code 7. See `carrel logs 7`."),
        ("no program", "code-server cannot be started: exec format error"),
        ("", "The session finds no program code-server on its PATH. Ask an administrator"),
    ],
)
def test_one_that_does_not_start_says_why(program: str, said: str, tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    put(directory)
    (directory / "code-server").write_text(program)
    if not program:
        (directory / "code-server").unlink()
    with a_jupyter(kind="vscode", variables={"PATH": f"{directory}:/usr/bin:/bin"}) as jupyter, jupyter.http() as http:
        answer = http.get("/code")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "text/plain; charset=utf-8")
        assert said in answer.text


def test_other_sessions_have_no_such_page(tmp_path: Path) -> None:
    with a_jupyter(variables={"PATH": put(tmp_path / "bin")}) as jupyter, jupyter.http() as http:
        assert http.get("/code").status_code == 404


@pytest.mark.skipif(shutil.which("code-server") is None, reason="code-server is not installed")
def test_the_real_one_shows_files_and_a_terminal_in_the_sessions_environment(tmp_path: Path) -> None:
    variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    with a_jupyter(kind="vscode", variables=variables) as jupyter, a_front() as front, a_chromium() as chromium:
        (jupyter.files / "work.py").write_text("print(1)\n")
        page, label = chromium.new_page(), front.sessions.add(jupyter.session)
        page.goto(front.link(label, "/code"))
        assert re.search(r"/proxy/code/\?folder=", page.url)
        expect(page.locator(".monaco-workbench")).to_be_visible(timeout=1000 * PATIENCE)
        page.get_by_role("button", name="Yes, I trust the authors").click()
        page.get_by_role("treeitem", name="work.py").click()
        expect(page.locator(".view-lines").first).to_contain_text("print(1)")
        page.keyboard.press("Control+`")
        expect(page.locator(".xterm-helper-textarea").first).to_be_focused()
        expect(page.get_by_role("tab", name="Terminal")).to_have_attribute("aria-selected", "true")
        expect(page.locator(".terminal-wrapper.active .xterm")).to_be_visible()
        page.keyboard.type("type python > found\n")
        found = jupyter.files / "found"
        wait_until(lambda: found.exists() and found.read_text(), "what the terminal says")
        assert found.read_text() == f"python is {sys.prefix}/bin/python\n"
        assert front.sessions.connections[jupyter.session.job_id] > 0, "the session is in use"
        page.close()
        wait_until(lambda: front.sessions.connections[jupyter.session.job_id] == 0, "its connections to end")
