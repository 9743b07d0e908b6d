"""What a session finds in its environment variables; the runner sets them (`carrel.node.runner.variables`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.core.domain.session import SessionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """One session, as its own processes see it."""

    job_id: int
    attempt: int
    #: The job's own token.
    token: str
    #: Address of the lab, "" when there is none.
    url: str
    #: File with whom to trust when the lab is asked; None: whom the machine trusts.
    authority: str | None
    #: Where the notebook server listens.
    socket: Path
    #: Prefix of the kernel's environment, and its name.
    environment: Path
    environment_name: str
    #: Where the image is in which kernels and terminals run, and its name; None: they run in the environment.
    image: Path | None = None
    image_name: str = ""
    kind: SessionKind
    gpus: int
    reserved: bool
    #: Socket of the node's broker, or None where devices are not lent.
    broker: str | None
    #: Devices that are the session's own from start to end, as CUDA_VISIBLE_DEVICES has them.
    visible: str
    #: Address at the JupyterHub that it is run for, "" for the lab's own.
    hub: str
    temporary: Path
    #: File in which it says where the lab finds it, on another machine than the lab's, and the ports that it may listen on.
    address: Path | None = None
    ports: str = ""
    #: Directory of the lab's client for kernels and terminals, "" when there is none.
    client: str = ""
    #: Descriptor from which it reads what its runner has to say, None when there is none.
    notes: int | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> SessionContext:
        """Raises `Invalid` outside of a session."""
        try:
            return cls(
                job_id=int(variables["CARREL_JOB_ID"]),
                attempt=int(variables["CARREL_ATTEMPT"]),
                token=variables["CARREL_TOKEN"],
                url=variables.get("CARREL_URL", ""),
                authority=variables.get("CARREL_CA_FILE"),
                socket=Path(variables["CARREL_SESSION_SOCKET"]),
                environment=Path(variables["CARREL_SESSION_ENVIRONMENT"]),
                environment_name=variables.get("CARREL_SESSION_ENVIRONMENT_NAME", ""),
                image=Path(variables["CARREL_SESSION_IMAGE"]) if variables.get("CARREL_SESSION_IMAGE") else None,
                image_name=variables.get("CARREL_SESSION_IMAGE_NAME", ""),
                kind=SessionKind(variables.get("CARREL_SESSION_KIND") or SessionKind.NOTEBOOK),
                gpus=int(variables.get("CARREL_SESSION_GPUS") or 0),
                reserved=bool(variables.get("CARREL_SESSION_RESERVED")),
                broker=variables.get("CARREL_BROKER") or None,
                visible=variables.get("CUDA_VISIBLE_DEVICES", ""),
                hub=variables.get("CARREL_SESSION_HUB", ""),
                temporary=Path(variables["TMPDIR"]),
                address=Path(variables["CARREL_SESSION_ADDRESS"]) if variables.get("CARREL_SESSION_ADDRESS") else None,
                ports=variables.get("CARREL_SESSION_PORTS", ""),
                client=variables.get("CARREL_SESSION_CLIENT", ""),
                notes=int(variables["CARREL_SESSION_NOTES"]) if variables.get("CARREL_SESSION_NOTES") else None,
            )
        except (KeyError, ValueError) as error:
            raise Invalid(f"This is no session of Carrel's: {error}.", remedy="Start one with `carrel notebook`.") from error
