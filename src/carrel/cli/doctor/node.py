"""Looks at what this machine can do as a node of a lab: GPUs, limits, walls, images."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.cli.doctor.check import Check
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.units import format_count, format_size

if TYPE_CHECKING:
    from carrel.lab.server.home import LabHome


def gpus(simulated: int) -> Check:
    """Which GPUs there are; `simulated`: as many as the lab offers in their place."""
    from carrel.node.devices import DeviceHealth, discover

    if simulated:
        message = f"the lab offers {format_count(simulated, 'simulated GPU')}, and none of this machine's"
        return Check("gpus", "ok", message)

    found = discover(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not found:
        remedy = "Without hardware, try `carrel up --simulate-gpus 4`; with it, look at nvidia-smi."
        return Check("gpus", "warn", "no GPU found", remedy)
    message = ", ".join(f"{device.name} ({format_size(device.memory)})" for device in found)
    with DeviceHealth(found) as health:
        states = health.read()
    told = [(device, states[device.uuid]) for device in found if states[device.uuid] != ""]
    if not told:
        return Check("gpus", "ok", f"{message}; the driver reports no fault")
    faults = "; ".join(f"GPU {device.index}: {why or 'whether it is well is not known'}" for device, why in told)
    return Check("gpus", "warn", f"{message}. {faults}", "nvidia-smi -q says more; docs/administration.md, GPUs with faults.")


def residency() -> Check:
    """By which way GPU state moves."""
    from carrel.lab.server.preload import find_library
    from carrel.node.devices.machine import shares_huge_pages

    path, why = find_library()
    if path:
        huge = "" if shares_huge_pages() else "; host memory is made ready faster with huge pages (docs/lending.md, What to set)"
        return Check("residency", "ok", f"GPU state moves over the bus ({path}), where a process can take part{huge}")
    remedy = "Install a C compiler and then, beside Carrel, `pip install ./residency`."
    return Check("residency", "warn", f"{why}: GPU state moves by the driver, and JAX's not at all", remedy)


def states(place: Path) -> Check:
    """Whether GPU states can go to the disk, where the lab's settings have room for some."""
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import read_settings
    from carrel.node.broker.boot_key import find_place

    room = read_settings(LabHome(place).settings, os.environ, {}).state_disk
    if not room:
        return Check("states", "ok", "GPU states stay in memory (state_disk gives them room on a disk)")
    try:
        kept = find_place()
    except Unavailable as error:
        return Check("states", "fail", f"no GPU state goes to the disk: {error.message}", error.remedy)
    return Check("states", "ok", f"GPU states have {format_size(room)} on the disk; their key is in {kept}, until the next boot")


def memory() -> Check:
    """What holds a job's memory limit."""
    from carrel.node.runner.cgroups import find_parent

    parent = find_parent()
    if parent is None:
        message = (
            "no memory cgroup may be made here: the lab looks at a job's processes, its files in memory and its /dev/shm a few "
            "times a second, and ends it. Memory of the kernel's own is not counted, and a hostile job can take the machine's"
        )
        unit = "start the lab in a systemd unit with Delegate=yes"
        # The user's own manager may make cgroups, and listens there (systemd-run(1), --user).
        if shutil.which("systemd-run") and Path(os.environ.get("XDG_RUNTIME_DIR") or "/none", "systemd/private").exists():
            unit = f"{unit}, or with `systemd-run --user --scope carrel up`"
        return Check("memory", "warn", message, f"For exact limits {unit}.")
    held = f"limits are held by the kernel (cgroup version {parent.version}), files in memory and the page cache counted"
    return Check("memory", "ok", held)


def labs() -> Check:
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


