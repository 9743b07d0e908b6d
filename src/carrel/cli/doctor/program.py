"""Looks at what is installed, and at the home directory and the lab that this user has."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from carrel.cli.doctor.check import Check
from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.units import GIB, format_size
from carrel.core.submission.installed import DISTRIBUTION, install_command
from carrel.lab.server.packages import is_installed

#: Below these many free bytes in the home directory it warns, and fails.
_LITTLE, _TOO_LITTLE = 10 * GIB, 1 * GIB
#: Packages without which this machine can only be a client.
_SERVER = ("fastapi", "fsspec", "jinja2", "sqlalchemy", "uvicorn")
#: What two distributions cannot both have, and how the list of a distribution's files (RECORD) names it.
_NAMES = {"the module carrel": r"^carrel(/|\.py,)", "the command carrel": r"/bin/carrel,"}


def backends() -> Check:
    """Whether `mlflow run --backend slurm` comes to the lab, too."""
    from carrel.lab.tracking.plugins import rivals

    others = rivals("slurm")
    if not others:
        return Check("backends", "ok", "mlflow run --backend carrel and --backend slurm both go to the lab.")
    owner = others[0].dist.name if others[0].dist is not None else others[0].value
    return Check(
        "backends",
        "warn",
        f'Another plugin of MLflow is called "slurm": {owner} ({others[0].value}). mlflow run --backend slurm is that one.',
        f"mlflow run --backend carrel goes to the lab; without {owner}, --backend slurm does too.",
    )


def missing() -> list[str]:
    """Packages of the server that are not installed."""
    return [name for name in _SERVER if not is_installed(name)]


def python() -> Check:
    """Which Python this is."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", "ok", f"Python {version} ({sys.executable})")


def command() -> Check:
    """Whether the module and the command `carrel` are those of this distribution, and not of another that has the same names."""
    for item in distributions():
        record = item.read_text("RECORD") or ""
        owned = [what for what, pattern in _NAMES.items() if re.search(pattern, record, re.MULTILINE)]
        if owned and item.name != DISTRIBUTION:
            message = f"{item.name} {item.version} owns {' and '.join(owned)} too, in {item.locate_file('')}."
            again = f"{install_command()} --force-reinstall --no-deps"
            remedy = f"Give it an environment of its own. Here: pip uninstall {item.name}, then {again}"
            return Check("command", "fail", message, remedy)
    own, first = _own_command(), shutil.which("carrel")
    if own and first and not own.samefile(first):
        message = f"The first carrel on PATH is {first}; that of this installation is {own}."
        return Check("command", "warn", message, f"Put {own.parent} before {Path(first).parent} on PATH.")
    return Check("command", "ok", f"carrel is {own}" if own else "this program is not installed, and has no command of its own")


def _own_command() -> Path | None:
    try:
        files = distribution(DISTRIBUTION).files or ()
    except PackageNotFoundError:
        return None
    found = (Path(os.path.abspath(str(file.locate()))) for file in files if file.match("bin/carrel"))  # noqa: PTH100
    return next((path for path in found if path.exists()), None)


def server() -> Check:
    """Whether this machine could run a lab."""
    absent = missing()
    if absent:
        message = f"This machine can reach labs but run none: {', '.join(absent)} not installed."
        return Check("server", "warn", message, f"To run a lab here: {install_command('server')}")
    return Check("server", "ok", "the server's packages are installed")


def uv() -> Check:
    """Whether environments can be built."""
    found = _find_uv()
    if found is None:
        return Check("uv", "warn", "uv is not here; a lab builds environments with it.", install_command("server"))
    return Check("uv", "ok", f"{_said(found, '--version')} ({found})")


def _find_uv() -> str | None:
    try:
        import uv
    except ImportError:
        return shutil.which("uv")
    try:
        return str(uv.find_uv_bin())
    except FileNotFoundError:
        return shutil.which("uv")


def git() -> Check:
    """Whether the state of a git repository can be recorded."""
    found = shutil.which("git")
    if found is None:
        return Check("git", "warn", "git is not here: commits are not recorded, and git addresses cannot be run.", "Install git.")
    return Check("git", "ok", _said(found, "--version"))


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip().splitlines()[0]


def home(place: Path) -> Check:
    """Whether the home directory can be used, and has room."""
    near = next(path for path in (place, *place.parents) if path.exists())
    if not os.access(near, os.W_OK | os.X_OK):
        return Check("home", "fail", f"{near} cannot be written.", "Choose another with --home or CARREL_HOME.")
    free = shutil.disk_usage(near).free
    message = f"{place}{'' if place.exists() else ' (not there yet)'}, {format_size(free)} free"
    if free < _TOO_LITTLE:
        return Check("home", "fail", message, "Free space, for example with `carrel env gc`, or choose another disk.")
    if free < _LITTLE:
        return Check("home", "warn", message, "Environments and outputs need room; `carrel env gc` frees some.")
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o700
    if mode & 0o077:
        status = "fail" if (place / "token").exists() else "warn"
        remedy = f"`carrel up` closes it; so does chmod 700 {place}"
        return Check("home", status, f"Others may look into {place} (mode {mode:04o}).", remedy)
    return Check("home", "ok", message)


def settings(place: Path) -> Check:
    """Whether the lab's settings can be read. Raises `CarrelError` with what is wrong in them."""
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import read_settings

    file = LabHome(place).settings
    read_settings(file, os.environ, {})
    return Check("settings", "ok", str(file) if file.exists() else f"there is no {file}: every setting is as it comes")


def token(place: Path) -> Check:
    """Whether there is a token, which nobody else can read."""
    from carrel.client.locate import read_token

    if os.environ.get("CARREL_URL"):
        known = os.environ.get("CARREL_TOKEN") or os.environ.get("CARREL_TOKEN_FILE")
        if not known:
            return Check("token", "fail", "CARREL_URL is set, but no token.", "Set CARREL_TOKEN or CARREL_TOKEN_FILE.")
        return Check("token", "ok", "a token comes from the environment")
    if not (place / "token").exists():
        return Check("token", "warn", "there is no token yet; `carrel up` makes it")
    read_token(place / "token")
    return Check("token", "ok", f"{place / 'token'}, for its owner only")


def simulated_gpus(home: Path | None) -> int:
    """How many simulated GPUs the lab that runs offers; 0 where none runs."""
    from carrel.client import Client

    try:
        with Client(home=home, patience=0) as client:
            return sum(device.simulated for node in client.nodes() for device in node.devices)
    except CarrelError:
        return 0


def lab(home: Path | None) -> Check:
    """Whether a lab answers, and as whom."""
    from carrel import __version__
    from carrel.client import Client

    try:
        with Client(home=home, patience=0) as client:
            lab, url = client.lab(), client.url
    except Unavailable as error:
        # A named lab that does not answer is a fault; a lab that was not started is none.
        named = bool(os.environ.get("CARREL_URL")) and home is None
        return Check("lab", "fail" if named else "warn", error.message, error.remedy)
    message = f"{url}, version {lab.version}, you are {lab.caller.name} ({lab.caller.role}), tracking {lab.tracking}"
    if lab.tracking == "failed":
        return Check("lab", "fail", f"{message}: {lab.tracking_message}", "Look at the lab's logs directory.")
    if lab.version != __version__:
        return Check("lab", "warn", f"{message}; this program is {__version__}", "Use the same version on both sides.")
    return Check("lab", "ok", message)
