"""Where the residency library of Carrel lies: what is loaded into programs that use a GPU (LD_PRELOAD). Standard library only."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"


def library() -> Path:
    """Return the path of the library, for LD_PRELOAD. Raises `FileNotFoundError` where it was not compiled."""
    found = Path(__file__).parent / "libcarrel_residency.so"
    if not found.is_file():
        raise FileNotFoundError(f"{found} was not compiled; install a C compiler, and then this package again")
    return found
