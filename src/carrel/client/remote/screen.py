"""Where a remote call's displays appear: the notebook, or as text where there is none."""

from __future__ import annotations

import sys
import uuid
from typing import Any


def notebook_shell() -> Any:
    """IPython's shell of this process, or None."""
    module = sys.modules.get("IPython.core.getipython")
    return module.get_ipython() if module is not None else None


class Screen:
    """Shows messages of `carrel_worker.display`."""

    def __init__(self) -> None:
        self._shell = notebook_shell()

    @property
    def is_notebook(self) -> bool:
        """False where only text can be shown."""
        return self._shell is not None

    def put(self, message: dict[str, Any]) -> None:
        """Show one message."""
        if message["kind"] == "clear":
            if self._shell is not None:
                self._shell.display_pub.clear_output(wait=message["wait"])
            return
        data = message["data"]
        if self._shell is None:
            print(data.get("text/plain", ""), flush=True)
            return
        name = message.get("display_id")
        self._shell.display_pub.publish(
            data=data,
            metadata=message.get("metadata") or {},
            transient={"display_id": name} if name else {},
            update=message["kind"] == "update",
        )


class Line:
    """One line that says what is waited for, and changes in its place."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._name = uuid.uuid4().hex
        self._last = ""

    def show(self, text: str) -> None:
        """Say it, if it is news."""
        if text != self._last:
            kind = "update" if self._last else "display"
            self._last = text
            if self._screen.is_notebook:
                self._screen.put({"kind": kind, "data": {"text/plain": text}, "display_id": self._name})
            else:
                print(f"carrel: {text}", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        """The wait is over; nothing is said about one that was too short to be shown."""
        if self._last and not self._last.startswith("waited"):
            self.show(text)
