"""A real nginx in front of a real lab, both as docs/settings.md shows them to administrators, and people who come through it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from carrel.client import Client
from carrel.lab.server.authority import Authority
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest, SessionView
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser
from support.ports import kept_port

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
SECRET = "a-secret-of-thirty-two-characters"
#: A person's address, which is not that from which nginx asks the lab.
PERSON = "127.0.0.2"
OWN = {"Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
#: What Debian's nginx.conf has around files of conf.d, with everything in one directory.
AROUND = """
pid {directory}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/carrel.conf;
}}
"""
#: Says how much has come with it, and goes on when it is told to.
TASK = """
import os, sys, time
print("came with", os.path.getsize("data.bin"), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
SIZE = 20_000_000
#: A program in a notebook that says one thing, and the other when it is told to; it knows nothing of proxies.
PROGRAM = """
import http.server, os, threading, time
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"first\\n")
        while not os.path.exists({go!r}):
            time.sleep(0.05)
        self.wfile.write(b"last\\n")
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port)
"""


def example(form: str, setting: str, here: Mapping[str, str]) -> str:
    """The example of the docs that has a setting, with what is otherwise `here`: ports, files and the secret."""
    (text,) = [one for one in re.findall(rf"```{form}\n(.*?)```", PAGE, re.DOTALL) if setting in one]
    for shown, ours in here.items():
        assert shown in text, f"docs/settings.md shows no {shown} beside {setting}"
        text = text.replace(shown, ours)
    return str(text)


class Resolved(httpx.HTTPTransport):
    """Connections of a person to the address at which the site's names are."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        there = request.url.copy_with(host="127.0.0.1")
        named = {**request.extensions, "sni_hostname": request.url.host}
        return super().handle_request(
            httpx.Request(request.method, there, headers=request.headers, stream=request.stream, extensions=named)
        )


@dataclass(frozen=True)
class Place:
    """The lab, and how it is reached through the proxy."""

    lab: LabProcess
    url: str
    authority: Path
    #: The one-time link that `carrel up` has printed.
    link: str

    def browser(self, origin: str = "", headers: Mapping[str, str] = OWN) -> httpx.Client:
        """A browser of a person at their own address."""
        trust = ssl.create_default_context(cafile=self.authority)
        transport = Resolved(verify=trust, local_address=PERSON, trust_env=False)
        return httpx.Client(base_url=origin or self.url, headers=headers, timeout=PATIENCE, transport=transport)

    def refused_from(self, target: str) -> list[str]:
        """The addresses of the audit log's refused requests for a path."""
        with Client(home=self.lab.home) as client:
            lines = client.audit(limit=1000, result="refused").lines
        return [str(line["from"]) for line in lines if target in str(line)]


@contextmanager
def nginx(directory: Path) -> Iterator[None]:
    """nginx, as `directory` configures it."""
    assert NGINX is not None
    words = (NGINX, "-p", directory, "-c", directory / "nginx.conf", "-e", directory / "error.log", "-g", "daemon off;")
    with subprocess.Popen(words) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)


def printed_link(lab: LabProcess) -> str:
    said = lab.said
    while (found := re.search(r"pages +(\S+)\n", said)) is None:
        piece = os.read(lab.output.fileno(), 65536)
        assert piece, said
        said += piece.decode()
    return found[1]


def listens(port: int) -> bool:
    with socket.socket() as there:
        return there.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if NGINX is None:
        pytest.skip("nginx is not installed (tools/debian-packages)")
    home, directory = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("nginx")
    names = ["gpus.example.org", "*.notebooks.example.org", "localhost"]
    tls = Authority(directory / "tls", names)
    with kept_port() as port:
        url = f"https://gpus.example.org:{port}"
        settings = example("toml", "proxy_secret", {"https://gpus.example.org": url, "4f9c…": SECRET})
        (home / "carrel.toml").write_text(settings)
        lab = start_lab(home, "--cpus", "4", simulate_gpus=1)
        try:
            here = {
                "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
                "http://127.0.0.1:8642": lab.url,
                "/etc/ssl/gpus/fullchain.pem": str(tls.certificate),
                "/etc/ssl/gpus/privkey.pem": str(tls.key),
                "4f9c…": SECRET,
            }
            (directory / "carrel.conf").write_text(example("nginx", "proxy_pass", here))
            (directory / "nginx.conf").write_text(AROUND.format(directory=directory))
            with nginx(directory):
                wait_until(lambda: listens(port), lambda: (directory / "error.log").read_text())
                yield Place(lab, url, tls.path, printed_link(lab))
                lab.end_jobs()
        finally:
            lab.stop()