def nursery() -> Check:
    """Start the process that forks runners, with nobody at its other end: it ends at once, and well."""
    os.close(os.pidfd_open(os.getpid()))
    with tempfile.TemporaryFile("w+") as said:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.close()
        with theirs:
            command = [sys.executable, "-P", "-m", "carrel.node.runner.nursery"]
            done = subprocess.run(command, stdin=theirs.fileno(), stderr=said, stdout=subprocess.DEVNULL, timeout=60, check=False)
        said.seek(0)
        lines = said.read().strip().splitlines()
    if done.returncode != 0:
        return Check("nursery", "fail", f"tasks cannot be started: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return Check("nursery", "ok", "tasks can be started")


def isolation(place: Path) -> Check:
    """Whether jobs here are kept apart from the lab, and whether the walls that do it stand."""
    from carrel.core.domain.network import Network
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.identity import read_identity
    from carrel.lab.server.isolation import LocalWalls, chosen_isolation
    from carrel.lab.server.private_files import secret_files
    from carrel.lab.server.settings import read_settings
    from carrel.lab.server.whose_code import WhoseCode
    from carrel.node.containment.trial import try_walls
    from carrel.node.containment.walls import Isolation

    home = LabHome(place)
    settings = read_settings(home.settings, os.environ, {})
    # The variables of the lab that runs need not be those of this command.
    started_with = {**settings.values, **home.read_settings_in_force()}
    setting, network = started_with["isolation"], Network(started_with["job_network"])
    trial = try_walls(network=network is not Network.ON)
    walls = LocalWalls(home, secrets=secret_files(settings.values, settings.rules))
    if not trial.why_not:
        trial = replace(walls.try_python(), gaps=trial.gaps)
    people = _people(home, settings.database)
    whose_code = WhoseCode(read_identity(settings.slurm_identity), allowed=settings.run_users_code_as_lab)
    chosen = chosen_isolation(setting, home, 0 if whose_code.strict else people)
    if chosen == Isolation.NONE and people > 1 and not whose_code.strict:
        return Check(
            "isolation",
            "warn",
            f"Nothing keeps the jobs of {people} people apart: what each of them runs on this machine can read the files, "
            "results, logs and secrets of all others and the lab's token, and act as anybody.",
            trial.remedy or 'Write isolation = "kernel" into carrel.toml and start the lab again; it works on this machine.',
        )
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
    gaps = list(trial.gaps)
    if network is Network.ON:
        gaps.append("programs that listen on this machine's network addresses, 127.0.0.1 too, can be reached (job_network)")
    if loose := walls.loose():
        more = f" and more ({len(loose)} in all)" if len(loose) > len(loose[:5]) else ""
        gaps.append(f"jobs that run already can read what is renamed to the place of {', '.join(loose[:5])}{more}")
    open_ = f" Open: {'; '.join(gaps)}." if gaps else ""
    said = f"Jobs are kept apart by the kernel.{open_}"
    left = walls.left()
    if not left:
        return Check("isolation", "ok", said)
    places = Counter(str(Path(path).parent) for path in left)
    shown = [path for path in left if places[str(Path(path).parent)] == 1][:5]
    shown += [f"{count} in {place}" for place, count in places.most_common(5) if count > 1]
    names = ", ".join(shown) + (f" and more ({len(left)} in all)" if len(left) > len(shown) else "")
    remedy = "Let everybody read what is for jobs, move the rest into a directory of mode 0700, and start the lab again."
    return Check("isolation", "warn", f"{said} All jobs can read what other users of the machine cannot: {names}.", remedy)


def _people(home: LabHome, database: str | None) -> int:
    """How many people the lab has had; 0 where there is none yet."""
    from carrel.lab.store import Database
    from carrel.lab.store.people import UserTable

    if not database and not home.database.exists():
        return 0
    users = UserTable(Database(database) if database else Database.at(home.database))
    return len(users.list())


def images() -> Check:
    """Whether tasks can run in images."""
    from carrel.node.containment.trial import try_walls
    from carrel.node.environments.errors import EnvironmentFailed
    from carrel.node.environments.image_tools import find_image_tool

    trial = try_walls()
    if trial.why_not:
        return Check("images", "ok", f"Tasks cannot run in images here: {trial.why_not}", trial.remedy)
    try:
        tool = find_image_tool(os.environ)
    except EnvironmentFailed as error:
        return Check("images", "ok", error.message, error.remedy)
    return Check("images", "ok", f"Tasks can run in images ({', '.join(tool.programs)}).")
