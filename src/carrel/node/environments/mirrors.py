"""Where packages come from: the lab's pip configuration, handed to uv.

Labs configure their mirrors, local wheels and certificates for pip, and uv does not read that. What pip would use is passed to
uv in environment variables (argument lists are public), unless uv itself is configured: its variables and its files win.
Sources: pip's "Configuration" page, uv's "Environment variables" and "Configuration files" pages.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from carrel.node.environments.activation import clean_path
from carrel.node.environments.words import secrets_in, without_userinfo

#: Variables of uv that decide what a requirement resolves to.
_DECISIVE = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX_STRATEGY",
    "UV_EXCLUDE_NEWER",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
    "UV_FORK_STRATEGY",
    "UV_CONSTRAINT",
    "UV_OVERRIDE",
    "UV_EXCLUDE",
    "UV_NO_BINARY",
    "UV_NO_BINARY_PACKAGE",
    "UV_NO_BUILD",
    "UV_NO_BUILD_PACKAGE",
    "UV_NO_SOURCES",
    "UV_TORCH_BACKEND",
)
#: Variables that must not reach the tools: another environment's, and the lab's own (a build may run anybody's setup.py).
_STRAYS = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_PROJECT",
    "UV_WORKING_DIR",
)
#: Where systems keep the certificates that they trust: Debian, Fedora and RHEL, openSUSE, Alpine.
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_STRAY_PREFIXES = ("CARREL_", "MLFLOW_")
_TRUE = frozenset({"1", "y", "yes", "t", "true", "on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrors:
    """Variables for uv, and what else follows from the configuration."""

    #: The whole process environment for tools.
    variables: Mapping[str, str]
    #: Options that have no variable; nothing secret.
    options: tuple[str, ...]
    #: Literal secrets in the variables.
    secrets: frozenset[str]
    #: Digest of everything here that decides what requirements resolve to, without credentials.
    fingerprint: str
    #: What was left out, for the owner of the job.
    notes: tuple[str, ...]


def read_mirrors(environ: Mapping[str, str], *, site: Path | None = None) -> Mirrors:
    """Return what pip's and uv's configuration say. `site` is the prefix whose pip.conf counts; None: the running one.

    Reads some small files and starts nothing.
    """
    pip = _pip_configuration(environ, site or Path(sys.prefix))
    uv_files = _uv_files(environ)
    variables = {name: value for name, value in environ.items() if name not in _STRAYS and not name.startswith(_STRAY_PREFIXES)}
    variables["PATH"] = os.pathsep.join(clean_path(environ))
    notes: list[str] = []
    _add_indexes(variables, pip, uv_files, notes)
    _add_links(variables, pip, uv_files, notes)
    _add_transport(variables, pip, uv_files)
    variables.update({"NO_COLOR": "1", "UV_NO_PROGRESS": "1"})
    options = ("--no-index",) if pip.get("no-index", "").lower() in _TRUE else ()
    decisive = {name: without_userinfo(variables[name]) for name in _DECISIVE if name in variables}
    files = [hashlib.sha256(text.encode()).hexdigest() for text, _ in uv_files]
    plain = json.dumps([decisive, options, files], sort_keys=True)
    return Mirrors(
        variables=variables,
        options=options,
        secrets=frozenset().union(*(secrets_in(url) for url in _addresses(variables))) | _index_passwords(variables),
        fingerprint=hashlib.sha256(plain.encode()).hexdigest(),
        notes=tuple(notes),
    )


def _add_indexes(
    variables: dict[str, str], pip: Mapping[str, str], uv_files: list[tuple[str, frozenset[str]]], notes: list[str]
) -> None:
    if any(keys & {"index", "index-url", "extra-index-url"} for _, keys in uv_files):
        return
    if "index-url" in pip and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & variables.keys():
        variables["UV_DEFAULT_INDEX"] = pip["index-url"].strip()
    if {"UV_INDEX", "UV_EXTRA_INDEX_URL"} & variables.keys():
        return
    extra = _present(pip.get("extra-index-url", "").split(), "extra-index-url", notes)
    if extra:
        variables["UV_INDEX"] = " ".join(extra)
        # pip takes the best version of any index; uv would stop at the first index that knows the name.
        variables.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")


def _add_links(
    variables: dict[str, str], pip: Mapping[str, str], uv_files: list[tuple[str, frozenset[str]]], notes: list[str]
) -> None:
    if "UV_FIND_LINKS" in variables or any("find-links" in keys for _, keys in uv_files):
        return
    links = _present(pip.get("find-links", "").split(), "find-links", notes)
    if links:
        variables["UV_FIND_LINKS"] = ",".join(links)


def _add_transport(variables: dict[str, str], pip: Mapping[str, str], uv_files: list[tuple[str, frozenset[str]]]) -> None:
    configured = {"UV_SYSTEM_CERTS", "UV_NATIVE_TLS"} & variables.keys() or any(
        keys & {"system-certs", "native-tls"} for _, keys in uv_files
    )
    # Behind a proxy with certificates of its own, these are in the system's store, which pip reads and uv does only when told to.
    if not configured and any(Path(store).is_file() for store in _CERTIFICATES):
        variables["UV_SYSTEM_CERTS"] = "true"
    certificate = pip.get("cert", "")
    if certificate and "SSL_CERT_DIR" not in variables and Path(certificate).is_file():
        variables.setdefault("SSL_CERT_FILE", certificate)
    if "client-cert" in pip:
        variables.setdefault("SSL_CLIENT_CERT", pip["client-cert"])
    if "proxy" in pip and not {"ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy"} & variables.keys():
        variables["ALL_PROXY"] = pip["proxy"]
    if "trusted-host" in pip:
        variables.setdefault("UV_INSECURE_HOST", " ".join(pip["trusted-host"].split()))
    timeout = pip.get("default-timeout") or pip.get("timeout") or ""
    if timeout.isdecimal():
        variables.setdefault("UV_HTTP_TIMEOUT", timeout)


def _present(places: Iterable[str], option: str, notes: list[str]) -> list[str]:
    """Leave out local directories that do not exist: pip only warns about them, uv refuses to work."""
    kept = []
    for place in places:
        local = _local_path(place)
        if local is None:
            kept.append(place)
        elif local.exists():
            kept.append(place if place.startswith("file:") else str(local))
        else:
            notes.append(f"pip's {option} {place} does not exist and is left out")
    return kept


def _local_path(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(place).expanduser().absolute()


def _pip_configuration(environ: Mapping[str, str], site: Path) -> dict[str, str]:
    """Return the options of `pip install` from pip's files and variables, by long name; later sources replace earlier ones."""
    named = environ.get("PIP_CONFIG_FILE")
    files: list[Path] = []
    if named != os.devnull:
        home = Path(environ.get("HOME") or Path.home())
        systems = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
        files += [*(Path(directory) / "pip/pip.conf" for directory in systems), Path("/etc/pip.conf")]
        if not (named and Path(named).exists()):
            files += [home / ".pip/pip.conf", Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
        files += [site / "pip.conf", *([Path(named)] if named else [])]
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
            parser = configparser.RawConfigParser()
            parser.read_string(text)
        except (OSError, configparser.Error):
            continue
        for section, options in sections.items():
            if parser.has_section(section):
                options.update({name.lower().replace("_", "-"): value for name, value in parser.items(section) if value})
    variables = {
        name[4:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("PIP_") and value
    }
    return {**sections["global"], **sections["install"], **variables}


def _uv_files(environ: Mapping[str, str]) -> list[tuple[str, frozenset[str]]]:
    """Return text and keys (those of [pip] too) of each uv.toml that uv will read in any working directory."""
    if environ.get("UV_NO_CONFIG", "").lower() in _TRUE:
        return []
    home = Path(environ.get("HOME") or Path.home())
    systems = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    named = environ.get("UV_CONFIG_FILE")
    places = (
        [Path(named)]
        if named
        else [
            Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml",
            *(Path(directory) / "uv/uv.toml" for directory in systems),
            Path("/etc/uv/uv.toml"),
        ]
    )
    found = []
    for place in places:
        try:
            text = place.read_text(encoding="utf-8")
            content = tomllib.loads(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        section = content.get("pip")
        found.append((text, frozenset(content) | (frozenset(section) if isinstance(section, dict) else frozenset())))
    return found


def _addresses(variables: Mapping[str, str]) -> list[str]:
    names = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
    proxies = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "https_proxy", "http_proxy")
    words = [word for name in (*names, *proxies) for word in variables.get(name, "").replace(",", " ").split()]
    # UV_INDEX may name its indexes: "lab=https://…".
    return [word.partition("=")[2] if "=" in word.partition("://")[0] else word for word in words]


def _index_passwords(variables: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        value
        for name, value in variables.items()
        if name.startswith(("UV_INDEX_", "UV_HTTP_BASIC")) and name.endswith("_PASSWORD") and len(value) >= 4
    )
