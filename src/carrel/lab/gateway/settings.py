"""What an installation may set about its gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.job import REASONS
from carrel.core.domain.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits and places; times in seconds, sizes in bytes."""

    #: Where uploads lie until they are whole; best on the same disk as the snapshots.
    uploads: Path
    #: Where the site's templates are, one directory each; None: it has none.
    templates: Path | None = field(default=None, kw_only=True)
    #: Hosts and networks inside from which repositories are fetched that users name on a page.
    git_hosts: str = ""
    #: The lab's home, which `carrel doctor` looks at; None: there is none (tests).
    home: Path | None = field(default=None, kw_only=True)
    #: Where large arguments and results of calls lie.
    calls: Path
    #: The socket at which programs on this machine get these files; None: they go through HTTP.
    body_socket: Path | None = field(default=None, kw_only=True)
    #: Largest code snapshot.
    max_snapshot: int = GIB
    #: Largest body of every other request.
    max_body: int = 8 * MIB
    #: A comment goes through every idle event stream this often, so that proxies and clients know that it lives.
    heartbeat: float = 15.0
    #: Described tasks that are remembered, so that the same submission again reads no archive.
    described_tasks: int = 256
    #: Calls of one user that have not ended, at most.
    waiting_calls: int = 1_000_000
    #: Name of the lab's directory in links to the tracking pages; they are mounted here.
    tracking_path: str = "/mlflow"
    #: Requests a second of each who is signed in (a user; a job by itself), and so many at once; 0: no limit.
    rate_limit: float = 0.0
    rate_burst: float = 0.0
    #: The same of each address from which nobody signs in, where that is tried or a token is wrong.
    stranger_rate: float = 5.0
    stranger_burst: float = 200.0
    #: Which reads the audit log has (`carrel.lab.audit.READS`).
    audit_reads: str = "none"
    #: Names by which the lab is reached; empty: by any.
    names: frozenset[str] = frozenset()
    #: The address that people know; "": the one by which they ask.
    public_url: str = ""
    #: The address at which nodes of a cluster reach the lab; "": nobody has said one.
    cluster_url: str = ""
    #: Certificate (PEM) of the lab's own authority; "" where it has none.
    authority: str = ""
    #: What reason codes mean: the lab's own, and those that engines declare.
    reasons: Mapping[str, str] = field(default_factory=lambda: REASONS)
    #: Paths beside those of the pages that need no sign-in.
    public: frozenset[str] = field(default_factory=lambda: frozenset({"/health", "/openapi.json", "/authority.pem"}))
