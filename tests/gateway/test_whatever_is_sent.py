"""Requests that nobody means, made from the OpenAPI document, as each kind of caller: nothing fails, nothing is undocumented."""

from __future__ import annotations

import json
import random
import string
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from gateway_lab import PROJECT, V1, Rig, a_lab, client, serve
from test_gateway_openapi import operations

from carrel.core.domain.job import JobState
from carrel.core.domain.user import Role, User
from carrel.core.snapshots import pack

PEOPLE = {"owner": Role.USER, "manager": Role.MANAGER, "operator": Role.OPERATOR, "administrator": Role.ADMIN}
ACTORS = (*PEOPLE, "job", "expired", "nobody")
#: Streams that do not end, and what would make the caller's token void.
LEFT_OUT = {("GET", f"{V1}/events"), ("GET", f"{V1}/jobs/{{job_id}}/events"), ("DELETE", f"{V1}/tokens/current")}
WILD = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**63 - 1, -(2**70), 1.5, 1e308),
    *(
        "",
        " ",
        "a",
        "\0",
        "é",
        "💥" * 9,
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a" * 300,
        "a" * 70_000,
        "%00",
        "${HOME}",
        "' OR 1=1 --",
    ),
    *("<script>", "\r\nX: 1", [], {}, [[]], [None], {"a": {"a": {"a": []}}}),
)
#: What a place in a path takes, beside anything.
NAMES = ("1", "2", "3", "99999999", "ada", "bench", "torch", "ada/torch", "KEY", "sha256:" + "0" * 64, "current")


class Chance(random.Random):
    """Values that fit a schema, or do not."""

    def of(self, schema: dict[str, Any], parts: dict[str, Any], depth: int = 0) -> Any:
        if self.random() < 0.12 or depth > 5:
            return self.choice(WILD)
        if "$ref" in schema:
            return self.of(parts[schema["$ref"].rpartition("/")[2]], parts, depth)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.of(self.choice(schema[several]), parts, depth)
        if "enum" in schema:
            return self.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            wanted = schema.get("required", [])
            made = {
                name: self.of(inner, parts, depth + 1)
                for name, inner in schema.get("properties", {}).items()
                if name in wanted or self.random() < 0.3
            }
            if self.random() < 0.05 or isinstance(schema.get("additionalProperties"), dict):
                made[self.choice(("x", "KEY", "a b", ""))] = self.choice(WILD)
            return made
        if kind == "array":
            return [self.of(schema.get("items", {}), parts, depth + 1) for _ in range(self.randrange(3))]
        if kind == "integer":
            return self.choice((schema.get("minimum", 0), schema.get("maximum", 100), self.randrange(-5, 1000)))
        if kind == "number":
            return self.uniform(-5, 1000)
        if kind == "boolean":
            return self.random() < 0.5
        return "".join(self.choices(string.ascii_letters + string.digits + "-_.:/", k=self.randrange(1, 20)))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, httpx.Client, dict[str, str]]]:
    with a_lab(tmp_path_factory.mktemp("wild"), cpus=64, stranger_rate=0) as rig, serve(rig.app) as url, client(url) as http:
        tokens = {}
        for name, role in PEOPLE.items():
            rig.lab.people.add(User(subject=name, name=name, role=role), now=time.time())
        for actor in ("job", "expired"):
            made = http.post(f"{V1}/jobs", json={"snapshot": rig.upload("ada")}, headers=rig.headers("ada"))
            job = int(made.raise_for_status().json()["id"])
            tokens[actor] = rig.engine.wait_started(job)[1]
        rig.engine.end(job)
        rig.wait(job, JobState.COMPLETED)
        yield rig, http, tokens


def headers_of(rig: Rig, tokens: dict[str, str], actor: str) -> dict[str, str]:
    if actor in PEOPLE:  # a new one each time: an administrator may have just revoked it
        user = rig.lab.people.get(actor)
        assert user is not None
        return {"Authorization": f"Bearer {rig.lab.tokens.hand_out(actor, name='of a test', by='root')[1]}"}
    return {"Authorization": f"Bearer {tokens[actor]}"} if actor in tokens else {}


def send(
    http: httpx.Client, document: dict[str, Any], chance: Chance, method: str, path: str, headers: dict[str, str]
) -> httpx.Response:
    operation, parts = document["paths"][path][method.lower()], document["components"]["schemas"]
    query = []
    for one in operation.get("parameters", []):
        value = chance.of(one.get("schema", {}), parts)
        said = value if isinstance(value, str) else json.dumps(value)
        if one["in"] == "path":
            said = chance.choice(NAMES) if chance.random() < 0.6 else said or "x"
            path = path.replace("{" + one["name"] + "}", quote(said[:3000], safe=chance.choice(("", "/"))))
        elif one["in"] == "query" and chance.random() < 0.5:
            query.append((one["name"], said[:3000]))
    more: dict[str, Any] = {}
    if content := operation.get("requestBody", {}).get("content"):
        if "application/json" in content:
            body = json.dumps(chance.of(content["application/json"]["schema"], parts)).encode()
            if chance.random() < 0.05:
                body = body[: chance.randrange(len(body) + 1)] + chance.randbytes(3)
            more = {"content": body, "headers": {**headers, "Content-Type": "application/json"}}
        else:
            more = {"content": chance.randbytes(chance.randrange(2000))}
    return http.request(method, path, params=query or None, **{"headers": headers, **more})


