"""`carrel broker`: what lends a cluster node's GPUs to the cells of its sessions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, option
from carrel.client.locate import default_home
from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Node


def broker_command(
    home: Home = None,
    secret: Annotated[
        Path | None, option("--secret", "FILE", "The lab's secret, where its home does not show it.  [HOME/secret]")
    ] = None,
    simulate_gpus: Annotated[
        int | None, option("--simulate-gpus", "N", "Offer simulated GPUs instead of the node's own.", min=0)
    ] = None,
    node: Annotated[
        str | None, option("--node", "NAME", "The node's name in Slurm.  [its host name, up to the first dot]")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Lend this cluster node's GPUs to the cells of sessions, until SIGTERM or Ctrl-C.

    One runs on each node, for all sessions that Slurm starts there; where none does, a session keeps its share from start to end.
    Its socket is the setting slurm_broker. See docs/slurm.md.
    """
    from carrel.core.spool.log_lines import log_to_stderr
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.node_broker import run_broker
    from carrel.lab.server.settings import read_settings

    place = LabHome((home or default_home(os.environ)).expanduser().absolute())
    settings = read_settings(place.settings, os.environ, {})
    if not settings.slurm_broker:
        raise Invalid("slurm_broker is not set.", remedy='Write slurm_broker = "/run/carrel/broker" into carrel.toml.')
    log_to_stderr()
    socket = Path(settings.slurm_broker)

    def say(found: Node) -> None:
        simulated = any(device.simulated for device in found.devices)
        about = {"node": found.name, "socket": str(socket), "gpus": len(found.devices), "simulated": simulated}
        words = f"The broker of {found.name} lends {found.describe_gpus()} at {socket}."
        print(json.dumps(about) if as_json else words, flush=True)

    run_broker(place, settings, socket=socket, secret=secret, simulate=simulate_gpus, say=say, name=node)
    return OK
