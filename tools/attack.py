"""Attacks a lab of your own, as a job of one of its users could, and says of each attempt whether it was repelled.

    /opt/carrel/bin/python tools/attack.py --home /srv/lab
    /opt/carrel/bin/python tools/attack.py --home /srv/lab --as alice

Run it from a checkout, as the Unix user of the lab, with the Python that the lab runs in. The first line attacks from behind the
walls that jobs on the lab's machine have (isolation = "kernel"). The second attacks from a job on the cluster, as the Unix user
that jobs of alice run as. An attempt that succeeds looks, and leaves at most something empty with "planted" in its name.
Where a lab has no walls, nothing is tried.

Ends with 0 when every attempt was repelled, with 1 when one succeeded, and with 2 when nothing could be tried.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path

from carrel.cli.screen import clean
from carrel.client.locate import default_home
from carrel.core.domain.errors import CarrelError, Impossible
from carrel.core.domain.network import Network
from carrel.engines.deputy.trial import try_deputy
from carrel.engines.slurm.partition import slurm_of
from carrel.lab.server.home import LabHome
from carrel.lab.server.identity import UnixUsers, deputy_command, read_identity
from carrel.lab.server.private_files import secret_files
from carrel.lab.server.settings import Settings, read_settings
from carrel.lab.server.signing import LabKey
from carrel.node.containment.trial import try_walls
from carrel.node.containment.walls import Isolation
from support.attacking import Attempts, attack_walls
from support.cluster_attack import attack_cluster

REPELLED, SUCCEEDED, NOT_TRIED = 0, 1, 2


def from_behind_walls(home: LabHome, settings: Settings) -> Attempts:
    """Attack as a job on the lab's own machine. Raises `Impossible` where that has no walls."""
    network = Network(settings.job_network)
    if (settings.isolation or (Isolation.KERNEL if home.isolated.exists() else Isolation.NONE)) == Isolation.NONE:
        raise Impossible(
            "This lab has no walls: jobs on its machine can read and do what the lab can.",
            remedy='Write isolation = "kernel" into carrel.toml, and start the lab again.',
        )
    trial = try_walls(network=network is not Network.ON)
    if trial.why_not:
        raise Impossible(f"The walls do not stand on this machine: {trial.why_not}", remedy=trial.remedy)
    return attack_walls(home, network, secret_files(settings.values, settings.rules))


def from_the_cluster(home: LabHome, settings: Settings, person: str, patience: float) -> Attempts:
    """Attack as a job of a user on the cluster. Raises `CarrelError` where they have no deputy."""
    partitions = [part for one in settings.rules.partitions.values() if (part := slurm_of(one)) is not None]
    user = UnixUsers(read_identity(settings.slurm_identity), as_lab=settings.run_users_code_as_lab).of(person)
    if not partitions or not user:
        why = "is the lab's own Unix user" if partitions else "has no partition of a cluster here"
        raise Impossible(f"{person} {why}.", remedy="docs/slurm.md says how jobs run as their owners.")
    command, key = deputy_command(settings.slurm_deputy, user), LabKey(home)
    return attack_cluster(
        home=home,
        user=user,
        command=command,
        other=deputy_command(settings.slurm_deputy, getpass.getuser()),
        directory=str(Path(try_deputy(command, signer=key).directory).parent),
        partition=partitions[0],
        signer=key,
        patience=patience,
    )


def show(attempts: Attempts) -> int:
    """Print each attempt and what came of it; return the exit code."""
    for name in attempts.made:
        got = attempts.through.get(name)
        print(clean(f"repelled   {name}" if got is None else f"SUCCEEDED  {name}{got and ': '}{got}"))
    made, through = len(attempts.made), len(attempts.through)
    if through:
        print(f"{through} of {made} attempts succeeded: close that before anybody else may use the lab (SECURITY.md).")
        return SUCCEEDED
    print(f"All {made} attempts were repelled.")
    return REPELLED


def main() -> int:
    """Attack, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=default_home(os.environ), help="the lab's home (default: %(default)s)")
    parser.add_argument("--as", dest="person", metavar="USER", help="attack from a job on the cluster, as this user of the lab")
    parser.add_argument("--patience", type=float, default=60.0, metavar="SECONDS", help="how long that job may take (60)")
    options = parser.parse_args()
    home = LabHome(options.home.expanduser().absolute())
    try:
        if not home.database.exists() and not home.settings.exists():
            raise Impossible(f"{home.path} is no lab's home.", remedy="Name it with --home.")
        settings = read_settings(home.settings, os.environ, {})
        if options.person is None:
            return show(from_behind_walls(home, settings))
        return show(from_the_cluster(home, settings, options.person, options.patience))
    except CarrelError as error:
        print(f"Nothing was tried. {error.message} {error.remedy}".strip(), file=sys.stderr)
    except OSError as error:
        print(f"Nothing is known: {error.strerror}", file=sys.stderr)
    return NOT_TRIED


if __name__ == "__main__":
    sys.exit(main())