def try_them(there: tuple[Rig, httpx.Client, dict[str, str]], seed: int, each: int) -> Counter[int]:
    rig, http, tokens = there
    document = rig.app.openapi()
    chance, answers = Chance(seed), Counter[int]()
    for (method, path), operation in operations(document).items():
        if (method, path) in LEFT_OUT:
            continue
        for actor in ACTORS:
            headers = headers_of(rig, tokens, actor)
            for _ in range(each):
                answer = send(http, document, chance, method, path, headers)
                answers[answer.status_code] += 1
                said = f"{actor}: {answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:300]}"
                if answer.status_code in (405, 404) and "There is nothing at this address" in answer.text:
                    continue  # a slash in a name makes it another address
                known = operation["responses"]
                assert isinstance(known, dict)
                assert answer.status_code < 500, said
                if answer.request.url.path.count("/") != path.count("/"):
                    continue  # the same, where the other address is one of the lab's
                assert str(answer.status_code) in known, said
                kinds = known[str(answer.status_code)].get("content", {})
                if answer.content and kinds:
                    assert answer.headers["content-type"].partition(";")[0] in kinds, said
                if actor in ("nobody", "expired") and path.startswith(V1):
                    assert answer.status_code in (400, 401, 404, 405), said
    return answers


def test_nothing_that_is_sent_fails_or_is_answered_as_nobody_says(there: tuple[Rig, httpx.Client, dict[str, str]]) -> None:
    answers = try_them(there, seed=13, each=1)
    assert answers.total() > 300
    assert answers.keys() >= {200, 401, 403, 404, 422}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_nothing_of_very_much_fails(there: tuple[Rig, httpx.Client, dict[str, str]], seed: int) -> None:
    print(sorted(try_them(there, seed=1000 + seed, each=40).items()))


def tokens_and_headers(there: tuple[Rig, httpx.Client, dict[str, str]], count: int) -> None:
    rig, http, _ = there
    chance = Chance(count)
    good = rig.tokens["ada"]
    names = ("Cookie", "Origin", "Content-Type", "Accept", "X-Forwarded-For", "If-None-Match", "Range", "Last-Event-ID")
    for _ in range(count):
        place = chance.randrange(len(good))
        other = chance.choice([letter for letter in "aZ0_-.~+/=" if letter != good[place]])
        near = (good[:place], good + "x", good[:place] + other + good[place + 1 :], good.swapcase())
        token = chance.choice(
            (*near, "Bearer", "", " ", "a" * chance.randrange(1, 4000), "..", "%00", "eyJhbGciOiJub25lIn0.e30.")
        )
        scheme = chance.choice(("Bearer ", "bearer\t", "Basic ", "", "Negotiate ", "Bearer Bearer "))
        headers = [("Authorization", f"{scheme}{token}".strip() or "x")]
        headers += [
            (name, "".join(chance.choices(string.printable[:95], k=chance.randrange(1, 200))).strip() or "x")
            for name in chance.sample(names, 3)
        ]
        answer = http.get(chance.choice((f"{V1}/jobs", f"{V1}/users", f"{V1}/tokens", f"{V1}/audit")), headers=headers)
        assert answer.status_code in (400, 401), (headers, answer.text)


def test_no_token_near_a_good_one_is_good(there: tuple[Rig, httpx.Client, dict[str, str]]) -> None:
    tokens_and_headers(there, 150)


@pytest.mark.soak
def test_no_token_of_very_many_is_good(there: tuple[Rig, httpx.Client, dict[str, str]]) -> None:
    tokens_and_headers(there, 20_000)


def task_files(there: tuple[Rig, httpx.Client, dict[str, str]], count: int) -> Counter[int]:
    rig, http, _ = there
    chance, answers = Chance(count), Counter[int]()
    name = f"tasks-{count}"  # nobody has taken anything from them
    rig.lab.people.add(User(subject=name, name=name), now=time.time())
    headers = {"Authorization": f"Bearer {rig.lab.tokens.hand_out(name, name='of a test', by='root')[1]}"}
    bits = (
        "&a ",
        "*a",
        "!!python/object/apply:os.system [id]",
        "- ",
        "{",
        "}",
        "[",
        "\t",
        ": ",
        "\0",
        "é",
        "1e999",
        "{{",
        "'",
        '"',
    )
    bits += ("|", ">", "? ", "<<: ")
    for _ in range(count):
        text = PROJECT
        for _ in range(chance.randrange(1, 6)):
            at, way = chance.randrange(len(text)), chance.random()
            text = text[:at] + (chance.choice(bits) if way < 0.6 else "") + text[at + chance.randrange(4) :]
        directory = rig.home / "wild" / str(len(answers)) / str(answers.total())
        directory.mkdir(parents=True)
        (directory / "MLproject").write_text(text)
        packed = pack(directory)
        with packed.open() as stream:
            data = stream.read()
        http.put(f"{V1}/snapshots/{packed.digest}", content=data, headers=headers).raise_for_status()
        answer = http.post(f"{V1}/jobs", json={"snapshot": packed.digest}, headers=headers)
        assert answer.status_code in (201, 422), (text, answer.text)
        answers[answer.status_code] += 1
    return answers


def test_no_task_file_fails_the_lab(there: tuple[Rig, httpx.Client, dict[str, str]]) -> None:
    assert task_files(there, 40).total() == 40


@pytest.mark.soak
def test_none_of_very_many_task_files_fails_the_lab(there: tuple[Rig, httpx.Client, dict[str, str]]) -> None:
    print(task_files(there, 2000))
