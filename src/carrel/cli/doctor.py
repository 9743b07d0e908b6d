"""`carrel doctor`: is everything here that this machine needs, as a client or as a lab?"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from carrel.cli.endings import OK, OTHER
from carrel.cli.options import AsJson, Home
from carrel.client.locate import default_home
from carrel.domain.errors import CarrelError, Unavailable
from carrel.domain.units import GIB, format_size

if TYPE_CHECKING:
    from carrel.server.home import LabHome
    from carrel.server.settings import Settings

#: Below these many free bytes in the home directory it warns, and fails.
_LITTLE, _TOO_LITTLE = 10 * GIB, 1 * GIB
#: Seconds that a lab on this machine has for taking a connection.
_ANSWER = 5.0
#: Packages without which this machine can only be a client.
_SERVER = ("alembic", "fastapi", "fsspec", "jinja2", "mlflow", "sqlalchemy", "uvicorn")
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Part(StrEnum):
    """What can be looked at beside this machine."""

    SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found."""

    name: str
    #: "ok", "warn" or "fail".
    status: str
    message: str
    remedy: str = ""


def doctor_command(
    what: Annotated[
        Part | None, typer.Argument(metavar="[slurm]", help="Check the Slurm cluster instead.", show_default=False)
    ] = None,
    patience: Annotated[float, typer.Option(metavar="SECONDS", help="How long a tiny job may take to start in Slurm.")] = 60.0,
    person: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="USER", help="Try whether jobs of this user of the lab can run as theirs.", show_default=False
        ),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Check this machine and the lab; or, with `slurm`, the cluster that its partitions are on.

    Works without a lab. Ends with 1 when something fails; warnings are no failure.
    """
    from carrel.cli.screen import print_json

    found: list[Check] = []
    place = (home or default_home(os.environ)).expanduser().absolute()
    for check in run_checks(place, home) if what is None else slurm_checks(place, patience, person):
        found.append(check)
        if not as_json:
            _print_check(check)
    failed = any(check.status == "fail" for check in found)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in found]})
    return OTHER if failed else OK


def run_checks(place: Path, given: Path | None) -> Iterator[Check]:
    """Every check, one after the other. A check that fails of itself is a failed check, not the end."""
    server = not _missing()
    looks: list[tuple[str, Callable[[], Check]]] = [
        ("python", _python),
        ("server", _server),
        ("uv", _uv),
        ("git", _git),
        ("home", lambda: _home(place)),
        ("token", lambda: _token(place)),
        ("lab", lambda: _lab(given)),
        ("backends", _backends),
    ]
    if server:
        looks += [("gpus", _gpus), ("residency", _residency), ("memory", _memory), ("nursery", _nursery), ("labs", _labs)]
        looks += [("states", lambda: _states(place)), ("isolation", lambda: _isolation(place)), ("images", _images)]
        looks += [("sign-in", lambda: _sign_in(place)), ("provider", lambda: _provider(place))]
    for name, look in looks:
        try:
            yield look()
        except (CarrelError, OSError, ValueError, subprocess.SubprocessError) as error:
            remedy = error.remedy if isinstance(error, CarrelError) else ""
            yield Check(name, "fail", error.message if isinstance(error, CarrelError) else str(error), remedy)


def _backends() -> Check:
    from carrel.tracking.plugins import rivals

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


def slurm_checks(place: Path, patience: float, person: str | None) -> Iterator[Check]:
    """What there is to say of the cluster that the lab in `place` uses, or is to use."""
    missing = _missing()
    if missing:
        yield Check("server", "fail", f"{', '.join(missing)} not installed.", 'pip install "carrel[server]"')
        return
    from carrel.domain.qos import JobKind
    from carrel.engines.slurm.commands import SlurmCommands
    from carrel.engines.slurm.rest import rest_of
    from carrel.engines.slurm.survey import Survey
    from carrel.policy.partitions import partitions_for
    from carrel.server.home import LabHome
    from carrel.server.settings import read_settings
    from carrel.server.slurm import missing_programs
    from carrel.server.whose_code import check_safe

    home = LabHome(place)
    try:
        settings = read_settings(home.settings, os.environ, {})
    except CarrelError as error:
        yield Check("settings", "fail", error.message, error.remedy)
        return
    absent = missing_programs(os.environ)
    if absent:
        message = f"{', '.join(absent)} not found on this machine."
        yield Check(
            "programs", "fail", message, "Install Slurm's commands here (Debian: slurm-client), in the cluster's version."
        )
        return
    yield Check("programs", "ok", "sbatch, squeue, scontrol, scancel and sacct are here")
    try:
        check_safe(settings)
    except CarrelError as error:
        yield Check("safety", "fail", error.message, error.remedy)
    home.create()
    yield from _identity(settings, person, home, patience)
    rules = settings.rules
    commands = SlurmCommands(environ=os.environ)
    survey = Survey(
        commands,
        rest=rest_of(settings.slurm_rest, commands),
        home=place,
        url=(settings.slurm_url or running) if (running := _answering(home.read_address())) else "",
        partitions=tuple(rules.partitions.values()),
        interactive=[part.name for part in partitions_for(JobKind.SESSION, rules.qos, rules.partitions)],
        broker=settings.slurm_broker,
        lends=settings.slurm_lend,
        patience=patience,
    )
    for found in survey.findings():
        yield Check(found.name, found.status, found.message, found.remedy)


def _answering(url: str | None) -> str:
    """Return the address at which the lab was started last, if somebody listens there; "" otherwise."""
    parts = urlsplit(url or "")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_ANSWER).close()
    except (OSError, ValueError):
        return ""
    return url or ""


def _identity(settings: Settings, person: str | None, home: LabHome, patience: float) -> Iterator[Check]:
    """Who jobs run as, whether that works for `person`, and what a job of theirs could do to others."""
    from carrel.cli.doctor_attack import attack_check
    from carrel.engines.deputy.trial import changeable, try_deputy
    from carrel.server.identity import UnixUsers, deputy_command, read_identity
    from carrel.server.signing import LabKey

    identity, template = read_identity(settings.slurm_identity), settings.slurm_deputy
    yield Check("identity", "ok", identity.describe())
    if not identity.deputies and person is None:
        return
    key = LabKey(home)
    remedy = f'lab_key = "{key.public}" in the deputies\' configuration keeps them for this lab.'
    yield Check("key", "ok", "deputies and nodes run what this lab has signed", remedy)
    own = changeable(deputy_command(template, "somebody"))
    if own is not None:
        remedy = "Install it where only root can write: otherwise whoever takes over the lab decides what sudo starts."
        yield Check("deputy", "warn", f"The lab's own user can change {own}.", remedy)
    if person is None:
        yield Check("deputy", "warn", "Nobody was tried.", "`carrel doctor slurm --as USER` tries one.")
        return
    try:
        user = UnixUsers(identity, as_lab=settings.run_users_code_as_lab).of(person)
        if not user:
            yield Check("deputy", "ok", f"{person} is the lab's own user and needs no deputy")
            return
        trial = try_deputy(deputy_command(template, user), signer=key)
    except CarrelError as error:
        yield Check("deputy", "fail", f"{person}: {error.message}", error.remedy or "docs/slurm.md has the rule for sudo.")
        return
    if trial.user != user:
        yield Check("deputy", "fail", f"The deputy of {user} runs as {trial.user}.", "Mend slurm_deputy.")
        return
    yield Check("deputy", "ok", f"{person} is {user} there; their jobs keep their files in {Path(trial.directory).parent}")
    yield attack_check(settings, home, trial, key, patience)


def _sign_in(place: Path) -> Check:
    from carrel.server.home import LabHome
    from carrel.server.settings import read_settings
    from carrel.server.sign_in import describe

    home = LabHome(place)
    status, message, remedy = describe(read_settings(home.settings, os.environ, {}), home.read_address())
    return Check("sign-in", status, message, remedy)


def _provider(place: Path) -> Check:
    """Whether people can sign in through the provider that the lab's settings name."""
    from carrel.server.home import LabHome
    from carrel.server.settings import read_settings
    from carrel.server.sign_in import describe_provider

    home = LabHome(place)
    status, message, remedy = describe_provider(read_settings(home.settings, os.environ, {}), home.read_address())
    return Check("provider", status, message, remedy)


