"""Mixed reads through REST while jobs run, each kind of them, an empty route of FastAPI, and what an open event stream takes.

The readers are connections of one other process, which reads answers as cheaply as it can: the lab is measured, not a client.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import empty_routes
from carrel import Client
from figure import Figure, percentile
from support.lab_process import LabProcess, start_lab

_CONNECTIONS = 8
_SECONDS = 15.0
_STREAMS = 2000
_PROJECT = """
name: reads
entry_points:
  main:
    parameters:
      seconds: {type: float, default: 0}
    command: 'for i in $(seq 200); do echo "step $i of 200: loss 0.1234"; done; sleep {seconds}'
"""
#: Of a hundred requests: what people's pages, scripts and dashboards ask for.
_MIX = (
    ("/api/v1/jobs?limit=20", 25),
    ("/api/v1/jobs/{job}", 30),
    ("/api/v1/jobs/{job}/log?offset=-4096", 15),
    ("/api/v1/jobs/{job}/outputs", 5),
    ("/api/v1/gpus", 10),
    ("/api/v1/nodes", 5),
    ("/api/v1/lab", 5),
    ("/api/v1/events?after=-1", 5),
)


def measure(scratch: Path) -> list[Figure]:
    """Throughput and latency of reads, and memory of streams."""
    (scratch / "project").mkdir()
    (scratch / "project" / "MLproject").write_text(_PROJECT)
    lab = start_lab(scratch / "lab", simulate_gpus=2)
    try:
        with Client(url=lab.url, token=lab.token) as client:
            ended = [client.submit_project(scratch / "project").id for _ in range(10)]
            for job in ended:
                client.wait(job)
            ran = [client.submit_project(scratch / "project", parameters={"seconds": "600"}).id for _ in range(2)]
            figures = [*_reads(lab, [*ended, *ran]), *_kinds(lab, [*ended, *ran]), *_floor(), *_streams(lab, ran)]
            for job in ran:
                client.cancel(job)
            return figures
    finally:
        lab.stop()


def _reads(lab: LabProcess, jobs: list[int]) -> list[Figure]:
    _client(lab, "reads", jobs, 3.0)  # warm
    before = processor_time(lab.process.pid)
    told = _client(lab, "reads", jobs, _SECONDS)
    spent = processor_time(lab.process.pid) - before
    waits = [1000 * wait for wait in told["waits"]]
    return [
        Figure(name=f"mixed reads, {_CONNECTIONS} connections", value=len(waits) / told["seconds"], unit="/s", at_least=500),
        percentile("the same, from request to answer, p95", waits, "ms", 95, at_most=100),
        Figure(name="the same, processor time of the lab for each", value=1000 * spent / len(waits), unit="ms"),
    ]


def _kinds(lab: LabProcess, jobs: list[int]) -> list[Figure]:
    """What each kind of the mix takes, and what the gate adds to it: `/health` needs no sign-in."""
    return [_alone(lab.url, lab.token, lab.process.pid, path, jobs, "lab") for path in ("/health", *(path for path, _ in _MIX))]


def _floor() -> list[Figure]:
    """What no lab that speaks through FastAPI and uvicorn can be below: routes that do nothing, without sign-in."""
    with subprocess.Popen([sys.executable, empty_routes.__file__], stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        url = served.stdout.readline().strip()
        try:
            return [_alone(url, "none", served.pid, path, [1], "empty route") for path in empty_routes.PATHS]
        finally:
            served.kill()


def _alone(url: str, token: str, pid: int, path: str, jobs: list[int], whose: str) -> Figure:
    asked = {"url": url, "token": token, "jobs": jobs, "seconds": 2.0, "pid": pid, "mix": [[path, 100]]}
    _told("reads", {**asked, "seconds": 0.2})
    before = processor_time(pid)
    told = _told("reads", asked)
    each = 1000 * (processor_time(pid) - before) / len(told["waits"])
    return Figure(name=f"processor time: {whose} {path}", value=each, unit="ms", spread=f"n={len(told['waits'])}")


def _streams(lab: LabProcess, jobs: list[int]) -> list[Figure]:
    before = _memory(lab)
    told = _client(lab, "streams", jobs, 5.0)
    return [
        Figure(
            name=f"memory of the lab for each of {_STREAMS:,} event streams",
            value=(told["held"] - before) / told["streams"],
            unit="KB",
            spread=f"{told['streams']} open",
            at_most=100,
        )
    ]


def _client(lab: LabProcess, what: str, jobs: list[int], seconds: float) -> Any:
    asked = {"url": lab.url, "token": lab.token, "jobs": jobs, "seconds": seconds, "pid": lab.process.pid, "mix": _MIX}
    return _told(what, asked)


def _told(what: str, asked: dict[str, Any]) -> Any:
    command = [sys.executable, __file__, what]
    ended = subprocess.run(command, input=json.dumps(asked), text=True, stdout=subprocess.PIPE, check=True)
    return json.loads(ended.stdout)


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(lab: LabProcess) -> int:
    """KB of the lab's own process."""
    return resident(lab.process.pid)


def resident(pid: int) -> int:
    """Resident memory of a process in KB (proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


# --- the other process ------------------------------------------------------------------------------------------------------


async def _read(asked: dict[str, Any]) -> dict[str, Any]:
    address = urlsplit(asked["url"])
    paths = [path for path, share in asked["mix"] for _ in range(share)]
    until = time.monotonic() + asked["seconds"]
    waits: list[float] = []

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        turn = number * 37
        while time.monotonic() < until:
            turn += 41  # passes through all of the hundred, in an order that mixes them
            path = paths[turn % 100].format(job=asked["jobs"][turn % len(asked["jobs"])])
            began = time.monotonic()
            writer.write(_request(asked, path))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"{path}: {head.decode()}")
            await reader.readexactly(_length(head))
            waits.append(time.monotonic() - began)
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*map(one, range(_CONNECTIONS)))
    return {"waits": waits, "seconds": time.monotonic() - began}


async def _listen(asked: dict[str, Any]) -> dict[str, Any]:
    address = urlsplit(asked["url"])
    writers = []
    for number in range(_STREAMS):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        job = asked["jobs"][number % len(asked["jobs"])]
        writer.write(_request(asked, f"/api/v1/jobs/{job}/events?after=-1", accept="text/event-stream"))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        writers.append(writer)
    await asyncio.sleep(asked["seconds"])
    held = resident(asked["pid"])
    for writer in writers:
        writer.close()
    return {"streams": len(writers), "held": held}


def _request(asked: dict[str, Any], path: str, accept: str = "application/json") -> bytes:
    host = urlsplit(asked["url"]).netloc
    lines = (f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {asked['token']}", f"Accept: {accept}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    said = json.load(sys.stdin)
    print(json.dumps(asyncio.run({"reads": _read, "streams": _listen}[sys.argv[1]](said))))
