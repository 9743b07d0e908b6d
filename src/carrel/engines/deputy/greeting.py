"""How a conversation with a deputy begins: the lab looks at who is there, and shows who it is itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import carrel
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.serial import from_plain
from carrel.core.spool.seal import opening_of
from carrel.engines.deputy.frames import VERSION, Signer

#: Characters of a word of a deputy that go into a message.
_LONGEST = 64


class Greeting:
    """The lab's answer to a deputy of one user that says hello."""

    def __init__(self, *, user: str, lab: str, signer: Signer | None, settings: Mapping[str, Any]) -> None:
        """`settings` are told to the deputy as they are."""
        self._user = user
        self._lab = lab
        self._signer = signer
        self._settings = dict(settings)
        if signer is not None:
            self._settings["key"] = signer.public

    def opening(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first message to who said `head`. Raises `Unavailable` for a deputy of another Carrel or user."""
        theirs, user = (from_plain(str, head[name])[:_LONGEST] for name in ("carrel", "user"))
        if head["version"] != VERSION:
            raise Unavailable(
                f"The deputies are of Carrel {theirs}, the lab is of {carrel.__version__}.",
                remedy="Install the same for both.",
            )
        if user != self._user:
            raise Unavailable(f"The deputy runs as {user}, not as {self._user}.", remedy="Mend slurm_deputy.")
        opening: dict[str, Any] = {"is": "open", "lab": self._lab, **self._settings}
        if self._signer is not None:
            opening["signature"] = self._signer.sign(opening_of(str(head["nonce"]), self._user, self._lab))
        return opening
