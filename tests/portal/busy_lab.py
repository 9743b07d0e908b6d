"""A lab in the middle of a working day: jobs of every state, notebooks, a sweep, and GPUs that have been used for an hour."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gateway_lab import a_lab, client, serve
from PIL import Image, ImageDraw
from portal_site import Clock, Site

from carrel.core.comparison import Metrics
from carrel.core.control.sessions import SessionStatus
from carrel.core.domain.announcement import Announcement
from carrel.core.domain.challenge import Challenge, ChallengeSubmission, Fault, SubmissionState, Team
from carrel.core.domain.challenge_notice import ChallengeNotice, NoticeKind
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Sampled, Started, StoredFile, Usage
from carrel.core.domain.nouns import ANNOUNCEMENTS, CHALLENGES, RESERVATIONS, TEAMS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.units import GIB, MIB
from carrel.lab.portal import Portal
from carrel.testing.waiting import wait_until

#: When it is there: a Thursday, in the morning.
NOW = datetime(2026, 11, 26, 10, 30, tzinfo=UTC).timestamp()
#: A challenge that is under way. Nothing of it is run.
CHALLENGE = {
    "challenge.yaml": """\
name: eeg
title: Find seizures in EEG
pages: {Overview: overview.md, Data: data.md}
rules: rules.md
data:
  train: {path: train}
  try: {input: train/input, reference: train/reference}
  public: {input: public/input, reference: public/reference}
  private: {input: private/input, reference: private/reference}
ingestion: ingestion
scoring: scoring
starter: starter
baselines: {zeros: zeros, energy: energy}
phases:
  - {name: development, begin: 2026-11-01, end: 2027-02-01, split: public}
  - {name: final, begin: 2027-02-01, end: 2027-02-08, split: private, total: 2}
board:
  - {column: taes, title: TAES, better: larger, precision: 3}
  - {column: alarms, title: False alarms per 24 h, better: smaller, precision: 1}
