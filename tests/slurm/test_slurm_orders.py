"""A node runs what the lab has signed for this attempt, and nothing else."""

from __future__ import annotations

import json
import os
import pwd
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.cli.main import main
from carrel.core.domain.errors import Denied, Invalid
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Ended, Launch, LaunchWalls
from carrel.core.domain.serial import to_plain
from carrel.core.spool import AttemptDirectory, read_entries
from carrel.core.spool.seal import check_launch, is_signed, opening_of, read_order, signed_by
from carrel.engines.attempts import Watched, is_written, write_launch
from carrel.engines.slurm.batch import FOR, SIGNED
from carrel.lab.server.home import LabHome as Home
from carrel.lab.server.signing import LabKey
from carrel.testing.builders import LabHome, make_launch
from carrel.testing.waiting import PATIENCE

#: RFC 8032, section 7.1: key, message, signature.
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]  # fmt: skip


@pytest.fixture
def key(tmp_path: Path) -> LabKey:
    home = Home(tmp_path / "lab")
    home.create()
    return LabKey(home)


@pytest.mark.gate
@pytest.mark.parametrize(("key", "message", "signature"), VECTORS)
def test_signatures_are_those_of_the_standard(key: str, message: str, signature: str) -> None:
    assert is_signed(bytes.fromhex(message), signature, key)


def test_what_the_lab_signs_is_known_and_nothing_near_it(key: LabKey, tmp_path: Path) -> None:
    chance = random.Random(8032)
    for _ in range(30):
        message = chance.randbytes(chance.randrange(200))
        signature = key.sign(message)
        assert is_signed(message, signature, key.public)
        assert signed_by(message, signature, key.public)
        bit = chance.randrange(512)
        made = bytearray.fromhex(signature)
        made[bit // 8] ^= 1 << bit % 8
        assert not is_signed(message, made.hex(), key.public)
        assert not signed_by(message, made.hex(), key.public)
        assert not is_signed(message + b"!", signature, key.public)
    # The same point written with a larger scalar is no second signature (section 5.1.7).
    larger = int.from_bytes(bytes.fromhex(signature)[32:], "little") + 2**252 + 27742317777372353535851937790883648493
    assert not is_signed(message, signature[:64] + larger.to_bytes(32, "little").hex(), key.public)
    for other in ("", "zz", "00" * 32, "ff" * 32, key.public[:-2]):
        assert not is_signed(message, signature, other)
    assert LabKey(Home(tmp_path / "lab")).public == key.public
    assert (tmp_path / "lab" / "signing.key").stat().st_mode & 0o777 == 0o600
    assert not is_signed(opening_of("2", "alice", "lab"), key.sign(opening_of("1", "alice", "lab")), key.public)


@pytest.fixture
def home(tmp_path: Path) -> LabHome:
    return LabHome(tmp_path)


def written(
    home: LabHome, key: LabKey, *, job_id: int = 1, attempt: int = 1, user: str = "", closed: bool = False
) -> AttemptDirectory:
    launch = make_launch(home, f"touch {home.root}/ran.{job_id}.{attempt}", job_id=job_id, attempt=attempt)
    if closed:
        paths = replace(launch.paths, closed=("/somewhere",), files="/somewhere/files")
        launch = replace(launch, paths=paths, walls=LaunchWalls(hidden=("/somewhere",), home="/somewhere/home"))
    directory = home.attempt(launch)
    home.blobs.mkdir(exist_ok=True)
    order = key.order(user, to_plain(launch))
    given = replace(launch, paths=replace(launch.paths, doorbell="somewhere"))
    write_launch(Watched(launch=given, token="", directory=directory, order=order))
    return directory


def begin(directory: AttemptDirectory, key: str, user: str = "", **variables: str) -> Ended:
    """Do what a batch script does, and return how it ended."""
    words = [sys.executable, "-I", "-m", "carrel.engines.slurm.batch", directory.path, f"{SIGNED}{key}"]
    words += [f"{FOR}{user}"] if user else []
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, cwd="/", env={**os.environ, **variables})
    entries, _ = read_entries(directory.journal, over=True)
    assert isinstance(entries[-1].record, Ended), done.stderr
    return entries[-1].record


def ran(home: LabHome) -> list[str]:
    return sorted(path.name for path in home.root.glob("ran.*"))


