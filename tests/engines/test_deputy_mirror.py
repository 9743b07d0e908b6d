"""What the lab takes from a deputy while its own disk is full."""

import hashlib
import os

import pytest

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Ended, EnvironmentReady, Journaled, Observation, StoredFile
from carrel.core.spool import Spool
from carrel.engines.deputy.mirror import BEYOND, Mirror


@pytest.mark.gate
def test_a_piece_that_met_a_full_disk_is_taken_when_it_comes_again(small_disk):
    mirror = Mirror(user="ada", spool=Spool(small_disk / "spool"), blobs=small_disk / "blobs")
    pieces = [b"a" * 100_000, b"b" * 200_000, b"c" * 5_000]
    digest = f"sha256:{hashlib.sha256(b''.join(pieces)).hexdigest()}"
    assert mirror.want((1, 1), 305_000, [digest]) == [digest]
    mirror.take_blob(digest, pieces[0], last=False)
    with open(small_disk / "ballast", "wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
        while True:
            ballast.write(b"x" * 4096)
    for _ in range(200):  # it insists, as the engine does
        with pytest.raises(OSError, match="No space"):
            mirror.take_blob(digest, pieces[1], last=False)
    assert not mirror.has(digest)
    (small_disk / "ballast").unlink()
    mirror.take_blob(digest, pieces[1], last=False)
    mirror.take_blob(digest, pieces[2], last=True)
    assert mirror.has(digest)


def test_a_success_whose_outputs_are_gone_is_none(tmp_path):
    mirror = Mirror(user="ada", spool=Spool(tmp_path / "spool"), blobs=tmp_path / "blobs")
    digest = f"sha256:{hashlib.sha256(b'model').hexdigest()}"
    ended = Ended(
        state=JobState.COMPLETED,
        reason=Reason(code="Completed", message="Exit code 0 after 3 s."),
        exit_code=0,
        outputs=(StoredFile(path="outputs/model", size=5, digest=digest),),
    )
    observation = Observation(job_id=1, attempt=1, entries=(Journaled(at=1.0, record=ended),), offset=10)
    told = mirror.told(observation, [digest]).entries[-1].record
    assert (told.state, told.reason.code, told.outputs) == (JobState.FAILED, "OutputFailed", ())
    assert "outputs/model" in told.reason.message


def test_a_content_of_another_user_is_given_to_nobody_who_only_knows_its_digest(tmp_path):
    blobs = tmp_path / "blobs"
    secret = b"alice's result"
    digest = f"sha256:{hashlib.sha256(secret).hexdigest()}"
    alices, bobs = (Mirror(user=name, spool=Spool(tmp_path / "spool"), blobs=blobs) for name in ("alice", "bob"))
    assert alices.want((1, 1), 100, [digest]) == [digest]
    alices.take_blob(digest, secret, last=True)
    assert alices.has(digest)

    file = StoredFile(path="outputs/mine", size=len(secret), digest=digest)
    ended = Ended(state=JobState.COMPLETED, reason=Reason(code="Completed", message="Done."), exit_code=0, outputs=(file,))
    observation = Observation(job_id=2, attempt=1, entries=(Journaled(at=1.0, record=ended),), offset=10)
    assert bobs.told(observation, []).entries[-1].record.outputs == ()
    # He is asked for it, whether the lab has it or not: so he learns nothing, either.
    assert bobs.want((1, 1), 100, [digest]) == [digest]
    bobs.take_blob(digest, b"something else", last=True)
    assert not bobs.has(digest)
    assert bobs.want((1, 1), 100, [digest]) == [digest]
    bobs.take_blob(digest, secret, last=True)
    assert bobs.told(observation, []).entries[-1].record.outputs == (file,)
    assert alices.told(observation, []).entries[-1].record.outputs == (file,)


def test_a_lock_that_was_not_handed_over_belongs_to_no_environment(tmp_path):
    mirror = Mirror(user="bob", spool=Spool(tmp_path / "spool"), blobs=tmp_path / "blobs")
    lock = f"sha256:{hashlib.sha256(b'numpy==2.0').hexdigest()}"
    ready = EnvironmentReady(digest="sha256:e", lock=lock, python="3.11", built=False, seconds=1.0)
    observation = Observation(job_id=2, attempt=1, entries=(Journaled(at=1.0, record=ready),), offset=10)
    assert mirror.told(observation, []).entries[0].record.lock == ""
    mirror.want((1, 1), 100, [lock])
    mirror.take_blob(lock, b"numpy==2.0", last=True)
    assert mirror.told(observation, []).entries[0].record.lock == lock


def test_an_attempt_has_its_limit_once_however_often_it_offers_something(tmp_path):
    mirror = Mirror(user="bob", spool=Spool(tmp_path / "spool"), blobs=tmp_path / "blobs")
    kept = 0
    for key in ((1, 1), (2, 1)):
        for number in range(10):
            content = os.urandom(256 * 1024)
            pieces, whole = [content] * 16, hashlib.sha256(content * 16).hexdigest()
            digest = f"sha256:{whole}"
            mirror.want(key, 1, [digest])
            for left, piece in enumerate(reversed(pieces)):
                mirror.take_blob(digest, piece, last=left == 15)
            kept += mirror.has(digest)
            assert mirror.has(digest) == (number < BEYOND // (4 * 1024**2)), "4 MiB each"
    stored = sum(file.stat().st_size for file in (tmp_path / "blobs").rglob("*") if file.is_file())
    assert stored == kept * 4 * 1024**2 <= 2 * (BEYOND + 1)
