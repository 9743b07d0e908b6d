"""The program of attacks, run behind walls; and behind those of a lab."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.network import Network
from carrel.lab.server.home import LabHome
from carrel.lab.server.isolation import LocalWalls, is_below
from carrel.node.containment.walls import Bind, Walls
from support.attacks import ATTACKS, NOTHING
from support.inside import outside, run_inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """The attempts that were made, and those that succeeded, each with what it got."""

    made: Sequence[str]
    through: Mapping[str, str]


def attack(
    walls: Walls,
    *,
    secrets: Sequence[str],
    directories: Sequence[str] = (),
    processes: Sequence[int] = (),
    sockets: Sequence[str] = (),
    addresses: Sequence[tuple[str, int]] = (),
    devices: Sequence[str] = (),
    writable: str = "/tmp",
    python: str = "",
) -> Attempts:
    """Try to get out of `walls`. Raises `OSError` when it could not be tried."""
    about = {
        **NOTHING,
        "files": {"token and secret": list(secrets)},
        "directories": list(directories),
        "processes": list(processes),
        "sockets": list(sockets),
        "addresses": [list(address) for address in addresses],
        "closed": walls.doors is not None,
        "devices": list(devices),
        "hidden": list(walls.hidden),
        "own": [bind.place for bind in walls.binds if bind.writable],
        "given": [Path(device).name for device in walls.devices],
        "writable": writable,
        "memory": walls.shared_memory,
        **outside(),
    }
    code, said = run_inside(walls, [python or os.path.realpath(sys.executable), "-I", "-c", ATTACKS, json.dumps(about)])
    try:
        tried, through = (json.loads(line) for line in said.decode().strip().splitlines()[-2:])
    except ValueError as error:
        raise OSError(0, f"the attacks ended with {code}: {said.decode(errors='replace')[-500:]}") from error
    return Attempts(made=[f"{kind}: {name}" for kind, names in tried.items() for name in names], through=through)


def attack_walls(home: LabHome, network: Network = Network.ON, named: Sequence[str] = ()) -> Attempts:
    """Try to get at the lab from behind the walls that a stranger's job has. Raises `OSError` when it could not be tried.

    `named` are secrets of the lab outside of its home.
    """
    seen = LocalWalls(home, secrets=named)("somebody who is not there")
    with tempfile.TemporaryDirectory(prefix="carrel-attack-") as temporary:
        doors = None if network is Network.ON else ()
        binds = tuple(Bind(path) for path in seen.readable)
        walls = Walls(hidden=seen.hidden, frozen=seen.frozen, binds=binds, temporary=temporary, doors=doors)
        secrets = [path for path in (home.token, home.path / "secret", home.settings, home.database) if path.exists()]
        private = [path for path in seen.hidden if not any(is_below(shown, [path]) for shown in seen.readable)]
        return attack(
            walls,
            secrets=[
                *(os.path.realpath(path) for path in secrets),
                *(path for path in (*named, *private) if Path(path).is_file()),
            ],
            directories=[path for path in private if Path(path).is_dir()],
            processes=[os.getpid(), os.getppid()],
            devices=["/dev/mem", "/dev/kmsg", "/dev/nvidia0", "/dev/nvidiactl"],
        )