""",
    "overview.md": "Write a program that marks the seizures: for each recording, when each begins and ends.\n\n"
    "You need to know nothing about EEG, and no processor of your own. *Start* opens a notebook whose cells run as they are.",
    "data.md": "Eight channels, 64 samples a second. No patient is in two splits.\n\n"
    "| split | patients | recordings |\n|---|---|---|\n| `train` | 12 | 48 |\n| `public` | 4 | 20 |\n| `private` | 4 | 20 |",
    "rules.md": "A team submits at most five times a day. A person is in one team.",
    **dict.fromkeys(("ingestion/x", "scoring/x", "starter/x", "zeros/x", "energy/x", "train/input/x", "train/reference/x"), "x"),
    **{f"{split}/{part}/x": "x" for split in ("public", "private") for part in ("input", "reference")},
}
SCRIPT = """#!/bin/bash
#SBATCH --job-name=resnet-cifar --gpus=1 --time=2:00:00
python train.py --epochs 30
"""


@dataclass
class BusyLab:
    """The site, and where its pages are."""

    site: Site
    finished: int = 0
    training: int = 0
    failed: int = 0
    waiting: int = 0
    session: int = 0
    sweep: int = 0
    metrics: dict[str, Metrics] = field(default_factory=dict)

    def pages(self) -> Sequence[str]:
        """Every page that a user has, each once; for an administrator `/administration` comes in addition."""
        job, outputs = f"/jobs/{self.finished}", ("curve.png", "confusion.csv", "executed.ipynb", "report.html", "summary.txt")
        return (
            *("/", "/?show=active", "/tasks/new", "/notebooks", f"/notebooks/{self.session}", "/gpus", "/use", "/baselines"),
            *(
                "/sweeps",
                f"/sweeps/{self.sweep}",
                "/account",
                "/help",
                "/help/tasks.md",
                "/help?q=walltime",
                "/docs",
                "/jobs/999",
                "/challenges",
                "/challenges/eeg",
            ),
            *(f"/jobs/{number}" for number in (self.finished, self.training, self.failed, self.waiting, self.session)),
            *(f"{job}/metrics", f"/tasks/new?job={self.finished}", f"/jobs/compare?job={self.finished}&job={self.training}"),
            *(f"{job}/matrix", f"/jobs/why?first={self.finished}&second={self.failed}"),
            *(f"{job}/view/outputs/{name}" for name in outputs),
        )


@contextmanager
def a_busy_lab(place: Path) -> Iterator[BusyLab]:
    clock = Clock()
    clock.stands = NOW
    portal = Portal(clock=clock)
    known: dict[str, Metrics] = {}
    with (
        a_lab(
            place,
            pages=lambda _rig: portal,
            cpus=32,
            gpus=4,
            fabric="",
            clock=clock,
            clock_of_work=clock,
            run_metrics=lambda _owner, run: known[run],
        ) as rig,
        serve(rig.app) as url,
    ):
        lab = BusyLab(Site(rig, portal, clock, url), metrics=known)
        _fill(lab)
        yield lab


def _fill(lab: BusyLab) -> None:
    site = lab.site
    root = site.rig.caller("root")
    _at(site, -26)
    site.rig.lab.keeper(ANNOUNCEMENTS).put(root, Announcement(text="The cluster room is cooled again.", until=NOW + 1e5))
    lab.sweep = _sweep(lab, -25.9)
    _finished(lab, "tokenize-corpus", -25, 0.4, gpus=0)
    lab.finished = _finished(lab, "digits-baseline", -20, 0.7, files=_outputs(), loss=(2.3, 0.08))
    lab.failed = _start(lab, "ablation-no-norm", -6)
    _at(site, -5.8)
    log = b"epoch 1: loss nan\nTraceback (most recent call last):\nFloatingPointError: loss is nan\n"
    reason = Reason(code="NonZeroExitCode", message="The command ended with exit code 1.")
    site.rig.engine.end(lab.failed, state=JobState.FAILED, reason=reason, exit_code=1, log=log)
    site.rig.wait(lab.failed, JobState.FAILED)
    lab.session = _session(lab, -2)
    _start(lab, "esm-embeddings", -1.4, user="bob", time="6h")
    lab.training = _start(lab, "resnet-cifar", -1.2, time="4h", parameters={"who": "cifar10", "times": "30"})
    said = "".join(
        f"epoch {epoch:2}  loss {loss:.3f}  accuracy {1 - 0.4 * loss:.3f}\n"
        for epoch, loss in enumerate(_falling(2.1, 0.5, 19), start=1)
    )
    _measured(lab, lab.training, 2.1, 0.5, 19)
    site.rig.engine.say(lab.training, log=b"Files already downloaded and verified\n" + said.encode())
    site.rig.wait_for(lambda: site.rig.store.jobs.attempts(lab.training)[0].log_size > len(said))
    device = site.rig.store.jobs.get(lab.training).devices[0]  # type: ignore[union-attr]
    usage = Usage(
        cpu_seconds=5200, memory=3 * GIB, memory_peak=3 * GIB, gpu_utilization={device: 93}, gpu_memory={device: 9 * GIB}
    )
    site.rig.engine.say(lab.training, Sampled(usage=usage))
    _at(site, -0.5)
    lab.waiting = site.submit(name="lora-rank-16", resources={"gpus": 3, "time": "2h", "memory": "4G"})
    site.submit(name="lora-rank-32", resources={"gpus": 3, "time": "2h", "memory": "4G"})
    course = Reservation(
        name="course", begin=NOW + 26 * 3600, end=NOW + 29 * 3600, users=frozenset({"bob"}), reason="Deep learning"
    )
    site.rig.lab.keeper(RESERVATIONS).put(root, course)
    own = site.rig.home / "files" / "ada" / "proteins"
    own.mkdir(parents=True)
    for name, minutes in (("protein-features.ipynb", 4), ("figures.ipynb", 2900)):
        (own / name).write_bytes(_notebook())
        os.utime(own / name, (NOW - 60 * minutes, NOW - 60 * minutes))
    site.rig.door.shown = SessionStatus(ready=True, connections=1)
    _at(site, 0)
    with site.browser("ada") as http:
        site.rig.wait_for(lambda: "place 2 in line" in http.get(f"{site.url}/").text)
    site.rig.lender.said = _lending(lab)
    add_challenge(site)


def add_challenge(site: Site) -> None:
    """Three teams, of which ada's has submitted for two weeks."""
    rig = site.rig
    store, version = rig.store, rig.upload("root", CHALLENGE)
    rig.app.state.gateway.challenges.programs.keep("eeg", version)
    made = Challenge(name="eeg", organiser="root", version=version, train="train", made_at=NOW - 28 * 86400)
    store.of(CHALLENGES).put(made)
    rules = rig.app.state.gateway.challenges.rules_digest(made)
    for name, members in (("The Waves", ("ada", "bob")), ("Spikes", ("cara",)), ("Delta", ("dan", "eve"))):
        team = Team(challenge="eeg", name=name, members=members, code="k3R-vT81-xQ0", made_at=NOW - 27 * 86400)
        store.of(TEAMS).put(replace(team, accepted=dict.fromkeys(members, rules)))
    sent = [("", "zeros", 27.5, 0.0, 0.0), ("", "energy", 27.4, 0.341, 160.2)]
    own = (0.402, 0.377, 0.468, None, 0.521, 0.514, 0.583, 0.611)
    sent += [("The Waves", "", 14 - 1.7 * number, value, 60.4 - 4.1 * number) for number, value in enumerate(own)]
    sent += [("Spikes", "", 9.2, 0.655, 24.8), ("Spikes", "", 3.1, 0.631, 20.1), ("Delta", "", 6.4, 0.498, 31.5)]
    for team, baseline, days, value, alarms in sorted(sent, key=lambda one: -one[2]):
        at = NOW - days * 86400
        ended = {"state": SubmissionState.COMPLETED, "scores": {"taes": value, "alarms": round(alarms, 1)}}
        if value is None:
            told = "Its code ended with an error. predict for recording p14-2: IndexError at submission/model.py:31"
            ended = {"state": SubmissionState.FAILED, "fault": Fault.TEAM, "message": told, "kind": "code: IndexError"}
        one = ChallengeSubmission(
            challenge="eeg", version=version, phase="development", team=team, baseline=baseline, snapshot=version
        )
        rig.app.state.gateway.challenges.submissions.put(replace(one, by="ada", made_at=at, ended_at=at + 400, **ended))
    text = "Are the recordings of a patient in the order in which they were made?"
    asked = ChallengeNotice(challenge="eeg", kind=NoticeKind.QUESTION, text=text, by="cara", made_at=NOW - 1800)
    rig.app.state.gateway.challenges.notices.put(asked)