def test_what_was_signed_runs_once(home: LabHome, key: LabKey) -> None:
    directory = written(home, key)
    assert begin(directory, key.public, SLURMD_NODENAME="node1", CUDA_VISIBLE_DEVICES="0,1").state is JobState.COMPLETED
    assert json.loads(directory.launch.read_bytes())["node"] == "node1"
    assert ran(home) == ["ran.1.1"]
    (home.root / "ran.1.1").unlink()
    begin(directory, key.public)  # Slurm starts a script again
    assert ran(home) == []


def test_what_the_node_has_written_down_is_no_change(home: LabHome, key: LabKey) -> None:
    directory = written(home, key)
    launch = json.loads(directory.launch.read_bytes())
    launch |= {"node": "node1", "shares": [0], "paths": {**launch["paths"], "broker": "", "bell": "node1:7/word"}}
    directory.launch.write_text(json.dumps(launch))  # by a node that died before the attempt was claimed
    assert begin(directory, key.public).state is JobState.COMPLETED


def test_what_a_deputy_puts_beside_its_spool_is_no_change(home: LabHome, key: LabKey) -> None:
    own = pwd.getpwuid(os.geteuid()).pw_name
    moved = {"closed": [], "files": "", **{name: str(home.root / name) for name in ("environments", "snapshots", "blobs")}}
    for job, user, said in ((1, own, ""), (2, "", ": paths.closed, paths.files.")):
        directory = written(home, key, job_id=job, user=user, closed=True)
        launch = json.loads(directory.launch.read_bytes())
        launch["walls"] = json.loads(directory.order.read_bytes())["launch"]["walls"]
        launch["paths"] |= moved
        directory.launch.write_text(json.dumps(launch))
        order = read_order(directory.order.read_bytes())
        if said:
            with pytest.raises(Denied, match=said):
                check_launch(launch, order, directory.path, user)
        else:
            check_launch(launch, order, directory.path, user)
        launch["walls"] = None
        with pytest.raises(Denied, match="walls"):
            check_launch(launch, order, directory.path, user)


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    home = Home(tmp_path / "lab")
    home.create()
    LabKey(home)
    (home.path / "signing.key").chmod(0o640)
    with pytest.raises(Denied, match="has mode 640"):
        LabKey(home)
    (home.path / "signing.key").chmod(0o600)
    (home.path / "signing.key").write_text("nothing\n")
    with pytest.raises(Invalid, match="is no key"):
        LabKey(home)


