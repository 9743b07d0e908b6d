from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from gateway_lab import a_lab, serve
from playwright.sync_api import expect
from portal_site import Clock, Site
from test_portal_pages import HOSTILE, secret_in

from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.task import EnvironmentKind, TaskSpec
from carrel.lab.gateway import new_code
from carrel.lab.portal import Portal
from carrel.node.staging.git_hosts import GitHosts
from carrel.testing.waiting import wait_until
from support.chromium import a_chromium

HELLO = "print('hello')\n"


def send(site: Site, http: httpx.Client, files: object = None, **fields: str) -> httpx.Response:
    page = http.get(f"{site.url}/tasks/new")
    data = {"form_secret": secret_in(page), "do": "run", **fields}
    # A part without a name is what a browser sends for a choice of no file.
    return http.post(f"{site.url}/tasks/new", data=data, files=files or {"file": ("", b"")})  # type: ignore[arg-type]


def task_of(site: Site, page: httpx.Response) -> TaskSpec:
    assert re.search(r"/jobs/\d+$", page.url.path), re.findall('role="alert">(.*?)<', page.text) or page.text
    return site.rig.lab.task(site.rig.caller("ada"), int(page.url.path.rpartition("/")[2]))


def code_of(site: Site, task: TaskSpec) -> dict[str, bytes]:
    store = site.rig.lab.files.code
    files = store.files(task.snapshot)  # type: ignore[attr-defined]
    return {entry.path: files.read(entry.path, 1 << 20) for entry in store.entries(task.snapshot)}  # type: ignore[attr-defined]


def zipped(files: dict[str, bytes | str], **how: int) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, **how) as archive:  # type: ignore[arg-type]
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def coded(source: str) -> bytes:
    """A notebook of one cell, whose tag says that it has parameters."""
    cell = {"cell_type": "code", "source": source, "metadata": {"tags": ["parameters"]}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}).encode()


@pytest.mark.gate
@pytest.mark.browser
def test_four_clicks_from_a_script_to_its_running_log(site: Site) -> None:
    with a_chromium() as browser:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(site.link("ada"))
        page.get_by_role("link", name="New task").first.click()
        page.get_by_label("Paste a script").fill(f"#!/bin/bash\n#SBATCH --job-name=fit --time=90 --mem=1G\n{HELLO}")
        page.get_by_role("button", name="When would it start?").click()
        expect(page.get_by_text("It would start now.")).to_be_visible()
        expect(page.get_by_label("Name", exact=True)).to_have_value("fit")
        expect(page.get_by_label("At most")).to_have_value("90m")
        command = page.locator(".same code").text_content()
        assert command == "carrel run script.sh --name fit --memory 1G --time 90m"
        assert complaints == []
        page.get_by_label("Memory", exact=True).fill("lots")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_text('"lots" is not a size')).to_be_visible()
        expect(page.get_by_label("Memory", exact=True)).to_be_focused()
        page.get_by_label("Memory", exact=True).fill("2G")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_role("heading", name="fit")).to_be_visible()
        job = int(page.url.rpartition("/")[2])
        site.rig.engine.run(job)
        site.rig.engine.say(job, log=b"hello\n")
        expect(page.locator("[data-log]")).to_contain_text("hello")


def test_a_script_becomes_a_task_as_it_was_pasted(site: Site) -> None:
    with site.browser("ada") as http:
        task = task_of(
            site, send(site, http, script="import sys\r\nprint(sys.argv)\r\n", arguments="--epochs '5 6'", packages="six\r\n")
        )
        assert code_of(site, task) == {"script.py": b"import sys\nprint(sys.argv)\n", "requirements.txt": b"six\n"}
        assert task.command == "python script.py --epochs '5 6'"
        assert task.environment.kind is EnvironmentKind.REQUIREMENTS


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("train.py", HELLO.encode(), "python train.py"),
        ("train.sh", b"echo hello\n", "bash train.sh"),
        ("project.zip", zipped({"project-main/train.py": HELLO, "project-main/data/one.csv": "1"}), "python train.py"),
        ("project.zip", zipped({"a.py": HELLO, "MLproject": "entry_points: {main: {command: python a.py}}"}), "python a.py"),
    ],
    ids=["script", "shell", "zip", "MLproject"],
)  # fmt: skip
def test_what_is_uploaded_becomes_a_task(site: Site, name: str, content: bytes, command: str) -> None:
    with site.browser("ada") as http:
        assert task_of(site, send(site, http, {"file": (name, content)})).command.startswith(command)


