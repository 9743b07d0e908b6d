"""One question to PAM, in a process of its own: its modules are C code that may block, crash or write where it likes.

Reads one line of JSON (`service`, `user`, `password`, `directory`) and writes one (`right`, `reason`). Run as a file,
isolated, so that nothing of the lab is in its memory: standard library and pamela only.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys


def main() -> None:
    """Answer, and end."""
    asked = json.loads(sys.stdin.readline())
    # Modules print as they like (pam_exec): the answer goes out by a descriptor that they do not know.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        import pamela
    except (ImportError, OSError) as error:
        told = {"right": False, "reason": f"PAM is not there: {error}", "broken": True}
    else:
        if asked["directory"]:
            _read_from(pamela, asked["directory"])
        told = _ask(pamela, asked["service"], asked["user"], asked["password"])
    answer.write(json.dumps(told) + "\n")
    answer.flush()


def _ask(pamela: object, service: str, user: str, password: str) -> dict[str, object]:
    try:
        # With the account's own rules (expired, locked, hours); without credentials, which nobody here would use.
        pamela.authenticate(user, password, service=service, resetcred=0)  # type: ignore[attr-defined]
    except pamela.PAMError as error:  # type: ignore[attr-defined]
        return {"right": False, "reason": str(error)}
    return {"right": True, "reason": ""}


def _read_from(pamela: object, directory: str) -> None:
    """Let PAM read its services in `directory` alone (pam_start_confdir(3), Linux-PAM 1.4)."""
    start = pamela.LIBPAM.pam_start_confdir  # type: ignore[attr-defined]
    start.restype = ctypes.c_int
    known = pamela.PAM_START.argtypes  # type: ignore[attr-defined]
    start.argtypes = [*known[:3], ctypes.c_char_p, known[3]]

    def begin(service: bytes, user: bytes, conversation: object, handle: object) -> int:
        return int(start(service, user, conversation, os.fsencode(directory), handle))

    pamela.PAM_START = begin  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