def _at(site: Site, hours: float) -> None:
    """Go to so many hours before the day's `NOW`."""
    site.clock.stands = NOW + 3600 * hours


def _start(lab: BusyLab, name: str, hours: float, *, user: str = "ada", gpus: int = 1, time: str = "1h", **more: object) -> int:
    _at(lab.site, hours)
    job = lab.site.submit(user, name=name, resources={"gpus": gpus, "cpus": 4, "memory": "2G", "time": time}, **more)
    lab.site.rig.engine.run(job)
    lab.site.rig.wait(job, JobState.RUNNING)
    return job


def _finished(
    lab: BusyLab,
    name: str,
    hours: float,
    took: float,
    *,
    gpus: int = 1,
    files: Mapping[str, bytes] | None = None,
    loss: tuple[float, float] | None = None,
) -> int:
    job = _start(lab, name, hours, gpus=gpus)
    if loss is not None:
        _measured(lab, job, *loss, 40)
    _at(lab.site, hours + took)
    stored = [
        StoredFile(path=f"outputs/{path}", size=len(data), digest=lab.site.rig.store_blob(data))
        for path, data in sorted((files or {}).items())
    ]
    lab.site.rig.engine.end(
        job,
        log=b"".join(b"epoch %d done\n" % epoch for epoch in range(1, 6)),
        outputs=tuple(stored),
        usage=Usage(cpu_seconds=3000 * took, memory_peak=2 * GIB),
    )
    lab.site.rig.wait(job, JobState.COMPLETED)
    return job


def _measured(lab: BusyLab, job: int, first: float, last: float, steps: int) -> None:
    losses = _falling(first, last, steps)
    curves = {"loss": losses, "accuracy": [1 - 0.4 * loss for loss in losses], "lr": [0.1 * 0.93**step for step in range(steps)]}
    lab.metrics[f"run{job}"] = Metrics(
        last={name: values[-1] for name, values in curves.items()},
        curves={name: dict(enumerate(values)) for name, values in curves.items()},
    )
    lab.site.rig.store.outbox.set_run(job, f"run{job}", "1")