def test_a_lab_changes_its_key_in_two_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path / "lab")
    home.create()

    def said(*words: str) -> dict[str, str | None]:
        assert main(["signing-key", *words, "--home", str(home.path), "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    old = LabKey(home)
    assert said("show") == {"key": old.public, "next": None}
    new = said("next")["next"]
    assert new is not None
    assert said("next") == {"key": old.public, "next": new}
    assert LabKey(home).public == old.public
    assert said("use-next") == {"key": new, "next": None}
    assert is_signed(b"1", LabKey(home).sign(b"1"), new)
    assert main(["signing-key", "use-next", "--home", str(home.path)]) != 0
    assert "There is no next key." in capsys.readouterr().err


def test_what_was_written_with_another_key_is_written_again(home: LabHome, key: LabKey, tmp_path: Path) -> None:
    launch = make_launch(home, "true")
    home.blobs.mkdir(exist_ok=True)
    directory = home.attempt(launch)
    old = Watched(launch=launch, token="", directory=directory, order=key.order("", to_plain(launch)))
    assert not is_written(old)
    write_launch(old)
    assert is_written(old)
    (tmp_path / "other").mkdir()
    new = Watched(
        launch=launch, token="", directory=directory, order=LabKey(Home(tmp_path / "other")).order("", to_plain(launch))
    )
    assert not is_written(new)
    directory.order.unlink()
    assert not is_written(old)
    assert is_written(Watched(launch=launch, token="", directory=directory))


def changes() -> Iterator[tuple[str, Callable[[dict[str, Any]], object]]]:
    yield "task", lambda launch: launch["task"].update(command="id > stolen")
    yield "task", lambda launch: launch["task"].update(snapshot="sha256:" + "0" * 64)
    yield "task", lambda launch: launch["task"].update(session={"kind": "terminal", "directory": "/"})
    yield "gateway", lambda launch: launch.update(gateway="http://elsewhere:1")
    yield "variables", lambda launch: launch.update(variables={"LD_PRELOAD": "/tmp/mine.so"})
    yield "limits", lambda launch: launch["limits"].update(outputs=1)
    yield "paths.environments", lambda launch: launch["paths"].update(environments="/tmp")
    yield "paths.residency", lambda launch: launch["paths"].update(residency="/tmp/mine.so")
    yield "walls", lambda launch: launch.update(walls={"hidden": []})
    yield "paths.files", lambda launch: launch["paths"].update(files="/")
    yield "strange", lambda launch: launch.update(strange=1)
    yield "owner", lambda launch: launch.pop("owner")
    yield "paths", lambda launch: launch.update(paths=[])


@pytest.mark.parametrize(("name", "change"), list(changes()))
def test_a_launch_file_that_was_changed_is_refused(
    home: LabHome, key: LabKey, name: str, change: Callable[[dict[str, Any]], object]
) -> None:
    directory = written(home, key)
    launch = json.loads(directory.launch.read_bytes())
    change(launch)
    directory.launch.write_text(json.dumps(launch))
    ended = begin(directory, key.public)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert f"The launch file was changed after the lab had signed it: {name}." in ended.reason.message
    assert ran(home) == []


def move(origin: AttemptDirectory, target: AttemptDirectory) -> None:
    for name in ("launch", "order"):
        getattr(target, name).write_bytes(getattr(origin, name).read_bytes())


def test_what_is_anothers_is_refused(home: LabHome, key: LabKey, tmp_path: Path) -> None:
    """Another attempt's files (swapped, or an old one's played again), another user's, another lab's, and none."""
    first, second, third = written(home, key), written(home, key, attempt=2), written(home, key, job_id=2)
    move(first, second)
    assert "The launch file of job 1, attempt 2, is that of job 1, attempt 1." in begin(second, key.public).reason.message
    move(first, third)
    assert "The launch file of job 2, attempt 1, is that of job 1, attempt 1." in begin(third, key.public).reason.message
    own = pwd.getpwuid(os.geteuid()).pw_name
    somebody = written(home, key, job_id=3, user="games")
    assert f"The lab has ordered this of games, not of {own}." in begin(somebody, key.public, own).reason.message
    assert (
        "The lab has ordered this of games, not of its own user."
        in begin(written(home, key, job_id=9, user="games"), key.public).reason.message
    )
    assert (
        f"The lab has ordered this of its own user, not of {own}."
        in begin(written(home, key, job_id=10), key.public, own).reason.message
    )
    started = begin(written(home, key, job_id=11, user="games"), key.public, "games")
    assert "This is games's (uid" in started.reason.message
    (tmp_path / "other").mkdir()
    other = LabKey(Home(tmp_path / "other"))
    theirs = written(home, other, job_id=4)
    assert "not signed by the lab" in begin(theirs, key.public).reason.message
    for job, data in ((5, b""), (6, b"[]"), (7, b'{"user": "", "launch": {}, "signature": ""}')):
        bad = written(home, key, job_id=job)
        bad.order.write_bytes(data)
        assert begin(bad, key.public).state is JobState.FAILED
    none = written(home, key, job_id=8)
    none.order.unlink()
    assert "no order of the lab's" in begin(none, key.public).reason.message
    assert ran(home) == []


def test_an_order_that_was_cut_or_garbled_makes_no_sense_or_is_not_signed(home: LabHome, key: LabKey) -> None:
    data = written(home, key).order.read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        place = chance.randrange(len(data))
        bad = (
            data[:place]
            if chance.random() < 0.3
            else data[:place] + bytes([data[place] ^ 1 << chance.randrange(7)]) + data[place + 1 :]
        )
        with pytest.raises(Denied):
            read_order(bad).check(key.public)


def test_a_launch_is_the_same_after_a_deputy_has_read_it(home: LabHome) -> None:
    from carrel.core.domain.serial import from_plain

    plain = json.loads(json.dumps(to_plain(make_launch(home, "true", variables={"A": "ü"}))))
    assert json.loads(json.dumps(to_plain(from_plain(Launch, plain)))) == plain
