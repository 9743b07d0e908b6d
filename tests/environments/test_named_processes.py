"""Many processes use one environment; whoever is killed leaves nothing half-made and nothing lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from environment_lab import Lab
from named_lab import LIMIT, Gate, NamedLab, hear, user

from carrel.core.domain.errors import Conflict
from carrel.node.environments import EnvironmentStopped, EnvironmentTimeout
from carrel.node.environments.named import Work, note_changes

NOTER = """
import sys
from pathlib import Path
from carrel.node.environments.named import note_changes
print("ready", flush=True)
while True:
    note_changes(Path(sys.argv[1]))
"""
HOOK = """
import json, os, sys, time
from pathlib import Path
from carrel.core.domain.errors import CarrelError
from carrel.node.environments.named import prepare_session_environment
said = []
try:
    found = prepare_session_environment(Path(sys.argv[1]), "ada", sys.argv[2], said.append, time.monotonic() + 60)
    print(json.dumps({"prefix": str(found.prefix), "python": found.python, "lock": found.lock, "said": said}))
except CarrelError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
"""


def hook(named: NamedLab, name: str) -> dict[str, str]:
    """What a runner learns, in a process with nothing but the lab's variables."""
    done = subprocess.run(
        [sys.executable, "-c", HOOK, str(named.lab.root), name],
        env=named.lab.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    return dict(json.loads(done.stdout))


@pytest.mark.gate
def test_two_first_sessions_make_one_environment(named: NamedLab, lab: Lab) -> None:
    gate = Gate(lab, "pip sync")
    with user(named, "ada") as first:
        gate.wait()
        with user(named, "ada") as second:
            hear(second, "report", "somebody is changing this environment; waiting for them")
            lab.uv()
            gate.open()
            assert hear(first, "ready") == hear(second, "ready")
    assert len(lab.calls("venv")) == 1


def test_a_killed_builder_leaves_nothing_under_the_name(named: NamedLab, lab: Lab) -> None:
    gate = Gate(lab, "pip sync")
    with user(named, "ada") as first:
        gate.wait()
        first.kill()
        first.wait(LIMIT)
    assert named.environments().list("ada") == []
    # Its uv lives on, and could still write into the directory: nobody else may build there yet.
    with user(named, "ada") as second:
        hear(second, "report", "somebody is changing this environment; waiting for them")
        lab.uv()
        gate.open()
        prefix = Path(hear(second, "ready"))
    assert [path.name for path in prefix.parent.iterdir() if path.is_dir() and path.name.isdecimal()] == [prefix.name]
    done = subprocess.run([prefix / "bin/python", "-c", "import ipykernel"], timeout=LIMIT, check=False)
    assert done.returncode == 0


def test_a_killed_restore_leaves_the_present_one(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha")
    prefix = named.open("ada").prefix
    named.install(prefix, "alpha")
    note_changes(prefix)
    named.release()
    gate = Gate(lab, "pip sync")
    code = (
        "import json, sys; from pathlib import Path; from carrel.node.environments.named import NamedEnvironments, Work\n"
        "root, uv, environ = json.loads(sys.argv[1])\n"
        "NamedEnvironments(Path(root), uv=Path(uv), environ=environ).restore('ada', 'default', None, Work(report=print))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps([str(lab.root), str(lab.base / "uv"), lab.environ])], stdout=subprocess.DEVNULL
    )
    gate.wait()
    process.kill()
    process.wait(LIMIT)
    lab.uv()
    gate.open()
    assert named.environments().get("ada", "default").prefix == prefix
    assert "alpha==1.0" in named.packages("ada")
    named.environments().restore("ada", "default", None, named.work())
    left = [path.name for path in prefix.parent.iterdir() if path.name.isdecimal()]
    assert left == [named.environments().get("ada", "default").prefix.name], "what the killed one began is gone"


def test_nobody_takes_an_environment_away_from_a_session(named: NamedLab) -> None:
    with user(named, "ada") as session:
        prefix = Path(hear(session, "ready"))
        assert named.environments().get("ada", "default").in_use
        with pytest.raises(Conflict, match="session"):
            named.environments().remove("ada", "default")
        assert prefix.exists()
        session.kill()
        session.wait(LIMIT)
    assert not named.environments().get("ada", "default").in_use
    named.environments().remove("ada", "default")
    assert named.environments().list("ada") == []
    assert not prefix.exists()


def test_killed_while_it_notes_changes_the_record_stays_whole(named: NamedLab, lab: Lab) -> None:
    prefix = named.open("ada").prefix
    site = next(prefix.glob("lib/python3*/site-packages"))
    chance = random.Random(7)
    for number in range(12):
        process = subprocess.Popen([sys.executable, "-c", NOTER, str(prefix)], stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout.readline() == "ready\n"
            end = time.monotonic() + chance.random() * 0.05
            step = 0
            while time.monotonic() < end:
                info = site / f"made_{number}_{step}-1.0.dist-info"
                info.mkdir()
                (info / "METADATA").write_text("Name: made\n")
                step += 1
            process.kill()
        record = named.environments().get("ada", "default").record
        assert len(named.packages("ada")) == record.locks[-1].packages
    assert sum(name.startswith("made-") for name in named.packages("ada")) == len(list(site.glob("made_*")))


def test_building_ends_when_asked_to_and_at_its_deadline(named: NamedLab, lab: Lab) -> None:
    lab.uv('case "$*" in "pip sync"*) exec sleep 600;; esac')
    with pytest.raises(EnvironmentTimeout):
        named.environments().ensure("ada", Work(report=print, deadline=time.monotonic() + 1.0))
    with pytest.raises(EnvironmentStopped):
        named.environments().ensure("ada", Work(report=print, stop=lambda: bool(lab.calls("pip sync"))))
    assert named.environments().list("ada") == []
    lab.uv()
    assert named.open("ada").prefix.exists()


def test_a_runner_gets_an_environment_or_a_reason(named: NamedLab, lab: Lab) -> None:
    found = hook(named, "default")
    assert found["python"].startswith("cpython-3.")
    assert "ipykernel==7.0" in found["lock"]
    assert "making your environment" in found["said"]
    assert hook(named, "default") == {**found, "said": []}

    prefix = found["prefix"]
    by_path = hook(named, prefix)
    assert (by_path["prefix"], by_path["python"]) == (prefix, found["python"]), "a path is used as it is"
    missing = hook(named, "torch")
    assert missing["error"] == "NotFound"
    assert "carrel env create torch" in missing["message"]
    bare = lab.base / "bare"
    named.uv("venv", str(bare), "--no-python-downloads")
    refused = hook(named, str(bare))
    assert refused["error"] == "EnvironmentFailed"
    assert "ipykernel" in refused["message"]
    named.environments().set_quota(1)
    full = hook(named, "default")
    assert full["error"] == "StorageFull"
    assert "carrel env remove" in full["message"]


def test_what_a_session_left_unnoted_is_noted_by_the_next(named: NamedLab, lab: Lab) -> None:
    lab.wheel("alpha")
    prefix = Path(hook(named, "default")["prefix"])
    named.install(prefix, "alpha")
    assert "alpha==1.0" in hook(named, "default")["lock"]


def test_noting_nothing_costs_little(named: NamedLab) -> None:
    prefix = named.open("ada").prefix
    site = next(prefix.glob("lib/python3*/site-packages"))
    for number in range(300):
        (site / f"made_{number}-1.0.dist-info").mkdir()
        (site / f"made_{number}-1.0.dist-info/METADATA").write_text("Name: made\n")
    assert note_changes(prefix)
    times = []
    for _ in range(20):
        began = time.process_time()
        assert not note_changes(prefix)
        times.append(time.process_time() - began)
    assert sorted(times)[10] < 0.05, "with 300 packages"


def test_noting_needs_no_heavy_library() -> None:
    code = (
        "import sys; from carrel.node.environments.named import note_changes\n"
        "print([name for name in ('sqlalchemy', 'pydantic', 'fastapi', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), timeout=LIMIT)
    assert done.stdout == "[]\n"
