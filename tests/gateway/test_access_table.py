"""Every endpoint of the API, asked by everybody. Answers are those of `access_table.txt`; an endpoint without a row fails."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from gateway_lab import RULES, Rig, a_lab, client, serve
from test_gateway_openapi import operations

from carrel.core.domain.account import Account
from carrel.core.domain.announcement import Announcement
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, SubmissionState, Team
from carrel.core.domain.composition import Composition
from carrel.core.domain.fabric import BlockKind, Wish
from carrel.core.domain.nouns import ANNOUNCEMENTS, CHALLENGES, COMPOSITIONS, RESERVATIONS, TEAMS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.secret import Secret
from carrel.core.domain.user import Caller, Role, User
from carrel.lab.gateway.actions import ENDPOINTS
from carrel.lab.portal import Portal
from carrel.node.environments.named import SITE, NamedEnvironments, Work
from carrel.wire.frames import encode
from carrel.wire.v1 import API

TABLE = Path(__file__).with_name("access_table.txt")
ACTORS = ("owner", "colleague", "stranger", "manager", "operator", "admin", "job", "expired", "revoked", "nobody")
PEOPLE = {
    "owner": ("ada", Role.USER),
    "colleague": ("cora", Role.USER),
    "stranger": ("bob", Role.USER),
    "manager": ("mara", Role.MANAGER),
    "operator": ("olga", Role.OPERATOR),
    "admin": ("root", Role.ADMIN),
    "revoked": ("vera", Role.USER),
    "other": ("dave", Role.USER),
}
ACCOUNTS = {
    "physics": Account(name="physics", users={"ada": 1, "cora": 1, "mara": 1}),
    "chemistry": Account(name="chemistry", users={"bob": 1, "dave": 1, "root": 1, "olga": 1, "vera": 1}),
}
SECRET = "what-ada-keeps-for-herself"
JOBS = ("private", "shared", "other")
#: Another job of ada's that is shared: what others are compared with.
ALSO = "also shared"
FUTURE = {"begin": "2100-01-01T00:00:00Z", "end": "2100-01-02T00:00:00Z", "nodes": ["bench"], "reason": "a course"}
DIGEST = "sha256:" + "0" * 64
FUNCTION = "sha256:" + "1" * 64
CHALLENGE = {
    "challenge.yaml": "name: eeg\ntitle: EEG\npages: {A: a.md}\ndata: {one: {input: i, reference: r}}\ningestion: p\nscoring: s\n"
    "starter: b\nphases: [{name: one, begin: 2026-01-01, end: 2100-01-01, split: one}]\nboard: [{column: a}]\n",
    **dict.fromkeys(("a.md", "i/x", "r/x", "p/x", "s/x", "b/x"), "x"),
}


@dataclass(frozen=True)
class Row:
    method: str
    path: str
    case: str
    answers: dict[str, str]


@dataclass
class World:
    rig: Rig
    http: httpx.Client
    tokens: dict[str, str]
    jobs: dict[str, int]
    sessions: dict[str, int]
    arrays: dict[str, int]
    snapshot: str
    pool: int = 0
    call: int = 0
    sweep: int = 0
    challenge: str = ""

    def send(self, actor: str, method: str, path: str, **more: object) -> httpx.Response:
        token = self.tokens.get(actor)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.http.request(method, path, headers=headers, **more)  # type: ignore[arg-type]


def read_table() -> list[Row]:
    rows = []
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            method, path, case, *answers = line.split()
            assert len(answers) == len(ACTORS), line
            rows.append(Row(method, path, case, dict(zip(ACTORS, answers, strict=True))))
    return rows


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    pages = Portal(clock=time.time)
    home = tmp_path_factory.mktemp("access")
    with a_lab(home, pages=lambda _rig: pages, cpus=64, stranger_rate=0) as rig, serve(rig.app) as url, client(url) as http:
        rig.written.append(replace(RULES, accounts=ACCOUNTS))
        rig.lab.administration.apply_rules()
        tokens = {}
        for actor, (name, role) in PEOPLE.items():
            if rig.lab.people.get(name) is None:
                rig.lab.people.add(User(subject=name, name=name.title(), role=role), now=time.time())
            tokens[actor] = fresh(rig, name)
            rig.tokens = {**rig.tokens, name: tokens[actor]}
        world = World(rig=rig, http=http, tokens=tokens, jobs={}, sessions={}, arrays={}, snapshot="")
        fill(world)
        assert rig.lab.tokens.revoke_all("vera", by="root") == 1
        yield world


def fresh(rig: Rig, name: str) -> str:
    return rig.lab.tokens.hand_out(name, name="of a test", by="root")[1]


def fill(world: World) -> None:
    """Jobs that have ended with a log and an output, sessions, arrays; the token of a job that runs, and of one that is over."""
    rig = world.rig
    bodies: dict[str, tuple[str, dict[str, object]]] = {}
    for case, (who, name, visible) in zip(
        JOBS, (("owner", "ada", None), ("owner", "ada", "account"), ("other", "dave", None)), strict=True
    ):
        body = {"snapshot": rig.upload(name), "visible": visible, "variables": {"KEY": SECRET}, "parameters": {"who": "x"}}
        job = world.send(who, "POST", f"{API}/jobs", json=body).raise_for_status().json()["id"]
        rig.engine.run(job)
        rig.engine.end(job, log=SECRET.encode(), outputs=(output(rig),))
        rig.wait_for(lambda job=job: rig.store.jobs.get(job).state.ended)  # type: ignore[misc, union-attr]
        world.jobs[case] = job
        world.jobs[case] = job
        bodies[case] = (who, body)
    world.jobs[ALSO] = world.send("owner", "POST", f"{API}/jobs", json=bodies["shared"][1]).raise_for_status().json()["id"]
    over = rig.engine.wait_started(world.jobs["private"])[1]
    running = world.send("owner", "POST", f"{API}/jobs", json={"snapshot": rig.upload("ada")}).raise_for_status().json()["id"]
    world.jobs["running"] = running
    world.tokens["job"] = rig.engine.wait_started(running)[1]
    world.tokens["expired"] = over
    for case, (who, body) in bodies.items():  # whether these start or wait is nobody's question
        array = world.send(who, "POST", f"{API}/jobs", json={**body, "array": "0-1"}).raise_for_status().json()["id"]
        session = world.send(who, "POST", f"{API}/sessions", json={"kind": "terminal"}).raise_for_status().json()["job"]["id"]
        world.arrays[case], world.sessions[case] = array, session
    environments, work = (
        NamedEnvironments(rig.home / "environments"),
        Work(report=lambda _said: None, deadline=time.monotonic() + 600, stop=lambda: False),
    )
    for owner, name in (("ada", "torch"), ("ada", "ours"), (SITE, "common")):
        environments.create(owner, name, Path(sys.prefix), work)
    environments.share("ada", "ours", ["bob"])
    world.snapshot = rig.upload("ada", {"MLproject": "name: only_of_ada\nentry_points: {main: {command: 'true'}}\n"})
    task = {"max_workers": 1, "task": {"snapshot": world.snapshot}}
    world.pool = world.send("owner", "POST", f"{API}/pools", json=task).raise_for_status().json()["id"]
    world.send("owner", "PUT", f"{API}/pools/{world.pool}/functions/{FUNCTION}", content=encode({}, b"f")).raise_for_status()
    submitted = world.send("owner", "POST", f"{API}/pools/{world.pool}/calls", content=a_call()).raise_for_status()
    (world.call,) = submitted.json()["calls"]
    world.send("owner", "POST", f"{API}/calls/{world.call}/cancel").raise_for_status()
    world.sweep = world.send("owner", "POST", f"{API}/sweeps", json=a_sweep(world)).raise_for_status().json()["id"]
    world.challenge = rig.upload("root", CHALLENGE)
    rig.app.state.gateway.challenges.programs.keep("eeg", world.challenge)


def reset_challenge(world: World) -> None:
    """The challenge as it was: published, with a team of ada's, and a submission of that team, which has the number 1."""
    store = world.rig.store
    challenges, teams = store.of(CHALLENGES), store.of(TEAMS)
    submissions = world.rig.app.state.gateway.challenges.submissions  # the only one who writes them
    challenges.put(Challenge(name="eeg", organiser="root", version=world.challenge))
    for team in teams.all():
        teams.remove("eeg", team.name)
    teams.put(Team(challenge="eeg", name="Waves", members=("ada",), code="code"))
    for one in submissions.all():
        submissions.remove(one.id)
    sent = ChallengeSubmission(id=1, challenge="eeg", version=world.challenge, team="Waves", snapshot=world.snapshot)
    submissions.put(replace(sent, phase="one", state=SubmissionState.COMPLETED, scores={"a": 1.0}))