def test_a_notebook_runs_with_the_packages_that_are_named_for_it(site: Site) -> None:
    cells = [{"cell_type": "code", "source": "import six\n" + HELLO}]
    document = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    notebook = ("plots.ipynb", json.dumps(document).encode())
    with site.browser("ada") as http:
        page = send(site, http, {"file": notebook})
        assert "The notebook imports six, and no packages are known: choose an environment, or name them." in page.text
        kept = dict(re.findall(r'type="hidden" name="(snapshot|code|seen)" value="([^"]*)"', page.text))
        later = task_of(site, send(site, http, packages="six", **kept))
        at_once = task_of(site, send(site, http, {"file": notebook}, packages="six"))
        for task in (later, at_once):
            assert task.command.startswith("python notebook_runner.py plots.ipynb")
            assert set(code_of(site, task)["requirements.txt"].split()) == {b"six", b"ipykernel", b"nbclient"}


def test_a_folder_is_packed_as_by_the_command_line(site: Site) -> None:
    files = {"code/a/train.py": HELLO, "code/.gitignore": "*.csv\n", "code/big.csv": "1", "code/.venv/pyvenv.cfg": "x"}
    with site.browser("ada") as http:
        given = [("folder", (name, text.encode())) for name, text in files.items()]
        assert set(code_of(site, task_of(site, send(site, http, given)))) == {"a/train.py", ".gitignore"}


def test_code_with_several_programs_asks_which_and_keeps_the_code(site: Site) -> None:
    code = zipped(
        {
            "a.py": HELLO,
            "b.py": HELLO,
            "MLproject": "entry_points: {fit: {parameters: {lr: {type: float, default: 0.1}}, command: 'python a.py {lr}'}}",
        }
    )
    with site.browser("ada") as http:
        page = send(site, http, {"file": ("code.zip", code)}, memory="1G")
        assert page.status_code == 422
        assert "Choose the one to run" in page.text
        assert 'name="memory" value="1G"' in page.text, "what was typed is there still"
        kept = dict(re.findall(r'type="hidden" name="(snapshot|code)" value="([^"]*)"', page.text))
        page = send(site, http, do="check", runs="fit", **kept)
        assert 'name="P:lr"' in page.text
        task = task_of(site, send(site, http, runs="fit", **kept, **{"P:lr": "0.5"}))
        assert task.command == "python a.py 0.5"
    with site.browser("bob") as http:
        assert "not here any more" in send(site, http, runs="fit", **kept).text, "it is the code of another user"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.zip", b"PK no archive", "cannot be read"),
        ("x.zip", zipped({"../../escaped.py": HELLO}), "has an empty part"),
        ("model.pt", b"\x80", "is not a task"),
        ("x.zip", zipped({"data.csv": "1"}), "nothing to run"),
        ("x.ipynb", b"{}", "notebook"),
        ("x.ipynb", coded("x = 1").replace(b"{}", b'{"author": "\\ud800"}'), "cannot become a task"),
        ("x.ipynb", coded(f"x = 0x{'f' * 9999}"), "cannot become a task"),
        ("x.ipynb", coded("x = 1\n" * 200_000), "more than 1M of code"),
        ("../up.py", HELLO.encode(), "has an empty part"),
        (f"{HOSTILE}.txt", b"1", "nothing to run"),
    ],
    ids=[
        *("broken", "climbs", "model", "data", "no-notebook", "half-character", "long-number", "much-code", "name-climbs"),
        "markup",
    ],
)  # fmt: skip
def test_uploads_that_are_refused_leave_nothing(site: Site, name: str, content: bytes, said: str) -> None:
    with site.browser("ada") as http:
        page = send(site, http, {"file": (name, content)}, name="mine")
        assert page.status_code == 422
        assert said in page.text, re.findall('role="alert">(.*?)<', page.text)
        assert 'name="name" value="mine"' in page.text
        assert HOSTILE not in page.text
        assert "new-code-" not in page.text, "where the lab has it is nothing to its user"
    assert list(site.rig.lab.files.code.root.glob("new-code-*")) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"script": HELLO, "name": "a" * 300}, "255 printable characters"),
        ({"script": HELLO, "arguments": "a" * 1_000_000}, "more than 32,000 characters"),
        ({"script": f"#!/bin/sh\n#SBATCH --comment={'a' * 1_000_000}\n"}, "more than 4,096 characters"),
        ({"script": HELLO, "time": "9" * 90 + "h"}, "more than a hundred years"),
    ],
    ids=["name", "arguments", "directive", "time"],
)  # fmt: skip
def test_what_is_too_long_is_refused_soon(site: Site, fields: dict[str, str], said: str) -> None:
    with site.browser("ada") as http:
        page = send(site, http, **fields)
        assert page.status_code == 422
        assert said in page.text