def _isolation(place: Path) -> Check:
    """Whether jobs here are kept apart from the lab; where they are, by trying to get out."""
    from carrel.containment.trial import try_walls
    from carrel.containment.walls import Isolation
    from carrel.domain.network import Network
    from carrel.server.home import LabHome
    from carrel.server.isolation import attack_walls
    from carrel.server.settings import read_settings

    home = LabHome(place)
    settings = read_settings(home.settings, os.environ, {})
    setting, network = settings.isolation, Network(settings.job_network)
    chosen = setting or (Isolation.KERNEL if home.isolated.exists() else Isolation.NONE)
    trial = try_walls(network=network is not Network.ON)
    if chosen == Isolation.NONE:
        works = "works on this machine" if not trial.why_not else f"does not work on this machine: {trial.why_not}"
        said = f'Jobs on this machine can read what the lab can, its token too. isolation = "kernel" {works}'
        return Check(
            "isolation",
            "ok",
            said.rstrip(".") + ".",
            trial.remedy or "A lab of several people needs it. It begins by itself when a second person is added.",
        )
    if trial.why_not:
        return Check("isolation", "fail", f'isolation is "{chosen}", which does not work here: {trial.why_not}', trial.remedy)
    through = attack_walls(home, network)
    if through:
        names = "; ".join(f"{what} ({said})" for what, said in list(through.items())[:5])
        return Check("isolation", "fail", f"From behind the walls {len(through)} attacks got through: {names}.", "Report it.")
    gaps = list(trial.gaps)
    if network is Network.ON:
        gaps.append("programs that listen on this machine's network addresses, 127.0.0.1 too, can be reached (job_network)")
    left = f" Open: {'; '.join(gaps)}." if gaps else ""
    return Check("isolation", "ok", f"Jobs are kept apart by the kernel.{left}")


