"""Batch scripts start from one file of compiled modules; without it, or with a bad one, they start as they always could."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.engines.slurm import boot
from carrel.engines.slurm.code import BootCode
from carrel.engines.slurm.making_code import packed

#: Imports from the file, and says what it has imported and what works with it.
PROBE = f"""
import sys
scope = {{"__name__": "boot"}}
exec(open({boot.__file__!r}).read(), scope)
print(scope["use"](sys.argv[1]))
import carrel.node.runner.main, inspect, ipaddress, json
from bz2 import compress
from dataclasses import replace
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import from_plain, to_plain
made = Resources(gpus=2, memory=2**30)
facts = {{
    "loaders": sorted({{type(sys.modules[name].__loader__).__name__ for name in ("carrel.node.runner.main", "json",
    "dataclasses")}}), "file": carrel.node.runner.main.__file__,
    "prefix": sys.prefix,
    "repr": repr(made),
    "same": [from_plain(Resources, to_plain(made)) == made, hash(replace(made, gpus=2)) == hash(made)],
    "others": [str(inspect.signature(lambda one: 1)), str(ipaddress.ip_address("::1")), len(compress(b"")) > 0],
}}
try:
    made.gpus = 3
except AttributeError as error:
    facts["frozen"] = str(error)
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(BootCode(tmp_path_factory.mktemp("spool"), sys.executable).command()[-1])


def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-S", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=check, timeout=120, cwd="/")


@pytest.mark.gate
def test_what_comes_from_the_file_is_what_would_be_imported(code: Path) -> None:
    from carrel.core.domain.resources import Resources
    from carrel.node.runner import main

    used, facts = run("-c", PROBE, code).stdout.splitlines()
    assert used == "True"
    assert json.loads(facts) == {
        "loaders": ["Compiled"],
        "file": main.__file__,
        "prefix": sys.prefix,
        "repr": repr(Resources(gpus=2, memory=2**30)),
        "same": [True, True],
        "others": ["(one)", "::1", True],
        "frozen": "cannot assign to field 'gpus'",
    }


@pytest.mark.parametrize("fault", ["missing", "empty", "torn", "garbage", "flipped", "vast", "older", "another"])
def test_a_bad_file_is_not_used_and_the_script_starts_as_usual(code: Path, tmp_path: Path, fault: str) -> None:
    good, bad = code.read_bytes(), tmp_path / "bad.code"
    match fault:
        case "empty":
            bad.write_bytes(b"")
        case "torn":
            bad.write_bytes(good[: len(good) // 2])
        case "garbage":
            bad.write_bytes(boot.MAGIC + os.urandom(1000))
        case "flipped":
            place = len(good) // 3
            bad.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
        case "vast":
            # A tuple of 2**31 - 1 things, for which marshal asks for 16 GB before it looks for them.
            bad.write_bytes(boot.MAGIC + bytes(4) + b"(\xff\xff\xff\x7f")
        case "older":
            bad.write_bytes(good[len(boot.MAGIC) + 4 :])
        case "another":
            bad.write_bytes(packed(boot.unpacked(good) | {boot.PYTHON: "2.7"}))
    said = run(
        "-c", f"scope = {{'__name__': 'boot'}}; exec(open({boot.__file__!r}).read(), scope); print(scope['use']({str(bad)!r}))"
    )
    assert said.stdout.strip() == "False"
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    assert "launch.json" in run(boot.__file__, bad, attempt, check=False).stderr
    (attempt / "claim").write_text("1")
    assert run(boot.__file__, bad, attempt).returncode == 0
    assert run(boot.__file__, code, attempt).returncode == 0


def test_the_file_is_made_once_and_a_job_starts_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = BootCode(tmp_path, sys.executable).command()
    made = Path(first[-1]).stat().st_ino
    assert BootCode(tmp_path, sys.executable).command() == first
    assert Path(first[-1]).stat().st_ino == made
    assert [path.name for path in tmp_path.iterdir()] == [Path(first[-1]).name]
    with caplog.at_level(logging.WARNING):
        command = BootCode(tmp_path, "/bin/false").command()
    assert command[0] == "/bin/false"
    assert "begin later" in caplog.text
    assert not Path(command[-1]).exists()


def test_a_file_that_others_could_have_written_is_not_used(code: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "code"
    open_to_all.write_bytes(code.read_bytes())
    open_to_all.chmod(0o666)
    assert run("-c", PROBE, open_to_all, check=False).stdout.splitlines()[0] == "False"


def test_a_node_that_sees_an_attempt_where_others_can_write_does_not_begin_it(tmp_path: Path) -> None:
    from carrel.engines.slurm.batch import STRICT

    attempt = tmp_path / "spool" / "1" / "1"
    attempt.mkdir(parents=True)
    (attempt / "launch").write_text("{}")
    (tmp_path / "spool").chmod(0o777)
    refused = run(boot.__file__, tmp_path / "none", attempt, STRICT, check=False)
    assert refused.returncode == 1
    assert f"{tmp_path / 'spool'} may be written by everybody, who could put another 1 there" in refused.stderr
    assert [file.name for file in attempt.iterdir()] == ["launch"]