def test_an_upload_with_a_directory_in_the_place_of_its_packages(site: Site) -> None:
    with site.browser("ada") as http:
        page = send(site, http, {"file": ("x.zip", zipped({"a.py": HELLO, "requirements.txt/a": ""}))}, packages="six")
        assert "is there twice" in page.text


@pytest.mark.parametrize(
    ("boundary", "body"),
    [
        ("x" * 300, b""),
        ("x", b"".join(b"--x\r\nContent-Disposition: form-data; name=%d\r\n\r\n\r\n" % n for n in range(40_000)) + b"--x--"),
        ("x", b"--x\r\n" + b"A: b\r\n" * 1000),
        ("x", b"--x\r\nA: " + b"b" * 1_000_000),
    ],
    ids=["boundary", "parts", "headers", "header"],
)  # fmt: skip
def test_forms_of_no_browser_are_refused(site: Site, boundary: str, body: bytes) -> None:
    with site.browser("ada") as http:
        kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
        assert http.post(f"{site.url}/tasks/new", content=body, headers=kind).status_code == 422


@pytest.mark.parametrize(
    ("fields", "said", "where"),
    [
        ({"script": ""}, "There is no code yet", "script"),
        ({"script": HELLO, "gpus": "many"}, "is not a whole number", "gpus"),
        ({"script": HELLO, "time": "soon"}, "is not a duration", "time"),
        ({"script": HELLO, "arguments": "'open"}, "Close each quotation mark", "arguments"),
        ({"script": "#!/bin/sh\n#SBATCH --gres=shard:1\n"}, "does not name GPUs", "script"),
        ({"script": HELLO, "gpus": "9"}, "the largest node has 2", ""),
        ({"script": HELLO, "repository": "https://host/x.git"}, "more than one way", ""),
        ({"repository": "file:///etc"}, "is not the address of a repository", "repository"),
        ({"repository": "https://user:secret@host/x.git"}, "is not the address of a repository", "repository"),
        ({"script": HELLO, "qos": "none"}, "no QoS", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_at_its_field(site: Site, fields: dict[str, str], said: str, where: str) -> None:
    with site.browser("ada") as http:
        page = send(site, http, **fields)
        assert page.status_code == 422
        assert said in page.text, re.findall('role="alert">(.*?)<', page.text)
        assert not where or f'id="wrong-{where}"' in page.text
        for name in ("gpus", "time", "repository"):
            assert name not in fields or f'name="{name}" value="{fields[name]}"' in page.text


def test_directives_that_mean_nothing_here_are_said_before_it_runs(site: Site) -> None:
    script = f"#!/bin/sh\n#SBATCH --nice=100 -p elsewhere -c 2\n{HELLO}"
    with site.browser("ada") as http:
        page = send(site, http, script=script)
        assert page.url.path == "/tasks/new"
        assert "#SBATCH --nice=100 --partition=elsewhere: the lab has nothing of that kind." in page.text
        seen = re.search(r'name="seen" value="([^"]*)"', page.text)
        assert seen is not None
        job = send(site, http, script=script, seen=seen[1])
        task_of(site, job)
        assert site.rig.lab.job(site.rig.caller("ada"), int(job.url.path.rpartition("/")[2])).resources.cpus == 2


def test_earlier_jobs_of_the_name_say_what_is_usual(site: Site) -> None:
    with site.browser("ada") as http:
        job = int(send(site, http, script=HELLO, name="fit").url.path.rpartition("/")[2])
        site.rig.engine.run(job)
        site.rig.engine.end(job)
        site.rig.wait(job, JobState.COMPLETED)
        assert "The last job of that name ran for at most" in send(site, http, script=HELLO, name="fit", do="check").text


def test_a_form_of_elsewhere_runs_nothing(site: Site) -> None:
    with site.browser("ada") as http, site.browser("bob") as other:
        foreign = secret_in(other.get(f"{site.url}/tasks/new"))
        for secret in ("", "x", foreign):
            data = {"form_secret": secret, "script": HELLO}
            assert http.post(f"{site.url}/tasks/new", data=data, files={"file": ("", b"")}).status_code == 403
        assert http.post(f"{site.url}/tasks/new", data={"script": HELLO}).status_code == 422, "not the form of the page"
    assert site.rig.store.jobs.get(1) is None


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """The address of a repository on a web server, with a program in a directory and a tag."""
    work, bare = tmp_path / "work", tmp_path / "web" / "code.git"
    (work / "part").mkdir(parents=True)
    (work / "part" / "train.py").write_text(HELLO)
    git = ("git", "-C", str(work), "-c", "user.name=ada", "-c", "user.email=ada@lab")
    for command in (
        ("init", "-q"),
        ("add", "."),
        ("commit", "-qm", "one"),
        ("tag", "v1"),
        ("rm", "-qr", "part"),
        ("commit", "-qm", "two"),
    ):
        subprocess.run((*git, *command), check=True)
    subprocess.run(("git", "clone", "-q", "--bare", str(work), str(bare)), check=True)
    subprocess.run(("git", "-C", str(bare), "update-server-info"), check=True)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/code.git"
    server.shutdown()
    server.server_close()


def test_a_repository_at_a_tag_becomes_a_task_that_knows_its_commit(site: Site, repository: str) -> None:
    with site.browser("ada") as http:
        page = send(site, http, repository=repository, version="gone")
        assert page.status_code == 422
        assert "no branch or tag" in page.text
        task = task_of(site, send(site, http, repository=f"{repository}#part", version="v1"))
        assert task.command == "python train.py"
        assert task.git is not None
        assert task.git.remote == repository
        assert len(task.git.commit) == 40


def test_where_code_is_kept_apart_a_repository_is_read_behind_walls(site: Site, repository: str, tmp_path: Path) -> None:
    seen: list[str] = []

    def walls(owner: str) -> LaunchWalls:
        seen.append(owner)
        # The program git itself cannot be found then: nothing of it ran outside.
        hidden = ("/usr/bin",) if owner == "bob" else (str(tmp_path / "work"),)
        return LaunchWalls(hidden=hidden)

    hosts = GitHosts("127.0.0.0/8")
    incoming = new_code.Incoming(site.rig.lab, site.rig.lab.files.code, walls, git_hosts=hosts)  # type: ignore[arg-type]
    code = incoming.repository(site.rig.caller("ada"), f"{repository}#part", "v1")
    assert incoming.of(site.rig.caller("ada"), code.snapshot).scripts == ("train.py",)
    with pytest.raises(Invalid, match="git"):
        incoming.repository(site.rig.caller("bob"), f"{repository}#part", "v1")
    assert seen == ["ada", "bob"]


def test_a_template_of_the_site_is_a_project_with_fields(tmp_path: Path) -> None:
    place = tmp_path / "templates"
    (place / "Fold proteins").mkdir(parents=True)
    (place / ".git").mkdir()
    (place / "Fold proteins" / "fold.py").write_text(HELLO)
    (place / "Fold proteins" / "MLproject").write_text(
        "name: fold\nentry_points:\n  main:\n    parameters: {sequence: string, models: {type: int, default: 5}}\n"
        "    command: python fold.py {sequence} --models {models}\ncarrel: {resources: {gpus: 1, time: 3h}}\n"
    )
    clock = Clock()
    portal = Portal(clock=clock)
    with a_lab(tmp_path / "lab", pages=lambda _rig: portal, clock=clock, templates=place) as rig, serve(rig.app) as url:
        site = Site(rig, portal, clock, url)
        with site.browser("ada") as http:
            assert 'href="/tasks/new?template=Fold%20proteins"' in http.get(f"{site.url}/tasks/new").text
            page = http.get(f"{site.url}/tasks/new", params={"template": "Fold proteins"}).text
            assert re.search(r'name="P:models" value="" placeholder="5"', page)
            kept = dict(re.findall(r'type="hidden" name="(snapshot|code)" value="([^"]*)"', page))
            missing = send(site, http, **kept)
            assert "sequence" in missing.text
            assert missing.status_code == 422
            done = send(site, http, **kept, **{"P:sequence": "MKV; rm -rf /"})
            assert task_of(site, done).command == "python fold.py 'MKV; rm -rf /' --models 5"
            job = site.rig.lab.job(site.rig.caller("ada"), int(done.url.path.rpartition("/")[2]))
            assert (job.resources.gpus, job.resources.time) == (1, 3 * 3600)
            for name in ("..", ".git", "none"):
                assert http.get(f"{site.url}/tasks/new", params={"template": name}).status_code == 404


def test_one_user_does_not_take_all_places_for_uploads(site: Site) -> None:
    with site.browser("ada") as http, ExitStack() as open_ones:
        secret, cookie = secret_in(http.get(f"{site.url}/tasks/new")), http.cookies
        for _ in range(3):  # forms whose end does not come
            waiting = open_ones.enter_context(socket.create_connection(("127.0.0.1", int(site.url.rpartition(":")[2]))))
            lines = (
                "POST /tasks/new HTTP/1.1",
                f"Host: {site.url.partition('//')[2]}",
                f"Cookie: {'; '.join(f'{name}={value}' for name, value in cookie.items())}",
                "Sec-Fetch-Site: same-origin",
                "Content-Type: multipart/form-data; boundary=x",
                "Content-Length: 10000",
            )
            waiting.sendall(("\r\n".join(lines) + "\r\n\r\n--x\r\n").encode())

        def under_way() -> list[Path]:
            return list((site.rig.home / "snapshots").glob("new-code-*"))

        def answer(who: httpx.Client, secret: str) -> int:
            data = {"form_secret": secret, "do": "show", "script": HELLO}
            return who.post(f"{site.url}/tasks/new", data=data, files={"file": ("", b"")}).status_code

        wait_until(lambda: len(under_way()) == 3)
        assert answer(http, secret) == 409
        with site.browser("bob") as other:
            assert answer(other, secret_in(other.get(f"{site.url}/tasks/new"))) == 200
        open_ones.close()
        wait_until(lambda: not under_way())
        assert answer(http, secret) == 200
