"""Where jobs run as their owners, settings by which users' code would run as the lab are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.core.domain.errors import Denied, Invalid
from carrel.core.submission.own_name import own_name
from carrel.lab.server.identity import read_identity
from carrel.lab.server.settings import Settings, read_settings
from carrel.lab.server.whose_code import WhoseCode, check_safe

pytestmark = pytest.mark.quick
CLUSTER = '[partitions.gpu]\nengine = "slurm"\n'
DOCUMENTED = f"[partitions.here]\n{CLUSTER}"
DEPUTIES = ("same", "map:/etc/carrel/people.toml", "command:/usr/local/bin/who")


def settings(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "carrel.toml"
    file.write_text(text)
    return read_settings(file, {}, {})


@pytest.mark.parametrize("identity", DEPUTIES)
def test_a_partition_of_the_labs_own_machine_is_refused(tmp_path: Path, identity: str) -> None:
    first = f'slurm_identity = "{identity}"\n'
    with pytest.raises(Invalid, match=f"Jobs of partition here would run on this machine as {own_name()}") as refused:
        check_safe(settings(tmp_path, first + DOCUMENTED))
    assert "run_users_code_as_lab = true" in refused.value.remedy
    with pytest.raises(Invalid, match="a lab without partitions of a cluster"):
        check_safe(settings(tmp_path, first))
    check_safe(settings(tmp_path, first + CLUSTER))
    check_safe(settings(tmp_path, f"{first}run_users_code_as_lab = true\n{DOCUMENTED}"))


def test_everybody_as_the_labs_user_has_to_be_said_twice(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="runs everybody's jobs as"):
        check_safe(settings(tmp_path, f'slurm_identity = "lab"\n{CLUSTER}'))
    check_safe(settings(tmp_path, f'slurm_identity = "lab"\nrun_users_code_as_lab = true\n{DOCUMENTED}'))
    check_safe(settings(tmp_path, DOCUMENTED))  # only who runs the lab is anybody on the cluster


@pytest.mark.parametrize("identity", DEPUTIES)
def test_code_runs_as_the_lab_only_for_who_runs_it(identity: str) -> None:
    strict = WhoseCode(read_identity(identity), allowed=False)
    strict.check(own_name())
    with pytest.raises(Denied, match=f"would run as {own_name()}, who runs the lab"):
        strict.check("alice")
    WhoseCode(read_identity(identity), allowed=True).check("alice")
    WhoseCode(read_identity("owner"), allowed=False).check("alice")
