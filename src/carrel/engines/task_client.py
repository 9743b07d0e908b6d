"""The client that travels with every task: `import carrel` and ``mlflow.run(backend="carrel")`` work in an environment that has
neither. The lab packs it once, of its own files; no index is asked.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import carrel
from carrel.core.spool.trees import remove_tree
from carrel.core.submission.installed import DISTRIBUTION
from carrel.node.runner.variables import CLIENT_HOOK
from carrel.wire.needs import needs_beside

#: What the client is made of, below the package `carrel`.
PARTS = (
    "__init__.py",
    "client",
    "core/__init__.py",
    "core/domain",
    "core/lazy_imports.py",
    "core/snapshots",
    "core/submission",
    "core/tasks",
    "dask.py",
    "lab/__init__.py",
    "lab/tracking/__init__.py",
    "lab/tracking/cached_run.py",
    "lab/tracking/nested.py",
    "lab/tracking/new_store.py",
    "lab/tracking/plugins.py",
    "lab/tracking/project_backend.py",
    "lab/tracking/status.py",
    *(f"notebooks/hook/front/carrel_kernel/{name}.py" for name in ("link", "residency", "state")),  # which travel to workers
    "submitit",
    "wire",
)
#: Packages that it needs, and that an environment may lack.
_NEEDED = ("cloudpickle", "httpx", "pydantic", "pyyaml")
_ENTRY_POINTS = """\
[carrel.task_options]
slurm = carrel.core.submission.slurm_options:SlurmOptions

[mlflow.project_backend]
carrel = carrel.lab.tracking.project_backend:carrel_backend
slurm = carrel.lab.tracking.project_backend:slurm_backend

[submitit]
executor = carrel.client.submitit.plugin:CarrelExecutor
job_environment = carrel.client.submitit.plugin:CarrelJobEnvironment
"""
#: Seconds.
_OLD = 90 * 86400.0
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def pack_client(directory: Path) -> Path:
    """Return the directory of the client below `directory`; make it where it is not there, whole or not at all."""
    sources = list(_sources())
    packages = _packages()
    place = directory / _digest(sources, packages)
    if place.exists():
        os.utime(place)
        return place
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft.", dir=directory))
    try:
        _write(draft, sources, packages)
        draft.rename(place)
    finally:
        remove_tree(draft)
    _remove_old(directory)
    return place


def _remove_old(directory: Path) -> None:
    """Earlier ones are for jobs that began with them; what no lab has started with for long is removed."""
    for old in directory.iterdir():
        with suppress(OSError):
            if old.stat().st_mtime < time.time() - _OLD:
                remove_tree(old)


def _write(draft: Path, sources: list[tuple[Path, str]], packages: list[Distribution]) -> None:
    modules = draft / "modules"
    for path, name in sources:
        _copy(path, modules / "carrel" / name)
    about = modules / f"{DISTRIBUTION.replace('-', '_')}-{carrel.__version__}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {carrel.__version__}\n")
    (about / "entry_points.txt").write_text(_ENTRY_POINTS)
    for package in packages:
        for file in package.files or ():
            # Metadata stays here: what is installed in the task's environment is for its own to say.
            if file.parts[0] != ".." and not file.parts[0].endswith(".dist-info") and file.suffix != ".pyc":
                _copy(Path(str(file.locate())), needs_beside(modules) / file)
    for path in _hook():
        _copy(path, draft / CLIENT_HOOK / path.name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _sources() -> Iterator[tuple[Path, str]]:
    """Files of the client, each with its name below `carrel`."""
    root = Path(carrel.__file__).parent
    for part in PARTS:
        found = [root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py"))
        yield from ((path, str(path.relative_to(root))) for path in found)


def _hook() -> list[Path]:
    """What Python imports when a task starts it."""
    return sorted((Path(__file__).parent / "task_client_hook").glob("*.py"))


def _packages() -> list[Distribution]:
    """What is needed, with what that needs in turn, as far as the lab has it."""
    found: dict[str, Distribution] = {}
    wanted = list(_NEEDED)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = item = distribution(name)
        except PackageNotFoundError:
            continue
        lines = (line for line in item.requires or () if "extra ==" not in line)
        wanted += [match[0].lower() for line in lines if (match := _NAME.match(line))]
    return [found[name] for name in sorted(found)]


def _digest(sources: list[tuple[Path, str]], packages: list[Distribution]) -> str:
    """A name for the state of all files: an update of the lab makes another client, and jobs keep the one that they have."""
    said = [EXTENSION_SUFFIXES[0], *(f"{item.name}=={item.version}" for item in packages)]
    for path, name in (*sources, *((path, "") for path in (Path(__file__), *_hook()))):
        state = path.stat()
        said.append(f"{name}:{state.st_size}:{state.st_mtime_ns}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
