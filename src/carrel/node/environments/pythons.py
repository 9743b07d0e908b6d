"""Which Python interpreters this machine has, and which of them a task asks for."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.node.environments.activation import clean_path
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.tools import ToolContext

#: Version requests as uv reads them: "3.11", ">=3.10,<3.13", "cpython@3.12". No paths, no options.
_REQUEST = re.compile(r"[A-Za-z0-9.,<>=!~*+@ -]+")
#: The option of uv without which it fetches a Python that is not there.
NO_DOWNLOADS = "--no-python-downloads"
_PROBE = "import platform, sys; print(sys.implementation.name + '-' + platform.python_version())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that environments are made of."""

    path: Path
    #: Implementation and exact version: "cpython-3.11.7".
    version: str


def lab_interpreter() -> Interpreter:
    """Return the Python that the lab itself runs on, outside any virtual environment."""
    path = Path(getattr(sys, "_base_executable", None) or sys.executable)
    major, minor, micro, level, serial = sys.version_info
    suffix = {"alpha": f"a{serial}", "beta": f"b{serial}", "candidate": f"rc{serial}"}.get(level, "")
    return Interpreter(path=path, version=f"{sys.implementation.name}-{major}.{minor}.{micro}{suffix}")


def platform_tag() -> str:
    """Return what, beside Python itself, decides which wheels fit: system, machine and C library."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        libc = "musl"
    return f"{sys.platform}-{os.uname().machine}-{libc.replace(' ', '-')}"


def identity(path: Path) -> list[int]:
    """Return what changes when the interpreter at `path` is replaced; empty when it is gone."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def search_path(environ: Mapping[str, str], preferred: Path) -> str:
    """Return the PATH on which interpreters are looked for: the lab's own first, then PATH, then pyenv's versions.

    pyenv's shims are left out: they fail for every version but the one that is selected.
    """
    root = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME") or Path.home()) / ".pyenv")
    shims = os.path.normpath(root / "shims")
    listed = [entry for entry in clean_path(environ) if os.path.normpath(entry) != shims]
    versions: list[Path] = []
    with suppress(PermissionError):  # another user's
        versions = sorted((root / "versions").glob("*/bin"), key=lambda path: _numbers(path.parent.name), reverse=True)
    return os.pathsep.join(dict.fromkeys([str(preferred.parent), *listed, *map(str, versions)]))


def find_interpreter(
    request: str | None, *, lab: Interpreter, uv: Path, options: Sequence[str], context: ToolContext, cwd: Path
) -> Interpreter:
    """Return the interpreter for a version request, None meaning the lab's own.

    Without `NO_DOWNLOADS` among the options uv fetches one that is not there.
    Raises `EnvironmentFailed` naming the versions that are there when none satisfies it.
    """
    if request is None:
        if not identity(lab.path):
            raise EnvironmentFailed(
                f"The lab's own Python, {lab.path}, does not exist.", remedy="Set another one, or restart the lab."
            )
        return lab
    request = request.strip()
    if not _REQUEST.fullmatch(request) or request.startswith("-"):
        raise EnvironmentFailed(
            f"The task asks for Python {request!r}, which is not a version.", remedy="Write for example 3.11 or >=3.10."
        )
    path = {"PATH": search_path(context.variables, lab.path)}
    find = [str(uv), "python", "find", "--system", "--no-project", *options, request]
    found = context.attempt(find, cwd=cwd, extra=path)
    if found.status != 0 and NO_DOWNLOADS not in options:
        context.report(f"fetching Python {request}")
        place = Path(context.variables["UV_PYTHON_INSTALL_DIR"])
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        install = [str(uv), "python", "install", "--no-bin", *options, request]
        context.run(install, cwd=cwd, doing=f"Fetching Python {request}", writable={place: place})
        found = context.attempt(find, cwd=cwd, extra=path)
    if found.status != 0 or not found.output.strip():
        raise _none_fits(request, _versions(uv, options, context, cwd, path), found.lines)
    chosen = Path(found.output.strip())
    return Interpreter(path=chosen, version=probe(chosen, context, cwd))


def probe(path: Path, context: ToolContext, cwd: Path) -> str:
    """Return implementation and exact version of an interpreter, by asking it."""
    return context.run([str(path), "-I", "-S", "-c", _PROBE], cwd=cwd, doing=f"Asking {path} for its version").strip()


def _versions(uv: Path, options: Sequence[str], context: ToolContext, cwd: Path, extra: Mapping[str, str]) -> list[str]:
    listed = context.attempt(
        [str(uv), "python", "list", "--only-installed", "--output-format", "json", *options], cwd=cwd, extra=extra
    )
    try:
        found = {str(item["version"]) for item in json.loads(listed.output)}
    except (ValueError, KeyError, TypeError):
        return []
    return sorted(found, key=_numbers)


def _none_fits(request: str, versions: Sequence[str], words: Sequence[str]) -> EnvironmentFailed:
    said = " ".join(words[-3:]).strip() or "nothing"
    there = f"this machine has {', '.join(versions)}" if versions else f"uv said: {said}"
    return EnvironmentFailed(
        f"No Python on this machine satisfies {request!r}; {there}.",
        remedy="Ask for one of these versions, or have an administrator install that Python or let uv fetch it "
        "(download_python in carrel.toml).",
        details={"python": request, "available": list(versions)},
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
