"""Whether this machine lets anybody make namespaces, as another program than ours finds it."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

_WORDS = ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--uts", "true")


@cache
def why_no_namespaces() -> str:
    """Why unshare(1) cannot make what walls are made of; "" when it can."""
    program = shutil.which("unshare")
    if program is None:
        return ""
    done = subprocess.run([program, *_WORDS], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"unshare ended with {done.returncode}"
