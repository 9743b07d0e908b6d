"""The other end of the pipes of `mig_process`: a line in, a line out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.fabric import Change
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.units import GIB
from carrel.engines.fabric import Host, MigFabric
from carrel.node.devices import DeviceLocks


def serve(path: Path, gpus: Sequence[str]) -> None:
    locks = path.with_name("locks")
    locks.mkdir(exist_ok=True)
    locks.chmod(0o1777)
    host = Host(name="here", cpus=32, memory=256 * GIB, gpus=tuple(gpus))
    fabric = MigFabric(path, host, locks=DeviceLocks(locks))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "change" in asked:
                fabric.do(from_plain(Change, asked["change"]), fence=asked["fence"])
            answer: dict[str, Any] = {"ok": None if "change" in asked else to_plain(list(fabric.blocks()))}
        except CarrelError as error:
            answer = {"error": [error.code, str(error)]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(sys.argv[2]))
