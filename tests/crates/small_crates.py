"""Crates of a small job that nobody ran."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrel.core.crates import Content, OutputFile, write_crate
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe, GitState, InputSpec, TaskSpec
from carrel.core.snapshots import Entry, pack

LOCK = f"idna==3.10 \\\n    --hash=sha256:{'a' * 64}\n"
RESULT = b"0.25\n"
TASK = TaskSpec(
    entry_point="main",
    command="python train.py --lr 0.1",
    snapshot="",
    parameters={"lr": "0.1", "data set": "ü"},
    environment=EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, source="requirements.txt", requirements=("idna",)),
    inputs=(InputSpec(path="data/train.csv", uri="https://example.org/train.csv"),),
    variables={"MODE": "fast"},
    git=GitState(commit="c" * 40, remote="git@example.org:lab/code.git", dirty=True, diff="+1"),
)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_record(snapshot: str, **task: Any) -> dict[str, Any]:
    return {
        "lab": "2d23d8fa769d",
        "job": {
            "id": 12,
            "name": "digits",
            "owner": "ada",
            "account": "physics",
            "qos": "normal",
            "state": "COMPLETED",
            "reason": {"code": "Completed", "message": "Exit code 0."},
            "resources": {"nodes": 1, "cpus": 1, "memory": 1 << 30, "gpus": 0, "gpu_memory": 0, "time": 600},
            "submitted_at": 1795743744.25,
            "ended_at": 1795743757.11,
            "attempt": 1,
            "retries_left": 0,
        },
        "task": to_plain(replace(TASK, snapshot=snapshot, **task)),
        "attempts": [
            {
                "number": 1,
                "node": "bench",
                "state": "COMPLETED",
                "exit_code": 0,
                "started_at": 1795743748.7,
                "ended_at": 1795743757.1,
                "environment_lock": digest(LOCK.encode()),
                "environment_lock_text": LOCK,
                "python": "cpython-3.11.7",
                "hardware": {"cpu": "Example 1"},
                "seeds": {"OMP_NUM_THREADS": "1"},
                "inputs": {"data/train.csv": digest(b"1,2\n")},
                "outputs": [{"path": "outputs/loss.txt", "size": len(RESULT), "digest": digest(RESULT)}],
            }
        ],
    }


def content(place: Path, files: Mapping[str, str] | None = None, **task: Any) -> Content:
    """A job whose code has an executable file and a link."""
    code = place / "code"
    code.mkdir(parents=True)
    for name, text in (files or {"train.py": "print(1)\n", "LICENSE": "Do what you like.\n"}).items():
        (code / name).write_text(text)
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    (code / "link").symlink_to("train.py")
    packed = pack(code)

    def read(entry: Entry) -> tuple[bytes]:
        return ((code / entry.path).read_bytes(),)

    return Content(
        record=make_record(packed.digest, **task),
        code=packed.files,
        read_code=read,
        outputs=[OutputFile(path="outputs/loss.txt", size=len(RESULT), digest=digest(RESULT))],
        read_output=lambda _one: (RESULT,),
        metrics={"metrics": {"loss": {"last": "0.25", "steps": [1, 2], "values": ["0.5", "0.25"]}}, "parameters": {}},
        version="1.0",
        said={
            name: (code / name).read_text() for name in ("LICENSE", "CITATION.cff", "pyproject.toml") if (code / name).exists()
        },
    )


def written(of: Content) -> bytes:
    out = io.BytesIO()
    write_crate(of, out)
    return out.getvalue()


Change = Callable[[zipfile.ZipInfo, bytes], tuple[zipfile.ZipInfo, bytes] | None]


def changed(data: bytes, change: Change, *more: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    """The archive with each member as `change` has it (None: without it), and `more` behind them."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        kept = [made for member in old.infolist() if (made := change(member, old.read(member))) is not None]
        for member, text in (*kept, *more):
            new.writestr(member, text)
    return out.getvalue()


def member(name: str, mode: int = 0o100644, method: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo("x")
    made.filename = made.orig_filename = name
    made.create_system, made.external_attr, made.compress_type = 3, mode << 16, method
    return made
