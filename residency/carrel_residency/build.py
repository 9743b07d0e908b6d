"""Compiling the library. For the build of the wheel, and for tests."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from carrel_residency import __version__

NAME = "libcarrel_residency.so"
#: -O2 is needed: lookup.c leaves dlsym by a jump. The thread-local variables are ready before any thread calls (-ftls-model).
FLAGS = ("-std=c11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-fvisibility=hidden", "-ftls-model=initial-exec")


def compiler() -> list[str] | None:
    """Return the C compiler's words ($CC, cc or gcc), or None where there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    candidates = [named] if named else [["cc"], ["gcc"]]
    return next((words for words in candidates if shutil.which(words[0])), None)


def compile_library(target: Path, *, sources: Path, flags: Sequence[str] = ()) -> None:
    """Compile all C files of `sources` into the shared library `target`. Raises `RuntimeError` with the compiler's words."""
    words = compiler()
    if words is None:
        raise RuntimeError(
            "The residency library is compiled from C, and there is no C compiler (Debian: apt-get install gcc libc6-dev)."
        )

    define = f'-DCARREL_RESIDENCY_VERSION="{__version__}"'
    files = [str(path) for path in sorted(sources.glob("*.c"))]
    command = [*words, *FLAGS, *flags, define, "-shared", "-Wl,-z,now", "-o", str(target), *files, "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} could not compile {target.name}: {done.stderr.strip()}")
