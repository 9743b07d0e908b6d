"""What is installed: Carrel itself, and what other packages bring to it by entry points."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from carrel.core.domain.errors import Invalid

#: What Carrel is called among distributions. The command and the module are `carrel`, which on PyPI is another program's name.
DISTRIBUTION = "carrel-lab"


def origin(item: Distribution) -> tuple[str, bool]:
    """The address that a distribution was installed from ("" for an index), and whether it is editable (PEP 610)."""
    said = json.loads(item.read_text("direct_url.json") or "{}")
    url = said.get("url", "")
    if url and (vcs := said.get("vcs_info")):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return url, bool(said.get("dir_info", {}).get("editable"))


def install_command(extra: str = "") -> str:
    """The command that installs Carrel from where this one came from, with one of its extras.

    By its name alone no index has it before there is a release. Where the origin is not known, a checkout stands as an example.
    """
    try:
        url, editable = origin(distribution(DISTRIBUTION))
    except PackageNotFoundError:
        url, editable = "", False
    extras = f"[{extra}]" if extra else ""
    if url and not url.startswith("file:"):
        return f"pip install {shlex.quote(f'{DISTRIBUTION}{extras} @ {url}')}"
    place = unquote(urlsplit(url).path)
    if not place or not Path(place).exists():
        place, editable = "/path/to/carrel-checkout", False
    return f"pip install {'-e ' if editable else ''}{shlex.quote(f'{place}{extras}')}"


def installed(group: str) -> dict[str, Any]:
    """Return what the entry points of a group name, by their names in order. Raises `Invalid` for a name that is there twice."""
    found: dict[str, Any] = {}
    for point in sorted(entry_points(group=group)):
        if point.name in found:
            raise Invalid(f'Two packages bring "{point.name}" ({group}).', remedy="Uninstall one of them.")
        found[point.name] = point.load()
    return found