def a_sweep(world: World) -> dict[str, object]:
    task = {"snapshot": world.snapshot}
    return {"task": task, "parameters": {"x": "int(1, 9)"}, "metric": "loss", "trials": 9, "parallel": 1}


def a_calibration(world: World, case: str) -> tuple[str, str]:
    """A new baseline, and the job of its owner's that runs it again: numbers of both."""
    who = "other" if case == "other" else "owner"
    body = {"job": world.jobs[case], "project": f"p{secrets.token_hex(4)}"}
    number = world.send(who, "POST", f"{API}/baselines", json=body).raise_for_status().json()["id"]
    begun = world.send(who, "POST", f"{API}/baselines/{number}/calibrations", json={}).raise_for_status().json()
    return str(number), str(begun["job"])


def a_call() -> bytes:
    return encode({"key": secrets.token_hex(8), "label": "f", "function": FUNCTION, "retries": 0}, SECRET.encode())


def output(rig: Rig) -> object:
    from carrel.core.domain.launch import StoredFile

    return StoredFile(path="model.pt", size=len(SECRET), digest=rig.store_blob(SECRET.encode()))


def ask(world: World, actor: str, row: Row) -> httpx.Response:
    """One request. What an allowed one takes away is put there before."""
    method, path, case = row.method, row.path, row.case
    more: dict[str, object] = {}
    if path.startswith("/challenges"):
        reset_challenge(world)
    number = world.arrays if "array_id" in path else world.sessions if "/sessions/" in path else world.jobs
    bodies: dict[tuple[str, str], object] = {
        ("POST", "/jobs"): {"snapshot": world.snapshot},
        ("POST", "/jobs/preview"): {"snapshot": world.snapshot},
        ("POST", "/sessions"): {"kind": "terminal"} if case != "path" else {"kind": "terminal", "directory": "/tmp"},
        ("PUT", "/sessions/{job_id}/hub"): {"variables": {}},
        ("POST", "/sessions/{job_id}/open"): {},
        ("POST", "/jobs/{job_id}/ssh"): {"public_key": "ssh-ed25519 nothing"},
        # No such rule: whoever may change rules is told so.
        ("POST", "/lab/rules"): {"changes": {"weather": 1}},
        ("POST", "/lab/rules/preview"): {"changes": {"weather": 1}},
        ("PUT", "/secrets/{name}"): {"value": "x"},
        ("POST", "/nodes/{name}/drain"): {"reason": "a test"},
        ("PUT", "/reservations/{name}"): FUTURE,
        ("POST", "/compositions"): {"wishes": [{"kind": "gpu"}], "time": 60},
        ("POST", "/announcements"): {"text": "a test", "until": "2100-01-01T00:00:00Z"},
        ("POST", "/storage/collect"): {"dry_run": True},
        ("POST", "/users"): {"name": f"new-{secrets.token_hex(4)}"},
        ("POST", "/users/{subject}/reset"): {},
        ("POST", "/users/{subject}/suspend"): {"reason": "a test"},
        ("POST", "/invitations"): {"name": f"new-{secrets.token_hex(4)}"},
        ("POST", "/invitations/current/redeem"): {},
        ("POST", "/tokens"): {"scopes": ["read"]},
        ("POST", "/environments"): {
            "own": {"name": "x", "source": "nothing"},
            "site": {"name": "site/x", "source": "nothing"},
        }.get(case, {"name": "x", "path": "/no/such/place"}),
        ("POST", "/environments/{name}/share"): {"with": ["bob"] if case == "ada/ours" else []},
        ("POST", "/environments/{name}/restore"): {"lock": DIGEST},
        ("POST", "/jobs/{job_id}/verification"): {"repetitions": [world.jobs[ALSO]]},
        ("POST", "/baselines"): {"job": world.jobs.get(case)},
        ("POST", "/baselines/{baseline_id}/calibrations"): {},
        ("POST", "/challenges"): {"snapshot": world.challenge},
        ("POST", "/challenges/{name}/join"): {"accept_rules": True},
        ("POST", "/challenges/{name}/merge"): {"team": "Others"},
        ("POST", "/challenges/{name}/choose"): {"submissions": [1]},
        ("POST", "/challenges/{name}/submissions"): {"snapshot": world.snapshot},
        ("POST", "/challenges/{name}/notices"): {"text": "told"},
        ("POST", "/challenges/{name}/quotas"): {"team": "Waves", "today": 1, "reason": "asked for"},
        ("POST", "/challenges/{name}/questions"): {"text": "asked"},
        ("POST", "/challenges/{name}/questions/{number}/answer"): {"text": "answered"},
        ("POST", "/challenges/{name}/try"): {"snapshot": world.snapshot},
        ("POST", "/pools"): {"max_workers": 1, "task": {"snapshot": world.snapshot}},
        ("POST", "/pools/{pool_id}/calls/cancel"): {"calls": []},
        ("POST", "/pools/{pool_id}/calls/fetched"): {"calls": []},
        ("POST", "/sweeps"): a_sweep(world),
        ("POST", "/sweeps/{sweep_id}/resume"): {},
        ("POST", "/sweeps/{sweep_id}/trials/{number}/values"): {"values": [{"value": 1.0}]},
    }
    body = bodies.get((method, path))
    if body is not None:
        more["json"] = body
    sent = {"/functions/{digest}": encode({}, b"f"), "/calls": a_call(), "/work": encode({"type": "holding", "calls": []})}
    if method != "GET" and (content := next((text for end, text in sent.items() if path.endswith(end)), None)) is not None:
        more["content"] = content
    if path.endswith(("/results", "/work")):
        more["params"] = {"stream": "false", "wait": 0}
    if path.endswith("/pools/{pool_id}/files"):
        more["params"] = {"size": 1}
    if path.endswith("/interrupts"):
        more["params"] = {"call": world.call, "wait": 0}
    if (method, path) == ("PUT", "/snapshots/{digest}"):
        digest, data = world.rig.archive({"a.py": secrets.token_hex(4)})
        path, more["content"] = path.replace("{digest}", digest), data
    if (method, path) == ("DELETE", "/reservations/{name}"):
        kept = Reservation(name="gone", begin=4e9, end=4.1e9, nodes=("bench",), reason="x", by="root")
        world.rig.lab.keeper(RESERVATIONS).put(world.rig.caller("root"), kept)
    if (method, path) == ("POST", "/users/{subject}/revoke"):
        fresh(world.rig, "vera")
    if (method, path) == ("DELETE", "/secrets/{name}"):
        for name, _ in PEOPLE.values():
            world.rig.lab.secrets.put(Caller(user=User(subject=name, name=name)), Secret(name="KEY", value="x"))
    if path in ("/comparison", "/comparison/results"):
        more["params"] = {"job": [world.jobs[case], world.jobs[ALSO]]}
    if "/matrix" in path:
        more["json"] = {"seeds": 1}
    if path.startswith("/comparison/why"):
        more["json"] = {"first": str(world.jobs[case]), "second": str(world.jobs[ALSO])}
    if case == "all":
        more["params"] = {"all": True} if path == "/tokens" else {"owner": "all"}
    places = {"/challenges/": "eeg", "/nodes/": "bench", "/secrets/": "KEY", "/reservations/": "gone"}
    names = {"{name}": next((name for place, name in places.items() if place in path), case)}
    if "/compositions/" in path:
        one = Composition(wishes=(Wish(kind=BlockKind.GPU),), time=60)
        names["{id}"] = str(world.rig.lab.keeper(COMPOSITIONS).put(world.rig.caller("ada"), one)[1].id)
    if "/announcements/" in path:
        told = Announcement(text="a test", until=4e9)
        names["{id}"] = str(world.rig.lab.keeper(ANNOUNCEMENTS).put(world.rig.caller("root"), told)[1].id)
    if "{baseline_id}" in path:
        names["{baseline_id}"], names["{job_id}"] = a_calibration(world, case)
    if path == "/tokens/{token_id}":
        fresh(world.rig, "ada")
        names["{token_id}"] = str(world.rig.lab.tokens.list(world.rig.caller("ada"))[-1].id)
    if path == "/tokens/current" and actor in PEOPLE and actor != "revoked":  # the one that the next rows need stays
        token = fresh(world.rig, PEOPLE[actor][0])
        return world.http.request(method, f"{API}{path}", headers={"Authorization": f"Bearer {token}"})
    names |= {"{subject}": "vera", "{digest}": FUNCTION if "/functions/" in path else world.snapshot, "{path}": "model.pt"}
    names |= {"{pool_id}": str(world.pool), "{call_id}": str(world.call), "{sweep_id}": str(world.sweep)}
    names["{number}"] = "1"
    for name in ("{job_id}", "{array_id}"):
        if name in path and name not in names:
            names[name] = str(number[case])
    for name, value in names.items():
        path = path.replace(name, value)
    return world.send(actor, method, f"{API}{path}", **more)


