"""What JupyterLab gets: its environment variables, its configuration, its page.

Names: https://jupyter-server.readthedocs.io/en/latest/other/full-config.html, https://jupyterlab.readthedocs.io (advanced usage).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carrel.notebooks import LARGEST_MESSAGE
from carrel.notebooks.hook.kernelspec import client_path
from carrel.notebooks.jupyter.context import SessionContext

#: Where a session keeps JupyterLab's own settings, layout and signatures, below the directory of its files.
STATE = ".carrel/jupyter"
#: Directories of prebuilt JupyterLab extensions, one below the other.
EXTENSIONS = Path(__file__).parent / "labextensions"
_ROOM = "carrel.notebooks.jupyter"
_UNLIMITED = 2**62
#: Plugins of JupyterLab that ask servers which a session does not have, or change an installation that is not its own.
_DISABLED_PLUGINS = (
    "@jupyterlab/apputils-extension:announcements",
    "@jupyterlab/extensionmanager-extension",
    "@jupyterlab/fileeditor-extension:language-server",
    "@jupyterlab/lsp-extension",
    "@jupyterlab/notebook-extension:language-server",
    "@jupyterlab/pluginmanager-extension",
)
#: Shows a dialog when the lab does not answer; the status bar says so, and says no more when it does (`plugins.js`).
_LOST = "@jupyterlab/hub-extension:connectionlost"


def pages_directory(session: SessionContext) -> Path:
    """Where programs of the session may listen on sockets: nobody but its owner comes in."""
    return session.temporary / "pages"


def variables(session: SessionContext, private: Path, directory: Path) -> Mapping[str, str]:
    """What the notebook server, its kernels and its terminals find in their environment beside what the session has."""
    state = directory / STATE
    inherited = os.environ
    return {
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_CONFIG_PATH": "",
        "JUPYTER_NO_CONFIG": "",
        "JUPYTER_PATH": str(private / "data"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "JUPYTER_DATA_DIR": str(state / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(state / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(state / "workspaces"),
        # Programs that listen on a socket in it have their pages at ``/proxy/<name of the socket>/``.
        "CARREL_SESSION_PAGES": str(pages_directory(session)),
        "IPYTHONDIR": inherited.get("IPYTHONDIR") or str(state / "ipython"),
        # Terminals and `!pip` find the environment of the kernel first.
        "PATH": os.pathsep.join((str(session.environment / "bin"), inherited.get("PATH", os.defpath))),
        "VIRTUAL_ENV": str(session.environment),
        "SHELL": next((shell for shell in ("/bin/bash", "/usr/bin/bash") if os.access(shell, os.X_OK)), "/bin/sh"),
    }


def server_config(session: SessionContext, directory: Path, shell: Sequence[str]) -> Mapping[str, Any]:
    """The configuration of the notebook server; `shell` is the command of its terminals."""
    return {
        "ServerApp": {
            "sock": str(session.socket),
            "sock_mode": "0600",
            "root_dir": str(directory),
            "preferred_dir": str(directory),
            "open_browser": False,
            "allow_root": True,
            # Any host name: the socket is for the proxy alone, which has looked at it.
            "allow_remote_access": True,
            "trust_xheaders": False,
            "quit_button": True,
            "identity_provider_class": f"{_ROOM}.provider.SessionIdentityProvider",
            "kernel_manager_class": f"{_ROOM}.kernels.SessionKernelManager",
            "kernel_websocket_connection_class": f"{_ROOM}.kernels.SessionConnection",
            "allow_unauthenticated_access": False,
            "max_body_size": _UNLIMITED,
            "max_buffer_size": _UNLIMITED,
            # Both ends of the socket are on this machine; a browser that is slow for a while is not gone.
            "tornado_settings": {"ws_ping_interval": 0, "websocket_max_message_size": LARGEST_MESSAGE},
            "jpserver_extensions": {
                _ROOM: True,
                "jupyterlab": True,
                "jupyter_server_terminals": True,
                "jupyter_lsp": False,
                "notebook_shim": False,
                "notebook": False,
                "nbclassic": False,
            },
            "terminado_settings": {"shell_command": shell},
        },
        # The proxy vouches for people; a token of the server's own would be a second key, printed into the log.
        "IdentityProvider": {"token": ""},
        "KernelSpecManager": {"ensure_native_kernel": False, "allowed_kernelspecs": ["python3"]},
        "MultiKernelManager": {"default_kernel_name": "python3"},
        # By default a kernel that dies in its first ten seconds comes back on other ports, of which no open page hears.
        "KernelRestarter": {"random_ports_until_alive": False},
        # What a cell prints while nobody is connected is kept for the page that comes back.
        "MappingKernelManager": {"buffer_offline_messages": True, "cull_idle_timeout": 0},
        # Jupyter leaves out outputs above 1 MB/s; on the way to one's own browser there is more room.
        "ZMQChannelsWebsocketConnection": {"iopub_data_rate_limit": 1e8, "iopub_msg_rate_limit": 1e4},
        "LabApp": {
            "news_url": None,
            "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
            "extension_manager": "readonly",
        },
        "LabServerApp": {"extra_labextensions_path": [str(EXTENSIONS)]},
    }


def bash_start(session: SessionContext) -> str:
    """What an interactive bash reads: a person's own file, and then the session's environment first, as for kernels."""
    own = "".join(f"[ -r {file} ] && . {file}\n" for file in ("/etc/bash.bashrc", "~/.bashrc"))
    if session.client:
        own += f"export PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{shlex.quote(client_path(session.client))}\n"
    return f"{own}export PATH={shlex.quote(str(session.environment / 'bin'))}:$PATH\n"


def page_config(session: SessionContext) -> Mapping[str, Any]:
    """The configuration of JupyterLab's page (``labconfig/page_config.json``)."""
    # A JupyterHub has words of its own for a server that does not answer.
    disabled = _DISABLED_PLUGINS if session.hub else (*_DISABLED_PLUGINS, _LOST)
    return {"disabledExtensions": dict.fromkeys(disabled, True), "buildAvailable": False, "buildCheck": False}
