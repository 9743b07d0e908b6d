"""Inputs from Rucio, with a played server: the rule, the wait, the replicas. No real Rucio was tried."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from test_staging_web import say, serving

from carrel.core.domain.errors import Invalid
from carrel.core.domain.launch import LaunchRucio
from carrel.core.domain.task import InputSpec
from carrel.lab.server.rucio import rucio_of
from carrel.lab.server.settings import read_settings
from carrel.node.containment.walls import Bind, Walls
from carrel.node.staging import rucio
from carrel.node.staging.apart import stage_apart
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import Closed, check_uri, stage_inputs
from carrel.node.staging.lab import LabFiles
from support.namespaces import why_no_namespaces

TOKEN, RULE = "token-of-alice", "0123456789abcdef"
FILES = {"a.root": b"first" * 100, "run/b.root": b"second" * 100}


@dataclass
class Played:
    """What the server knows, and what it was asked."""

    pool: Path
    url: str = ""
    kind: str = "DATASET"
    #: What the rule says each time that it is asked; the last holds.
    states: list[dict[str, Any]] = field(default_factory=lambda: [{"state": "OK"}])
    refuses: tuple[int, str] | None = None
    #: By what addresses of replicas begin.
    begin: str = "davs://storage.example.org:443/pool"
    damaged: str = ""
    rules: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler, _asked: list[dict[str, str]]) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers.get("Content-Length") or 0)) or b"null")
        self.asked.append(f"{handler.command} {handler.path}")
        if handler.path == "/auth/userpass":
            said = {name: handler.headers.get(f"X-Rucio-{name}") for name in ("Account", "Username", "Password")}
            good = said == {"Account": "alice", "Username": "alice", "Password": "word"}
            if good:
                say(handler, 200, b"", X_Rucio_Auth_Token=TOKEN)
            else:
                self.refuse(handler, 401, "CannotAuthenticate")
        elif handler.path.startswith("/pool/"):
            say(handler, 200, self.content(handler.path.removeprefix("/pool/")))
        elif handler.headers.get("X-Rucio-Auth-Token") != TOKEN:
            self.refuse(handler, 401, "CannotAuthenticate")
        elif handler.path == "/dids/user.alice/study%2Fone":
            say(handler, 200, json.dumps({"scope": "user.alice", "name": "study/one", "type": self.kind}).encode())
        elif handler.path.endswith("/rules"):
            say(handler, 200, "\n".join(map(json.dumps, self.rules)).encode())
        elif handler.path == "/rules/":
            self.make(handler, body)
        elif handler.path == f"/rules/{RULE}":
            say(handler, 200, json.dumps(self.states.pop(0) if len(self.states) > 1 else self.states[0]).encode())
        elif handler.path == "/replicas/list":
            assert body["rse_expression"] == "NEAR"
            say(handler, 200, "\n".join(map(json.dumps, self.replicas())).encode())
        else:
            self.refuse(handler, 404, "DataIdentifierNotFound")

    def make(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if self.refuses is not None:
            self.refuse(handler, *self.refuses)
            return
        self.rules.append(body)
        say(handler, 201, json.dumps([RULE]).encode())

    def refuse(self, handler: BaseHTTPRequestHandler, status: int, kind: str) -> None:
        text = json.dumps({"ExceptionClass": kind, "ExceptionMessage": f"because of {kind}"}).encode()
        say(handler, status, text, ExceptionClass=kind)

    def content(self, name: str) -> bytes:
        return b"rubbish" if name == self.damaged else FILES[name]

    def replicas(self) -> Iterator[dict[str, Any]]:
        for name, content in list(FILES.items())[: 1 if self.kind == "FILE" else 2]:
            begin = self.begin or f"{self.url.replace('http', 'dav')}/pool"
            yield {
                "scope": "user.alice",
                "name": name,
                "bytes": len(content),
                "adler32": f"{zlib.adler32(content):x}",
                "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
                "pfns": {
                    "root://far.example.org//x": {"rse": "NEAR", "type": "DISK", "priority": 1},
                    f"{begin}/{name}": {"rse": "NEAR", "type": "DISK", "priority": 2},
                },
            }


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.setattr(rucio, "_POLL", 0.0)
    monkeypatch.setattr(rucio, "_PAUSE", 0.0)
    for name, value in {"ACCOUNT": "alice", "USERNAME": "alice", "PASSWORD": "word"}.items():
        monkeypatch.setenv(f"RUCIO_{name}", value)
    for name in ("RUCIO_AUTH_TOKEN", "X509_USER_PROXY"):
        monkeypatch.delenv(name, raising=False)
    played = Played(tmp_path / "pool")
    for name, content in FILES.items():
        (played.pool / name).parent.mkdir(parents=True, exist_ok=True)
        (played.pool / name).write_bytes(content)
    with serving(played.answer) as (url, _asked):
        played.url = url
        yield played


def place(played: Played) -> LaunchRucio:
    return LaunchRucio(url=played.url, rse="NEAR", path=f"davs://storage.example.org:443/pool={played.pool}", lifetime=3600)


def stage(played: Played, directory: Path, uri: str = "rucio://user.alice:study/one", **more: Any) -> tuple[list[str], str]:
    """Stage it; return what the owner is told and what is recorded."""
    directory.mkdir()
    told: list[str] = []
    sources: dict[str, str] = {}
    here = more.pop("rucio", place(played))
    item = InputSpec(path="in", uri=uri)
    stage_inputs((item,), directory, told.append, rucio=here, resolved=sources.__setitem__, **more)
    return told, sources["in"]


def staged(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory / "in")): path.read_bytes() for path in (directory / "in").rglob("*") if path.is_file()
    }


def locks(state: str, ok: int, replicating: int, stuck: int, **more: Any) -> dict[str, Any]:
    return {"state": state, "locks_ok_cnt": ok, "locks_replicating_cnt": replicating, "locks_stuck_cnt": stuck, **more}


@pytest.mark.gate
def test_a_rule_is_made_and_its_replica_waited_for(played: Played, tmp_path: Path) -> None:
    played.states = [
        {"state": "WAITING_APPROVAL"},
        *[locks("REPLICATING", 1, 1, 0)] * 3,
        locks("STUCK", 1, 0, 1, error="no space"),
        locks("OK", 2, 0, 0),
    ]
    told, source = stage(played, tmp_path / "job")
    assert staged(tmp_path / "job") == FILES
    assert [text.partition(f"rule {RULE}): ")[2] for text in told[1:]] == [
        "somebody has to approve the rule",
        "1 of 2 files are there, 1 on their way, 0 stuck",
        "Rucio tries again what is stuck: 1 of 2 files are there, 0 on their way, 1 stuck; Rucio says: no space",
    ]
    (rule,) = played.rules
    assert (rule["rse_expression"], rule["account"], rule["copies"], rule["lifetime"]) == ("NEAR", "alice", 1, 3600)
    assert source == f"rucio://user.alice:study/one (rule {RULE}, NEAR)"
    assert not [line for line in played.asked if line.startswith("GET /pool")]  # it was on the machine


def test_it_is_brought_behind_the_walls_of_its_owner(played: Played, tmp_path: Path) -> None:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    (tmp_path / "job").mkdir()
    (tmp_path / "private").mkdir()
    sources: dict[str, str] = {}
    told: list[str] = []
    found = stage_apart(
        (InputSpec(path="in", uri="rucio://user.alice:study/one"),),
        tmp_path / "job",
        told.append,
        lab=LabFiles("", ""),
        closed=Closed(),
        rucio=place(played),
        resolved=sources.__setitem__,
        walls=Walls(binds=(Bind(str(tmp_path), writable=True),), temporary=str(tmp_path / "private")),
        variables={"PATH": os.defpath, **{name: os.environ[name] for name in os.environ if name.startswith("RUCIO_")}},
    )
    assert staged(tmp_path / "job") == FILES
    assert found["in"].startswith("sha256:")
    assert sources == {"in": f"rucio://user.alice:study/one (rule {RULE}, NEAR)"}
    assert told[0] == "fetching the input in from rucio://user.alice:study/one"


def test_a_rule_that_is_there_is_taken(played: Played, tmp_path: Path) -> None:
    played.refuses = (409, "DuplicateRule")
    for account, rse in (("bob", "NEAR"), ("alice", "FAR"), ("alice", "NEAR")):
        known = RULE if (account, rse) == ("alice", "NEAR") else "another"
        played.rules.append({"id": known, "account": account, "rse_expression": rse})
    stage(played, tmp_path / "job")
    assert f"GET /rules/{RULE}" in played.asked


def test_what_is_not_on_the_machine_is_downloaded_and_a_file_is_a_file(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUCIO_AUTH_TOKEN", TOKEN)
    monkeypatch.delenv("RUCIO_PASSWORD")
    played.begin, played.kind = "", "FILE"
    stage(played, tmp_path / "job", "rucio:user.alice:study%2Fone")
    assert (tmp_path / "job/in").read_bytes() == FILES["a.root"]
    assert "GET /pool/a.root" in played.asked
    assert "GET /auth/userpass" not in played.asked


@pytest.mark.parametrize("where", ["here", "there"])
def test_what_was_damaged_is_no_input(played: Played, tmp_path: Path, where: str) -> None:
    played.damaged = "run/b.root"
    (played.pool / played.damaged).write_bytes(b"rubbish")
    if where == "there":
        played.begin = ""
    with pytest.raises(InputFailed, match="was damaged"):
        stage(played, tmp_path / "job")


def test_no_replica_names_the_labs_own_files_or_climbs_out(played: Played, tmp_path: Path) -> None:
    closed = Closed((played.pool,))
    with pytest.raises(InputFailed, match="the lab's own directory"):
        stage(played, tmp_path / "first", closed=closed)
    played.begin = f"file://{played.pool}"
    with pytest.raises(InputFailed, match="the lab's own directory"):
        stage(played, tmp_path / "second", closed=closed)
    here = place(played)
    assert rucio.on_this_machine("davs://storage.example.org:443/pool/a", here) == f"{played.pool}/a"
    for climbs in ("/../token", "/x/%2e%2e/%2e%2e/token"):
        assert rucio.on_this_machine(f"davs://storage.example.org:443/pool{climbs}", here) is None


@pytest.mark.parametrize(
    ("refuses", "states", "words"),
    [
        ((409, "InsufficientAccountLimit"), None, "no more room|InsufficientAccountLimit"),
        (None, [locks("SUSPENDED", 0, 0, 2)], "the rule is suspended"),
        ((500, ""), None, "does not answer: 500"),
    ],
    ids=["quota", "suspended", "down"],
)
def test_what_rucio_refuses_is_told(played: Played, tmp_path: Path, refuses: Any, states: Any, words: str) -> None:
    played.refuses, played.states = refuses, states or played.states
    with pytest.raises(InputFailed, match=words):
        stage(played, tmp_path / "job")


def test_who_asks_has_to_be_known(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUCIO_PASSWORD", "wrong")
    with pytest.raises(InputFailed, match="CannotAuthenticate"):
        stage(played, tmp_path / "wrong")
    monkeypatch.delenv("RUCIO_PASSWORD")
    with pytest.raises(InputFailed, match="needs who asks") as refused:
        stage(played, tmp_path / "nobody")
    assert "RUCIO_AUTH_TOKEN" in refused.value.remedy
    monkeypatch.setenv("RUCIO_PASSWORD", "word")
    with pytest.raises(InputFailed, match="DataIdentifierNotFound"):
        stage(played, tmp_path / "unknown", "rucio://user.alice:nothing")


def test_it_is_refused_before_it_waits_where_it_can_never_be_staged() -> None:
    here = LaunchRucio(url="https://rucio.example.org", rse="NEAR")
    for fine in ("rucio://user.alice:one", "rucio:cms:/MiniDaq/Run-v1/RAW"):
        check_uri(fine, here)
    for wrong in ("rucio://one", "rucio://user.alice:", "rucio://a:../x", "rucio://a b:c"):
        with pytest.raises(InputFailed, match="no address of Rucio's"):
            check_uri(wrong, here)
    with pytest.raises(InputFailed, match="this lab has no Rucio") as refused:
        check_uri("rucio://user.alice:one")
    assert "rucio_url" in refused.value.remedy


def test_the_labs_settings_are_whole_or_absent(tmp_path: Path) -> None:
    def settings(**values: str) -> LaunchRucio | None:
        return rucio_of(
            read_settings(tmp_path / "none.toml", {}, {f"rucio_{name}": value for name, value in values.items()}).values
        )

    assert settings() is None
    found = settings(url="https://rucio.example.org/", rse="NEAR", path="root://x=/pool")
    assert found == LaunchRucio(url="https://rucio.example.org", rse="NEAR", path="root://x=/pool")
    for wrong in (
        {"rse": "NEAR"},
        {"url": "https://x.org"},
        {"url": "x.org", "rse": "N"},
        {"url": "https://x.org", "rse": "N", "path": "x"},
    ):
        with pytest.raises(Invalid):
            settings(**wrong)