def _falling(first: float, last: float, steps: int) -> list[float]:
    noise = random.Random(7)
    return [last + (first - last) * math.exp(-4 * step / steps) * (1 + 0.08 * noise.uniform(-1, 1)) for step in range(steps)]


def _sweep(lab: BusyLab, hours: float) -> int:
    """A sweep whose trials are over."""
    site = lab.site
    _at(site, hours)
    body = {
        "task": {"snapshot": site.rig.upload("ada"), "name": "digits-sweep"},
        "parameters": {"rate": "loguniform(1e-4, 1e-1)", "width": "int(16, 256)", "norm": "categorical(batch, layer, none)"},
        **{"metric": "loss", "trials": 9, "parallel": 1, "seed": 3},
    }
    with client(site.url, site.rig.headers()) as http:
        sweep = int(http.post("/api/v1/sweeps", json=body).raise_for_status().json()["id"])
        for number in range(1, 10):
            wait_until(lambda number=number: len(trials := _trials(http, sweep)) >= number and trials[number - 1]["job_id"])
            trial = _trials(http, sweep)[number - 1]
            job, asked = int(str(trial["job_id"])), trial["parameters"]
            assert isinstance(asked, dict)
            _, token = site.rig.engine.wait_started(job)
            site.rig.engine.run(job)
            value = 0.2 + 0.3 * abs(math.log10(asked["rate"]) + 2.2) + 20 / asked["width"] + 0.3 * (asked["norm"] == "none")
            with client(site.url, {"Authorization": f"Bearer {token}"}) as inside:
                told = {"values": [{"step": 0, "value": round(value, 4)}]}
                inside.post(f"/api/v1/sweeps/{sweep}/trials/{number}/values", json=told).raise_for_status()
            _at(site, hours + number / 20)
            site.rig.engine.end(job)
            site.rig.wait(job, JobState.COMPLETED)
        wait_until(lambda: http.get(f"/api/v1/sweeps/{sweep}").json()["state"] == "COMPLETED")
    return sweep


def _trials(http: object, sweep: int) -> list[dict[str, object]]:
    return list(http.get(f"/api/v1/sweeps/{sweep}").json()["all_trials"])  # type: ignore[attr-defined]


def _session(lab: BusyLab, hours: float) -> int:
    site = lab.site
    _at(site, hours)
    with client(site.url, site.rig.headers()) as http:
        asked = {"kind": "notebook", "name": "protein-features", "gpus": 1, "memory": "4G"}
        job = int(http.post("/api/v1/sessions", json=asked).raise_for_status().json()["job"]["id"])
    site.rig.engine.say(job, Started(pid=1))
    site.rig.wait(job, JobState.RUNNING)
    return job


def _outputs() -> dict[str, bytes]:
    page = b"<!doctype html><h1>digits</h1><p>Accuracy on the test set: <b>0.971</b></p>"
    table = "digit,precision,recall\n" + "".join(
        f"{digit},{0.99 - digit / 300:.3f},{0.98 - digit / 400:.3f}\n" for digit in range(10)
    )
    return {
        "curve.png": _curve(),
        "confusion.csv": table.encode(),
        "executed.ipynb": _notebook(),
        "report.html": page,
        "summary.txt": b"test accuracy 0.971\nparameters 54,410\n",
    }


def _notebook() -> bytes:
    shown = {"output_type": "display_data", "data": {"image/png": base64.b64encode(_curve()).decode()}}
    printed = {"output_type": "stream", "name": "stdout", "text": ["epoch 40  loss 0.081\n", "test accuracy 0.971\n"]}
    cells: list[dict[str, object]] = [
        {"cell_type": "markdown", "metadata": {}, "source": "Digits, the baseline of the group"},
        {"cell_type": "code", "metadata": {}, "source": "epochs = 40  # passes over the data", "outputs": []},
        {"cell_type": "code", "metadata": {}, "source": "model = fit(digits, epochs)\nevaluate(model)", "outputs": [printed]},
        {"cell_type": "code", "metadata": {}, "source": "plot_losses(model)", "outputs": [shown]},
    ]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def _curve() -> bytes:
    """A plot of a loss, as a PNG."""
    picture = Image.new("P", (480, 300))
    picture.putpalette([255, 255, 255, 90, 90, 90, 31, 95, 82, 225, 225, 225])
    draw = ImageDraw.Draw(picture)
    for height in range(40, 280, 48):
        draw.line((50, height, 460, height), 3)
    draw.line((50, 20, 50, 270, 460, 270), 1, 2)
    losses = _falling(2.3, 0.08, 40)
    draw.line([(50 + 410 * step / 39, 262 - 100 * loss) for step, loss in enumerate(losses)], 2, 4)
    draw.text((60, 22), "training loss", 1)
    data = io.BytesIO()
    picture.save(data, "PNG", optimize=True)
    return data.getvalue()


