"""Sessions that a JupyterHub runs for its users: what may be asked for them and told to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.domain.session import SessionKind

#: What a single-user server cannot do without (`jupyterhub.spawner.Spawner.get_env`).
REQUIRED = ("JUPYTERHUB_API_TOKEN", "JUPYTERHUB_API_URL", "JUPYTERHUB_SERVICE_PREFIX", "JUPYTERHUB_SERVICE_URL")
_LONGEST_ADDRESS = 1000
#: Characters of all variables together.
_LONGEST = 64 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: On these the session itself depends.
_OWN = frozenset({"CUDA_VISIBLE_DEVICES", "HOME", "IPYTHONDIR", "PATH", "SHELL", "TMPDIR", "VIRTUAL_ENV"})
_OWN_PREFIXES = ("CARREL_", "JUPYTER_", "JUPYTERLAB_", "LD_", "PYTHON")


def check_hub(address: str, kind: SessionKind) -> str:
    """The address at a JupyterHub for which a session is asked, "" for none. Raises `Invalid` or `Unavailable`."""
    if not address:
        return ""
    parts = urlsplit(address)
    plain = address.isascii() and address.isprintable() and " " not in address
    if parts.scheme not in ("http", "https") or not parts.netloc or not plain or len(address) > _LONGEST_ADDRESS:
        raise Invalid(
            f'"{address[:100]}" is not the address of a server at a JupyterHub.', remedy='It is like "https://hub.lab/user/ada/".'
        )
    if kind is not SessionKind.NOTEBOOK:
        raise Invalid(f"A {kind} for a JupyterHub.", remedy='Ask for a session of kind "notebook": it has terminals too.')
    if find_spec("carrel_jupyterhub") is None:
        raise Unavailable(
            "This lab cannot run sessions for a JupyterHub: the package carrel_jupyterhub is not installed beside it.",
            remedy="Ask its administrator to install packages/jupyterhub of Carrel's repository in the lab's Python.",
        )
    return address


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise `Invalid` when this is not what a JupyterHub tells its single-user server. No value is ever in the message."""
    missing = [name for name in REQUIRED if not variables.get(name)]
    if missing:
        raise Invalid(f"What the hub tells the session lacks {', '.join(missing)}.", remedy="Send what `Spawner.get_env` gives.")
    for name in variables:
        if not _NAME.fullmatch(name):
            raise Invalid(f'"{name[:100]}" is not a name for a variable.', remedy="Use letters, digits and underscores.")
        if name in _OWN or name.startswith(_OWN_PREFIXES):
            raise Invalid(
                f"The variable {name} is the session's own.", remedy="Take it out of `c.CarrelSpawner.environment` in the hub."
            )
        if "\0" in variables[name]:
            raise Invalid(f"The variable {name} holds a zero byte.", remedy="Take it out.")
    if sum(len(name) + len(value) for name, value in variables.items()) > _LONGEST:
        raise Invalid(f"The variables are longer than {_LONGEST} characters together.", remedy="Send fewer.")
    if variables.get("JUPYTERHUB_SSL_KEYFILE"):
        raise Invalid(
            "The hub has internal_ssl, which sessions of Carrel do not have.", remedy="Set `c.JupyterHub.internal_ssl = False`."
        )
    check_service_url(variables["JUPYTERHUB_SERVICE_URL"])


def check_service_url(address: str) -> tuple[str, int]:
    """Host ("" for all) and port (0: any) of ``JUPYTERHUB_SERVICE_URL``. Raises `Invalid`."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        parts, host, port = None, "", 0
    if parts is None or parts.scheme != "http":
        raise Invalid("JUPYTERHUB_SERVICE_URL is not like http://127.0.0.1:0/user/ada/.", remedy="Set `c.CarrelSpawner.ip`.")
    return host, port
