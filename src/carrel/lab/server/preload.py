"""The residency library beside Carrel: whether programs that borrow GPUs load it, and where it is."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Device

#: What the setting `residency` may be.
CHOICES = ("auto", "off")


def check_choice(choice: str) -> None:
    """Raise `Invalid` unless the setting is one of `CHOICES`."""
    if choice not in CHOICES:
        raise Invalid(f'residency is "{choice}".', remedy=f"It must be one of: {', '.join(CHOICES)}.")


def find_library() -> tuple[str, str]:
    """The path of the library in the lab's own Python, and why there is none ("" for that)."""
    try:
        # By its name: it is a package of its own, and a lab without it is a lab.
        return str(importlib.import_module("carrel_residency").library()), ""
    except ImportError:
        return "", "carrel-lab-residency is not installed"
    except (AttributeError, OSError) as error:
        return "", str(error)


def library_for(choice: str, devices: Sequence[Device] | None = None) -> str:
    """The library that programs on these devices load, of other machines if None; "" where it is not wanted, is not there, or
    has nothing to do.
    """
    if choice == "off" or (devices is not None and all(device.simulated for device in devices)):
        return ""
    return find_library()[0]
