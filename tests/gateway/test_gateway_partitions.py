"""Partitions over REST."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import RULES, V1, Rig

from carrel.core.domain.account import Account
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import QoS

MLTF = Path(__file__).parents[1] / "data" / "mltf"
QOS = {**RULES.qos, "small": QoS(name="small")}
PARTS = {
    "far": Partition(name="far", nodes=("elsewhere",), qos=("normal",)),
    "near": Partition(name="near", nodes=("ben*",), qos=("normal", "small")),
}


@pytest.fixture
def parts(rig: Rig) -> Rig:
    rig.written.append(replace(RULES, qos=QOS, partitions=PARTS))
    assert rig.lab.administration.apply_rules()
    return rig


HERE = {"engine": "local", "place": "", "slurm": None, "slurm_hold_time": None}


def submit(rig: Rig, who: httpx.Client, **more: Any) -> httpx.Response:
    return who.post(f"{V1}/jobs", json={"snapshot": rig.upload(), "resources": {"gpus": 1}, **more})


@pytest.mark.gate
def test_work_that_names_none_goes_to_the_first_that_can_run_it(parts: Rig, ada: httpx.Client) -> None:
    job = submit(parts, ada).json()
    assert (job["partition"], job["qos"]) == ("near", "normal")
    parts.engine.wait_started(job["id"])
    again = ada.post(f"{V1}/jobs/{job['id']}/rerun").json()
    assert again["partition"] == "near"


def test_the_lab_says_which_there_are(parts: Rig, ada: httpx.Client) -> None:
    found = ada.get(f"{V1}/lab").json()["partitions"]
    assert found == [
        {"name": "far", "nodes": [], "qos": ["normal"], **HERE},
        {"name": "near", "nodes": ["bench"], "qos": ["normal", "small"], **HERE},
    ]


@pytest.mark.parametrize(
    ("asked", "detail", "remedy"),
    [
        ({"partition": "nea"}, 'There is no partition "nea".', 'Did you mean "near"? There are "far", "near".'),
        (
            {"partition": "far"},
            'Partition "far" has no node.',
            'Ask an administrator. Or choose partition "near", which can run it.',
        ),
        (
            {"partition": "far", "qos": "small"},
            'Partition "far" does not take QoS "small"; it takes "normal".',
            'Choose one of those, or partition "near" for QoS "small".',
        ),
    ],
)
def test_what_cannot_run_there_is_refused(parts: Rig, ada: httpx.Client, asked: dict[str, Any], detail: str, remedy: str) -> None:
    answer = submit(parts, ada, **asked)
    assert answer.status_code == 422, answer.text
    assert (answer.json()["detail"], answer.json()["remedy"]) == (detail, remedy)


def test_a_backend_config_may_name_one_and_a_lab_without_any_says_so(rig: Rig, parts: Rig, ada: httpx.Client) -> None:
    assert submit(parts, ada, backend_config={"partition": "near"}).json()["partition"] == "near"
    rig.written.append(RULES)
    assert rig.lab.administration.apply_rules()
    job = submit(rig, ada, backend_config={"partition": "normal"}).json()
    assert (job["partition"], job["qos"]) == ("", "normal")
    refused = submit(rig, ada, partition="near").json()
    assert refused["detail"] == 'There is no partition "near": this lab has none.'


def test_jobs_whose_partition_is_gone_say_so(parts: Rig, ada: httpx.Client) -> None:
    busy = [submit(parts, ada, resources={"gpus": 2}).json()["id"] for _ in range(2)]
    parts.written.append(replace(RULES, qos=QOS, partitions={"other": Partition(name="other")}))
    assert parts.lab.administration.apply_rules()
    waits = busy[-1]
    parts.wait_for(lambda: ada.get(f"{V1}/jobs/{waits}").json()["reason"] in ("PartitionDown", "Preparing"))
    told = ada.get(f"{V1}/jobs/{waits}").json()
    assert told["reason"] == "PartitionDown"
    assert '"near"' in told["message"]


def test_a_project_for_a_cluster_runs_in_a_lab_without_one(rig: Rig, ada: httpx.Client) -> None:
    config = json.loads((MLTF / "slurm_config.json").read_text())
    code = {path.name: path.read_text() for path in MLTF.iterdir()}
    body = {"snapshot": rig.upload(files=code), "backend_config": config}
    refused = ada.post(f"{V1}/jobs", json=body).json()
    assert refused["detail"] == 'There is no partition "pascal": this lab has none.'
    assert "partition_names" in refused["remedy"]
    rig.written.append(replace(RULES, partition_names={"pascal": "normal"}))
    assert rig.lab.administration.apply_rules()
    refused = ada.post(f"{V1}/jobs", json=body).json()
    assert (refused["detail"], refused["remedy"]) == ('There is no account "mltf_acc".', "Open to ada: default.")
    accounts = {name: Account(name=name) for name in ("default", "mltf_acc")}
    rig.written.append(replace(rig.written[-1], accounts=accounts))
    assert rig.lab.administration.apply_rules()
    job = ada.post(f"{V1}/jobs", json=body).json()
    assert (job["name"], job["qos"], job["account"], job["partition"]) == ("MG_process_HiggsW", "normal", "mltf_acc", "")
    assert (job["resources"]["gpus"], job["resources"]["memory"], job["resources"]["time"]) == (1, 4 << 30, 8 * 3600)
    for named in ('Partition "pascal" is "normal"', "researcher@example.org", "GCCcore/.11.3.0, Python/3.10.4", "batchFile"):
        assert any(named in note for note in job["notes"]), named
    with_more = ada.post(f"{V1}/jobs", json={**body, "backend_config": {**config, "constraint": "ib"}}).json()
    assert with_more["detail"].startswith("The task asks for constraint, which only a partition of a Slurm cluster can do")


def test_a_partition_of_another_cluster_is_called_as_the_lab_calls_it(parts: Rig, ada: httpx.Client) -> None:
    parts.written.append(replace(parts.written[-1], partition_names={"pascal": "near", "any": ""}))
    assert parts.lab.administration.apply_rules()
    assert submit(parts, ada, partition="pascal").json()["partition"] == "near"
    job = submit(parts, ada, backend_config={"partition": "any"}).json()
    assert (job["partition"], job["notes"]) == ("near", ['Partition "any" is no partition in particular in this lab.'])
