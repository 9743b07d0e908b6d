"""Directories of challenges, and the jobs of their programs.

The ingestion program is shown the inputs of a split and the team's code, the scoring program the references and what the first
one left. Both run as a user of the lab's own, behind the walls, without a network and without a home (docs/decisions/0102).
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from sys import maxsize
from typing import Any, BinaryIO

from carrel.core.challenges.cost import cost_of
from carrel.core.challenges.intervals import LARGEST as MOST_REPLICATES
from carrel.core.challenges.intervals import REPLICATES, Replicates, neighbours, read_replicates
from carrel.core.challenges.places import have_names, place_of
from carrel.core.challenges.reading import read_challenge
from carrel.core.challenges.scores import LARGEST, SCORES
from carrel.core.control.lab import Lab
from carrel.core.domain.challenge import FILE, Challenge, ChallengeSpec, ChallengeSubmission, Column, Cost, Split
from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.job import Job
from carrel.core.domain.network import Network
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import ChallengeProgram, InputSpec, TaskSpec
from carrel.core.domain.user import Caller
from carrel.core.snapshots import Kind, SnapshotStore, extract, pack
from carrel.core.spool.trees import remove_tree
from carrel.core.tasks.files import read_text
from carrel.lab.gateway.submission import Submissions
from carrel.wire.v1 import TaskRequest

#: Where the ingestion program finds the team's code, and the scoring program what the first one left in its outputs.
CODE, PREDICTIONS = "submission", "predictions"
#: What participants begin with has a link of this name to the training data.
DATA = "data"
#: Variables that name the directories of the split.
INPUT, REFERENCE = "CARREL_INPUT", "CARREL_REFERENCE"
#: The ingestion program finds the training data there, where participants cannot copy them.
TRAIN = "CARREL_TRAIN"
INGESTION, SCORING = "ingestion", "scoring"
#: What a task of a challenge is, whatever its MLproject says.
_OWN: Mapping[str, Any] = {"cache": False, "visible": "owner", "network": "off"}
#: Bytes of a page that are shown.
_PAGE = 256 * 1024


class ChallengePrograms:
    """Keeps each version of a challenge below a directory of the lab's, and starts what scores submissions. Thread-safe."""

    def __init__(self, root: Path, lab: Lab, snapshots: SnapshotStore, submissions: Submissions) -> None:
        self._root, self._lab, self._snapshots, self._submissions = root, lab, snapshots, submissions
        have_names(root)
        self._known = lru_cache(maxsize=256)(self._read)
        self.size = lru_cache(maxsize=256)(self._size)
        self.samples = lru_cache(maxsize=16)(self._samples)
        self._costs = lru_cache(maxsize=256)(self._cost)
        # Versions never change, and data are large: each is read once for its digest.
        self._digest = lru_cache(maxsize=4096)(self._hashed)
        self.scoring = lru_cache(maxsize=4096)(self._scoring)
        self.differences = lru_cache(maxsize=64)(self._differences)

    # ---- directories

    def read(self, caller: Caller, snapshot: str) -> ChallengeSpec:
        """Read the description in a directory that the caller has sent. Raises `Invalid`, `NotFound`."""
        if not self._lab.has_snapshot(caller, snapshot):
            raise NotFound("The directory of the challenge is not here.", remedy="Send it again.")
        paths = [entry.path for entry in self._snapshots.entries(snapshot) if entry.kind is Kind.FILE]
        if FILE not in paths:
            raise Invalid(f"The directory has no {FILE}.", remedy="docs/challenges.md says what it has.")
        return read_challenge(read_text(self._snapshots.files(snapshot), FILE), paths)

    def keep(self, name: str, snapshot: str) -> None:
        """Keep that directory as a version of the challenge, which is the digest of the snapshot."""
        place = self._place(name, snapshot)
        if not place.is_dir():
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".arriving-", dir=place.parent))
            try:
                self._snapshots.extract(snapshot, scratch / "new")
                (scratch / "new").rename(place)
            except OSError:
                if not place.is_dir():  # the same was sent twice at once
                    raise
            finally:
                remove_tree(scratch)

    def spec(self, name: str, version: str) -> ChallengeSpec:
        """The description of the challenge in this version."""
        return self._known(name, version)

    def _read(self, name: str, version: str) -> ChallengeSpec:
        return read_challenge((self._place(name, version) / FILE).read_text(encoding="utf-8"), None)

    def text(self, name: str, version: str, path: str) -> str:
        """The text of a page."""
        with (self._place(name, version) / path).open("rb") as file:
            return file.read(_PAGE).decode(errors="replace")

    def directory(self, name: str, version: str, path: str) -> Path:
        """Path of a part of the challenge."""
        return self._place(name, version) / path

    def digests(self, name: str, version: str, phase: str) -> Mapping[str, str]:
        """The digests of what a submission to a phase meets: the programs, and the data of its split."""
        spec, split = self._in_phase(name, version, phase)
        paths = {INGESTION: spec.ingestion, SCORING: spec.scoring, INPUT: split.input, REFERENCE: split.reference}
        if spec.sampling:
            paths[TRAIN] = spec.train
        return {what: self._digest(name, version, path) for what, path in paths.items()}

    def _scoring(self, name: str, version: str, phase: str) -> str:
        """The digest of all that decides a score: program, references, columns and the level of intervals."""
        spec, split = self._in_phase(name, version, phase)
        parts = [self._digest(name, version, path) for path in (spec.scoring, split.reference)]
        shown = [f"{column.column} {column.precision} {column.range}" for column in spec.board]
        return "sha256:" + sha256("\n".join([*parts, f"{spec.intervals}", *shown]).encode()).hexdigest()

    def _hashed(self, name: str, version: str, path: str) -> str:
        return pack(self.directory(name, version, path), surrounding=False, limit_bytes=maxsize, limit_files=maxsize).digest

    def _in_phase(self, name: str, version: str, phase: str) -> tuple[ChallengeSpec, Split]:
        spec = self.spec(name, version)
        found = spec.phase(phase)
        assert found is not None
        return spec, spec.splits[found.split]

    def starter(self, challenge: Challenge) -> BinaryIO:
        """The files that participants begin with, as an archive. Raises `NotFound`."""
        spec = self.spec(challenge.name, challenge.version)
        if not spec.starter:
            raise NotFound(f"The challenge {challenge.name} has nothing to begin with.")
        return pack(self.directory(challenge.name, challenge.version, spec.starter), surrounding=False).open()

    def notebook(self, challenge: Challenge) -> str:
        """The name of the notebook that participants begin with; "" where there is none, or more than one."""
        spec = self.spec(challenge.name, challenge.version)
        place = self.directory(challenge.name, challenge.version, spec.starter)
        found = sorted(path.name for path in place.glob("*.ipynb"))
        return found[0] if len(found) == 1 else ""

    def put_starter(self, challenge: Challenge, files: Path) -> None:
        """Have what participants begin with in a directory of `files`, where a user's code may be at work at the same time.

        It comes there whole, by one rename that follows no link. What has its name there stays as it is.
        """
        spec = self.spec(challenge.name, challenge.version)
        if not spec.starter:
            raise NotFound(f"The challenge {challenge.name} has nothing to begin with.")
        scratch = Path(tempfile.mkdtemp(prefix=".starter-", dir=files.parent))
        try:
            _copy(self.directory(challenge.name, challenge.version, spec.starter), scratch / "new")
            if challenge.train and not os.path.lexists(scratch / "new" / DATA):
                (scratch / "new" / DATA).symlink_to(self.directory(challenge.name, challenge.version, challenge.train))
            with suppress(FileExistsError, NotADirectoryError):
                (scratch / "new").rename(files / challenge.name)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        finally:
            remove_tree(scratch)

    def _place(self, name: str, version: str) -> Path:
        return place_of(self._root, name, version)

    # ---- jobs

    def check(self, challenge: Challenge, version: str) -> None:
        """Raise what keeps the programs of a version from being submitted."""
        for stage in (INGESTION, SCORING):
            self._asked(challenge, version, stage)

    def cost(self, name: str, version: str) -> Cost:
        """The most that a submission takes. Raises what keeps the programs from being submitted."""
        return self._costs(name, version)

    def _cost(self, name: str, version: str) -> Cost:
        return cost_of([self._asked(Challenge(name=name), version, stage) for stage in (INGESTION, SCORING)])

    def _asked(self, challenge: Challenge, version: str, stage: str) -> Resources:
        """What a program asks for. Raises what keeps it from being submitted."""
        spec = self.spec(challenge.name, version)
        code = self._pack(challenge, version, _program(spec, stage), None)
        return self._submissions.check(self._caller(challenge), _request(spec, code, f"{spec.name}-{stage}"))[1]

    def _size(self, name: str, version: str, path: str) -> int:
        """Bytes of the files in a directory of the challenge."""
        return sum(one.lstat().st_size for one in self.directory(name, version, path).rglob("*") if not one.is_dir())

    def _samples(self, name: str, version: str) -> Mapping[str, Path]:
        """The files of the training data that are shown one by one, by their paths in it."""
        spec = self.spec(name, version)
        if spec.sampling is None:
            return {}
        top, most = self.directory(name, version, spec.train), spec.sampling.largest
        found = sorted(one for one in top.rglob("*") if S_ISREG(one.lstat().st_mode) and one.lstat().st_size <= most)
        return {path: one for one in found if (path := str(one.relative_to(top))).isprintable()}

    def baseline(self, challenge: Challenge, version: str, name: str) -> str:
        """The digest of the code of a baseline."""
        return self._pack(challenge, version, self.spec(challenge.name, version).baselines[name], None)

    def start(self, challenge: Challenge, submission: ChallengeSubmission, stage: str) -> int:
        """Submit the job of a stage; the same stage of a submission is the same job. Returns its number."""
        name = submission.challenge
        spec, split = self._in_phase(name, submission.version, submission.phase)
        shown = {INPUT: split.input} if stage == INGESTION else {REFERENCE: split.reference}
        if stage == INGESTION and spec.sampling:  # code learns from what its authors have not seen, and what it says is filtered
            shown[TRAIN] = spec.train
        seen = {variable: str(self.directory(name, submission.version, path)) for variable, path in shown.items()}
        code = self._pack(
            challenge, submission.version, _program(spec, stage), submission.snapshot if stage == INGESTION else None
        )

        def walled(task: TaskSpec) -> TaskSpec:
            left = InputSpec(path=PREDICTIONS, uri=f"job:{submission.ingestion_job}/outputs")
            return replace(
                task,
                network=Network.OFF,
                inputs=task.inputs if stage == INGESTION else (*task.inputs, left),
                variables={**task.variables, "HOME": "/tmp", **seen},
                challenge=ChallengeProgram(challenge=name, submission=submission.id, stage=stage, readable=tuple(seen.values())),
            )

        submitted, _ = self._submissions.submit(
            self._caller(challenge),
            _request(spec, code, f"{name}-{submission.id}-{stage}"),
            f"challenge-{name}-{submission.id}-{stage}",
            change=walled,
        )
        return submitted.job.id

    def scores(self, challenge: Challenge, job_id: int) -> bytes:
        """The scores that a scoring program wrote, one byte more than may be at most. Raises `NotFound`."""
        return self._output(challenge, job_id, SCORES, LARGEST)

    def replicates(self, challenge: Challenge, job_id: int, columns: Sequence[Column]) -> Replicates:
        """The scores on resamples that a scoring program wrote. Raises `NotFound`, `Invalid`."""
        return read_replicates(self._output(challenge, job_id, REPLICATES, MOST_REPLICATES), columns)

    def _output(self, challenge: Challenge, job_id: int, path: str, most: int) -> bytes:
        with self._lab.produced.blob_path(self._caller(challenge), job_id, path).open("rb") as file:
            return file.read(most + 1)

    def _differences(self, name: str, jobs: tuple[int, ...], column: Column, level: float) -> Sequence[bool | None]:
        """Of places in their order, by the jobs that scored them: whether each differs from the one above; None: not known."""
        found: list[Sequence[float] | None] = []
        for job in jobs:
            try:
                found.append(self.replicates(Challenge(name=name), job, (column,))[column.column])
            except (NotFound, Invalid, OSError):  # they are not kept any more
                found.append(None)
        return neighbours(found, larger=column.larger, level=level)

    def record(self, challenge: Challenge, job_id: int) -> dict[str, Any]:
        """The record of a job of the challenge's."""
        return self._lab.produced.record(self._caller(challenge), job_id)

    def outputs(self, challenge: Challenge, job_id: int) -> Sequence[tuple[str, Path]]:
        """The outputs of a job of the challenge's that are kept: their paths, and the files that hold them."""
        caller, produced = self._caller(challenge), self._lab.produced
        kept = [one.path for one in produced.outputs(caller, job_id) if one.removed_at is None]
        return [(path, produced.blob_path(caller, job_id, path)) for path in kept]

    def stored(self, challenge: Challenge, job_id: int) -> int:
        """Bytes of what a job of the challenge's stored."""
        return sum(one.size for one in self._lab.produced.outputs(self._caller(challenge), job_id))

    def thin(self, challenge: Challenge, job: Job) -> None:
        """Give up the outputs of the last job of a submission that has ended. Predictions that can be scored again stay."""
        self._lab.retention.remove_outputs(self._caller(challenge), job)

    def log(self, challenge: Challenge, job_id: int, limit: int) -> bytes:
        """The end of the log of a job of the challenge's."""
        return self._lab.produced.log_range(self._caller(challenge), job_id, offset=-limit, limit=limit).data

    def try_out(self, caller: Caller, challenge: Challenge, code: str) -> tuple[int, int]:
        """Run both programs with code on training data, as two tasks of the caller's own. Returns their numbers.

        The caller reads all that these print, and could read the programs: the challenge allows that with `try`.
        """
        spec = self.spec(challenge.name, challenge.version)
        if spec.dry_run is None:
            raise NotFound(
                f"The challenge {challenge.name} has no dry run.",
                remedy="Run your code on the training data as a task of your own.",
            )
        shown = {INGESTION: spec.dry_run.input, SCORING: spec.dry_run.reference}

        def start(stage: str, after: int | None) -> int:
            given = {INPUT if stage == INGESTION else REFERENCE: str(self.directory(spec.name, challenge.version, shown[stage]))}

            def walled(task: TaskSpec) -> TaskSpec:
                left = () if after is None else (InputSpec(path=PREDICTIONS, uri=f"job:{after}/outputs"),)
                return replace(task, network=Network.OFF, inputs=(*task.inputs, *left), variables={**task.variables, **given})

            packed = self._pack(challenge, challenge.version, _program(spec, stage), code if after is None else None, caller)
            request = TaskRequest(
                snapshot=packed,
                name=f"{spec.name}-try-{stage}",
                dependency=None if after is None else f"afterok:{after}",
                **_OWN,
            )
            return self._submissions.submit(caller, request, None, change=walled)[0].job.id

        first = start(INGESTION, None)
        return first, start(SCORING, first)

    def _caller(self, challenge: Challenge) -> Caller:
        return self._lab.for_owner(challenge.programs, self._lab.clock())

    def _pack(self, challenge: Challenge, version: str, program: str, code: str | None, whose: Caller | None = None) -> str:
        """Make a snapshot of a part of the challenge, with a team's code in it; return its digest. `whose`: not its programs'."""
        with tempfile.TemporaryDirectory(prefix=".packing-", dir=self._root) as scratch:
            place = Path(scratch) / "code"
            _copy(self.directory(challenge.name, version, program), place)
            if code is not None:
                if (place / CODE).exists():
                    raise Invalid(f'The ingestion program has a "{CODE}" of its own.', remedy="The team's code takes that place.")
                self._snapshots.extract(code, place / CODE)
            packed = pack(place, surrounding=False, also=[] if code is None else [CODE])
            with packed.open() as archive:
                self._lab.add_snapshot(whose or self._caller(challenge), packed.digest, archive)
        return packed.digest


def _copy(source: Path, target: Path) -> None:
    """Copy a part of a challenge as code travels: no link leads out of it."""
    archive = target.with_name("copied.tar")
    with archive.open("wb") as file:
        pack(source, surrounding=False).write(file)
    extract(archive, target)
    archive.unlink()


def _program(spec: ChallengeSpec, stage: str) -> str:
    return spec.ingestion if stage == INGESTION else spec.scoring


def _request(spec: ChallengeSpec, code: str, name: str) -> TaskRequest:
    # What its MLproject says counts, but for what would show more of it, or take an earlier result.
    return TaskRequest(snapshot=code, name=name, qos=spec.qos or None, account=spec.account or None, **_OWN)
