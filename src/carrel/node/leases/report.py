"""What the broker of a cluster's node tells the lab: its last `status`, in a file of the lab's home. One file for each broker.

The file has two lines: a code (HMAC-SHA256, hexadecimal) over the second one, with a key that only the lab and its brokers have;
and a JSON object. A file that is torn, or that somebody else wrote, is none.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Longest report in bytes.
LONGEST = 8 * 1024**2
#: Seconds between two reports of a broker that has nothing new to say.
HEARTBEAT = 10.0
_VERSION = 1
_BROKER = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one broker said last."""

    #: Host name of its node.
    node: str
    #: Id of the broker: the same after a restart, another one when its journal is lost.
    broker: str
    #: Grows with each report of this broker.
    number: int
    #: When it was said (Unix seconds, by the node's clock).
    at: float
    #: True when the broker ended after that, as it was asked to.
    ended: bool = False
    #: The fields of its `status` (`carrel.node.leases.protocol`), as the lab itself sees them.
    status: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.broker}.json"


def report_key(secret: bytes) -> bytes:
    """The key for reports of the lab with this secret."""
    return hmac.new(secret, b"carrel-node-report", hashlib.sha256).digest()


def report_bytes(report: Report, key: bytes) -> bytes:
    """The file's content."""
    body = json.dumps({"v": _VERSION, **asdict(report)}, separators=(",", ":"), allow_nan=False).encode()
    return _code(body, key) + b"\n" + body + b"\n"


def read_report(data: bytes, key: bytes) -> Report:
    """The report in a file's content. Raises `ValueError` that says why it is none."""
    code, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if len(data) > LONGEST or not rest.endswith(b"\n") or not hmac.compare_digest(code, _code(body, key)):
        raise ValueError("it is not whole, or not from a broker that has the lab's secret")
    found = json.loads(body)
    if found.get("v") != _VERSION:
        raise ValueError(f"it is of version {found.get('v')!r}, not {_VERSION}: broker and lab are of different releases")
    report = Report(**{name: found[name] for name in ("node", "broker", "number", "at", "ended", "status")})
    if not _BROKER.fullmatch(report.broker) or not math.isfinite(report.at):
        raise ValueError("it names no broker or no time")
    return report


def _code(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode()
