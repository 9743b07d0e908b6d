"""The lab's Rucio, as carrel.toml names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from carrel.core.domain.errors import Invalid
from carrel.core.domain.launch import LaunchRucio


def rucio_of(values: Mapping[str, Any]) -> LaunchRucio | None:
    """Return where inputs from Rucio are brought; None in a lab without. Raises `Invalid` for half of it, or nonsense."""
    url, rse, path = values["rucio_url"].rstrip("/"), values["rucio_rse"], values["rucio_path"]
    auth = values["rucio_auth"].rstrip("/")
    if not url:
        if rse or path or auth:
            raise Invalid("rucio_url is not set, and other settings of Rucio's are.", remedy="Say where Rucio's server is.")
        return None
    for name, address in (("rucio_url", url), ("rucio_auth", auth or url)):
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise Invalid(f'{name} is "{address}".', remedy="Write it like https://rucio.example.org.")
    if not rse:
        raise Invalid("rucio_rse is not set.", remedy="Name the RSE to which Rucio is to bring inputs.")
    begin, _, directory = path.rpartition("=")
    if path and not (begin and directory.startswith("/")):
        raise Invalid(f'rucio_path is "{path}".', remedy="Write it like davs://storage.example.org:443/pool=/pool.")
    return LaunchRucio(url=url, auth=auth, rse=rse, path=path, lifetime=values["rucio_lifetime"])