def _lending(lab: BusyLab) -> dict[str, object]:
    """What the broker says: notebooks took turns on one GPU, tasks had others."""
    held = {"t1": ("ada", lab.session, "protein-features.ipynb"), "t2": ("bob", lab.session + 100, "private.ipynb")}
    tenants = [
        {"id": name, "job": job, "owner": owner, "label": label, "cells": cells, "bytes": size * GIB, "state": state}
        | {"gpu_seconds": seconds, "waited_seconds": 4.0}
        for (name, (owner, job, label)), (state, size, cells, seconds) in zip(
            held.items(), (("resident", 3, 14, 1130.0), ("suspended", 5, 9, 940.0)), strict=True
        )
    ]
    tasks = [("t3", lab.training, "ada", "resnet-cifar"), ("t4", lab.training - 1, "bob", "esm-embeddings")]
    tenants += [
        {"id": name, "job": job, "owner": owner, "label": label, "bytes": 9 * GIB, "state": "resident", "cells": 0}
        for name, job, owner, label in tasks
    ]
    devices, leases = [], []
    for index, (lease, used) in enumerate((("t1", 3 * GIB), ("t4", 9 * GIB), ("t3", 9 * GIB), ("", 0))):
        by = [{"tenant": lease, "bytes": used, "cached": used // 6}] if lease else []
        devices.append(
            {"uuid": f"SIM-{index}", "index": index, "name": "Simulated GPU", "type": "simulated", "memory": 16 * GIB, "by": by}
            | {"used": used + 400 * MIB * bool(lease), "simulated": True, "lease": f"L{index}" if lease else None}
            | {"residents": [lease] if lease else [], "known_since": NOW - 9000}
        )
        if lease:
            tenant = next(one for one in tenants if one["id"] == lease)
            leases.append(
                {"id": f"L{index}", "tenant": lease, "devices": [f"SIM-{index}"], "since": NOW - (48, 5040, 4320)[index]}
                | {"job": tenant["job"], "owner": tenant["owner"], "state": "active"}
            )
    hour = [
        {"device": "SIM-0", "what": what, "since": NOW - 60 * since, "until": None if until == 0 else NOW - 60 * until}
        | {"seconds": 60 * (since - until), "owner": held[who][0], "job": held[who][1], "label": held[who][2], "role": "kernel"}
        for who, what, since, until in (
            ("t2", "computes", 58, 47), ("t1", "computes", 44, 38), ("t1", "holds", 38, 34), ("t2", "returns", 34, 33.6),
            ("t2", "computes", 33.6, 24), ("t2", "leaves", 21, 20.6), ("t1", "computes", 20, 9), ("t1", "holds", 9, 0.8),
            ("t1", "computes", 0.8, 0),
        )
    ]  # fmt: skip
    hour += [
        {
            "device": device,
            "what": "task",
            "since": NOW - since,
            "until": None,
            "owner": owner,
            "job": job,
            "label": label,
            "role": "task",
        }
        for device, since, (_, job, owner, label) in zip(("SIM-2", "SIM-1"), (4320, 5040), tasks, strict=True)
    ]
    queue = [
        {
            "tenant": "t2",
            "job": held["t2"][1],
            "owner": "bob",
            "gpus": 1,
            "position": 1,
            "since": NOW - 6,
            "estimate": 25.0,
            "message": "A cell of another notebook computes.",
        }
    ]
    host = {"limit": 64 * GIB, "left": 51 * GIB, "states": 5 * GIB}
    rates = [
        {"way": "simulated", "direction": "out", "rate": 24.0 * GIB},
        {"way": "simulated", "direction": "back", "rate": 25.0 * GIB},
    ]
    return {
        "tier": "simulated",
        "simulated": True,
        "devices": devices,
        "tenants": tenants,
        "leases": leases,
        "queue": queue,
        "hour": hour,
        "host": host,
        "rates": rates,
    }
