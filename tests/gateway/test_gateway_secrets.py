"""Secrets over REST: set by a person, given to the job that was promised them, and to nobody else."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
from gateway_lab import V1, Rig

from carrel.core.domain.job import JobState
from carrel.core.domain.nouns import SECRETS
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import Caller, User

VALUE = "correct-horse-battery-staple"


def keep(who: httpx.Client, name: str = "API_KEY", value: str = VALUE) -> httpx.Response:
    return who.put(f"{V1}/secrets/{name}", json={"value": value})


def submit(rig: Rig, who: httpx.Client, name: str, **body: Any) -> httpx.Response:
    return who.post(f"{V1}/jobs", json={"snapshot": rig.upload(name), "secrets": ["API_KEY"], **body})


def running(rig: Rig, who: httpx.Client, name: str, **body: Any) -> tuple[int, dict[str, str]]:
    """A job that runs, and the headers of its token."""
    answer = submit(rig, who, name, **body)
    assert answer.status_code == 201, answer.text
    job = int(answer.json()["id"])
    _launch, token = rig.engine.wait_started(job)
    rig.engine.run(job)
    rig.wait(job, JobState.RUNNING)
    return job, {"Authorization": f"Bearer {token}"}


@pytest.mark.gate
def test_names_are_listed_and_values_are_shown_to_nobody(ada: httpx.Client, bob: httpx.Client, root: httpx.Client) -> None:
    assert keep(ada).json() == {"name": "API_KEY", "created": True}
    assert keep(ada, value="another-value-of-it").json() == {"name": "API_KEY", "created": False}
    listed = ada.get(f"{V1}/secrets")
    assert [one["name"] for one in listed.json()["secrets"]] == ["API_KEY"]
    assert "another-value" not in listed.text
    for other in (bob, root):
        assert other.get(f"{V1}/secrets").json() == {"secrets": []}
    assert ada.delete(f"{V1}/secrets/API_KEY").status_code == 204
    assert ada.get(f"{V1}/secrets").json() == {"secrets": []}
    assert ada.delete(f"{V1}/secrets/API_KEY").status_code == 404


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("9LIVES", VALUE, "letters, digits and _"),
        ("CARREL_TOKEN", VALUE, "does not start with CARREL_"),
        ("A-B", VALUE, "letters, digits and _"),
        ("API_KEY", "", "empty"),
        ("API_KEY", "a\0b", "zero byte"),
        ("API_KEY", "x" * 70_000, "At most 64K"),
    ],
    ids=["digit", "reserved", "hyphen", "empty", "zero", "long"],
)
def test_what_can_be_no_variable_is_refused_without_showing_it(ada: httpx.Client, name: str, value: str, words: str) -> None:
    answer = keep(ada, name, value)
    assert answer.status_code == 422
    assert words in answer.json()["detail"] + answer.json()["remedy"]
    assert value in ("", "a\0b") or value not in answer.text
    assert ada.get(f"{V1}/secrets").json() == {"secrets": []}


def test_a_value_of_the_wrong_type_is_not_shown_either(ada: httpx.Client) -> None:
    answer = ada.put(f"{V1}/secrets/API_KEY", json={"value": [VALUE]})
    assert answer.status_code == 422
    assert VALUE not in answer.text


def test_only_the_job_itself_reads_what_it_was_promised(
    rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    keep(ada)
    keep(ada, "OTHER", "not-for-this-job-at-all")
    job, own = running(rig, ada, "ada")
    place = f"{V1}/jobs/{job}/secrets"
    assert ada.get(place, headers=own).json() == {"secrets": {"API_KEY": VALUE}}
    assert ada.get(f"{V1}/secrets").json()["secrets"][0]["used_at"] is not None
    second, other = running(rig, ada, "ada", secrets=[])
    assert ada.get(f"{V1}/jobs/{second}/secrets", headers=other).json() == {"secrets": {}}
    assert [who.get(place).status_code for who in (ada, bob, root)] == [403, 404, 403]
    assert ada.get(place, headers=other).status_code == 404
    rig.engine.end(job)
    rig.wait(job, JobState.COMPLETED)
    assert ada.get(place, headers=own).status_code == 401


def test_a_job_changes_no_secret_and_passes_on_only_its_own(rig: Rig, ada: httpx.Client) -> None:
    keep(ada)
    keep(ada, "OTHER", "not-for-this-job-at-all")
    _job, own = running(rig, ada, "ada")
    assert ada.put(f"{V1}/secrets/API_KEY", json={"value": "mine-now"}, headers=own).status_code == 403
    assert ada.delete(f"{V1}/secrets/API_KEY", headers=own).status_code == 403
    body = {"snapshot": rig.upload("ada")}
    assert ada.post(f"{V1}/jobs", json={**body, "secrets": ["API_KEY"]}, headers=own).status_code == 201
    refused = ada.post(f"{V1}/jobs", json={**body, "secrets": ["OTHER"]}, headers=own)
    assert refused.status_code == 403
    assert "was not given the secret OTHER" in refused.json()["detail"]


def test_a_task_that_names_what_its_submitter_does_not_have_is_refused(rig: Rig, ada: httpx.Client, bob: httpx.Client) -> None:
    keep(ada)
    refused = submit(rig, bob, "bob")
    assert refused.status_code == 422
    assert refused.json()["detail"] == "You have no secret API_KEY."
    assert "carrel secret set API_KEY" in refused.json()["remedy"]
    both = submit(rig, ada, "ada", variables={"API_KEY": "x"})
    assert "is a variable of the task and a secret" in both.json()["detail"]


def test_one_that_was_removed_meanwhile_is_told(rig: Rig, ada: httpx.Client) -> None:
    keep(ada)
    job, own = running(rig, ada, "ada")
    ada.delete(f"{V1}/secrets/API_KEY")
    answer = ada.get(f"{V1}/jobs/{job}/secrets", headers=own)
    assert answer.status_code == 404
    assert "was removed after the job was submitted" in answer.json()["detail"]


def test_a_record_and_the_database_have_the_name_alone(rig: Rig, ada: httpx.Client) -> None:
    keep(ada)
    job, own = running(rig, ada, "ada")
    ada.get(f"{V1}/jobs/{job}/secrets", headers=own)
    record = ada.get(f"{V1}/jobs/{job}/record")
    assert "API_KEY" in record.text
    assert VALUE not in record.text
    for path in rig.home.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes(), path


def test_a_value_does_not_open_under_another_key_or_for_another_user(rig: Rig, ada: httpx.Client) -> None:
    from carrel.core.domain.errors import Conflict
    from carrel.core.domain.nouns import SECRETS
    from carrel.lab.store.secrets import LabSeal

    keep(ada)
    (kept,) = rig.store.of(SECRETS).all()
    with pytest.raises(Conflict, match="carrel secret set API_KEY|lab's key"):
        LabSeal(b"another key of another lab").unseal("ada", "API_KEY", kept.sealed)
    for subject, name in (("bob", "API_KEY"), ("ada", "OTHER")):
        with pytest.raises(Conflict, match="cannot be read"):
            LabSeal(rig.lab.secret).unseal(subject, name, kept.sealed)
    assert LabSeal(rig.lab.secret).unseal("ada", "API_KEY", kept.sealed) == VALUE


def test_nobody_keeps_more_than_a_hundred(ada: httpx.Client) -> None:
    assert all(keep(ada, f"S{number}").status_code == 200 for number in range(100))
    full = keep(ada, "ONE_MORE")
    assert full.status_code == 409
    assert "100 secrets" in full.json()["detail"]
    assert keep(ada, "S7", "a-new-value").status_code == 200


def test_a_secret_that_is_removed_while_a_job_takes_it_stays_removed(rig: Rig, ada: httpx.Client) -> None:
    keep(ada)
    real = rig.store.of(SECRETS)
    me = Caller(user=User(subject="ada", name="Ada"), job_id=1)
    removing: list[threading.Thread] = []

    class Slow:
        """The lab's records, where a removal begins between a look and what is written then."""

        select, put, remove = real.select, real.put, real.remove

        def get(self, *key: Any) -> Any:
            found = real.get(*key)
            removing.append(threading.Thread(target=secrets.remove, args=(me, "API_KEY")))
            removing[0].start()
            removing[0].join(0.5)  # where nothing keeps it from going on, it has ended by then
            return found

    secrets = replace(rig.lab.secrets, records=Slow())
    task = TaskSpec(entry_point="main", command="true", snapshot="sha256:0", secrets=("API_KEY",))
    assert secrets.of_job(me, 1, task) == {"API_KEY": VALUE}
    removing[0].join()
    assert ada.get(f"{V1}/secrets").json() == {"secrets": []}
