"""A real JupyterHub with its real proxy in front of a real lab: programs of their own, on loopback ports of their own."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.sync.client import ClientConnection, connect

from carrel import Client
from support.lab_process import LabProcess, start_lab
from support.notebook_client import PATIENCE, Kernel
from support.ports import kept_port

#: The proxy that JupyterHub is made for; npm has it.
PROXY = "configurable-http-proxy@5.3.0"

HUB_CONFIG = """\
import json
import os
from pathlib import Path

place = Path(os.environ["RIG"])
ports = json.loads((place / "ports.json").read_text())
c.JupyterHub.bind_url = f"http://127.0.0.1:{ports['front']}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{ports['hub']}"
c.JupyterHub.db_url = f"sqlite:///{place}/hub.db"
c.JupyterHub.cookie_secret_file = f"{place}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
# The proxy is a service of its own: it goes on when the hub is restarted.
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{ports['control']}"
c.JupyterHub.cleanup_servers = False
# Who asks for a server is told that it is pending rather sooner than the usual ten seconds.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}
c.JupyterHub.services = [{"name": "tests", "api_token": os.environ["RIG_TOKEN"]}]
c.JupyterHub.load_roles = [
    {"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "tokens", "access:servers"]}
]
c.JupyterHub.spawner_class = "carrel_jupyterhub.CarrelSpawner"
c.CarrelSpawner.lab_url = os.environ["RIG_LAB"]
c.CarrelSpawner.token_of = lambda spawner: json.loads((place / "tokens.json").read_text()).get(spawner.user.name)
c.CarrelSpawner.environment = {"GREETING": "from the hub"}
c.CarrelSpawner.poll_interval = 1
"""


@dataclass
class Program:
    """A child process whose output is read as it comes."""

    words: Sequence[str]
    variables: Mapping[str, str]
    output: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            self.words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **self.variables}, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str) -> None:
        with self._news:
            self._news.wait_for(lambda: self._has(text) or self._process.poll() is not None, PATIENCE)
            assert self._has(text), f"{self.words} did not say {text!r}:\n{''.join(self.output)}"

    def _has(self, text: str) -> bool:
        return any(text in line for line in self.output)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=PATIENCE)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                with self._news:
                    self.output.append(line)
                    self._news.notify_all()
        self._process.wait()
        with self._news:
            self._news.notify_all()


class HubRig:
    """Lab, proxy and hub, and what a test does with them."""

    def __init__(self, lab: LabProcess, proxy_program: str, place: Path) -> None:
        self.lab = lab
        self.place = place
        self.token = secrets.token_hex(16)
        self._ports = ExitStack()
        front, control, hub = (self._ports.enter_context(kept_port()) for _ in range(3))
        (place / "ports.json").write_text(json.dumps({"front": front, "control": control, "hub": hub}))
        self.url = f"http://127.0.0.1:{front}"
        self.hub_api = f"http://127.0.0.1:{hub}/hub/api"
        self._tokens: dict[str, str] = {}
        self._write_tokens()
        (place / "jupyterhub_config.py").write_text(HUB_CONFIG)
        self._variables = {
            "RIG": str(place),
            "RIG_TOKEN": self.token,
            "RIG_LAB": lab.url,
            "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16),
            # Everything that a hub's own machine has and a session must not get.
            "PYTHONUNBUFFERED": "1",
        }
        self.proxy = Program(
            [
                proxy_program,
                *("--ip", "127.0.0.1", "--port", str(front), "--api-ip", "127.0.0.1", "--api-port", str(control)),
                *("--default-target", f"http://127.0.0.1:{hub}", "--error-target", f"http://127.0.0.1:{hub}/hub/error"),
            ],
            self._variables,
        )
        self.hub = self._start_hub()
        self.api = httpx.Client(
            base_url=f"{self.url}/hub/api", headers={"Authorization": f"token {self.token}"}, timeout=PATIENCE
        )

    def _start_hub(self) -> Program:
        words = [sys.executable, "-m", "jupyterhub", "-f", str(self.place / "jupyterhub_config.py")]
        hub = Program(words, self._variables)
        hub.wait_for("JupyterHub is now running")
        return hub

    def crash_and_restart(self) -> None:
        self.hub.end(signal.SIGKILL)
        self.hub = self._start_hub()

    @contextmanager
    def without_lab(self) -> Iterator[None]:
        """The lab's server is killed, and comes back in the end."""
        self.lab.kill()
        try:
            yield
        finally:
            back = start_lab(self.lab.home, simulate_gpus=2)
            self.lab.process, self.lab.output, self.lab.url = back.process, back.output, back.url

    def close(self) -> None:
        self.api.close()
        self.hub.end()
        self.proxy.end()
        self._ports.close()

    # ---- people

    def add_user(self, name: str) -> str:
        """A user of the lab and of the hub, whose name is unique here."""
        who = f"{name}{secrets.token_hex(3)}"
        with Client(url=self.lab.url, token=self.lab.token) as admin:
            self._tokens[who] = admin.add_user(who).token
        self._write_tokens()
        self.api.post(f"/users/{who}").raise_for_status()
        return who

    def add_stranger(self) -> str:
        """A user of the hub whom the lab does not know."""
        who = f"stranger{secrets.token_hex(3)}"
        self.api.post(f"/users/{who}").raise_for_status()
        return who

    def lab_of(self, who: str) -> Client:
        return Client(url=self.lab.url, token=self._tokens[who])

    def _write_tokens(self) -> None:
        draft = self.place / "tokens.new"
        draft.write_text(json.dumps(self._tokens))
        draft.rename(self.place / "tokens.json")

    # ---- servers

    def spawn(self, who: str, **options: Any) -> httpx.Response:
        return self.api.post(f"/users/{who}/server", json=options)

    def progress(self, who: str) -> Iterator[dict[str, Any]]:
        """What the hub shows while a server starts, to the end."""
        with self.api.stream("GET", f"/users/{who}/server/progress") as stream:
            assert stream.status_code == 200, stream.read()
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    def start(self, who: str, **options: Any) -> list[dict[str, Any]]:
        """Spawn, and wait until it is ready; return what was shown meanwhile."""
        answer = self.spawn(who, **options)
        assert answer.status_code in (201, 202), (answer.text, self.said())
        shown = list(self.progress(who))
        assert shown[-1].get("ready"), (shown, self.said())
        return shown

    def said(self) -> str:
        """The end of the hub's log."""
        return "".join(self.hub.output[-60:])

    def stop(self, who: str) -> None:
        """Ask for the end of a server, and wait until the hub says that it is there."""
        answer = self.api.delete(f"/users/{who}/server")
        assert answer.status_code in (202, 204), answer.text
        if answer.status_code == 202:
            self.hub.wait_for(f"User {who} server took")

    def session(self, who: str) -> int:
        """The one session of a user that has not ended."""
        with self.lab_of(who) as lab:
            (session,) = lab.sessions()
            return session.job.id

    @contextmanager
    def served(self, who: str, owner: str | None = None) -> Iterator[ServedNotebook]:
        """A program that uses the notebook server of `owner` (itself, unless named) as `who`."""
        answer = self.api.post(f"/users/{who}/tokens", json={"note": "a test"})
        answer.raise_for_status()
        with closing(ServedNotebook(f"{self.url}/user/{owner or who}", answer.json()["token"])) as served:
            yield served


class ServedNotebook:
    """A notebook server, reached through the hub's proxy with a token of the hub's. `Kernel` takes it for a browser."""

    def __init__(self, address: str, token: str) -> None:
        self.patience = PATIENCE
        self._address = urlsplit(address)
        self._headers = {"Authorization": f"token {token}"}
        self._http = httpx.Client(base_url=address, headers=self._headers, timeout=PATIENCE)

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._http.request(method, path, **more)

    def websocket(self, path: str) -> ClientConnection:
        parts = self._address
        return connect(
            f"ws://{parts.netloc}{parts.path}{path}",
            additional_headers=self._headers,
            max_size=None,
            open_timeout=PATIENCE,
            proxy=None,
        )

    def kernel(self, kernel_id: str | None = None) -> Kernel:
        if kernel_id is None:
            answer = self.request("POST", "/api/kernels", json={"name": "python3"})
            assert answer.status_code == 201, answer.text
            kernel_id = answer.json()["id"]
        return Kernel(self, kernel_id)  # type: ignore[arg-type]

    def run(self, code: str, kernel_id: str | None = None) -> tuple[str, str]:
        """Run a cell; return its text and the kernel's id."""
        with closing(self.kernel(kernel_id)) as kernel:
            result = kernel.execute(code)
            assert result.status == "ok", result
            return result.text.strip(), kernel.id


class HubBrowser:
    """A person's browser, signed in at the hub with its form."""

    def __init__(self, rig: HubRig, who: str) -> None:
        self.http = httpx.Client(base_url=rig.url, timeout=PATIENCE, follow_redirects=True)
        page = self.http.get("/hub/login")
        token = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
        assert token is not None, page.text[:2000]
        answer = self.http.post("/hub/login", data={"username": who, "password": "any", "_xsrf": token[1]})
        assert answer.status_code in (200, 404), answer.text[:2000]  # 404: the hub goes on to a server that is not there

    def close(self) -> None:
        self.http.close()


def install_proxy(npm: str) -> str:
    """The proxy's program, installed once into the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "carrel-tests"
    place = cache / PROXY.replace("@", "-")
    program = place / "node_modules/.bin/configurable-http-proxy"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as draft:
            words = [npm, "install", "--prefix", draft, "--no-audit", "--no-fund", "--loglevel=error", PROXY]
            subprocess.run(words, check=True, capture_output=True, timeout=150)
            # Another worker may have been faster.
            for name in Path(draft).iterdir():
                place.mkdir(exist_ok=True)
                if not (place / name.name).exists():
                    name.rename(place / name.name)
    return str(program)
