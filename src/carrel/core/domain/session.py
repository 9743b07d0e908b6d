"""What somebody asks for who wants to work interactively."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Begins the name of an environment that administrators made for everybody.
OF_SITE = "site/"
#: The program that shows VS Code in a browser; where the lab's machine has it, sessions of kind vscode are offered.
CODE_SERVER = "code-server"


class SessionKind(StrEnum):
    """What a session is for."""

    NOTEBOOK = "notebook"
    TERMINAL = "terminal"
    VSCODE = "vscode"


def shown_name(job_id: int, name: str) -> str:
    """Return what a session is called where there may be several: with its number where its user has given it no name."""
    return f"{name} {job_id}" if name in {kind.value for kind in SessionKind} else name


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """The interactive part of a job of kind session; the rest (resources, QoS, records) is as for every job."""

    kind: SessionKind = SessionKind.NOTEBOOK
    #: Where its files are: an absolute path on the node, which outlives the session.
    directory: str
    #: Name of an environment of the owner's (or shared with them), or an absolute path of a virtual environment or conda prefix.
    environment: str = "default"
    #: What "default" is for an owner who has none yet: an environment of the site ("site/torch"), or requirements with blanks
    #: between them; "": a kernel and pip alone.
    default: str = ""
    #: The image in which its kernels and terminals run, as it was asked for; "": they run in `environment`.
    image: str = ""
    #: GPUs that a cell gets when it uses CUDA; 0: none. With `reserve` they are the job's own from start to end.
    gpus: int = 1
    reserve: bool = False
    #: Shares of GPUs that Slurm gives it, in the place of whole ones (gres/shard).
    shards: int = 0
    #: Seconds without a running cell, a connection or GPU work after which it is ended (with a warning before); None: never.
    idle_time: int | None = None
    #: Address of the server at a JupyterHub that this session is run for; "" for the lab's own sessions.
    hub: str = ""
