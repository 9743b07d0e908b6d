"""Runs a session as the single-user server of a JupyterHub: the hub says who may come in, the lab keeps everything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from carrel.core.domain.errors import Unavailable
from carrel.notebooks.jupyter.context import SessionContext
from carrel_jupyterhub.handover import HandoverServer

#: Seconds that a session waits for what its hub has for it: the spawner sends it as soon as the session listens.
JOIN_SECONDS = 120.0
#: Seconds between pings on idle websockets: there may be proxies in front of the hub that close what is silent for a minute.
_PING_SECONDS = 30
_PROVIDER = "carrel_jupyterhub.provider.HubIdentityProvider"


def serve(session: SessionContext, *, load: Callable[[], object]) -> None:
    """Wait for the hub's variables, then run until it is shut down. Everything else of the session must be set up already.

    `load` imports JupyterLab. Raises `Unavailable` where JupyterHub is not installed, or when nothing comes.
    """
    with HandoverServer(session) as desk:
        try:
            # Takes a second, in which the lab's request waits in the socket's queue.
            load()
            from jupyter_server import DEFAULT_JUPYTER_SERVER_PORT
            from jupyterhub.singleuser.extension import JupyterHubSingleUser  # type: ignore[import-untyped]

            from carrel.notebooks.jupyter.handlers import ActivityHandler
        except ImportError as error:
            raise Unavailable(
                f"JupyterHub's part of a session cannot be loaded: {error}.",
                remedy="Install jupyterhub in the lab's Python, in the hub's major version.",
            ) from error
        joined = desk.wait(JOIN_SECONDS)
    os.environ.update(joined.variables)
    server = JupyterHubSingleUser.initialize_server(argv=_options(joined.variables, DEFAULT_JUPYTER_SERVER_PORT))
    server.web_app.settings["ws_ping_interval"] = _PING_SECONDS
    # The hub has a path of its own for each user; the lab asks every session at the same place.
    server.web_app.add_handlers(".*$", [("/carrel/activity", ActivityHandler)])
    # The server itself listens on the session's socket, for the lab; the hub's proxy comes this way.
    server.io_loop.add_callback(server.http_server.add_sockets, [joined.listener])
    server.start()


def _options(variables: Mapping[str, str], port: int) -> Sequence[str]:
    """Options for the server; those of the command line are the only ones that go before what JupyterHub sets."""
    return (
        f"--ServerApp.identity_provider_class={_PROVIDER}",
        # Jupyter refuses to listen on a socket when its configuration has another port than the default.
        f"--ServerApp.port={port}",
        f"--ServerApp.default_url={variables.get('JUPYTERHUB_DEFAULT_URL') or '/lab'}",
    )
