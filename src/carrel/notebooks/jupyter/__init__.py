"""What runs inside a session: JupyterLab with the lab's identity, one kernel, and what the lab shows in it."""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "carrel.notebooks.jupyter"}]


def _load_jupyter_server_extension(app: Any) -> None:
    from carrel.notebooks.jupyter.handlers import add_handlers

    add_handlers(app)
