"""The environment of a promoted notebook: exact versions where a lock says so, names of packages where none does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from carrel.core.domain.errors import Invalid, NotFound
from carrel.notebooks.promote.findings import Findings, Severity
from carrel.notebooks.promote.packages import Import, is_standard, matching, normal, nowhere, package_of

#: What a kernel needs and a script does not. Each stays where a cell imports it, or where another package needs it: that is
#: resolved, to the version in the lock.
_KERNEL = frozenset({
    "appnope", "asttokens", "comm", "debugpy", "executing", "ipykernel", "ipython", "ipython-pygments-lexers", "jedi",
    "jupyter-client", "jupyter-core", "matplotlib-inline", "nest-asyncio", "nest-asyncio2", "parso", "pexpect", "pip",
    "prompt-toolkit", "ptyprocess", "pure-eval", "pyzmq", "setuptools", "stack-data", "tornado", "traitlets", "wcwidth", "wheel",
})  # fmt: skip
#: What running the notebook itself needs.
RUNNER = ("nbclient", "ipykernel")
_NAME = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(?P<rest>.*)", re.DOTALL)
_PIN = re.compile(r"===?\s*[A-Za-z0-9.*+!_-]+\s*(?:;.*)?")
_HASH = re.compile(r"\s*\\?\s*--hash[= ]\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What is installed where the notebook ran."""

    #: Normal name -> requirement with its exact version (or address).
    packages: Mapping[str, str]
    #: What lies on that machine only, as the lock says it.
    local: tuple[str, ...] = ()
    #: Module -> normal name of the package that brings it, where the installed files tell.
    modules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The files of an environment."""

    #: Lines of requirements.txt.
    requirements: tuple[str, ...]
    #: Lines of constraints.txt, () for none.
    constraints: tuple[str, ...] = ()
    #: Version of Python, or None for the lab's own.
    python: str | None = None
    #: True when all versions come from a lock.
    locked: bool = False


def installed(prefix: Path) -> tuple[str, str | None]:
    """Return the lock of what is installed in an environment (a virtual environment or a conda prefix), and its Python ("3.11").

    Raises `NotFound` when there is none. No process is started.
    """
    from carrel.node.environments.named.changes import freeze, site_packages

    sites = list(site_packages(prefix))
    if not sites:
        raise NotFound(f"There is no Python environment in {prefix}.", remedy="Name the directory above its bin/python.")
    match = re.fullmatch(r"python(3\.\d+)t?", sites[0].parent.name)
    texts = [freeze(base) for base in _bases(prefix, sites)]
    return "".join([*texts, freeze(prefix)]), match[1] if match else None


def installed_modules(prefix: Path) -> dict[str, str]:
    """Return which package brings each top-level module of an environment, as the installed files say (normal names)."""
    import importlib.metadata

    from carrel.node.environments.named.changes import site_packages

    sites = list(site_packages(prefix))
    found: dict[str, str] = {}
    for place in [*(site for base in _bases(prefix, sites) for site in site_packages(base)), *sites]:
        for distribution in importlib.metadata.distributions(path=[str(place)]):
            name = distribution.metadata["Name"]
            if name:
                found.update((module, normal(name)) for module in _tops(distribution.files or ()))
    return found


def _tops(files: Iterable[PurePath]) -> set[str]:
    """Top-level modules among the files of a package."""
    tops: set[str] = set()
    for file in files:
        first = file.parts[0]
        if len(file.parts) > 1:
            if first.isidentifier() and first != "__pycache__":
                tops.add(first)
        elif file.suffix in (".py", ".so", ".pyd") and first.partition(".")[0].isidentifier():
            tops.add(first.partition(".")[0])
    return tops


def _bases(prefix: Path, sites: Iterable[Path]) -> list[Path]:
    """Prefixes whose packages an environment reads too: by pyvenv.cfg (PEP 405), or by .pth files (Python's `site`)."""
    found: list[Path] = []
    try:
        settings = (prefix / "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        settings = ""
    if re.search(r"(?mi)^include-system-site-packages\s*=\s*true\s*$", settings):
        home = re.search(r"(?m)^home\s*=\s*(.+?)\s*$", settings)
        found += [Path(home[1]).parent] if home else []
    for site in sites:
        for file in sorted(site.glob("*.pth")):
            for match in re.finditer(
                r"['\"]?(/[^'\"\n;]+?)/lib(?:64)?/python3[^/'\"\n]*/site-packages", file.read_text(errors="replace")
            ):
                base = Path(match[1])
                if base.is_dir() and base not in found:
                    found.append(base)
    return found


def read_lock(text: str) -> Lock:
    """Read requirement lines with exact versions, as `uv pip freeze` and `carrel env lock` write them; raise `Invalid`."""
    packages: dict[str, str] = {}
    local: list[str] = []
    for raw in re.sub(r"\\\n", " ", text).split("\n"):
        line = _HASH.sub("", re.sub(r"(^|\s)#.*$", "", raw)).strip()
        if not line or (line.startswith("-") and not line.startswith(("-e", "--editable"))):
            continue
        match = _NAME.fullmatch(line)
        address = match["rest"].partition("@")[2].strip() if match and match["rest"].startswith("@") else ""
        if line.startswith(("-e", "--editable", ".", "/", "file:")) or address.startswith("file:"):
            local.append(line)
        elif match is not None and (address or _PIN.fullmatch(match["rest"])):
            packages[normal(match["name"])] = line
        else:
            raise Invalid(
                f'The lock has "{line[:80]}", which is no exact version.', remedy="Write it with `uv pip freeze`: name==version."
            )
    return Lock(packages=packages, local=tuple(local))


def plan_environment(
    imports: Sequence[Import],
    findings: Findings,
    *,
    lock: Lock | None,
    python: str | None,
    files: Sequence[Path],
    runner: bool,
) -> Environment:
    """Return the environment for what is imported and for what cells install. `files` are requirements files that they name.

    With a lock all that is installed stays, except a kernel's own machinery; a part of that which another package needs is
    resolved to the version of the lock, which is a constraint.

    Raises `Invalid` for an import that neither the lock, nor what cells install, nor the kept table of import names knows,
    with its cell and line: a name is never guessed.
    """
    wanted = [*findings.requirements, *(line for file in files for line in _lines(file, findings))]
    asked = {_called(line): line for line in wanted if not line.startswith("-")}
    options = [line for line in wanted if line.startswith("-")]
    modules = [item for item in imports if not is_standard(item.module)]
    names = {*lock.packages, *asked} if lock else set(asked)
    needed: dict[str, str] = {}
    unknown: list[Import] = []
    for item in modules:
        package = _package(item, names, findings, lock)
        if package is not None:
            needed.setdefault(package, item.module)
        elif not item.optional:
            unknown.append(item)
    _check_known(unknown, asked, needed, findings, is_locked=lock is not None)
    if runner:
        needed.update((name, name) for name in RUNNER)
    chosen = _from_lock(lock, asked, needed, findings) if lock else _guessed(asked, needed, findings)
    pins = sorted(line for line in lock.packages.values() if _PIN.fullmatch(_spec(line))) if lock else []
    return Environment(
        requirements=(*dict.fromkeys(options), *sorted(chosen.values())),
        constraints=tuple(pins),
        python=python if lock else None,
        locked=lock is not None,
    )


def _package(item: Import, names: set[str], findings: Findings, lock: Lock | None) -> str | None:
    """Return the normal name of the package for an import, or None when there is nothing to install."""
    if nowhere(item.module) is not None:
        return None
    found = (lock.modules.get(item.top) if lock else None) or matching(item.module, names)
    if found is None and lock is not None and normal(item.top) in " ".join(normal(line) for line in lock.local):
        found = normal(item.top)
    if found is None and item.optional:
        findings.note(Severity.GUESSED, f"{item.module} is imported where it may be missing: it is not installed")
    return found or (None if item.optional else package_of(item.module))


def _check_known(
    unknown: Sequence[Import], asked: Mapping[str, str], needed: Mapping[str, str], findings: Findings, *, is_locked: bool
) -> None:
    """Raise `Invalid` for imports that no package is known for.

    Where nothing is locked and cells install something that no import explains, the import may well come from that.
    """
    spare = [] if is_locked else [line for name, line in asked.items() if name not in needed]
    missing = []
    for item in unknown:
        text = nowhere(item.module)
        if text is None and spare:
            findings.note(Severity.GUESSED, f"{item.module} comes from what a cell installs: {', '.join(spare)}")
        else:
            where = f"{item.origin}, line {item.line}" if item.origin else f"line {item.line}"
            reason = text or "neither a module beside the notebook nor a package that is known here"
            missing.append(f"{where}: import {item.module} ({reason})")
    if missing:
        raise Invalid(
            "Nobody knows where these imports come from:\n" + "\n".join(dict.fromkeys(missing)),
            remedy="Put the module beside the notebook, install its package in a cell (%pip install NAME), name the environment "
            "that has it (--environment), or leave the cell out. A name is not guessed: a stranger's package may have it.",
            details={"imports": sorted({item.module for item in unknown})},
        )


def _from_lock(lock: Lock, asked: Mapping[str, str], needed: Mapping[str, str], findings: Findings) -> dict[str, str]:
    chosen = {name: line for name, line in lock.packages.items() if name not in _KERNEL or name in needed or name in asked}
    for line in lock.local:
        findings.note(
            Severity.CHECK, f"{line} is installed from a place on one machine: put its code beside the notebook, or publish it"
        )
    local = " ".join(normal(line) for line in lock.local)
    for name, line in asked.items():
        if name not in chosen:
            chosen[name] = line
            findings.note(Severity.GUESSED, f"{line} is installed by a cell and not in the lock: its version is open")
    for name, module in needed.items():
        if name not in chosen and name not in local:
            chosen[name] = name
            findings.note(
                Severity.GUESSED, f"{name}, for `import {module}`, is not in the lock: the name is guessed and its version open"
            )
    for name, line in chosen.items():
        if re.search(r"==\s*[^;\s]*\+", line):
            findings.note(Severity.CHECK, f"{line}: the part behind + comes from an index of its own, which the lab must know")
        elif name in asked and re.search(r"[<>=!~]", asked[name]) and asked[name] != line:
            findings.note(Severity.CHANGED, f"a cell installs {asked[name]}; {line} is what is installed")
    return chosen


def _guessed(asked: Mapping[str, str], needed: Mapping[str, str], findings: Findings) -> dict[str, str]:
    chosen = dict(asked)
    for name, module in needed.items():
        if name not in chosen:
            chosen[name] = name
            if name not in RUNNER:
                top = module.partition(".")[0]
                findings.note(
                    Severity.GUESSED,
                    f"{name}{'' if normal(top) == name else f', for `import {top}`'}: in the newest version",
                )
    return chosen


def _called(line: str) -> str:
    match = _NAME.fullmatch(line)
    return normal(match["name"]) if match and "://" not in line.partition("@")[0] else line


def _spec(line: str) -> str:
    match = _NAME.fullmatch(line)
    return match["rest"] if match else ""


def _lines(file: Path, findings: Findings) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        findings.note(
            Severity.CHECK, f"{file.name} is installed by a cell and cannot be read: write what it asks for into requirements.txt"
        )
        return []
    lines = [_HASH.sub("", re.sub(r"(^|\s)#.*$", "", line)).strip() for line in re.sub(r"\\\n", " ", text).split("\n")]
    for line in lines:
        if line.startswith(("-e", "-r", "-c", ".", "/", "file:")):
            findings.note(Severity.CHECK, f'"{line}" in {file.name} does not travel')
    return [line for line in lines if line and not line.startswith(("-e", "-r", "-c", ".", "/", "file:"))]
