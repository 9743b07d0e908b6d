"""Looks at how people sign in to the lab."""

from __future__ import annotations

import os
from pathlib import Path

from carrel.cli.doctor.check import Check


def sign_in(place: Path) -> Check:
    """By what people sign in."""
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import read_settings
    from carrel.lab.server.sign_in import describe

    status, message, remedy = describe(read_settings(LabHome(place).settings, os.environ, {}))
    return Check("sign-in", status, message, remedy)


def provider(place: Path) -> Check:
    """Whether people can sign in through the provider that the lab's settings name."""
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import read_settings
    from carrel.lab.server.sign_in import describe_provider

    home = LabHome(place)
    status, message, remedy = describe_provider(read_settings(home.settings, os.environ, {}), home.read_address())
    return Check("provider", status, message, remedy)