@pytest.mark.gate
def test_every_endpoint_has_a_row_and_a_name_for_what_it_does(world: World) -> None:
    document = {(method, path) for method, path in operations(world.rig.app.openapi()) if path.startswith(API)}
    told = {(row.method, f"{API}{row.path}") for row in read_table()}
    assert document - told == set(), "endpoints without a row in access_table.txt"
    assert told - document == set()
    assert document == {(method, f"{API}{path}") for method, path in ENDPOINTS}


def test_everybody_gets_the_answers_of_the_table(world: World) -> None:
    wrong, walked, leaks = [], 0, []
    for row in read_table():
        for actor in ACTORS:
            answer = ask(world, actor, row)
            walked += 1
            if str(answer.status_code) != row.answers[actor]:
                told = f"{row.method} {row.path} ({row.case}) as {actor}: {answer.status_code}, not {row.answers[actor]}"
                wrong.append(f"{told}: {answer.text[:150]}")
            readers = {
                "private": ("owner", "admin", "job"),
                "shared": ("owner", "colleague", "manager", "admin", "job"),
                "other": ("admin",),
            }
            if SECRET in answer.text and actor not in readers.get(row.case, ("owner", "admin", "job")):
                leaks.append(f"{row.method} {row.path} ({row.case}) as {actor}")
    assert (wrong, leaks) == ([], []), f"{len(wrong)} of {walked} are wrong"
