"""What a target means: which directory is packed, and which script in it is the task. Loaded when something is submitted."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from carrel.domain.errors import Invalid, NotFound
from carrel.tasks import fetch_project
from carrel.tasks.fetch import is_remote


def code_of(target: str | Path, script: str | None, version: str | None, scratch: Path) -> tuple[Path, str | None]:
    """The directory to pack, and the script in it that is the task, if it is one."""
    path = Path(target).expanduser()
    if version is not None and path.exists():
        raise Invalid(
            f'A version ("{version}") is asked of "{target}", which lies here.',
            remedy="Check it out there, or name the repository by its address.",
        )
    if script is None and path.is_file():
        if path.suffix not in (".py", ".sh"):
            raise Invalid(f'"{target}" is not a task.', remedy="Name a directory, a .py or .sh file, or a git address.")
        return _around(path.absolute(), scratch), path.name
    if isinstance(target, Path) or path.is_dir():
        if not path.is_dir():
            raise NotFound(f'There is no file or directory "{target}".')
        return path.absolute(), script
    if not is_remote(str(target).partition("#")[0]):
        raise NotFound(
            f'There is no file or directory "{target}", and it is no git address.',
            remedy="Name a directory, a .py or .sh file, or an address such as https://host/repository.git#directory.",
        )
    fetched = fetch_project(str(target), into=scratch / "code", version=version)
    return fetched.directory, script


def _around(script: Path, scratch: Path) -> Path:
    """The directory that travels with a bare script: its own, so that it finds its modules.

    A script that lies directly in the home directory, in a temporary directory or at the top of the disk travels alone:
    what lies around it there is not its code.
    """
    around = script.parent.resolve()
    if around not in {Path.home().resolve(), Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path("/var/tmp"), Path("/")}:
        return script.parent
    alone = scratch / "alone"
    alone.mkdir()
    shutil.copy(script, alone / script.name)
    return alone