def _images() -> Check:
    from carrel.containment.trial import try_walls
    from carrel.environments.errors import EnvironmentFailed
    from carrel.environments.images import find_image_tools

    trial = try_walls()
    if trial.why_not:
        return Check("images", "ok", f"Tasks cannot run in images here: {trial.why_not}", trial.remedy)
    try:
        tools = find_image_tools(os.environ)
    except EnvironmentFailed as error:
        return Check("images", "ok", error.message, error.remedy)
    return Check("images", "ok", f"Tasks can run in images ({tools.skopeo}, {tools.umoci}).")


def _print_check(check: Check) -> None:
    from carrel.cli.screen import clean, paint

    print(f"{paint(check.status.ljust(4), _STYLES[check.status])}  {check.name.ljust(9)} {clean(check.message)}")
    if check.remedy:
        print(f"{' ' * 15}{paint(check.remedy, 'dim')}")


def _missing() -> list[str]:
    return [name for name in _SERVER if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", "ok", f"Python {version} ({sys.executable})")


def _server() -> Check:
    missing = _missing()
    if missing:
        message = f"This machine can reach labs but run none: {', '.join(missing)} not installed."
        return Check("server", "warn", message, 'To run a lab here: pip install "carrel[server]"')
    return Check("server", "ok", "the server's packages are installed")


def _uv() -> Check:
    found = _find_uv()
    if found is None:
        return Check("uv", "warn", "uv is not here; a lab builds environments with it.", 'pip install "carrel[server]"')
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


def _git() -> Check:
    found = shutil.which("git")
    if found is None:
        return Check("git", "warn", "git is not here: commits are not recorded, and git addresses cannot be run.", "Install git.")
    return Check("git", "ok", _said(found, "--version"))


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip().splitlines()[0]


def _home(place: Path) -> Check:
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
        return Check("home", "fail", f"Others may look into {place} (mode {mode:04o}).", f"chmod 700 {place}")
    return Check("home", "ok", message)


def _token(place: Path) -> Check:
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


def _lab(home: Path | None) -> Check:
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


def _gpus() -> Check:
    from carrel.devices import discover

    found = discover(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not found:
        remedy = "Without hardware, try `carrel up --simulate-gpus 4`; with it, look at nvidia-smi."
        return Check("gpus", "warn", "no GPU found", remedy)
    return Check("gpus", "ok", ", ".join(f"{device.name} ({format_size(device.memory)})" for device in found))


def _residency() -> Check:
    from carrel.devices.machine import shares_huge_pages
    from carrel.server.preload import find_library

    path, why = find_library()
    if path:
        huge = "" if shares_huge_pages() else "; host memory is made ready faster with huge pages (docs/lending.md, What to set)"
        return Check("residency", "ok", f"GPU state moves over the bus ({path}), where a process can take part{huge}")
    remedy = "Install a C compiler and then, beside Carrel, `pip install ./residency`."
    return Check("residency", "warn", f"{why}: GPU state moves by the driver, and JAX's not at all", remedy)


def _states(place: Path) -> Check:
    """Whether GPU states can go to the disk, where the lab's settings have room for some."""
    from carrel.broker.boot_key import find_place
    from carrel.domain.errors import Unavailable
    from carrel.domain.units import format_size
    from carrel.server.home import LabHome
    from carrel.server.settings import read_settings

    room = read_settings(LabHome(place).settings, os.environ, {}).state_disk
    if not room:
        return Check("states", "ok", "GPU states stay in memory (state_disk gives them room on a disk)")
    try:
        kept = find_place()
    except Unavailable as error:
        return Check("states", "fail", f"no GPU state goes to the disk: {error.message}", error.remedy)
    return Check("states", "ok", f"GPU states have {format_size(room)} on the disk; their key is in {kept}, until the next boot")


def _memory() -> Check:
    from carrel.runner.cgroups import find_parent

    parent = find_parent()
    if parent is None:
        message = "no memory cgroup may be made here: the runner watches its task's memory instead, a few times a second"
        return Check("memory", "warn", message, "For exact limits start the lab in a systemd unit with Delegate=yes.")
    return Check("memory", "ok", f"limits are held by the kernel (cgroup version {parent.version})")


def _labs() -> Check:
    """Labs of all users on this machine, as far as /proc shows them (proc(5), hidepid)."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _is_lab(path)]
    if len(pids) < 2:
        return Check("labs", "ok", "one lab runs on this machine" if pids else "no lab runs on this machine")
    return Check(
        "labs",
        "warn",
        f"{len(pids)} labs run on this machine (processes {', '.join(str(pid) for pid in sorted(pids))}): "
        "no GPU is given out twice, but each counts all processors and all memory as its own",
        "Give each its share: carrel up --cpus N --memory SIZE",
    )


def _is_lab(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is not ours to see
        return False
    # "carrel up" itself, or a Python that runs it: its script, or its module after -m.
    starts = [number for number, word in enumerate(words[:4]) if word.rpartition(b"/")[2] in (b"carrel", b"carrel.cli.main")]
    return any(words[number + 1 : number + 2] == [b"up"] for number in starts)


def _nursery() -> Check:
    """Start the process that forks runners, with nobody at its other end: it ends at once, and well."""
    os.close(os.pidfd_open(os.getpid()))
    with tempfile.TemporaryFile("w+") as said:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.close()
        with theirs:
            command = [sys.executable, "-P", "-m", "carrel.runner.nursery"]
            done = subprocess.run(command, stdin=theirs.fileno(), stderr=said, stdout=subprocess.DEVNULL, timeout=60, check=False)
        said.seek(0)
        lines = said.read().strip().splitlines()
    if done.returncode != 0:
        return Check("nursery", "fail", f"tasks cannot be started: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return Check("nursery", "ok", "tasks can be started")