def test_a_browser_is_signed_in_at_the_proxys_address_and_the_audit_log_has_its_own(place: Place) -> None:
    assert place.link.startswith(f"{place.url}/login?ticket=")
    with place.browser() as browser:
        answer = browser.get(place.link, headers={"Sec-Fetch-Site": "none"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert "secure" in [part.strip().lower() for part in cookie.split(";")]
        front = browser.get("/")
        assert (front.status_code, front.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert browser.get("/health", headers={"Host": "evil.example.org"}).status_code == 421
    with Client(home=place.lab.home) as client:
        assert client.sign_in_link().startswith(f"{place.url}/login?ticket=")
        lines = client.audit(limit=1000).lines
    assert {line["from"] for line in lines if line["action"] == "sign in" and line["method"] == "GET"} == {PERSON}


def test_what_a_person_says_of_their_address_is_not_believed(place: Place) -> None:
    def ask(http: httpx.Client, path: str, **said: str) -> None:
        headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", **said}
        assert http.post(path, data={"name": "eve", "password": "x" * 12}, headers=headers).status_code == 401

    def sign_in(http: httpx.Client, **said: str) -> str:
        headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", **said}
        return str(http.post("/login", data={"token": place.lab.token}, headers=headers).headers["set-cookie"])

    path = "/sign-in/password"
    with place.browser() as browser:
        ask(browser, path)
        ask(browser, path, **{"X-Carrel-Proxy": SECRET})  # the proxy says the secret, and its own words, in any case
        assert place.refused_from(path) == [PERSON, PERSON]
    # Past the proxy, as a job on its machine could.
    with httpx.Client(base_url=place.lab.url, headers=OWN, timeout=PATIENCE, trust_env=False) as past:
        ask(past, path)
        ask(past, path, **{"X-Carrel-Proxy": SECRET[:-1] + "S"})
        assert sorted(place.refused_from(path)) == ["127.0.0.1", "127.0.0.1", PERSON, PERSON]
        for said in ({}, {"X-Carrel-Proxy": SECRET[:-1] + "S"}):
            assert not sign_in(past, **said).startswith("__Host-")


def test_a_large_upload_and_events_while_they_happen(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARREL_CA_FILE", str(place.authority))
    project, go = tmp_path / "project", tmp_path / "go"
    project.mkdir()
    (project / "task.py").write_text(TASK)
    (project / "data.bin").write_bytes(os.urandom(SIZE))
    url = place.url.replace("gpus.example.org", "localhost")  # a name that this machine knows
    with Client(url, place.lab.token) as client:
        job = client.submit_project(project / "task.py", arguments=[str(go)], include=[project / "data.bin"])
        seen = ""
        for event in client.events(job.id):
            if event.type == "log":
                seen += event.data["text"]
            if f"came with {SIZE}\n" in seen:
                go.touch()  # it ends only if what it says comes here before its end
        assert client.job(job.id).state == "COMPLETED"


def test_a_notebook_at_its_own_name_with_a_kernel_and_the_page_of_a_program(place: Place, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Client(home=place.lab.home) as client:  # on the lab's machine, past the proxy
        session = client.start_session(SessionRequest())

        def ready() -> SessionView | None:
            found = client.session(session.job.id)
            assert not found.job.ended, found.job.message
            return found if found.ready else None

        wait_until(ready, "the session to be ready")
        link = client.open_session(session.job.id)
        assert re.match(rf"https://s\d+-\w+\.notebooks\.example\.org:{place.url.rpartition(':')[2]}/", link)
        with SessionBrowser(link, authority=place.authority, found_at="127.0.0.1") as browser:
            assert all(name.startswith("__Host-") for name in browser.cookies)
            kernel = browser.start_kernel()
            assert kernel.execute("print(6 * 7)").text == "42\n"
            port = int(kernel.execute(PROGRAM.format(go=str(go))).text)
            with place.browser(browser.origin, browser.headers) as http, http.stream("GET", f"/proxy/{port}/") as page:
                lines = page.iter_lines()
                assert (page.status_code, next(lines)) == (200, "first")
                go.touch()
                assert next(lines) == "last"
            kernel.close()
        client.cancel(session.job.id)


def test_a_session_below_localhost_is_at_the_address_by_which_the_lab_was_asked(tmp_path: Path) -> None:
    # Somebody with a tunnel to the lab's own port has no use for the proxy's.
    lab = start_lab(tmp_path / "lab", simulate_gpus=0, variables={"CARREL_PUBLIC_URL": "https://gpus.example.org"})
    try:
        with Client(home=lab.home) as client:
            link = client.open_session(client.start_session(SessionRequest()).job.id)
        assert re.match(rf"http://s\d+-\w+\.localhost:{lab.url.rpartition(':')[2]}/", link)
    finally:
        lab.end_jobs()
        lab.stop()
