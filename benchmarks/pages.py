"""The pages of a lab with 100,000 jobs of 1,000 users, while 500 browsers hear its events: how long each takes, how large it is,
and how soon the browsers show what happens.

The browsers are connections of one other process. As the script of the pages does, each asks for its page again when it hears of
a change, once in 400 ms at most.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

import gpu_use
from carrel import Client
from figure import Figure, percentile
from support.lab_process import LabProcess, start_lab

JOBS = 100_000
VIEWERS = 500
#: Browsers of the administrator, who sees all jobs; the others are of 50 users.
_WATCHING = 25
_ASKED = 30
_PAGES = {
    "home": "/",
    "jobs, an old page": "/?before=40000",
    "jobs, ended": "/?show=ended",
    "one's own jobs": "/?owner=me&show=ended",
    "job": "/jobs/{job}",
    "GPUs": "/gpus",
    "notebooks": "/notebooks",
    "use": "/use",
    "new task": "/tasks/new",
    "account": "/account",
    "administration": "/administration",
    "administration, one user searched": "/administration?user=user77",
    "classes and accounts": "/administration/rules",
}


def measure(scratch: Path, count: int = JOBS) -> list[Figure]:
    """The figures of all pages."""
    home = scratch / "lab"
    start_lab(home, simulate_gpus=2).stop()
    gpu_use.begin_at(time.time() - gpu_use.YEAR)
    gpu_use.fill(home / "lab.db", count)
    (home / "carrel.toml").write_text('isolation = "none"\n')
    lab = start_lab(home, simulate_gpus=2)
    try:
        with Client(url=lab.url, token=lab.token) as client:
            mine = _cookie(lab, lab.token)
            cookies = [_cookie(lab, client.reset_user(f"user{number}").token) for number in range(50)]
            alone = _pages(lab, mine, count, "")
            with _Viewers(lab, [mine] * _WATCHING + [cookies[one % 50] for one in range(VIEWERS - _WATCHING)]) as viewers:
                crowded = _pages(lab, mine, count, f", {VIEWERS} browsers open")
                users = _pages(lab, cookies[7], count, f", a user's, {VIEWERS} browsers open")
                (scratch / "project").mkdir()
                (scratch / "project" / "MLproject").write_text("name: x\nentry_points: {main: {command: 'sleep 1'}}\n")
                shown = [wait for _ in range(10) for wait in viewers.shown(client, scratch / "project")]
        delay = percentile(f"from a submission to {_WATCHING} browsers that show it", shown, "s", 95, at_most=1)
        return [*alone, *crowded, *users, delay]
    finally:
        lab.stop()


def _cookie(lab: LabProcess, token: str) -> str:
    """What a browser sends that was signed in with this token."""
    with httpx.Client(base_url=lab.url, headers={"Accept": "text/html", "Sec-Fetch-Site": "none"}, timeout=60) as http:
        link = http.post("/api/v1/tokens/current/link", headers={"Authorization": f"Bearer {token}"}).raise_for_status().json()
        http.get(link["url"])
        return "; ".join(f"{name}={value}" for name, value in http.cookies.items())


def _pages(lab: LabProcess, cookie: str, count: int, how: str) -> list[Figure]:
    found = []
    with httpx.Client(base_url=lab.url, headers={"Cookie": cookie, "Accept": "text/html"}, timeout=60) as http:
        static = sum(len(http.get(f"/static/{name}").content) for name in ("carrel.css", "carrel.js"))
        for name, path in _PAGES.items():
            waits, size = [], 0
            for turn in range(_ASKED):
                began = time.perf_counter()
                answer = http.get(path.format(job=count - turn))
                if answer.status_code in (403, 404):  # what is not theirs
                    break
                answer.raise_for_status()
                waits.append(1000 * (time.perf_counter() - began))
                size = max(size, answer.num_bytes_downloaded)
            if waits:
                found.append(percentile(f"{name}{how}, p95", waits, "ms", 95, at_most=200))
            if waits and not how:
                title = "the same with style and script, transferred"
                found.append(Figure(name=title, value=(size + static) / 1000, unit="KB", at_most=150))
    return found


class _Viewers:
    """Browsers that are open, in a process of their own."""

    def __init__(self, lab: LabProcess, cookies: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, __file__, "viewers"], stdin=pipe, stdout=pipe, text=True)
        home = httpx.get(lab.url, headers={"Cookie": cookies[0], "Accept": "text/html"}, timeout=60).text
        after = home.partition('data-after="')[2].partition('"')[0]
        self._tell({"url": lab.url, "after": after, "cookies": cookies, "watching": _WATCHING})

    def __enter__(self) -> _Viewers:
        assert self._hear() == "open"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def shown(self, client: Client, project: Path) -> Sequence[float]:
        """Seconds from a submission until each browser that sees it has its page with the job."""
        began = time.time()
        job = client.submit_project(project).id
        self._tell({"job": job})
        waits = [at - began for at in self._hear()]
        client.wait(job)
        return waits

    def _tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


# --- the other process ------------------------------------------------------------------------------------------------------


class _Browser:
    def __init__(self, url: str, cookie: str, after: str) -> None:
        self.after = after
        self.address = urlsplit(url)
        self.cookie = cookie
        self.page = ""
        #: When its page had what it was asked to look for.
        self.seen: dict[int, float] = {}
        self.jobs: list[int] = []

    def request(self, path: str, accept: str) -> bytes:
        told = {"Host": self.address.netloc, "Cookie": self.cookie, "Accept": accept}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def listen(self, opened: asyncio.Semaphore) -> None:
        reader, writer = await asyncio.open_connection(self.address.hostname, self.address.port)
        # The script of the first page asks for these.
        writer.write(self.request(f"/events?after={self.after}&type=state&type=queue&type=storage", "text/event-stream"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        opened.release()
        changed = asyncio.Event()
        looks = asyncio.create_task(self.look(changed))
        looks.add_done_callback(_end_if_failed)
        while line := await reader.readline():
            if line.startswith(b"data:"):
                changed.set()
        looks.cancel()

    async def look(self, changed: asyncio.Event) -> None:
        while await changed.wait():
            changed.clear()
            # An idle connection is closed after a while.
            reader, writer = await asyncio.open_connection(self.address.hostname, self.address.port)
            writer.write(self.request("/?part=live", "text/html"))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            self.page = (await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))).decode()
            writer.close()
            self.find()
            await asyncio.sleep(0.4)

    def find(self) -> None:
        for job in self.jobs:
            if f"/jobs/{job}" in self.page:
                self.seen.setdefault(job, time.time())


def _end_if_failed(task: asyncio.Task[None]) -> None:
    """A browser that hears nothing is no browser."""
    if not task.cancelled() and task.exception() is not None:
        print(f"A browser has ended: {task.exception()!r}", file=sys.stderr, flush=True)
        os._exit(1)


async def _view() -> None:
    loop = asyncio.get_running_loop()
    asked = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    browsers = [_Browser(asked["url"], cookie, asked["after"]) for cookie in asked["cookies"]]
    opened = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(one.listen(opened)) for one in browsers]
    for task in tasks:
        task.add_done_callback(_end_if_failed)
    for _ in browsers:
        await opened.acquire()
    print('"open"', flush=True)
    watching = browsers[: asked["watching"]]
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        job = json.loads(line)["job"]
        for one in watching:
            one.jobs.append(job)
            one.find()  # it may have been quick
        while not all(job in one.seen for one in watching):
            await asyncio.sleep(0.01)
        print(json.dumps([one.seen[job] for one in watching]), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    if sys.argv[1:] == ["viewers"]:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        asyncio.run(_view())
    else:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="carrel-pages-") as place:
            for figure in measure(Path(place), int(sys.argv[1]) if sys.argv[1:] else JOBS):
                print(figure.row())
        print(f"load {os.getloadavg()}")
