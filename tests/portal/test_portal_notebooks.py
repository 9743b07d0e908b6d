"""The pages of sessions and GPUs."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from portal_site import Site, secret_in

from carrel.core.control.ports import JobFilter
from carrel.core.control.sessions import NodeReport, SessionStatus
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition
from support.small_code_server import put

LENDING = {
    "tier": "simulated",
    "simulated": True,
    "devices": [
        {
            "uuid": "SIM-0",
            "index": 0,
            "name": "simulated GPU",
            "type": "simulated",
            "memory": 16 * 2**30,
            "used": 3 * 2**30,
            "simulated": True,
            "lease": "L1",
            "residents": ["t1", "t2"],
            "strangers": [{"pid": 77, "bytes": 2**30, "name": "python"}],
            "by": [{"tenant": "t1", "bytes": 2**30, "cached": 2**29}, {"tenant": "t2", "bytes": 2**30, "cached": 0}],
            "known_since": 0.0,
        }
    ],
    "tenants": [
        {"id": "t1", "job": 1, "owner": "ada", "label": "<b>thesis</b>.ipynb", "state": "resident", "bytes": 2**30, "cells": 3},
        {"id": "t2", "job": 2, "owner": "bob", "label": "private.ipynb", "state": "suspended", "bytes": 2**30, "cells": 1},
    ],
    "leases": [{"id": "L1", "tenant": "t1", "job": 1, "owner": "ada", "devices": ["SIM-0"], "since": 1.0, "state": "active"}],
    "queue": [
        {"tenant": "t2", "job": 2, "owner": "bob", "gpus": 1, "position": 1, "since": 1.0, "estimate": 40.0, "message": "waits"}
    ],
}

#: What was so and what moves, with moments that count from now.
LATELY = {
    "hour": [
        {"device": "SIM-0", "what": "computes", "since": -3000.0, "until": -1800.0, "seconds": 600.0, "job": 2, "owner": "bob",
         "label": "private.ipynb", "role": "kernel"},
        {"device": "SIM-0", "what": "leaves", "since": -1800.0, "until": -1790.0, "seconds": 10.0, "job": 2, "owner": "bob",
         "label": "private.ipynb", "role": "kernel"},
        {"device": "SIM-0", "what": "computes", "since": -600.0, "until": None, "job": 1, "owner": "ada", "label": "thesis.ipynb",
         "role": "kernel"},
    ],
    "moves": [
        {"tenant": "t2", "job": 2, "owner": "bob", "label": "private.ipynb", "devices": ["SIM-0"], "direction": "back",
         "way": "simulated", "bytes": 2**30, "done": None, "since": -30.0, "ends": 30.0},
    ],
    "host": {"limit": 2**35, "left": 2**34, "states": 2**30, "pool": {"limit": 2**33, "given": 2**31, "ready": 2**30}},
    "rates": [
        {"way": "simulated", "direction": "out", "rate": 2.0 * 2**30}, {"way": "simulated", "direction": "back", "rate": 2.0**32},
    ],
}  # fmt: skip


def lately(now: float) -> dict[str, object]:
    """`LENDING` with what was so within the last hour."""

    def moved(rows: object) -> list[dict[str, object]]:
        assert isinstance(rows, list)
        moments = ("since", "until", "ends")
        return [
            {name: value + now if name in moments and value is not None else value for name, value in row.items()} for row in rows
        ]

    return {**LENDING, **LATELY, "hour": moved(LATELY["hour"]), "moves": moved(LATELY["moves"])}


def start(site: Site, http: httpx.Client, **fields: str) -> httpx.Response:
    secret = secret_in(http.get(f"{site.url}/notebooks"))
    return http.post(f"{site.url}/notebooks", data={"form_secret": secret, "kind": "notebook", **fields})


@pytest.mark.gate
def test_a_notebook_is_started_watched_opened_and_ended(site: Site) -> None:
    with site.browser("ada") as http:
        assert "No notebook runs" in http.get(f"{site.url}/notebooks").text
        page = start(site, http, name="thesis", gpus="2")
        assert page.status_code == 200
        job = int(page.url.path.rpartition("/")[2])
        assert "2 on loan for each cell" in page.text
        site.rig.engine.say(job, Started(pid=1))
        site.rig.wait(job, JobState.RUNNING)
        page = http.get(f"{site.url}/notebooks/{job}?go=yes")
        assert "data-go" in page.text
        # What the script asks for again has the wish too.
        assert f'data-live="/notebooks/{job}?part=live&amp;go=yes"' in page.text
        assert "data-go" not in http.get(f"{site.url}/notebooks/{job}").text
        opened = http.post(f"{site.url}/notebooks/{job}/open", data={"form_secret": secret_in(page)})
        assert f"/open/{job}/" in opened.text
        assert opened.headers["referrer-policy"] == "no-referrer"
        listed = http.post(f"{site.url}/notebooks/{job}/end", data={"form_secret": secret_in(page)})
        assert listed.url.path == "/notebooks"
        site.rig.wait(job, JobState.CANCELLED)
        assert "It is over" in http.get(f"{site.url}/notebooks/{job}").text


def test_the_form_offers_the_partitions_that_take_sessions(site: Site) -> None:
    with site.browser("ada") as http:
        assert 'name="partition"' not in http.get(f"{site.url}/notebooks").text
        rules = site.rig.written[-1]
        tasks = QoS(name="tasks", kinds=frozenset({JobKind.TASK}))
        parts = (
            Partition(name="far", nodes=("elsewhere",)),
            Partition(name="near"),
            slurm_partition("cluster", SlurmPartition(partition="gpu")),
            Partition(name="work", qos=("tasks",)),
        )
        changed = replace(rules, qos={**rules.qos, "tasks": tasks}, partitions={part.name: part for part in parts})
        site.rig.written.append(changed)
        assert site.rig.lab.administration.apply_rules()
        form = re.search(r'<select name="partition">(.*?)</select>', http.get(f"{site.url}/notebooks").text)
        assert form is not None
        assert re.findall(r"<option>(\w+)</option>", form[1]) == ["far", "near", "cluster"]
        job = int(start(site, http, partition="cluster", gpus="1").url.path.rpartition("/")[2])
        assert site.rig.lab.jobs_store.get(job).partition == "cluster"  # type: ignore[union-attr]
        page = http.get(f"{site.url}/notebooks/{job}").text
        assert "It holds a whole GPU from start to end" in page
        assert "on loan" not in page


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"gpus": "many"}, "not a number of GPUs"), ({"gpus": "9"}, "no node has more"), ({"kind": "x"}, "no session of kind"),
     ({"memory": "lots"}, "lots"), ({"time": "soon"}, "soon"), ({"qos": "none"}, "no QoS")],
)  # fmt: skip
def test_a_form_that_asks_for_what_cannot_be_is_answered_in_words(site: Site, fields: dict[str, str], said: str) -> None:
    with site.browser("ada") as http:
        page = start(site, http, name="mine", **fields)
        assert page.status_code == 422
        assert said in page.text
        # The form is there again, as it was filled in.
        assert 'name="name" value="mine"' in page.text
        for name, value in fields.items():
            assert name in ("kind", "qos") or f'name="{name}" value="{value}"' in page.text


def test_the_gpus_page_tells_of_jobs_that_wait(site: Site) -> None:
    site.rig.lender.said = {"tier": "", "devices": []}
    with site.browser("ada") as http, site.browser("bob") as other:
        assert "No cell and no job waits for a GPU." in http.get(f"{site.url}/gpus").text
        for _ in range(2):  # more than there are
            site.submit("ada", resources={"gpus": 2}, name="large")
        waiting = site.rig.lab.jobs_store.list(JobFilter(states=frozenset({JobState.PENDING})), before=None, limit=9)
        page = http.get(f"{site.url}/gpus").text
        assert f'<a href="/jobs/{waiting[0].id}">' in page
        assert "large" in page
        theirs = other.get(f"{site.url}/gpus").text
        assert "of others" in theirs
        assert "large" not in theirs


def test_a_session_that_waits_says_in_one_sentence_why_and_for_how_long(site: Site) -> None:
    for _ in range(2):
        site.rig.engine.wait_started(site.submit(resources={"gpus": 1}))
    with site.browser("ada") as http:
        page = start(site, http, gpus="1", reserve="yes").url
        site.rig.wait_for(lambda: "Next in line: needs 1 GPU" in http.get(page).text)
        assert "Starts" not in http.get(page).text


def test_buttons_work_only_from_the_pages_of_ones_own_session(site: Site) -> None:
    with site.browser("ada") as http, site.browser("bob") as other:
        job = int(start(site, http).url.path.rpartition("/")[2])
        assert http.post(f"{site.url}/notebooks", data={"kind": "notebook"}).status_code == 403
        assert http.post(f"{site.url}/notebooks/{job}/open", data={"form_secret": "x"}).status_code == 403
        foreign = {"form_secret": secret_in(other.get(f"{site.url}/notebooks"))}
        for button in ("open", "end"):
            assert other.post(f"{site.url}/notebooks/{job}/{button}", data=foreign).status_code == 404
        assert other.get(f"{site.url}/notebooks/{job}").status_code == 404
    assert site.rig.store.jobs.get(job).cancelled_by is None  # type: ignore[union-attr]


def test_sessions_can_be_told_apart_and_have_a_door_in_lists_of_jobs(site: Site) -> None:
    with site.browser("ada") as http:
        notebook, terminal = (int(start(site, http, kind=kind).url.path.rpartition("/")[2]) for kind in ("notebook", "terminal"))
        listed = http.get(f"{site.url}/notebooks").text
        assert re.findall(r'<span class="tag">(\w+)</span>', listed) == ["terminal", "notebook"]
        site.rig.engine.say(notebook, Started(pid=1))
        site.rig.wait(notebook, JobState.RUNNING)
        jobs = http.get(site.url).text
        for job in (notebook, terminal):
            assert f'<a class="tag" href="/notebooks/{job}">Open</a>' in jobs
        page = http.get(f"{site.url}/jobs/{notebook}").text
        assert f'action="/notebooks/{notebook}/open"' in page
        assert "<dt>Environment</dt><dd>default</dd>" in page
        assert "<dt>Code</dt>" not in page, "a session has none"
        assert "Run again" not in page, "another one is started instead"
        assert f'action="/notebooks/{terminal}/open"' not in http.get(f"{site.url}/jobs/{terminal}").text, "it does not run yet"
        site.rig.lender.said = {**LENDING, "tenants": [{**LENDING["tenants"][0], "job": notebook, "label": "Untitled.ipynb"}]}  # type: ignore[index]
        assert f">notebook {notebook}: Untitled.ipynb<" in http.get(f"{site.url}/gpus").text
    with site.browser("root") as http:
        assert f'href="/notebooks/{notebook}"' not in http.get(f"{site.url}/?owner=all").text, "only its owner gets in"


def test_vscode_is_on_the_form_where_the_lab_has_the_program(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with site.browser("ada") as http:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "New VS Code" not in http.get(f"{site.url}/notebooks").text
        page = start(site, http, kind="vscode")
        assert (page.status_code, "no program code-server" in page.text) == (422, True)
        monkeypatch.setenv("PATH", put(tmp_path / "bin"))
        assert 'name="kind" value="vscode">New VS Code<' in http.get(f"{site.url}/notebooks").text
        assert '<span class="tag">vscode</span>' in start(site, http, kind="vscode").text


def test_a_session_that_runs_says_how_its_owner_enters_it_by_ssh(site: Site) -> None:
    with site.browser("ada") as http, site.browser("root") as other:
        job = int(start(site, http).url.path.rpartition("/")[2])
        pages = (f"{site.url}/notebooks/{job}", f"{site.url}/jobs/{job}")
        line = f"<code>carrel ssh {job}</code>"
        assert not [page for page in pages if line in http.get(page).text], "it waits"
        site.rig.engine.say(job, Started(pid=1))
        site.rig.wait(job, JobState.RUNNING)
        assert [line in http.get(page).text for page in pages] == [True, True]
        assert line not in other.get(pages[1]).text, "only its owner gets in"


def test_only_an_end_that_is_near_is_a_warning(site: Site) -> None:
    with site.browser("ada") as http:
        job = int(start(site, http).url.path.rpartition("/")[2])
        site.rig.engine.say(job, Started(pid=1))
        site.rig.wait(job, JobState.RUNNING)
        now = site.clock()
        site.rig.door.shown = SessionStatus(ready=True, idle_since=now - 41, idle_end=now + 23 * 3600)
        page = http.get(f"{site.url}/notebooks/{job}").text
        assert "notice warn" not in page
        assert "if it stays unused" in page
        site.rig.door.shown = SessionStatus(ready=True, idle_since=now - 41, idle_end=now + 600)
        page = http.get(f"{site.url}/notebooks/{job}").text
        assert "notice warn" in page
        assert "because nobody uses it" in page


def test_the_gpus_page_shows_ones_own_and_that_others_are_there(site: Site) -> None:
    with site.browser("ada") as http:
        assert "does not answer" in http.get(f"{site.url}/gpus").text
        site.rig.lender.said = LENDING
        page = http.get(f"{site.url}/gpus").text
        assert "&lt;b&gt;thesis&lt;/b&gt;.ipynb" in page
        assert "private.ipynb" not in page
        assert "bob" not in page
        for part in ("simulated", "somebody else", "3 GiB of 16 GiB", "without a lease", "about 40 s more", "in host memory"):
            assert part in page, part
        site.rig.lender.said = {"tier": "", "devices": []}
        site.rig.nodes.append(NodeReport(node="n7", age=300.0, current=False, ended=False, status=LENDING))
        page = http.get(f"{site.url}/gpus").text
        for part in ("Node n7", "heard last 5 min ago", "3 GiB of 16 GiB", "No GPU on this machine"):
            assert part in page, part
        assert "private.ipynb" not in page
        site.rig.lender.said = LENDING
    with site.browser("root") as http:
        assert "private.ipynb" in http.get(f"{site.url}/gpus").text


def test_the_gpus_page_draws_the_last_hour_memory_and_moves_for_screen_readers_too(site: Site) -> None:
    site.clock.stands = time.time()
    site.rig.lender.said = lately(site.clock())
    with site.browser("ada") as http:
        page = http.get(f"{site.url}/gpus").text
        assert "GPU 0 in the last hour: cells computed for 20 min, nobody had it for 40 min, states moved for 10 s." in page
        assert "<title>thesis.ipynb computed: 10 min, until now</title>" in page
        assert "<title>Somebody else computed: 10 min within 20 min, until 30 min ago</title>" in page
        assert "<title>Somebody else\u2019s state went to host memory: 10 s" in page
        assert "thesis&lt;/b&gt;.ipynb: 512 MiB of cache" in page
        assert "<title>somebody else: 1 GiB of state</title>" in page
        assert "Host memory: 1 GiB of GPU state, room for 16 GiB more." in page
        assert "2 GiB are given to them and 1 GiB are ready, at most 8 GiB in all." in page
        assert "State has moved to host memory at 2 GiB a second, back to a GPU at 4 GiB a second." in page
        assert '<progress max="1" value="0.5"' in page
        assert "about 30 s more" in page
        assert "private.ipynb" not in page
        assert "bob" not in page
        assert "private.ipynb" not in http.get(f"{site.url}/api/v1/gpus", headers=site.rig.headers("ada")).text


@pytest.mark.gate
def test_one_click_starts_another_notebook_as_the_last_one_was(site: Site) -> None:
    with site.browser("ada") as http:
        start(site, http, memory="3G", time="90m", gpus="2", reserve="yes")
        start(site, http, kind="terminal", memory="5G")
        page = http.get(site.url).text
        form = re.search(r'<form method="post" action="/notebooks">(.*?)</form>', page, re.DOTALL)
        assert form is not None
        kept = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[1]))
        assert kept.items() >= {"memory": "3G", "time": "90m", "gpus": "2", "reserve": "yes"}.items()
        started = http.post(f"{site.url}/notebooks", data={**kept, "kind": "notebook"})
        job = site.rig.lab.job(site.rig.caller("ada"), int(started.url.path.rpartition("/")[2]))
        assert (job.resources.memory, job.resources.time, job.resources.gpus) == (3 << 30, 5400, 2)
        assert 'name="memory" value="3G"' in http.get(f"{site.url}/notebooks").text
        first = re.search(r'<form method="post" action="/notebooks">(.*?)</form>', _first_page_of(site, "bob"), re.DOTALL)
        assert first is not None
        assert 'name="memory"' not in first[1]


def test_a_notebook_among_ones_own_files_is_run_as_a_task(site: Site) -> None:
    files = site.rig.home / "files"
    (files / "ada" / "work").mkdir(parents=True)
    (files / "bob").mkdir()
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "epochs = 3"}
    document = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})
    (files / "bob" / "private.ipynb").write_text(document)
    for place in ("work/fit & plot.ipynb", ".hidden/x.ipynb", "work/.ipynb_checkpoints/fit-checkpoint.ipynb"):
        (files / "ada" / place).parent.mkdir(exist_ok=True)
        (files / "ada" / place).write_text(document)
    (files / "ada" / "link.ipynb").symlink_to(files / "bob" / "private.ipynb")
    (files / "ada" / "linked").symlink_to(files / "bob")
    os.mkfifo(files / "ada" / "pipe.ipynb")
    with site.browser("ada") as http:
        page = http.get(f"{site.url}/notebooks").text
        (address,) = re.findall(r'href="(/tasks/new\?notebook=[^"]+)"', page)
        assert "notebook=" not in http.get(f"{site.url}/notebooks?part=live").text
        form = http.get(f"{site.url}{address}").text
        assert "<strong>work/fit &amp; plot.ipynb</strong>" in form
        assert 'name="P:epochs" value="" placeholder="3"' in form
        kept = dict(re.findall(r'type="hidden" name="(snapshot|code|seen)" value="([^"]*)"', form))
        data = {
            "form_secret": secret_in(http.get(f"{site.url}/tasks/new")),
            "do": "run",
            "packages": "six",
            **kept,
            "P:epochs": "5",
        }
        made = http.post(f"{site.url}/tasks/new", data=data, files={"file": ("", b"")})
        task = site.rig.lab.task(site.rig.caller("ada"), int(made.url.path.rpartition("/")[2]))
        assert task.command.endswith("--epochs=5")
        for path in ("../bob/private.ipynb", "linked/private.ipynb", "link.ipynb", "pipe.ipynb", ".hidden/x.ipynb", "none.ipynb"):
            refused = http.get(f"{site.url}/tasks/new", params={"notebook": path})
            assert refused.status_code == 404, path
            assert "among your files" in refused.text


def _first_page_of(site: Site, name: str) -> str:
    with site.browser(name) as http:
        return http.get(site.url).text
