"""What a hub's user chooses and reads, without a hub."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from carrel.core.domain.errors import Denied, Invalid, Unavailable
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import JobView, QueueView, ResourceView, SessionView
from carrel_jupyterhub.form import Offer, read, render
from carrel_jupyterhub.request import session_request, variables_for
from carrel_jupyterhub.words import LabRefused, ended, exit_code, refused, step

pytestmark = pytest.mark.quick


def session(state: str, **more: Any) -> SessionView:
    job = {
        "id": 12,
        "kind": "session",
        "owner": "ada",
        "account": "ada",
        "name": "jupyterhub",
        "qos": "free",
        "state": state,
        "reason": "Priority",
        "message": "Two others are ahead.",
        "resources": ResourceView(cpus=1, memory=1, gpus=0, time=60),
        "submitted_at": datetime(2026, 1, 1, tzinfo=UTC),
        "ended": state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"),
    }
    return SessionView(
        job=JobView.model_validate({**job, **more}), kind="notebook", directory="/f", environment="default", gpus=1, reserve=False
    )


def request(**more: Any) -> Any:
    usual = {
        "address": "http://hub/user/ada/",
        "name": "jupyterhub",
        "directory": None,
        "defaults": {},
        "options": {},
        "cpu_limit": None,
        "memory_limit": None,
    }
    return session_request(**{**usual, **more})


@pytest.mark.parametrize(
    ("state", "more", "code"),
    [
        ("PENDING", {}, None),
        ("CONFIGURING", {}, None),
        ("RUNNING", {}, None),
        ("SUSPENDED", {}, None),
        ("COMPLETED", {"exit_code": 0}, 0),
        ("FAILED", {"exit_code": 3}, 3),
        ("FAILED", {"signal": 9}, 137),
        ("CANCELLED", {}, 1),
        ("TIMEOUT", {"exit_code": 0}, 1),
    ],
)
def test_a_hub_sees_whether_and_how_a_session_ended(state: str, more: dict[str, Any], code: int | None) -> None:
    assert exit_code(session(state, **more)) == code


def test_a_user_reads_how_far_it_is() -> None:
    waits = step(session("PENDING", queue=QueueView(position=2)))
    assert waits.message == "#2 in line: Two others are ahead."
    steps = [waits, step(session("CONFIGURING", message="installing 30 packages")), step(session("RUNNING", node="n1"))]
    assert [one.message for one in steps[1:]] == ["installing 30 packages", "Session 12 starts on n1."]
    assert [one.progress for one in steps] == sorted({one.progress for one in steps})
    over = ended(session("FAILED", message="The command ended with exit code 2"))
    assert str(over) == "Session 12 is FAILED: The command ended with exit code 2. Its log: carrel logs 12"


@pytest.mark.parametrize(("error", "status"), [(Invalid("No."), 400), (Denied("No."), 403), (Unavailable("No."), 503)])
def test_what_the_lab_says_comes_with_its_status(error: Any, status: int) -> None:
    assert (refused(error).status_code, refused(error).jupyterhub_message) == (status, "No.")


def test_a_users_choice_goes_before_the_defaults_and_the_hubs_limits_before_both() -> None:
    asked = request(
        defaults={"environment": "torch", "gpus": 1, "memory": "2G"},
        options={"gpus": 2, "memory": "64G", "cpus": 9},
        cpu_limit=1.5,
        memory_limit=4 * 1024**3,
        directory="/data",
    )
    assert (asked.environment, asked.gpus, asked.cpus, asked.memory) == ("torch", 2, 2, "4096M")
    assert (asked.hub, asked.directory, asked.kind) == ("http://hub/user/ada/", "/data", "notebook")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "terminal"}, 'The option "kind" is unknown. Valid here: gpus, reserve,'),
        ({"hub": "http://x/"}, 'The option "hub" is unknown.'),
        ({"reserve": "perhaps"}, "The option \"reserve\" is 'perhaps'"),
    ],
)
def test_an_option_that_is_not_understood_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LabRefused) as refusal:
        request(options=options)
    assert words in str(refusal.value)


def test_a_session_is_told_what_is_the_hubs_and_what_was_configured() -> None:
    environment = {
        "JUPYTERHUB_API_TOKEN": "secret",
        "JUPYTERHUB_SINGLEUSER_APP": "notebook",
        "JUPYTERHUB_DISABLE_USER_CONFIG": "1",
        "JPY_API_TOKEN": "secret",
        "PATH": "/hub/bin",
        "LICENCE": 7,
    }
    assert variables_for(environment, {"LICENCE": 7}) == {"JUPYTERHUB_API_TOKEN": "secret", "LICENCE": "7"}


def test_the_form_says_what_can_be_had_and_shows_names_as_text() -> None:
    offer = Offer(environments=["default", '"><script>'], gpus=1, simulated=False, qos=["a", "b"])
    html = render(offer, {"environment": '"><script>', "gpus": 1, "reserve": True, "qos": "b"})
    assert "<script>" not in html
    assert '<option value="&quot;&gt;&lt;script&gt;" selected>' in html
    assert html.count('value="default"') == 1
    assert '<option value="1" selected>1</option>' in html
    assert '<option value="b" selected>' in html
    assert 'name="reserve" checked' in html
    assert "simulated" not in html.lower()
    assert 'name="qos"' not in render(Offer(qos=["only"]), {})


def test_the_form_is_read_as_it_was_filled_in() -> None:
    assert read({"environment": ["torch"], "gpus": ["2"], "reserve": ["on"], "qos": [""]}) == {
        "environment": "torch",
        "gpus": 2,
        "reserve": True,
    }
    assert read({}) == {"reserve": False}
    with pytest.raises(LabRefused, match="The number of GPUs is '-1'"):
        read({"gpus": ["-1"]})


@pytest.mark.gate
@pytest.mark.slow
def test_the_spawner_needs_nothing_of_the_labs_server(tmp_path: Path) -> None:
    code = (
        "import json, sys; from jupyterhub.spawner import Spawner; before = set(sys.modules)\n"
        "from carrel_jupyterhub import CarrelSpawner; assert issubclass(CarrelSpawner, Spawner)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, timeout=PATIENCE)
    loaded = json.loads(found.stdout)
    assert {name.split(".")[1] for name in loaded if name.startswith("carrel.")} == {"client", "core", "wire"}
    assert {name.split(".")[2] for name in loaded if name.startswith("carrel.core.")} == {"domain", "lazy_imports"}
    outside = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    # Carrel's base dependencies, and what they stand on.
    assert {"httpx", "pydantic"} <= outside
    assert not outside & {"fastapi", "uvicorn", "starlette", "mlflow", "jupyter_server", "jupyterlab", "joserfc", "psycopg"}


def test_the_documented_configuration_is_one() -> None:
    from traitlets.config import Config

    from carrel_jupyterhub import CarrelSpawner

    page = (Path(__file__).parents[2] / "docs/jupyterhub.md").read_text()
    config = Config()
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "jupyterhub.md", "exec"), {"c": config})
    assert config.JupyterHub.spawner_class == f"{CarrelSpawner.__module__.rpartition('.')[0]}.CarrelSpawner"
    table = re.findall(r"^\| (`.+?`) \|", page, re.MULTILINE)
    documented = {name.strip("` ") for row in table for name in row.split(",")}
    own = {name for name, trait in CarrelSpawner.class_own_traits().items() if trait.metadata.get("config")}
    assert own <= documented
    assert documented | set(config.CarrelSpawner) <= set(CarrelSpawner.class_traits(config=True))
