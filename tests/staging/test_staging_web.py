"""Inputs over HTTP, from a server that cuts, changes and refuses; and published records with a played Zenodo and Dataverse."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.node.staging import doi, web
from carrel.node.staging.download import News
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import check_uri, fetch
from carrel.node.staging.lab import LabFiles

CONTENT = bytes(range(256)) * 64
Respond = Callable[[BaseHTTPRequestHandler, list[dict[str, str]]], None]


@contextmanager
def serving(respond: Respond) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """An address whose requests `respond` answers; it is told the headers of all so far."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append({**dict(self.headers), ":path": self.path})
            respond(self, asked)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def say(handler: BaseHTTPRequestHandler, status: int, body: bytes, *, length: int | None = None, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_PAUSE", 0.0)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.gate
def test_a_connection_that_is_cut_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        begin = int(asked[-1].get("Range", "bytes=0-")[6:-1])
        status = 206 if begin else 200
        say(handler, status, CONTENT[begin : begin + 6000], length=len(CONTENT) - begin, ETag='"one"')

    with serving(respond) as (url, asked):
        assert fetch(f"{url}/x", tmp_path / "x") == digest(CONTENT)
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert [one.get("Range") for one in asked] == [None, "bytes=6000-", "bytes=12000-"]
    assert all(one["If-Range"] == '"one"' for one in asked[1:])


def test_one_that_changed_meanwhile_is_fetched_anew(tmp_path: Path) -> None:
    other = CONTENT[::-1]

    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        if len(asked) == 1:
            say(handler, 200, CONTENT[:5000], length=len(CONTENT), ETag='"one"')
        else:  # the mark is another one, so the range is not honoured
            say(handler, 200, other, ETag='"two"')

    with serving(respond) as (url, _asked):
        assert fetch(f"{url}/x", tmp_path / "x") == digest(other)
    assert (tmp_path / "x").read_bytes() == other


def test_a_place_that_is_busy_is_asked_again_and_one_that_refuses_is_not(tmp_path: Path) -> None:
    def busy(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        say(handler, 503 if len(asked) < 3 else 200, CONTENT)

    with serving(busy) as (url, asked):
        assert fetch(f"{url}/x", tmp_path / "x") == digest(CONTENT)
    assert len(asked) == 3
    with (
        serving(lambda handler, _asked: say(handler, 403, b"")) as (url, asked),
        pytest.raises(InputFailed, match="403 Forbidden"),
    ):
        fetch(f"{url}/x?token=hidden", tmp_path / "y")
    assert len(asked) == 1


def test_one_that_never_comes_whole_is_told_with_numbers(tmp_path: Path) -> None:
    with serving(lambda handler, _asked: say(handler, 200, b"", length=100)) as (url, asked), pytest.raises(InputFailed) as error:
        fetch(f"{url}/x?token=hidden", tmp_path / "x")
    assert "cut off at 0 of 100 bytes" in error.value.message
    assert "6 tries in a row" in error.value.message
    assert "hidden" not in error.value.message
    assert len(asked) == 6


def test_a_token_does_not_follow_to_another_place(tmp_path: Path) -> None:
    with serving(lambda handler, _asked: say(handler, 200, b"there")) as (there, heard):
        with serving(lambda handler, _asked: say(handler, 302, b"", Location=f"{there}/y")) as (here, first):
            web.copy_http(f"{here}/x", tmp_path / "x", News("", lambda _said: None), headers={"Authorization": "Bearer t"})
    assert first[0]["Authorization"] == "Bearer t"
    assert "Authorization" not in heard[0]


def test_news_say_how_far_it_is_and_not_too_often() -> None:
    said: list[str] = []
    now = [0.0]
    news = News("fetching the input a", said.append, lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        news.at(second * 1024**3, 20 * 1024**3)
    news.whole()
    now[0] = 30.0
    news.at(1024, None)
    assert said == [
        "fetching the input a",
        "fetching the input a: 5G of 20G",
        "fetching the input a: 10G of 20G",
        "fetching the input a: 1K, 11G of other files before",
    ]


# --- the lab's own ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        "job:",
        "job:x",
        "job:0/a",
        "job:12/../a",
        "job:12/a//b",
        "runs:/short/x",
        "models:/m",
        "models:/m/1/../x",
        "mlflow-artifacts:",
    ],
)
def test_what_is_no_address_of_the_labs_is_refused_at_submit(uri: str) -> None:
    with pytest.raises(InputFailed, match="is no .*: address"):
        check_uri(uri)


def of_job(state: str, stored: dict[str, bytes]) -> Respond:
    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        path = asked[-1][":path"]
        if asked[-1].get("Authorization") != "Bearer mine":
            say(handler, 404, json.dumps({"detail": "There is no job 12."}).encode())
        elif path == "/api/v1/jobs/12":
            say(handler, 200, json.dumps({"state": state}).encode())
        elif path == "/api/v1/jobs/12/outputs":
            listed = [{"path": name, "size": len(data), "digest": digest(b"weights")} for name, data in stored.items()]
            say(handler, 200, json.dumps({"outputs": listed}).encode())
        else:
            say(handler, 200, stored[path.removeprefix("/api/v1/jobs/12/outputs/").replace("%20", " ")])

    return respond


def test_outputs_of_a_job_by_file_and_directory(tmp_path: Path) -> None:
    stored = {"outputs/m/a.bin": b"weights", "outputs/m/b c.bin": b"weights", "outputs/n.bin": b"weights"}
    with serving(of_job("COMPLETED", stored)) as (url, _asked):
        lab = LabFiles(url, "mine")
        assert fetch("job:12/outputs/n.bin", tmp_path / "n", lab=lab) == digest(b"weights")
        fetch("job:12/outputs/m", tmp_path / "m", lab=lab)
        assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["a.bin", "b c.bin"]
        fetch("job:12", tmp_path / "all", lab=lab)
        assert len(list((tmp_path / "all").rglob("*.bin"))) == 3
        with pytest.raises(InputFailed, match="There is nothing at job:12/outputs/o. `carrel outputs 12 --list` lists"):
            fetch("job:12/outputs/o", tmp_path / "o", lab=lab)
        with pytest.raises(InputFailed, match="There is no job 12"):
            fetch("job:12/outputs/n.bin", tmp_path / "x", lab=LabFiles(url, "another's"))


def test_the_lab_may_be_away_for_longer_than_others(tmp_path: Path) -> None:
    there = of_job("COMPLETED", {"outputs/n.bin": b"weights"})

    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        if len(asked) <= 10 or 12 <= len(asked) <= 20:
            handler.close_connection = True  # without an answer, as when it is killed
        else:
            there(handler, asked)

    with serving(respond) as (url, _asked):
        assert fetch("job:12/outputs/n.bin", tmp_path / "n", lab=LabFiles(url, "mine")) == digest(b"weights")


def test_outputs_that_are_not_there_yet_or_were_damaged(tmp_path: Path) -> None:
    with serving(of_job("RUNNING", {})) as (url, _asked), pytest.raises(InputFailed, match="is RUNNING") as error:
        fetch("job:12/outputs/n.bin", tmp_path / "n", lab=LabFiles(url, "mine"))
    assert "--dependency afterok:12" in error.value.remedy
    with serving(of_job("COMPLETED", {"n.bin": b"weighTs"})) as (url, _asked), pytest.raises(InputFailed, match="was damaged"):
        fetch("job:12/n.bin", tmp_path / "n", lab=LabFiles(url, "mine"))


# --- published records ----------------------------------------------------------------------------------------------------

FILES = {"data.csv": b"1,2\n", "deep/readme.txt": b"read me"}


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def services(url: list[str], checksums: Callable[[bytes], str] = md5) -> Respond:
    """A Zenodo, the resolver of DOIs and a Dataverse, as their documents say that they answer."""

    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        path = asked[-1][":path"]
        zenodo = [
            {"key": name, "size": len(data), "checksum": f"md5:{checksums(data)}", "links": {"self": f"{url[0]}/z/{name}"}}
            for name, data in FILES.items()
        ]
        dataverse: list[dict[str, Any]] = [
            {"dataFile": {"id": 7, "filename": "data.csv", "filesize": 4, "md5": checksums(FILES["data.csv"])}},
            {
                "directoryLabel": "deep",
                "dataFile": {
                    "id": 8,
                    "filename": "readme.txt",
                    "filesize": 7,
                    "checksum": {
                        "type": "SHA-1",
                        "value": hashlib.sha1(FILES["deep/readme.txt"], usedforsecurity=False).hexdigest(),
                    },
                },
            },
            {"restricted": True, "dataFile": {"id": 9, "filename": "secret.csv", "filesize": 1}},
        ]
        answers: dict[str, bytes] = {
            "/api/records/42": json.dumps({"files": zenodo}).encode(),
            "/dataset": b"",
            "/api/datasets/:persistentId/?persistentId=doi:10.7910/DVN/ABCDEF": json.dumps(
                {"data": {"latestVersion": {"files": dataverse}}}
            ).encode(),
            "/api/access/datafile/7": FILES["data.csv"],
            "/api/access/datafile/8": FILES["deep/readme.txt"],
            **{f"/z/{name}": data for name, data in FILES.items()},
        }
        if path == "/10.7910/DVN/ABCDEF":
            say(handler, 302, b"", Location=f"{url[1]}/dataset")
        elif path in answers:
            say(handler, 200, answers[path])
        else:
            say(handler, 404, b"{}")

    return respond


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    url: list[str] = []
    with serving(services(url)) as (first, _asked), serving(services(url)) as (second, _also):
        url += [first, second]
        monkeypatch.setattr(doi, "ZENODO", first)
        monkeypatch.setattr(doi, "RESOLVER", first)
        yield


@pytest.mark.parametrize("record", ["doi:10.5281/zenodo.42", "doi:10.7910/DVN/ABCDEF"], ids=["zenodo", "dataverse"])
def test_a_record_comes_whole_or_by_file(published: None, tmp_path: Path, record: str) -> None:
    fetch(record, tmp_path / "all")
    found = {
        str(path.relative_to(tmp_path / "all")): path.read_bytes() for path in (tmp_path / "all").rglob("*") if path.is_file()
    }
    assert found == FILES
    fetch(f"{record}/deep/readme.txt", tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == b"read me"
    with pytest.raises(InputFailed, match=r"has no file gone\.csv") as error:
        fetch(f"{record}/gone.csv", tmp_path / "none")
    assert "data.csv, deep/readme.txt" in error.value.remedy


def test_a_record_whose_checksum_is_another_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url: list[str] = []
    with serving(services(url, lambda _data: "0" * 32)) as (first, _asked):
        url += [first, first]
        monkeypatch.setattr(doi, "ZENODO", first)
        with pytest.raises(InputFailed, match="the service says 0000.*it was damaged"):
            fetch("doi:10.5281/zenodo.42/data.csv", tmp_path / "x")


def test_a_doi_that_is_not_known_is_told(published: None, tmp_path: Path) -> None:
    with pytest.raises(InputFailed, match="leads nowhere"):
        fetch("doi:10.1000/182", tmp_path / "x")


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_is_refused(text: str) -> None:
    for scheme in ("doi", "job", "runs", "models", "mlflow-artifacts"):
        with suppress(InputFailed):
            check_uri(f"{scheme}:{text}")
